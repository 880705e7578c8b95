#include "pass.inl"

namespace forerun {

const Isa* isa_avx512() {
    static const Isa isa{"avx512", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
