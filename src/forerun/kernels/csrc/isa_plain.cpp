#include "pass.inl"

namespace forerun {

const Isa* isa_plain() {
    static const Isa isa{"plain", run_pass};
    return &isa;
}

}  // namespace forerun
