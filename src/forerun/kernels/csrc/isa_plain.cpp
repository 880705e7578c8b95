#include "pass.inl"

namespace forerun {

const Isa* isa_plain() {
    static const Isa isa{"plain", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
