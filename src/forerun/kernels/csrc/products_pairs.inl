// Products of whole numbers where no instruction adds up four products of bytes: pairs of them, none of which overflows.
// Included by products.inl.

constexpr int64_t SPAN = PIECE / TILE;  // inputs of INT8 over which sums with numbers of sixteen bits fit in 32
constexpr int PAIR_ROWS = 4;            // whose sums registers hold, of eight outputs

constexpr int eights(int rows) { return rows == 1 ? 2 : 1; }  // outputs, in eights, of which they hold as many rows' sums

// Adds to the totals [N][32] of N rows of numbers of sixteen bits those over up to SPAN inputs of a tile of INT8, of
// which 8 x U outputs are summed at a time. `sums`: of each row's inputs, `each` apart.
template <int N, int U>
__attribute__((noinline)) void add_eight(const uint8_t* w, const int16_t* x, int64_t stride, int64_t inputs, const int32_t* sums, int64_t each, float (*totals)[TILE], Soon soon) {
    soon.within(inputs / 2);
    for (int first = 0; first < 4; first += U) {
        __m256i total[N][U][2];
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r)
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) total[r][u][0] = total[r][u][1] = _mm256_setzero_si256();
        const uint8_t* at = w + 32 * first;
        const int16_t* from = x;
        for (int64_t i = 0; i < inputs; i += 4, at += 128, from += 4) {
            if (first % 2 == 0) soon.ask();
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) {
                const __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(at + 32 * u)));
                const __m256i high = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(at + 32 * u) + 1));
#pragma GCC unroll 4
                for (int r = 0; r < N; ++r) {
                    int64_t four; std::memcpy(&four, from + r * stride, 8);
                    const __m256i b = _mm256_set1_epi64x(four);
                    total[r][u][0] = _mm256_add_epi32(total[r][u][0], _mm256_madd_epi16(low, b));
                    total[r][u][1] = _mm256_add_epi32(total[r][u][1], _mm256_madd_epi16(high, b));
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) {
            const __m256i middle = _mm256_set1_epi32(128 * sums[r * each]);  // weights are kept as w + 128
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) {
                float* to = totals[r] + 8 * (first + u);
                const __m256i pairs = _mm256_permute4x64_epi64(_mm256_hadd_epi32(total[r][u][0], total[r][u][1]), 0xd8);
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), _mm256_cvtepi32_ps(_mm256_sub_epi32(pairs, middle))));
            }
        }
    }
}

// Of eight outputs and two groups of inputs of a tile of INT4: what each sum of nibbles and bytes is multiplied with, in
// both halves of a word, and, a half for either group, what each sum of the bytes is.
struct Multipliers {
    __m256i by[2], middle;
};

INLINE Multipliers multipliers(const uint8_t* at) {
    Multipliers m;
    __m256i middle[2];
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        const __m256i mark = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(at + TILE * g)));
        const __m256i by = _mm256_and_si256(mark, _mm256_set1_epi32(15));
        const __m256i flipped = _mm256_srai_epi32(_mm256_slli_epi32(mark, 27), 31);  // all bits where that of FLIPPED is set
        middle[g] = _mm256_sub_epi32(_mm256_and_si256(by, flipped), _mm256_slli_epi32(by, 3));
        m.by[g] = _mm256_or_si256(by, _mm256_slli_epi32(by, 16));
    }
    m.middle = _mm256_blend_epi16(middle[0], _mm256_slli_epi32(middle[1], 16), 0xaa);
    return m;
}

// Adds to the sums [N][32] of N rows of bytes those over some inputs of a tile of INT4, of which 8 x U outputs are summed
// at a time: sixteen products of a nibble and a byte fit in sixteen bits. `groups`: of each row's inputs, `each` apart.
template <int N, int U>
__attribute__((noinline)) void add_four(const uint8_t* w, const int8_t* x, int64_t stride, int64_t inputs, const int32_t* groups, int64_t each, int32_t (*sums)[TILE], Soon soon) {
    const __m256i low = _mm256_set1_epi8(15);
    soon.within(inputs / (2 * U));
    for (int64_t i = 0; i < inputs; i += 2 * GROUP, w += FOUR, x += 2 * GROUP, ++groups)
        for (int first = 0; first < 4; first += U) {
            __m256i total[N][U][2];
#pragma GCC unroll 4
            for (int r = 0; r < N; ++r)
#pragma GCC unroll 2
                for (int u = 0; u < U; ++u) total[r][u][0] = total[r][u][1] = _mm256_setzero_si256();
            const uint8_t* at = w + 32 * first;
            const int8_t* from = x;
#pragma GCC unroll 1
            for (int q = 0; q < 8; ++q, at += 128, from += 4) {
                soon.ask();
#pragma GCC unroll 2
                for (int u = 0; u < U; ++u) {
                    const __m256i both = _mm256_loadu_si256((const __m256i*)(at + 32 * u));
                    const __m256i near = _mm256_and_si256(both, low), far = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 4
                    for (int r = 0; r < N; ++r) {
                        int32_t four[2];
                        std::memcpy(four, from + r * stride, 4);
                        std::memcpy(four + 1, from + r * stride + GROUP, 4);
                        total[r][u][0] = _mm256_add_epi16(total[r][u][0], _mm256_maddubs_epi16(near, _mm256_set1_epi32(four[0])));
                        total[r][u][1] = _mm256_add_epi16(total[r][u][1], _mm256_maddubs_epi16(far, _mm256_set1_epi32(four[1])));
                    }
                }
            }
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) {
                const Multipliers m = multipliers(w + 1024 + 8 * (first + u));
#pragma GCC unroll 4
                for (int r = 0; r < N; ++r) {
                    __m256i* to = (__m256i*)(sums[r] + 8 * (first + u));
                    const __m256i pairs = _mm256_add_epi32(_mm256_madd_epi16(total[r][u][0], m.by[0]), _mm256_madd_epi16(total[r][u][1], m.by[1]));
                    const __m256i middle = _mm256_madd_epi16(_mm256_set1_epi32(groups[r * each]), m.middle);
                    _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_add_epi32(_mm256_loadu_si256(to), middle), pairs));
                }
            }
        }
}

// Rows of whole numbers times INT8 or INT4.
template <Kind K, int P, typename Done>
void pair_product(const Matrix& m, Share tiles, const Activations& in, int64_t rows, Done done) {
    using Sum = std::conditional_t<K == Kind::INT8, float, int32_t>;
    const int64_t each = in.stride / GROUP;
    auto add = [&](auto n, int64_t row, int64_t first, int64_t inputs, const uint8_t* w, Sum (*sums)[TILE], Soon soon) {
        const int64_t at = row * in.stride + first;
        const int32_t* groups = in.groups + row * each;
        if constexpr (K == Kind::INT8) add_eight<n.value, eights(n.value)>(w, (const int16_t*)in.halves + at, in.stride, inputs, groups + first / SPAN, each, sums, soon);
        else add_four<n.value, eights(n.value)>(w, in.whole + at, in.stride, inputs, groups + first / (2 * GROUP), each, sums, soon);
    };
    by_pieces<PAIR_ROWS, Sum>(m, tiles, rows, K == Kind::INT8 ? SPAN : 2 * SPAN, add, [&](int64_t row, int64_t t, const Sum* sums) {
        vf out[1][1][2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            vf total;
#pragma GCC unroll 2
            for (int j = 0; j < 16; j += FLOATS) {
                if constexpr (K == Kind::INT8) store_some((float*)&total + j, load_some(sums + 16 * half + j));
                else store_some((float*)&total + j, __builtin_convertvector(load_whole(sums + 16 * half + j), wf));
            }
            out[0][0][half] = scaled<P>(m, t * TILE + 16 * half, in, row, total);
        }
        finish<1, 1>(m, t, row, out, done);
    });
}
