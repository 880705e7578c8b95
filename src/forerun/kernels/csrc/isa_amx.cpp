#include "pass.inl"

namespace forerun {

const Isa* isa_amx() {
    static const Isa isa{"amx", run_pass, race, ranks, chances, draw, likeliest, rotate_rows, add_up};
    return &isa;
}

}  // namespace forerun
