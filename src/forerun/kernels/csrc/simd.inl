// Sixteen floats at a time, for whichever instruction set this file is compiled for. Every function gives a lane the
// same bits whatever the other lanes hold; sums over lanes follow one fixed tree.
// Included inside a namespace; the headers it needs are pass.inl's.

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

// As many numbers as one register holds.
#if defined(__AVX512BW__)
constexpr int REGISTER = 64, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int REGISTER = 32, REGISTERS = 16;
#else
constexpr int REGISTER = 16, REGISTERS = 16;
#endif
constexpr int FLOATS = REGISTER / 4;
typedef float wf __attribute__((vector_size(REGISTER)));
typedef int32_t wi __attribute__((vector_size(REGISTER)));
typedef uint16_t ws __attribute__((vector_size(REGISTER)));
typedef uint8_t wb __attribute__((vector_size(REGISTER)));

#define INLINE static inline __attribute__((always_inline))

// What sums live in: longer vectors than a register's lie in memory.
INLINE wf load_some(const float* p) { wf v; std::memcpy(&v, p, sizeof v); return v; }
INLINE wf load_some(const uint16_t* p) {
#if defined(__AVX512F__)
    return (wf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (wf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    return (wf)(wi{p[0], p[1], p[2], p[3]} << 16);
#endif
}
INLINE wf load_some(const int8_t* p) {
#if defined(__AVX512F__)
    return (wf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return (wf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    return __builtin_convertvector(wi{p[0], p[1], p[2], p[3]}, wf);
#endif
}
INLINE void store_some(float* p, wf v) { std::memcpy(p, &v, sizeof v); }
INLINE wi repeat_whole(int32_t n) { return wi{} + n; }
INLINE wf repeat(float f) { int32_t bits; std::memcpy(&bits, &f, 4); return (wf)repeat_whole(bits); }
INLINE wf fma(wf a, wf b, wf c) {
#if defined(__AVX512F__)
    return (wf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (wf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// Bytes -> whole numbers.
INLINE wi spread(const uint8_t* p) {
#if defined(__AVX512BW__)
    return (wi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (wi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    return wi{p[0], p[1], p[2], p[3]};
#endif
}

INLINE vf load(const float* p) { vf v; std::memcpy(&v, p, sizeof v); return v; }
// bfloat16, to the nearest, ties to even; a NaN stays one unless its low bits alone say so.
INLINE vi narrow(vf v) { return (((vi)v + 0x7fff + ((vi)v >> 16 & 1)) >> 16) & 0xffff; }
INLINE vf load(const uint16_t* p) {
    vh bits; std::memcpy(&bits, p, sizeof bits);
    return (vf)(__builtin_convertvector(bits, vi) << 16);
}
INLINE vf load(const int8_t* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#else
    typedef int8_t bytes __attribute__((vector_size(16)));
    bytes b; std::memcpy(&b, p, 16);
    return __builtin_convertvector(__builtin_convertvector(b, vi), vf);
#endif
}
INLINE void store(uint16_t* p, vf v) {
    const vh low = __builtin_convertvector(narrow(v), vh);
    std::memcpy(p, &low, sizeof low);
}
// Whole numbers from -128 to 127.
INLINE void store(int8_t* p, vf v) {
    const vi whole = __builtin_convertvector(v, vi);
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)whole));
#else
    for (int i = 0; i < 16; ++i) p[i] = (int8_t)whole[i];
#endif
}
INLINE float widen_value(float v) { return v; }
INLINE float widen_value(uint16_t v) { return widen_bfloat(v); }
INLINE float widen_value(int8_t v) { return v; }
INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
INLINE vi splat_whole(int32_t n) { return vi{} + n; }
INLINE vf splat(float f) { int32_t bits; std::memcpy(&bits, &f, 4); return (vf)splat_whole(bits); }  // no sum, which would be calculated
INLINE vf zero() { return vf{}; }
INLINE vf select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf larger(vf a, vf b) { return select(a > b, a, b); }
INLINE vf magnitude(vf a) { return (vf)((vi)a & 0x7fffffff); }

#if !defined(__AVX512BW__)  // where it is not a register's
INLINE vf fma(vf a, vf b, vf c) {
#if defined(__FMA__)
    __m256 x[2], y[2], z[2];
    std::memcpy(x, &a, 64); std::memcpy(y, &b, 64); std::memcpy(z, &c, 64);
    z[0] = _mm256_fmadd_ps(x[0], y[0], z[0]); z[1] = _mm256_fmadd_ps(x[1], y[1], z[1]);
    std::memcpy(&c, z, 64);
    return c;
#else
    return a * b + c;
#endif
}
#endif

INLINE float sum(vf v) {
    float f[16]; std::memcpy(f, &v, 64);
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; ++i) f[i] += f[i + step];
    return f[0];
}

INLINE float largest(vf v) {
    float f[16]; std::memcpy(f, &v, 64);
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; ++i) f[i] = f[i] > f[i + step] ? f[i] : f[i + step];
    return f[0];
}

// The nearest whole number, ties to even, for |x| < 2^22.
INLINE vf nearest(vf x) {
    const vf magic = splat(12582912.0f);
    return (x + magic) - magic;
}

// e^x to 2 units in the last place; exactly 0 below -87, so that a hidden key weighs nothing.
INLINE vf exponential(vf x) {
    const vi low = x < -87.0f;
    x = select(x > 88.0f, splat(88.0f), x);
    x = select(low, zero(), x);
    const vf n = nearest(x * 1.44269504088896341f);
    vf r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    const vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return select(low, zero(), p * (vf)power);
}

// a / b to 2 units in the last place, for |b| from 2^-120 to 2^127.
INLINE vf quotient(vf a, vf b) {
#if defined(__AVX512F__)
    const vf r = (vf)_mm512_rcp14_ps((__m512)b);
    return a * fma(r, 1.0f - b * r, r);
#else
    return a / b;
#endif
}

INLINE vf hyperbolic_tangent(vf x) {
    const vf y = 1.0f - 2.0f / (exponential(magnitude(x) * 2.0f) + 1.0f);
    const vf small = fma(x * x * x, splat(-1.0f / 3), x);  // where the difference above would cancel
    return select(magnitude(x) < 0.02f, small, select(x < 0.0f, -y, y));
}

// erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
INLINE vf error_function(vf x) {
    const vf a = magnitude(x), t = 1.0f / fma(splat(0.3275911f), a, splat(1.0f));
    vf p = splat(1.061405429f);
    p = fma(p, t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    const vf y = 1.0f - p * t * exponential(-a * a);
    return select(x < 0.0f, -y, y);
}

INLINE vf activate(Activation kind, vf x) {
    switch (kind) {
        case Activation::SILU: return quotient(x, exponential(-x) + 1.0f);
        case Activation::GELU: return x * 0.5f * (error_function(x * 0.70710678118654752f) + 1.0f);
        case Activation::GELU_TANH: {
            const vf inner = fma(x * x * x, splat(0.044715f), x) * 0.79788456080286536f;
            return x * 0.5f * (hyperbolic_tangent(inner) + 1.0f);
        }
        case Activation::RELU: return select(x > 0.0f, x, zero());
    }
    return x;
}

// Calls f(constant 0), f(constant 1), ...: indices of register arrays must be constants, or they go to memory.
template <int N> struct Index { static constexpr int value = N; };
template <typename F, int... I> INLINE void each(F&& f, std::integer_sequence<int, I...>) { (f(Index<I>{}), ...); }
template <int N, typename F> INLINE void unroll(F&& f) { each(f, std::make_integer_sequence<int, N>{}); }

// Weights of a step, which is one input, or two of BF16: of each, register `part` of the 32 outputs.
template <Kind K> constexpr int INPUTS = K == Kind::BF16 ? 2 : 1;
template <Kind K> constexpr int STEP = K == Kind::F16 ? 64 : 128;
template <Kind K> INLINE wf load_weights(const uint8_t* p, int input, int part) {
    if constexpr (K == Kind::F32) {
        return load_some((const float*)p + FLOATS * part);
    } else if constexpr (K == Kind::BF16) {
        wi pairs; std::memcpy(&pairs, p + REGISTER * part, sizeof pairs);
        return input ? (wf)(pairs & (int32_t)0xffff0000) : (wf)(pairs << 16);
    } else {
        const uint8_t* at = p + REGISTER / 2 * part;
#if defined(__AVX512F__)
        return (wf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at));
#elif defined(__F16C__)
        return (wf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at));
#else
        uint16_t half[FLOATS]; std::memcpy(half, at, sizeof half);
        return wf{widen_half(half[0]), widen_half(half[1]), widen_half(half[2]), widen_half(half[3])};
#endif
    }
}
