// What the pass asks of a GPU, as functions: PTX for compute capability 9.0 and later.
// tests/unit/kernels/emulate.h has these names for a CPU, so that the pass is tested where there is no GPU.


#define DEVICE __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define FIXED __device__ constexpr
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name
#define UNROLL _Pragma("unroll")
#define UNROLL_NOT _Pragma("unroll 1")

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(16) Four {
    u32 x, y, z, w;
};

extern __shared__ __align__(1024) char shared_[];

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE char* shared_memory() { return shared_; }
DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

DEVICE float exp2_(float x) { return exp2f(x); }
DEVICE float rsqrt_(float x) { return rsqrtf(x); }
DEVICE void sincos_(float angle, float* sin, float* cos) { sincosf(angle, sin, cos); }
DEVICE float bits_to_float(u32 v) { return __uint_as_float(v); }
DEVICE u32 float_to_bits(float v) { return __float_as_uint(v); }

DEVICE u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

DEVICE u32 multiply_bf16(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

DEVICE void set_flag(u32* shared, u32 value) { *static_cast<volatile u32*>(shared) = value; }
DEVICE u32 is_set(const u32* shared) { return *static_cast<const volatile u32*>(shared); }

DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE int shuffle_xor_int(int v, int mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
DEVICE void warp_sync() { __syncwarp(); }

DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE u32 transpose8(u32 v) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
    return out;
}

DEVICE void block_sync(int id, int count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }
DEVICE void block_sync_all() { __syncthreads(); }

DEVICE void barrier_init(u64* b, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
DEVICE void barrier_arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE void barrier_wait(u64* b, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again%=;\n}" ::"r"(shared_address(b)),
        "r"(parity)
        : "memory");
}
DEVICE void copy_async(void* shared, const void* global, u32 bytes, u64* b) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(b))
        : "memory");
}

DEVICE Four load_shared(const void* p) {
    Four v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared_address(p)));
    return v;
}
// Past the first cache, which does not see what other blocks write; and relaxed, since a weak load in a loop that waits is
// taken for one whose answer does not change.
DEVICE Four load_fresh(const void* p) {
    Four v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
DEVICE Four load_read_only(const void* p) {
    Four v;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEVICE float load_fresh_float(const float* p) {
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void store_fresh(u16* p, u32 pair) {  // one word, whole, to where `load_fresh` reads
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(pair) : "memory");
}
DEVICE void look_again() {}  // between two looks at a word: a GPU's warps take turns by themselves
DEVICE void bring_near(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
DEVICE void bring_closer(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

DEVICE void grid_arrive(u32* counter) {  // with all that this block wrote before
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Until it is that or more. What was written before is then where `load_fresh` reads; an acquiring load would empty the
// first cache besides, at every look.
DEVICE void grid_wait(const u32* counter, u32 target) {
    u32 seen;
    do {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (static_cast<int>(seen - target) < 0);
}
// Count up to `most`, then from 0 again; whether this was the last, who then sees what the others wrote before.
DEVICE bool grid_count(u32* counter, u32 most) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(most - 1) : "memory");
    return old == most - 1;
}
// Registers go from warps that need few to those that need many. A block's 640 threads begin with 96 each, so what 512 take
// has to be what 128 give; who asked for more than there are would wait for ever.
static_assert(128 * FEWER + 512 * MORE == 640 * 96, "registers that nobody gave are waited for");
DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER)); }
DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE)); }
