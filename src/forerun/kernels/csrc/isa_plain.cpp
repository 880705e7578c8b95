#include "pass.inl"

namespace forerun {

const Isa* isa_plain() {
    static const Isa isa{"plain", run_pass, race, ranks};
    return &isa;
}

}  // namespace forerun
