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
INLINE wi load_whole(const void* p) { wi v; std::memcpy(&v, p, sizeof v); return v; }
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

// Sums, each with four products of bytes, of which the first are without sign.
#if defined(__AVX512VNNI__)
#define DOTS
INLINE wi add_dots(wi sum, wi a, wi b) { return (wi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
#elif defined(__AVXVNNI__)
#define DOTS
INLINE wi add_dots(wi sum, wi a, wi b) { return (wi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b); }
#elif defined(__AVX2__)
#define IN_PAIRS  // none such: that of pairs may overflow
#endif

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
template <typename T> INLINE vf load_wide(const T* p) {
    vf out;
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += FLOATS) store_some((float*)&out + i, load_some(p + i));
    return out;
}
INLINE vf load(const uint16_t* p) { return load_wide(p); }
INLINE vf load(const int8_t* p) { return load_wide(p); }
INLINE void store(uint16_t* p, vf v) {
    const vh low = __builtin_convertvector(narrow(v), vh);
    std::memcpy(p, &low, sizeof low);
}
// Whole numbers from -128 to 127.
INLINE void store_bytes(int8_t* p, wi whole) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)whole));
#elif defined(__AVX2__)
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)whole), _mm256_extracti128_si256((__m256i)whole, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(shorts, shorts));
#else
    for (int i = 0; i < FLOATS; ++i) p[i] = (int8_t)whole[i];
#endif
}
INLINE void store(int8_t* p, vf v) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += FLOATS) store_bytes(p + i, __builtin_convertvector(load_some((const float*)&v + i), wi));
}
INLINE float widen_value(float v) { return v; }
INLINE float widen_value(uint16_t v) { return widen_bfloat(v); }
INLINE float widen_value(int8_t v) { return v; }
INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
INLINE wi lanes() {
    wi lane;
#pragma GCC unroll 16
    for (int i = 0; i < FLOATS; ++i) lane[i] = i;
    return lane;
}
// Of all lanes, two halves at a time; what is copied by its address would live in memory before, too.
template <int Apart = FLOATS / 2, typename F> INLINE float together(wf v, F&& f) {
    if constexpr (Apart == 0) return v[0];
    else return together<Apart / 2>(f(v, __builtin_shuffle(v, lanes() ^ Apart)), f);
}
INLINE vf swap_pairs(vf v) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += FLOATS) store_some((float*)&v + i, __builtin_shuffle(load_some((const float*)&v + i), lanes() ^ 1));
    return v;
}
INLINE vi splat_whole(int32_t n) { return vi{} + n; }
INLINE vf splat(float f) { int32_t bits; std::memcpy(&bits, &f, 4); return (vf)splat_whole(bits); }  // no sum, which would be calculated
INLINE vf zero() { return vf{}; }
// Calls f(constant 0), f(constant 1), ...: indices of register arrays must be constants, or they go to memory.
template <int N> struct Index { static constexpr int value = N; };
template <typename F, int... I> INLINE void each(F&& f, std::integer_sequence<int, I...>) { (f(Index<I>{}), ...); }
template <int N, typename F> INLINE void unroll(F&& f) { each(f, std::make_integer_sequence<int, N>{}); }

INLINE bool any(wi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask);
#else
    return mask[0] | mask[1] | mask[2] | mask[3];
#endif
}
INLINE wf select(wi mask, wf yes, wf no) { return (wf)((mask & (wi)yes) | (~mask & (wi)no)); }
// a where it is larger (smaller), else b, so b where one of them is NaN.
#if defined(__AVX512F__)
INLINE wf larger(wf a, wf b) { return (wf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE wf smaller(wf a, wf b) { return (wf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
INLINE wf larger(wf a, wf b) { return (wf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE wf smaller(wf a, wf b) { return (wf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
INLINE wf larger(wf a, wf b) { return select(a > b, a, b); }
INLINE wf smaller(wf a, wf b) { return select(a < b, a, b); }
#endif
INLINE wf magnitude(wf a) { return (wf)((wi)a & 0x7fffffff); }

// The nearest whole number, ties to even, for |x| < 2^22.
INLINE wf nearest(wf x) {
    const wf magic = repeat(12582912.0f);
    return (x + magic) - magic;
}

// e^x to 2 units in the last place; exactly 0 below -87, so that a hidden key weighs nothing.
INLINE wf exponential(wf x) {
#if defined(__AVX512F__)
    const __mmask16 low = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
#else
    const wi low = x < -87.0f;
#endif
    x = larger(repeat(-87.0f), smaller(repeat(88.0f), x));  // a NaN stays
    const wf n = nearest(x * 1.44269504088896341f);
    wf r = fma(n, repeat(-0.693359375f), x);
    r = fma(n, repeat(2.12194440e-4f), r);
    wf p = repeat(1.9875691500e-4f);
    p = fma(p, r, repeat(1.3981999507e-3f));
    p = fma(p, r, repeat(8.3334519073e-3f));
    p = fma(p, r, repeat(4.1665795894e-2f));
    p = fma(p, r, repeat(1.6666665459e-1f));
    p = fma(p, r, repeat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
    return (wf)_mm512_maskz_scalef_ps((__mmask16)~low, (__m512)p, (__m512)n);
#else
    const wi power = (__builtin_convertvector(n, wi) + 127) << 23;
    return select(low, wf{}, p * (wf)power);
#endif
}

#if defined(__AVX512BF16__)
// 2^power e^x to 1e-4, which is a twentieth of what rounding to bfloat16 leaves of it; exactly 0 for minus infinity.
INLINE __m512 rough_exponential(__m512 x, float power = 0) {
    const __m512 y = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504088896341f), _mm512_set1_ps(power)), r = _mm512_reduce_ps(y, 0);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.05583828f), _mm512_set1_ps(0.24263948f));  // 2^r, |r| <= 1/2
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69313673f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.99992456f));
    return _mm512_scalef_ps(p, _mm512_sub_ps(y, r));
}
#endif

// a / b to 2 units in the last place, for |b| from 2^-120 to 2^127.
INLINE wf quotient(wf a, wf b) {
#if defined(__AVX512F__)
    const wf r = (wf)_mm512_rcp14_ps((__m512)b);
    return a * fma(r, 1.0f - b * r, r);
#else
    return a / b;
#endif
}

INLINE wf hyperbolic_tangent(wf x) {
    const wf y = 1.0f - 2.0f / (exponential(magnitude(x) * 2.0f) + 1.0f);
    const wf small = fma(x * x * x, repeat(-1.0f / 3), x);  // where the difference above would cancel
    return select(magnitude(x) < 0.02f, small, select(x < 0.0f, -y, y));
}

// erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
INLINE wf error_function(wf x) {
    const wf a = magnitude(x), t = 1.0f / fma(repeat(0.3275911f), a, repeat(1.0f));
    wf p = repeat(1.061405429f);
    p = fma(p, t, repeat(-1.453152027f));
    p = fma(p, t, repeat(1.421413741f));
    p = fma(p, t, repeat(-0.284496736f));
    p = fma(p, t, repeat(0.254829592f));
    const wf y = 1.0f - p * t * exponential(-a * a);
    return select(x < 0.0f, -y, y);
}

typedef double doubles __attribute__((vector_size(64)));
typedef int64_t wholes __attribute__((vector_size(64)));

// Sines and cosines of |angles| below 2^24 to 1e-13: within an eighth of a turn around a multiple of a quarter, by the
// first terms of their series.
INLINE void circle(doubles angles, doubles& sines, doubles& cosines) {
    constexpr double QUARTER = 0x1.921fb54p+0, REST = 9.920935796805404e-10;  // of a turn: so few bits that multiples are exact, and what they lack
    const doubles turned = angles * 0.63661977236758134 + 6755399441055744.0;  // whose last bits are the nearest whole number
    const wholes quarters = (wholes)turned;
    const doubles whole = turned - 6755399441055744.0;
    const doubles r = (angles - whole * QUARTER) - whole * REST, z = r * r;
    const doubles s = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z * (1.0 / 6227020800.0))))));
    const doubles c = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600 - z * (1.0 / 87178291200.0)))))));
    const wholes odd = -(quarters & 1), low = (wholes)s, high = (wholes)c;
    sines = (doubles)(((low & ~odd) | (high & odd)) ^ ((quarters & 2) << 62));
    cosines = (doubles)(((high & ~odd) | (low & odd)) ^ (((quarters + 1) & 2) << 62));
}

INLINE wf activate(Activation kind, wf x) {
    switch (kind) {
        case Activation::SILU: return quotient(x, exponential(-x) + 1.0f);
        case Activation::GELU: return x * 0.5f * (error_function(x * 0.70710678118654752f) + 1.0f);
        case Activation::GELU_TANH: {
            const wf inner = fma(x * x * x, repeat(0.044715f), x) * 0.79788456080286536f;
            return x * 0.5f * (hyperbolic_tangent(inner) + 1.0f);
        }
        case Activation::RELU: return select(x > 0.0f, x, wf{});
    }
    return x;
}

#if !defined(__AVX512BW__)  // sixteen floats are several registers; of comparisons of longer vectors scalar ones are made
template <typename F, typename... X> INLINE vf by_registers(F&& f, X... x) {
    vf out;
    unroll<64 / REGISTER>([&](auto i) {
        auto part = [&](const vf& v) { return load_some((const float*)&v + FLOATS * i.value); };
        store_some((float*)&out + FLOATS * i.value, f(part(x)...));
    });
    return out;
}
INLINE vf fma(vf a, vf b, vf c) { return by_registers([](wf x, wf y, wf z) { return fma(x, y, z); }, a, b, c); }
INLINE vf larger(vf a, vf b) { return by_registers([](wf x, wf y) { return larger(x, y); }, a, b); }
INLINE vf smaller(vf a, vf b) { return by_registers([](wf x, wf y) { return smaller(x, y); }, a, b); }
INLINE vf magnitude(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vf nearest(vf a) { return by_registers([](wf x) { return nearest(x); }, a); }
INLINE vf exponential(vf a) { return by_registers([](wf x) { return exponential(x); }, a); }
INLINE vf hyperbolic_tangent(vf a) { return by_registers([](wf x) { return hyperbolic_tangent(x); }, a); }
INLINE vf activate(Activation kind, vf a) { return by_registers([kind](wf x) { return activate(kind, x); }, a); }
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
