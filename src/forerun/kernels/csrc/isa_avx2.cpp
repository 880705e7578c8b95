#include "pass.inl"

namespace forerun {

const Isa* isa_avx2() {
    static const Isa isa{"avx2", run_pass};
    return &isa;
}

}  // namespace forerun
