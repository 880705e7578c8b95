// Products in tile registers, and what vectors do beside them where there are some. Included by products.inl.

// INT4 for few rows from the nibbles as they are; the same whole numbers.
template <int T, int R, typename Done>
INLINE void four_tiles(const Matrix& m, int64_t t, const Activations& in, Done&& done) {
    const int64_t next = tile_bytes(m.kind, m.inputs), each = in.stride / GROUP;
    const uint8_t* tile = m.data + t * next;
    const int8_t* x = in.whole;
    const int32_t* groups = in.groups;
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    ask_scales(m, t, T);
    vi totals[T][R][2] = {};
    for (int64_t i = 0; i < m.inputs; i += 64, tile += FOUR, x += 64, groups += 2) {
#pragma GCC unroll 2
        for (int n = 0; n < T; ++n) {
            const uint8_t* at = tile + n * next;
#pragma GCC unroll 17
            for (int line = 0; line < 17; ++line) {
                __builtin_prefetch(at + FOUR + 64 * line, 0, 3);
                __builtin_prefetch(at + NEAR_FOUR + 64 * line, 0, 2);
            }
            vi sums[R][2][2];
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int g = 0; g < 2; ++g) sums[r][g][0] = sums[r][g][1] = splat_whole(-8 * groups[r * each + g]);  // nibbles are kept as w + 8
#pragma GCC unroll 8
            for (int q = 0; q < 8; ++q) {
                __m512i w[2][2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const __m512i both = _mm512_loadu_si512(at + (2 * q + half) * 64);
                    w[0][half] = _mm512_and_si512(both, nibble);
                    w[1][half] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
                }
#pragma GCC unroll 2
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                    for (int g = 0; g < 2; ++g) {
                        int32_t four; std::memcpy(&four, x + r * in.stride + 32 * g + 4 * q, 4);
                        const __m512i b = _mm512_set1_epi32(four);
                        sums[r][g][0] = (vi)_mm512_dpbusd_epi32((__m512i)sums[r][g][0], w[g][0], b);
                        sums[r][g][1] = (vi)_mm512_dpbusd_epi32((__m512i)sums[r][g][1], w[g][1], b);
                    }
            }
#pragma GCC unroll 2
            for (int g = 0; g < 2; ++g)
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const __m512i many = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(at + 1024 + TILE * g + 16 * half)));
                    const __mmask16 flipped = _mm512_test_epi32_mask(many, _mm512_set1_epi32(FLIPPED));
                    const vi by = (vi)many & 15;
#pragma GCC unroll 2
                    for (int r = 0; r < R; ++r) {
                        const __m512i sum = (__m512i)sums[r][g][half], more = _mm512_set1_epi32(groups[r * each + g]);
                        totals[n][r][half] += (vi)_mm512_mask_add_epi32(sum, flipped, sum, more) * by;
                    }
                }
        }
    }
#pragma GCC unroll 2
    for (int n = 0; n < T; ++n)
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
            const vi kept[1][2] = {{totals[n][r][0] + 128 * in.sums[r], totals[n][r][1] + 128 * in.sums[r]}};  // as of INT8
            finish_whole<1>(m, t + n, in, r, kept, done);
        }
}

template <int R, typename Done>
__attribute__((noinline)) void four_sweep(const Matrix& m, Share tiles, const Activations& in, Done done) {
    int64_t t = tiles.begin;
    for (; t + 2 <= tiles.end; t += 2) four_tiles<2, R>(m, t, in, done);
    for (; t < tiles.end; ++t) four_tiles<1, R>(m, t, in, done);
}

constexpr int64_t SIDE = 3;  // tiles side by side, or blocks of rows, whose sums registers hold

void configure(const std::array<int64_t, 8>& rows) {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) {
        config.bytes[i] = 64;
        config.rows[i] = (uint8_t)rows[i];
    }
    asm volatile("" : : "r"(&config) : "memory");  // gcc 12 believes that the next line reads eight bytes
    _tile_loadconfig(&config);
}

void configure() { configure({16, 16, 16, 16, 16, 16, 16, 16}); }

// Sums of T tiles side by side, which the memory serves better than one, and B blocks of 16 rows or fewer that lie `width`
// bytes apart; T * B is at most 3. Registers 0-5: sums of the halves of each tile and block; 6, 7: rows and weights; beside
// two blocks 4, 5: rows, and 6, 7: weights. `meanwhile` is done once a step, while memory is waited for.
template <Kind K, int T, int B, typename Meanwhile>
INLINE void tile_sums(const uint8_t* w, int64_t next, const uint8_t* x, int64_t width, int64_t steps, void* sums, Meanwhile&& meanwhile) {
#define ADD(REGISTER, ROWS, WEIGHTS)                                        \
    if constexpr (K == Kind::BF16) _tile_dpbf16ps(REGISTER, ROWS, WEIGHTS); \
    else _tile_dpbsud(REGISTER, ROWS, WEIGHTS)
#define ADD_WEIGHTS(REGISTER, AT) \
    _tile_loadd(7, AT, 128);      \
    ADD(REGISTER, 6, 7)
#define ADD_ROWS(REGISTER, BLOCK)                     \
    _tile_loadd(6, x + 16 * (BLOCK) * width, width); \
    ADD(REGISTER, 6, 7)
    constexpr Leads lead{T > 2 ? 2048 : 3072, 0};
    alignas(64) uint8_t wide[2][K == Kind::INT4 ? 64 * TILE : 1];  // of INT4, one step ahead
    if constexpr (K == Kind::INT4) expand_step(w, wide[0]);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if constexpr (B != 2) {
        _tile_zero(4);
        _tile_zero(5);
    }
    for (int64_t i = 0; i < steps; ++i, x += 64) {
        const uint8_t *at = w, *streams[T];
#pragma GCC unroll 3
        for (int n = 0; n < T; ++n) {
            streams[n] = w + n * next;
            asm("" : "+r"(streams[n]));  // or gcc keeps every address that is asked for, in memory
        }
        // gcc 12 sees no effect in a function that only prefetches, and drops its calls where it does not inline them.
        auto ask_some = [&](int64_t line) __attribute__((always_inline)) {
            if constexpr (K != Kind::INT4)
#pragma GCC unroll 4
                for (int64_t each = 0; each < 8; each += 2)
#pragma GCC unroll 3
                    for (int n = 0; n < T; ++n) ask(streams[n] + 64 * (line + each), lead);
        };
        ask_some(0);
        if constexpr (K == Kind::INT4) {
            at = wide[i & 1];
            expand_step(w + FOUR, wide[(i + 1) & 1]);  // behind the last step, the next tile or slack
        }
        if constexpr (B == 1) {
            _tile_loadd(6, x, width);
            ADD_WEIGHTS(0, at);
            ADD_WEIGHTS(1, at + 64);
            ask_some(8);
            if constexpr (T > 1) {
                ADD_WEIGHTS(2, at + next);
                ADD_WEIGHTS(3, at + next + 64);
            }
            ask_some(16);
            if constexpr (T > 2) {
                ADD_WEIGHTS(4, at + 2 * next);
                ADD_WEIGHTS(5, at + 2 * next + 64);
            }
        } else if constexpr (B == 2) {
            _tile_loadd(4, x, width);
            _tile_loadd(6, at, 128);
            ADD(0, 4, 6);
            ask_some(8);
            _tile_loadd(5, x + 16 * width, width);
            ADD(2, 5, 6);
            ask_some(16);
            _tile_loadd(7, at + 64, 128);
            ADD(1, 4, 7);
            ADD(3, 5, 7);
        } else {
            _tile_loadd(7, at, 128);
            ADD_ROWS(0, 0);
            ADD_ROWS(2, 1);
            ask_some(8);
            ADD_ROWS(4, 2);
            ADD_WEIGHTS(5, at + 64);
            ask_some(16);
            ADD_ROWS(3, 1);
            ADD_ROWS(1, 0);
        }
        ask_some(24);
        w += K == Kind::INT4 ? FOUR : 64 * TILE;
        meanwhile();
    }
#undef ADD_ROWS
#undef ADD_WEIGHTS
#undef ADD
    int32_t* out = (int32_t*)sums;
    _tile_stored(0, out, 128);
    _tile_stored(1, out + 16, 128);
    _tile_stored(2, out + 16 * TILE, 128);
    _tile_stored(3, out + 16 * TILE + 16, 128);
    if constexpr (B != 2) {
        _tile_stored(4, out + 32 * TILE, 128);
        _tile_stored(5, out + 32 * TILE + 16, 128);
    }
}

// BF16 for few rows, in vectors, which the memory serves better than tiles. The same bits: a tile adds up the even and the
// odd inputs of each 32 apart, then adds both to what there is, and takes the smallest numbers for zero.
template <int T, int R, int P, typename Done>
INLINE void half_tiles(const Matrix& m, int64_t t, const Activations& in, Done&& done) {
    const int64_t next = tile_bytes(m.kind, m.inputs), blocks = next / (64 * TILE);
    const uint8_t* tile = m.data + t * next;
    const uint16_t* x = in.halves;
    vf sums[T][R * P][2] = {};
    for (int64_t i = 0; i < blocks; ++i, x += 32) {
        vf even[T][R * P][2] = {}, odd[T][R * P][2] = {};
#pragma GCC unroll 1
        for (int k = 0; k < 16; ++k, tile += 128)
#pragma GCC unroll 2
            for (int n = 0; n < T; ++n) {
                const uint8_t* at = tile + n * next;
                ask(at);
                vi low, high;
                std::memcpy(&low, at, 64);
                std::memcpy(&high, at + 64, 64);
#pragma GCC unroll 8
                for (int r = 0; r < R * P; ++r) {
                    int32_t two; std::memcpy(&two, x + r * in.stride + 2 * k, 4);
                    const vi both = splat_whole(two);
                    const vf first = (vf)(both << 16), second = (vf)(both & (int32_t)0xffff0000);
                    even[n][r][0] = fma((vf)(low << 16), first, even[n][r][0]);
                    even[n][r][1] = fma((vf)(high << 16), first, even[n][r][1]);
                    odd[n][r][0] = fma((vf)(low & (int32_t)0xffff0000), second, odd[n][r][0]);
                    odd[n][r][1] = fma((vf)(high & (int32_t)0xffff0000), second, odd[n][r][1]);
                }
            }
#pragma GCC unroll 2
        for (int n = 0; n < T; ++n)
#pragma GCC unroll 8
            for (int r = 0; r < R * P; ++r) {
                sums[n][r][0] += even[n][r][0] + odd[n][r][0];
                sums[n][r][1] += even[n][r][1] + odd[n][r][1];
            }
    }
#pragma GCC unroll 2
    for (int n = 0; n < T; ++n)
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
            vf out[2] = {};
#pragma GCC unroll 3
            for (int part = P - 1; part >= 0; --part) {  // the small ones first
                out[0] += sums[n][r * P + part][0];
                out[1] += sums[n][r * P + part][1];
            }
            if (m.bias) {
                out[0] += load(m.bias + (t + n) * TILE);
                out[1] += load(m.bias + (t + n) * TILE + 16);
            }
            done(r, t + n, out[0], out[1]);
        }
}

template <int R, int P, typename Done>
__attribute__((noinline)) void half_sweep(const Matrix& m, Share tiles, const Activations& in, Done done) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // numbers too small for a full mantissa count as zero
    int64_t t = tiles.begin;
    for (; t + 2 <= tiles.end; t += 2) half_tiles<2, R, P>(m, t, in, done);
    for (; t < tiles.end; ++t) half_tiles<1, R, P>(m, t, in, done);
    _mm_setcsr(before);
}

// As `product`, for INT8, BF16 and few rows of INT4. Reads room behind the last row, which the caller has, and drops its
// sums. Of many rows some stay near while some tiles pass them, and these tiles while all rows do.
template <Kind K, int P, typename Done>
void tile_product(const Matrix& m, Share tiles, const Activations& in, int64_t rows, Done done) {
    constexpr bool whole = K != Kind::BF16;
    const int64_t bytes = tile_bytes(K, m.inputs), steps = bytes / (K == Kind::INT4 ? FOUR : 64 * TILE), count = rows * P;
    const uint8_t* from = whole ? (const uint8_t*)in.whole : (const uint8_t*)in.halves;
    const int64_t width = whole ? in.stride : 2 * in.stride;
    const int64_t blocks = (count + 15) / 16, sweeps = (blocks + SIDE - 1) / SIDE, most = (blocks + sweeps - 1) / sweeps;
    if (blocks == 1) configure({count, count, count, count, count, count, count, 16});
    else if (blocks == 2) configure({16, 16, count - 16, count - 16, 16, count - 16, 16, 16});
    else configure();
    alignas(64) uint8_t sums[2][SIDE * 16 * TILE * 4];
    const uint8_t* at = nullptr;  // sums that are not yet outputs, how many, and of which tile and rows
    int64_t left = 0, of = 0, row = 0, begin = 0, end = 0;
    auto put_some = [&](int64_t some) __attribute__((always_inline)) {
        for (; some > 0 && left > 0; --some, --left) {
            const uint8_t* these = at + (row - begin) * P * 128;
            vf out[2];
            if constexpr (whole) {
                vi both[P][2];
                std::memcpy(both, these, sizeof(both));
                widen<P>(m, of, in, row, both, out);
            } else {
                out[0] = out[1] = zero();
                unroll<P>([&](auto part) {  // the small ones first
                    out[0] += load((const float*)(these + (P - 1 - part.value) * 128));
                    out[1] += load((const float*)(these + (P - 1 - part.value) * 128 + 64));
                });
            }
            if (m.bias) {
                out[0] += load(m.bias + of * TILE);
                out[1] += load(m.bias + of * TILE + 16);
            }
            done(row, of, out[0], out[1]);
            if (++row == end) { row = begin; ++of; at += 16 * 128; }
        }
    };
    const int64_t band = sweeps > 1 ? std::max<int64_t>(1, BAND / bytes) : tiles.end - tiles.begin;
    int turn = 0;
    for (int64_t some = tiles.begin; some < tiles.end; some += band)
        for (int64_t first = 0; first < count; first += 16 * most)
            for (int64_t t = some, last = std::min(some + band, tiles.end); t < last; turn ^= 1) {
                const uint8_t *w = m.data + t * bytes, *x = from + first * width;
                const int64_t now = std::min(most, (count - first + 15) / 16);
                const int64_t side = now > 1 || K == Kind::INT4 ? 1 : std::min(SIDE, last - t), pace = (left + steps - 1) / steps;
                if constexpr (whole) ask_scales(m, t, side);
                auto meanwhile = [&]() __attribute__((always_inline)) { put_some(pace); };
                if (now == 3) tile_sums<K, 1, 3>(w, bytes, x, width, steps, sums[turn], meanwhile);
                else if (now == 2) tile_sums<K, 1, 2>(w, bytes, x, width, steps, sums[turn], meanwhile);
                else if (side == 1) tile_sums<K, 1, 1>(w, bytes, x, width, steps, sums[turn], meanwhile);
                else if constexpr (K != Kind::INT4) {
                    if (side == 3) tile_sums<K, 3, 1>(w, bytes, x, width, steps, sums[turn], meanwhile);
                    else tile_sums<K, 2, 1>(w, bytes, x, width, steps, sums[turn], meanwhile);
                }
                of = t;
                at = sums[turn];
                begin = row = first / P;
                end = std::min(rows, (first + 16 * most) / P);
                left = side * (end - begin);
                t += side;
            }
    put_some(left);
    _tile_release();
}

constexpr bool TILES = true;
