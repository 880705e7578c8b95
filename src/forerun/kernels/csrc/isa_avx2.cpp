#include "pass.inl"

namespace forerun {

const Isa* isa_avx2() {
    static const Isa isa{"avx2", run_pass, race, ranks};
    return &isa;
}

}  // namespace forerun
