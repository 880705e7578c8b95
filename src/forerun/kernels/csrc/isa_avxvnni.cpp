#include "pass.inl"

namespace forerun {

const Isa* isa_avxvnni() {
    static const Isa isa{"avxvnni", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
