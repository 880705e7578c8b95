// Attention over the cache. Included by pass.inl.

// A vector of a head; the last one may be short.
template <typename T> INLINE vf load_part(const T* p, int64_t i, int64_t dim) {
    if (i + 16 <= dim) return load(p + i);
    T part[16] = {};
    for (int64_t j = i; j < dim; ++j) part[j - i] = p[j];
    return load(part);
}

// A head of an entry as whole numbers from -127 to 127 times a scale, which is NaN where a number is not finite.
void encode(const float* x, int64_t dim, int8_t* out, float& scale) {
    vf most = zero(), odd = zero();
    for (int64_t i = 0; i < dim; i += 16) {
        const vf v = load_part(x, i, dim);
        most = larger(most, magnitude(v));
        odd += v - v;
    }
    scale = largest(most) / 127.0f + sum(odd);
    const float step = scale > 0 ? scale : 1.0f;
    for (int64_t i = 0; i < dim; i += 16) {
        const vf v = larger(load_part(x, i, dim) / step, splat(-127.0f));
        int8_t part[16];
        store(part, nearest(smaller(v, splat(127.0f))));
        std::memcpy(out + i, part, std::min<int64_t>(16, dim - i));
    }
}

// Keys or values of one head.
template <typename T> struct Held {
    const T* rows;
    const float* scales;  // of INT8
    int64_t dim;
    const T* at(int64_t entry) const { return rows + entry * dim; }
    float scale(int64_t entry) const { return std::is_same_v<T, int8_t> ? scales[entry] : 1.0f; }
    template <typename V> V scaled(V v, int64_t entry) const {
        if constexpr (std::is_same_v<T, int8_t>) return v * scales[entry];
        return v;
    }
};

constexpr int64_t AHEAD = 32, FAR = 256;  // entries ahead of those at work that come into the first cache, into the second

// Asks for an entry's lines before they are needed: memory by itself does not see far enough ahead.
template <int Near, typename T> INLINE void ask(const Held<T>& held, int64_t entry) {
    for (int64_t i = 0; i < held.dim; i += 64 / (int64_t)sizeof(T)) __builtin_prefetch(held.at(entry) + i, 0, Near);
}

// Entries of a head that are looked at next, where there is one.
template <typename T> struct Coming {
    Held<T> held;
    const int64_t* entries = nullptr;
    int64_t begin = 0, end = 0;
};

// The same while entry j of [begin, end) is at work; with the last of them come those that are looked at next.
template <typename T>
INLINE void ask_ahead(const Held<T>& held, const Coming<T>& soon, const int64_t* entries, int64_t begin, int64_t j, int64_t end) {
    ask<3>(held, entries[std::min(j + AHEAD, end - 1)]);
    if (j + FAR < end) return ask<2>(held, entries[j + FAR]);
    const int64_t next = soon.begin + j - std::max(begin, end - FAR);
    if (next < soon.end) ask<2>(soon.held, soon.entries[next]);
}

template <typename T> Held<T> keys_of(const Strip& s, int64_t head, int64_t dim) {
    return {(const T*)s.keys + head * s.stride, s.key_scales + head * s.rows, dim};
}
template <typename T> Held<T> values_of(const Strip& s, int64_t head, int64_t dim) {
    return {(const T*)s.values + head * s.stride, s.value_scales + head * s.rows, dim};
}

// Sixteen keys' vectors -> sixteen dimensions' vectors.
INLINE void transpose(vf (&v)[16]) {
#if defined(__AVX512F__)
    __m512 a[16], b[16];
    unroll<8>([&](auto k) {
        constexpr int i = 2 * k.value;
        a[i] = _mm512_unpacklo_ps((__m512)v[i], (__m512)v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps((__m512)v[i], (__m512)v[i + 1]);
    });
    unroll<4>([&](auto k) {
        constexpr int i = 4 * k.value;
        b[i] = (__m512)_mm512_unpacklo_pd((__m512d)a[i], (__m512d)a[i + 2]);
        b[i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)a[i], (__m512d)a[i + 2]);
        b[i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)a[i + 1], (__m512d)a[i + 3]);
        b[i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)a[i + 1], (__m512d)a[i + 3]);
    });
    unroll<4>([&](auto k) {  // quarters of keys 0-3 and 4-7, 8-11 and 12-15
        constexpr int i = k.value;
        a[i] = _mm512_shuffle_f32x4(b[i], b[4 + i], 0x88);
        a[4 + i] = _mm512_shuffle_f32x4(b[i], b[4 + i], 0xdd);
        a[8 + i] = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0x88);
        a[12 + i] = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0xdd);
    });
    unroll<4>([&](auto k) {
        constexpr int i = k.value;
        v[i] = (vf)_mm512_shuffle_f32x4(a[i], a[8 + i], 0x88);
        v[8 + i] = (vf)_mm512_shuffle_f32x4(a[i], a[8 + i], 0xdd);
        v[4 + i] = (vf)_mm512_shuffle_f32x4(a[4 + i], a[12 + i], 0x88);
        v[12 + i] = (vf)_mm512_shuffle_f32x4(a[4 + i], a[12 + i], 0xdd);
    });
#elif defined(__AVX2__)
    __m256 in[16][2];
    std::memcpy(in, v, sizeof in);
    for (int down = 0; down < 2; ++down)
        for (int right = 0; right < 2; ++right) {  // eight by eight
            __m256 a[8], b[8];
#pragma GCC unroll 4
            for (int i = 0; i < 8; i += 2) {
                a[i] = _mm256_unpacklo_ps(in[8 * down + i][right], in[8 * down + i + 1][right]);
                a[i + 1] = _mm256_unpackhi_ps(in[8 * down + i][right], in[8 * down + i + 1][right]);
            }
#pragma GCC unroll 2
            for (int i = 0; i < 8; i += 4) {
                b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
                b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
                b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
                b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const __m256 low = _mm256_permute2f128_ps(b[i], b[4 + i], 0x20), high = _mm256_permute2f128_ps(b[i], b[4 + i], 0x31);
                std::memcpy((float*)&v[8 * right + i] + 8 * down, &low, sizeof low);
                std::memcpy((float*)&v[8 * right + 4 + i] + 8 * down, &high, sizeof high);
            }
        }
#else
    float in[16][16], out[16][16];
    std::memcpy(in, v, sizeof in);
    for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 16; ++i) out[i][k] = in[k][i];
    std::memcpy(v, out, sizeof out);
#endif
}

constexpr int BLOCKS = REGISTERS < 32 ? 2 : 4;  // of sixteen keys, turned together
constexpr int ASKING = REGISTERS < 32 ? 2 : 4;  // queries that look at them together

// Whether keys of this kind stay bfloat16, and queries become so: two dimensions are multiplied at once. `Even`: a head is
// whole vectors.
#if defined(__AVX512BF16__)
template <bool Even, typename T> constexpr bool PAIRS = Even && std::is_same_v<T, uint16_t>;
#else
template <bool Even, typename T> constexpr bool PAIRS = false;
#endif

#if defined(__AVX512BF16__)
// Pairs of dimensions of sixteen keys -> [pair][16 keys]: quarters of registers come from four keys each, four by four.
template <typename T> INLINE void turn_pairs(const T* const* keys, int64_t pairs, float* out) {
    for (int64_t i = 0; i < pairs; i += 4, out += 64) {
        __m512i v[4];
        auto part = [&](int k) { return _mm_loadu_si128((const __m128i*)(keys[k] + 2 * i)); };
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            v[k] = _mm512_castsi128_si512(part(k));
            v[k] = _mm512_mask_broadcast_i32x4(v[k], 0x00f0, part(4 + k));
            v[k] = _mm512_mask_broadcast_i32x4(v[k], 0x0f00, part(8 + k));
            v[k] = _mm512_mask_broadcast_i32x4(v[k], 0xf000, part(12 + k));
        }
        const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
        const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
        _mm512_storeu_si512(out, _mm512_unpacklo_epi64(a, c));
        _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi64(a, c));
        _mm512_storeu_si512(out + 32, _mm512_unpacklo_epi64(b, d));
        _mm512_storeu_si512(out + 48, _mm512_unpackhi_epi64(b, d));
    }
}
#else
template <typename T> void turn_pairs(const T* const*, int64_t, float*) {}
#endif

// Entries [at, at + 16 * blocks) as [block][dimension or pair of them][16 keys]; behind `end` the last one again.
template <bool Pairs, typename T>
void turn_keys(const Held<T>& keys, const Coming<T>& soon, const int64_t* entries, int64_t begin, int64_t at, int64_t end, int64_t blocks, float* out) {
    const int64_t words = Pairs ? keys.dim / 2 : keys.dim;
    for (int64_t first = at; first < at + 16 * blocks; first += 16, out += 16 * words) {
        int64_t entry[16];
        const T* key[16];
        for (int k = 0; k < 16; ++k) {
            entry[k] = entries[std::min(first + k, end - 1)];
            key[k] = keys.at(entry[k]);
            ask_ahead(keys, soon, entries, begin, first + k, end);
        }
        if (Pairs) {
            turn_pairs(key, words, out);
            continue;
        }
        for (int64_t i = 0; i < words; i += 16) {
            vf v[16];
            for (int k = 0; k < 16; ++k) v[k] = keys.scaled(load_part(key[k], i, keys.dim), entry[k]);
            transpose(v);
            for (int64_t k = 0; k < std::min<int64_t>(16, words - i); ++k) store(out + 16 * (i + k), v[k]);
        }
    }
}

template <bool Pairs> INLINE wf add_product(wf x, wf y, wf sum) {
#if defined(__AVX512BF16__)
    if constexpr (Pairs) return (wf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#endif
    return fma(x, y, sum);
}

// Scores of Q queries against B blocks of keys, over the dimensions in order. Loops, as in products.
template <bool Pairs, int Q, int B>
INLINE void score(const float* const* queries, const float* turned, int64_t words, int64_t at, float* const* out) {
    constexpr int PARTS = 16 / FLOATS * B;  // registers of the blocks
    wf sums[Q][PARTS] = {};
    for (int64_t i = 0; i < words; ++i) {
        wf k[PARTS];
#pragma GCC unroll 8
        for (int b = 0; b < PARTS; ++b) k[b] = load_some(turned + 16 * (b * FLOATS / 16 * words + i) + b * FLOATS % 16);
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) {
            const wf x = repeat(queries[q][i]);
#pragma GCC unroll 8
            for (int b = 0; b < PARTS; ++b) sums[q][b] = add_product<Pairs>(x, k[b], sums[q][b]);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 8
        for (int b = 0; b < PARTS; ++b) store_some(out[q] + at + FLOATS * b, sums[q][b]);
}

template <bool Pairs, int B>
void score_some(const float* const* queries, int64_t many, const float* turned, int64_t words, int64_t at, float* const* out) {
    int64_t q = 0;
    for (; q + ASKING <= many; q += ASKING) score<Pairs, ASKING, B>(queries + q, turned, words, at, out + q);
    if constexpr (ASKING > 2) for (; q + 3 <= many; q += 3) score<Pairs, 3, B>(queries + q, turned, words, at, out + q);
    if constexpr (ASKING > 2) for (; q + 2 <= many; q += 2) score<Pairs, 2, B>(queries + q, turned, words, at, out + q);
    for (; q < many; ++q) score<Pairs, 1, B>(queries + q, turned, words, at, out + q);
}

// Scores of `many` queries against entries [begin, end); `out` has room for 15 more.
template <bool Pairs, typename T>
void score_all(const float* const* queries, int64_t many, const Held<T>& keys, const Coming<T>& soon, const int64_t* entries,
               int64_t begin, int64_t end, float* const* out) {
    const int64_t words = Pairs ? keys.dim / 2 : keys.dim;
    alignas(64) float turned[16 * BLOCKS * HEAD_MAX];
    for (int64_t at = begin; at < end; at += 16 * BLOCKS) {
        const int64_t blocks = std::min<int64_t>(BLOCKS, (end - at + 15) / 16);
        turn_keys<Pairs>(keys, soon, entries, begin, at, end, blocks, turned);
        if (blocks == BLOCKS) score_some<Pairs, BLOCKS>(queries, many, turned, words, at, out);
        else for (int64_t b = 0; b < blocks; ++b) score_some<Pairs, 1>(queries, many, turned + 16 * b * words, words, at + 16 * b, out);
    }
}

// Adds to the weighted sums of N vectors of values for Q queries those of entries [at, until) of [begin, end), one after the
// other, and to the sums of their weights; divides the ones by the others at the end. The first to pass asks for what comes next.
template <int N, int Q, typename T>
void blend(const float* const* weights, const Held<T>& values, const Coming<T>* soon, const int64_t* entries, int64_t begin,
           int64_t at, int64_t until, int64_t end, float* const* out, float* totals) {
    constexpr int PARTS = 16 / FLOATS * N, SOME = REGISTERS == 32 ? PARTS : PARTS % 4 ? 2 : 4;  // registers of values, and those at a time
    for (int first = 0; first < PARTS; first += SOME) {
        wf sums[Q][SOME] = {}, total[Q] = {};
        if (at > begin)
#pragma GCC unroll 4
            for (int q = 0; q < Q; ++q) {
                total[q] = repeat(totals[q]);
#pragma GCC unroll 16
                for (int i = 0; i < SOME; ++i) sums[q][i] = load_some(out[q] + FLOATS * (first + i));
            }
        for (int64_t j = at; j < until; ++j) {
            const T* value = values.at(entries[j]) + FLOATS * first;
            if (!first && soon) ask_ahead(values, *soon, entries, begin, j, end);
            wf v[SOME];
#pragma GCC unroll 16
            for (int i = 0; i < SOME; ++i) v[i] = values.scaled(load_some(value + FLOATS * i), entries[j]);
#pragma GCC unroll 4
            for (int q = 0; q < Q; ++q) {
                const wf w = repeat(weights[q][j]);
                total[q] += w;
#pragma GCC unroll 16
                for (int i = 0; i < SOME; ++i) sums[q][i] = fma(w, v[i], sums[q][i]);
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 16
            for (int i = 0; i < SOME; ++i) store_some(out[q] + FLOATS * (first + i), until < end ? sums[q][i] : sums[q][i] / total[q]);
            if (first + SOME == PARTS) totals[q] = total[q][0];
        }
    }
}

template <int N, typename T>
void blend_some(const float* const* weights, int64_t many, const Held<T>& values, const Coming<T>* soon, const int64_t* entries,
                int64_t begin, int64_t at, int64_t until, int64_t end, float* const* out, float* totals) {
    int64_t k = 0;
    auto several = [&](auto queries) {  // whose sums registers hold
        constexpr int Q = queries.value;
        for (; k + Q <= many; k += Q)
#if defined(__AVX512BF16__)
            if constexpr (PAIRS<true, T>) blend_pairs<N, Q>(weights + k, values, k ? nullptr : soon, entries, begin, at, until, end, out + k, totals + k);
            else
#endif
            blend<N, Q>(weights + k, values, k ? nullptr : soon, entries, begin, at, until, end, out + k, totals + k);
    };
    if constexpr (PAIRS<true, T>) several(Index<6>{});
    else if constexpr (REGISTERS == 32) several(Index<4>{});
    if constexpr (REGISTERS == 32) several(Index<3>{});
    several(Index<2>{}), several(Index<1>{});
}

#if defined(__AVX512BF16__)
// The same for bfloat16 and weights that are rounded to it, whose totals are known, two entries at once: of a pair, which
// begins at `begin`, the first is added before the second, as the instruction has it, and what is hidden adds nothing, so
// sums are those of the entries one by one. Dimensions come by quarters of registers and go to their places at the end.
template <int N, int Q>
void blend_pairs(const float* const* weights, const Held<uint16_t>& values, const Coming<uint16_t>* soon, const int64_t* entries,
                 int64_t begin, int64_t at, int64_t until, int64_t end, float* const* out, const float* totals) {
    constexpr int HALVES = (N + 1) / 2;  // registers of 32 numbers
    const __mmask32 last = N % 2 ? 0xffff : 0xffffffff;
    __m512 sums[Q][HALVES][2];
#pragma GCC unroll 6
    for (int q = 0; q < Q; ++q)
#pragma GCC unroll 4
        for (int i = 0; i < HALVES; ++i) {
            const __m512 low = at > begin ? _mm512_loadu_ps(out[q] + 32 * i) : _mm512_setzero_ps();
            const __m512 high = at > begin && 2 * i + 1 < N ? _mm512_loadu_ps(out[q] + 32 * i + 16) : _mm512_setzero_ps();
            sums[q][i][0] = _mm512_shuffle_f32x4(low, high, 0x88);
            sums[q][i][1] = _mm512_shuffle_f32x4(low, high, 0xdd);
        }
    for (int64_t j = at; j < until; j += 2) {
        const uint16_t *first = values.at(entries[j]), *second = values.at(entries[j + 1 < until ? j + 1 : j]);
        if (soon) {
            ask_ahead(values, *soon, entries, begin, j, end);
            if (j + 1 < until) ask_ahead(values, *soon, entries, begin, j + 1, end);
        }
        __m512i v[HALVES][2];
#pragma GCC unroll 4
        for (int i = 0; i < HALVES; ++i) {
            const __mmask32 some = i + 1 < HALVES ? 0xffffffff : last;
            const __m512i a = _mm512_maskz_loadu_epi16(some, first + 32 * i), b = _mm512_maskz_loadu_epi16(some, second + 32 * i);
            v[i][0] = _mm512_unpacklo_epi16(b, a);
            v[i][1] = _mm512_unpackhi_epi16(b, a);
        }
#pragma GCC unroll 6
        for (int q = 0; q < Q; ++q) {
            const __m512bh w = (__m512bh)_mm512_set1_epi32(((const int32_t*)weights[q])[(j - begin) / 2]);
#pragma GCC unroll 4
            for (int i = 0; i < HALVES; ++i)
#pragma GCC unroll 2
                for (int k = 0; k < 2; ++k) sums[q][i][k] = _mm512_dpbf16_ps(sums[q][i][k], w, (__m512bh)v[i][k]);
        }
    }
#pragma GCC unroll 6
    for (int q = 0; q < Q; ++q) {
        const __m512 total = _mm512_set1_ps(totals[q]);
#pragma GCC unroll 4
        for (int i = 0; i < HALVES; ++i) {
            const __m512 a = _mm512_shuffle_f32x4(sums[q][i][0], sums[q][i][1], 0x44), b = _mm512_shuffle_f32x4(sums[q][i][0], sums[q][i][1], 0xee);
            __m512 low = _mm512_shuffle_f32x4(a, a, 0xd8), high = _mm512_shuffle_f32x4(b, b, 0xd8);
            if (until == end) low = _mm512_div_ps(low, total), high = _mm512_div_ps(high, total);
            _mm512_storeu_ps(out[q] + 32 * i, low);
            if (2 * i + 1 < N) _mm512_storeu_ps(out[q] + 32 * i + 16, high);
        }
    }
}
#endif

template <typename T>
void blend_any(const float* weights, const Held<T>& values, const int64_t* entries, int64_t begin, int64_t end,
               float* out) {
    const int64_t dim = values.dim;
    float total = 0;
    for (int64_t i = 0; i < dim; ++i) out[i] = 0;
    for (int64_t j = begin; j < end; ++j) {
        total += weights[j];
        const T* value = values.at(entries[j]);
        const float scale = values.scale(entries[j]);
        for (int64_t i = 0; i < dim; ++i) out[i] += weights[j] * (widen_value(value[i]) * scale);
    }
    for (int64_t i = 0; i < dim; ++i) out[i] /= total;
}

// Which entries a row sees: hidden ones get a score of minus infinity.
struct Sight {
    int64_t begin, end;         // outside, everything is hidden
    const uint8_t* mask;        // of the entries from `past` on, or none
    int64_t past;
    std::vector<uint8_t> held;  // the mask where a window narrows it
};

void see(const Segment& s, int64_t row, int64_t position, int64_t window, Sight& out) {
    out.past = s.past;
    out.mask = nullptr;
    const int64_t open = s.base + s.count;
    out.end = s.mask ? s.past + open : s.past + s.base + row + 1;
    out.begin = window ? std::max<int64_t>(0, position - window + 1) : 0;
    if (!s.mask) return;
    out.mask = s.mask + row * open;
    if (!window || position < window) return;
    out.held.assign(out.mask, out.mask + open);
    int64_t later = 0;  // entries of the row's own path that come after
    for (int64_t j = open - 1; j >= 0; --j)
        if (out.held[j] && ++later > window) out.held[j] = 0;
    out.mask = out.held.data();
    out.begin = std::min(out.begin, s.past);
}

// Caps scores over [from, to), which covers what the row sees, gives hidden entries minus infinity and returns the largest.
float hide_scores(float* scores, int64_t from, int64_t to, const Sight& sight, float cap) {
    const float nothing = -std::numeric_limits<float>::infinity();
    const int64_t end = from + round_up(to - from, 16);
    if (cap > 0)
        for (int64_t j = from; j < end; j += 16)
            store(scores + j, hyperbolic_tangent(load(scores + j) * (1.0f / cap)) * cap);
    for (int64_t j = from; j < sight.begin; ++j) scores[j] = nothing;
    for (int64_t j = sight.end; j < end; ++j) scores[j] = nothing;
    if (sight.mask)
        for (int64_t j = std::max(from, sight.past); j < sight.end; ++j)
            if (!sight.mask[j - sight.past]) scores[j] = nothing;
    vf most = splat(nothing), odd = most;
    for (int64_t j = from; j < end; j += 32) {
        most = larger(most, load(scores + j));
        if (j + 16 < end) odd = larger(odd, load(scores + j + 16));
    }
    return largest(larger(most, odd));
}

constexpr int64_t SCORES = 1 << 20;  // that rows sharing the turned keys may have together: four MiB
constexpr int64_t SPELL = 1 << 14;   // numbers of values that all rows pass before the next: they stay in the first cache

struct Unit {
    const Segment* segment;
    const int64_t* entries;
    int64_t head, first, count;  // KV head; rows of the segment
    int64_t keys() const { return segment->past + segment->base + segment->count; }
};

// Where queries [row, stride] come from and what is seen goes to.
struct Look {
    const Net& net;
    const Layer& layer;
    const Strip& strip;
    const Plan& plan;
    const float* queries;
    float* out;
    int64_t stride;
    Lines<float>& scratch;
};

// What each row of a unit sees, and the entries [first, second) that hold all of it.
std::pair<int64_t, int64_t> see_all(const Look& look, const Unit& u, std::vector<Sight>& sights) {
    const Segment& s = *u.segment;
    int64_t from = s.past + s.base + s.count, to = 0;
    if ((int64_t)sights.size() < u.count) sights.resize(u.count);
    for (int64_t r = 0; r < u.count; ++r) {
        const int64_t row = u.first + r;
        see(s, row, look.plan.positions[s.start + row], look.layer.window, sights[r]);
        from = std::min(from, sights[r].begin);
        to = std::max(to, sights[r].end);
    }
    return {from, to};
}

#if defined(__AVX512BF16__)
// Scores -> weights 2^24 e^(score - top), rounded to bfloat16, of two entries the second before the first. Returns their
// sum, which is made of whole numbers: neither the order of entries nor those of weight 0 leave a trace in it.
float weigh_pairs(const float* scores, float top, int64_t count, uint16_t* out) {
    constexpr int64_t SAFE = 16 * 64;  // entries whose sums fit into 32 bits
    int64_t total = 0;
    for (int64_t begin = 0; begin < count; begin += SAFE) {
        __m512i sums = _mm512_setzero_si512();
        for (int64_t j = begin; j < std::min(count, begin + SAFE); j += 16) {
            const __m256i w = (__m256i)_mm512_cvtneps_pbh(rough_exponential((__m512)(load(scores + j) - top), 24));
            sums = _mm512_add_epi32(sums, _mm512_cvtps_epi32((__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16)));
            _mm256_storeu_si256((__m256i*)(out + j), _mm256_rol_epi32(w, 16));
        }
        alignas(64) uint32_t parts[16];
        _mm512_store_si512(parts, sums);
        for (const uint32_t part : parts) total += part;
    }
    return (float)total;
}
#else
float weigh_pairs(const float*, float, int64_t, uint16_t*) { return 0; }
#endif

template <bool Even, typename T> void attend(const Look& look, const Unit& u, const Unit* next) {
    const auto& [net, layer, strip, plan, q, out, stride, scratch] = look;
    const Segment& s = *u.segment;
    const int64_t group = net.heads / net.kv_heads, dim = net.dim;
    const int64_t width = round_up(u.keys(), 16) + 32, many = group * u.count;
    if ((int64_t)scratch.size() < (width + dim) * many) scratch.resize((width + dim) * many);
    const Held<T> keys = keys_of<T>(strip, u.head, dim), values = values_of<T>(strip, u.head, dim);
    Coming<T> soon_keys, soon_values;
    if (next && (next->head != u.head || next->segment != u.segment)) {
        const int64_t end = next->keys(), begin = layer.window ? std::max<int64_t>(0, end - layer.window) : 0;
        soon_keys = {keys_of<T>(strip, next->head, dim), next->entries, begin, end};
        soon_values = {values_of<T>(strip, next->head, dim), next->entries, begin, end};
    }
    static thread_local std::vector<Sight> sights;
    static thread_local std::vector<const float*> queries;
    static thread_local std::vector<float*> scores, outs;
    static thread_local std::vector<float> tops, totals;
    const auto [from, to] = see_all(look, u, sights);
    queries.resize(many);
    scores.resize(many);
    tops.resize(many);
    const int64_t parts = (dim + 63) / 64;  // of a head, each with its sums
    outs.resize(many * parts);
    totals.resize(many * parts);
    for (int64_t i = 0; i < many; ++i) {
        const int64_t row = s.start + u.first + i / group, head = u.head * group + i % group;
        queries[i] = q + row * stride + head * dim;
        for (int64_t part = 0; part < parts; ++part) outs[part * many + i] = out + row * stride + head * dim + 64 * part;
        scores[i] = scratch.data() + i * width;
        if constexpr (PAIRS<Even, T>) {
            uint16_t* rounded = (uint16_t*)(scratch.data() + width * many) + i * dim;
            for (int64_t j = 0; j < dim; j += 16) store(rounded + j, load(queries[i] + j));
            queries[i] = (const float*)rounded;
        }
    }
    for (int64_t j = from; j < std::min(from + AHEAD, to); ++j) ask<3>(keys, u.entries[j]);
    for (int64_t j = from; j < std::min(from + AHEAD, to); ++j) ask<3>(values, u.entries[j]);
    score_all<PAIRS<Even, T>>(queries.data(), many, keys, soon_keys, u.entries, from, to, scores.data());
    // Scores -> weights e^(score - largest), hidden entries exactly 0. Two loops: no row waits for another's largest.
    for (int64_t i = 0; i < many; ++i) tops[i] = hide_scores(scores[i], from, to, sights[i / group], net.attention_cap);
    for (int64_t i = 0; i < many; ++i) {
        if constexpr (PAIRS<Even, T>) {
            const float total = weigh_pairs(scores[i] + from, tops[i], to - from, (uint16_t*)scores[i]);
            for (int64_t part = 0; part < parts; ++part) totals[part * many + i] = total;
        } else {
            for (int64_t j = from; j < to; j += 16) store(scores[i] + j, exponential(load(scores[i] + j) - tops[i]));
        }
    }
    if constexpr (!Even) {
        for (int64_t k = 0; k < many; ++k) blend_any(scores[k], values, u.entries, from, to, outs[k]);
        return;
    }
    const int64_t spell = SPELL / dim / 2 * 2;
    for (int64_t at = from, until; at < to; at = until) {
        until = to - at < 2 * spell ? to : at + spell;
        for (int64_t d = 0; d < dim; d += 64) {  // four vectors at a time
            const Held<T> part{values.rows + d, values.scales, dim};
            auto blend_part = [&](auto vectors) {
                blend_some<vectors.value>(scores.data(), many, part, d ? nullptr : &soon_values, u.entries, from, at, until, to, outs.data() + d / 64 * many, totals.data() + d / 64 * many);
            };
            switch ((dim - d) / 16) {
                case 1: blend_part(Index<1>{}); break;
                case 2: blend_part(Index<2>{}); break;
                case 3: blend_part(Index<3>{}); break;
                default: blend_part(Index<4>{});
            }
        }
    }
}

template <typename T> void attend_any(const Look& look, const Unit& unit, const Unit* next) {
    return look.net.dim % 16 ? attend<false, T>(look, unit, next) : attend<true, T>(look, unit, next);
}

#include "attention_tiles.inl"
#include "attention_whole.inl"
