#include "pass.inl"

namespace forerun {

const Isa* isa_avx2() {
    static const Isa isa{"avx2", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
