#include "pass.inl"

namespace forerun {

const Isa* isa_avx512vnni() {
    static const Isa isa{"avx512vnni", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
