// Products of packed matrices and rows of activations. Included by pass.inl.

// Bytes ahead that weights are asked for, of each stream: those that come into the first cache, those into the second; 0: none.
struct Leads {
#if defined(__AMX_INT8__)
    int64_t near = 3072, far = 0;  // to ask twice costs more there than it brings
#else
    int64_t near = 512, far = 4096;
#endif
};

INLINE Leads leads(const Activations& in, int sums) {
    if (!in.alone) return {};
    return sums > FEW ? Leads{2048, 8192} : Leads{0, 0};
}

INLINE void ask(const uint8_t* at, const Leads& lead = {}) {
    if (lead.near) {
        __builtin_prefetch(at + lead.near, 0, 3);
        __builtin_prefetch(at + lead.near + 64, 0, 3);
    }
    if (lead.far) {
        __builtin_prefetch(at + lead.far, 0, 2);
        __builtin_prefetch(at + lead.far + 64, 0, 2);
    }
}

// What sums of some tiles are multiplied with lies apart from their weights, so it is asked for when they begin.
INLINE void ask_scales(const Matrix& m, int64_t t, int64_t tiles) {
    for (int64_t i = t * TILE; i < (t + tiles) * TILE; i += 16) {
        __builtin_prefetch(m.scale + i, 0, 3);
        if (m.total) __builtin_prefetch(m.total + i, 0, 3);
        if (m.bias) __builtin_prefetch(m.bias + i, 0, 3);
    }
}

// Sums of rows and of tiles so far `apart`, each with its bias, to whom they belong.
template <int T, int R, typename Done>
INLINE void finish(const Matrix& m, int64_t t, int64_t row, const vf (&sums)[T][R][2], Done&& done, int64_t apart = 1) {
#pragma GCC unroll 2
    for (int n = 0; n < T; ++n, t += apart) {
        const vf low = m.bias ? load(m.bias + t * TILE) : zero(), high = m.bias ? load(m.bias + t * TILE + 16) : zero();
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) done(row + r, t, sums[n][r][0] + low, sums[n][r][1] + high);
    }
}

// sum += a * b, in its place: of eight sums in sixteen registers GCC 12 writes some elsewhere and copies them back.
INLINE void add_product(wf& sum, wf a, wf b) {
#if defined(__FMA__) && !defined(__AVX512F__)
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#else
    sum = fma(a, b, sum);
#endif
}

// Sums of R rows and T tiles at once: for few rows the sums of one are too few to hide the time that each addition
// takes. Loops that the compiler unrolls, not lambdas: of these it may not inline all, and then the sums live in memory.
template <Kind K, int T, int R, typename Done>
INLINE void float_tiles(const Matrix& m, int64_t t, const Activations& in, int64_t row, Done&& done, int64_t apart = 1) {
    const int64_t next = apart * tile_bytes(K, m.inputs);
    const uint8_t* tile = m.data + t * tile_bytes(K, m.inputs);
    const bool asks = T == 1 || !in.alone;
    const float* x = in.floats + row * in.width;
    wf sums[T][R][ACROSS] = {};
    for (int64_t i = 0; i < m.inputs; i += INPUTS<K>, tile += STEP<K>) {
#pragma GCC unroll 2
        for (int n = 0; n < T; ++n) {
            if (asks) {
                __builtin_prefetch(tile + n * next + LEAD, 0, 2);
                if constexpr (STEP<K> == 128) __builtin_prefetch(tile + n * next + LEAD + 64, 0, 2);
            }
#pragma GCC unroll 2
            for (int k = 0; k < INPUTS<K>; ++k) {
                wf w[ACROSS];
#pragma GCC unroll 8
                for (int part = 0; part < ACROSS; ++part) w[part] = load_weights<K>(tile + n * next, k, part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const wf b = repeat(x[r * in.width + i + k]);
#pragma GCC unroll 8
                    for (int part = 0; part < ACROSS; ++part) add_product(sums[n][r][part], w[part], b);
                }
            }
        }
    }
    vf kept[T][R][2];
#pragma GCC unroll 2
    for (int n = 0; n < T; ++n)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int part = 0; part < ACROSS; ++part) store_some((float*)kept[n][r] + FLOATS * part, sums[n][r][part]);
    finish<T, R>(m, t, row, kept, done, apart);
}

#if !defined(__AVX512BW__)  // sixteen registers, which hold the sums of few rows only

// What is asked for meanwhile: so many bytes, some at every step.
struct Soon {
    const uint8_t* at;
    int64_t bytes, pace = 0;
    void within(int64_t steps) { pace = (bytes + steps - 1) / steps; }
    __attribute__((always_inline)) void ask() {
        __builtin_prefetch(at, 0, 2);
        at += pace;
    }
};

// Rows times tiles by pieces of so many inputs, each of which stays in the first cache while all rows pass it, in blocks
// of up to `Most`: add(Index of rows, row, first input, inputs, weights, their sums, what to ask for).
template <int Most, typename Sum, typename Add, typename Done>
void by_pieces(const Matrix& m, Share tiles, int64_t rows, int64_t piece, Add add, Done done) {
    const int64_t length = is_whole(m) ? round_up(m.inputs, 64) : m.inputs;
    alignas(64) Sum sums[8 * Most][TILE];
    for (int64_t t = tiles.begin; t < tiles.end; ++t)
        for (int64_t first = 0; first < rows; first += 8 * Most) {
            const int64_t count = std::min<int64_t>(8 * Most, rows - first), blocks = (count + Most - 1) / Most;
            std::memset(sums, 0, count * sizeof sums[0]);
            const uint8_t* w = m.data + t * tile_bytes(m.kind, m.inputs);
            for (int64_t i = 0; i < length; i += piece) {
                const int64_t inputs = std::min(piece, length - i), bytes = tile_bytes(m.kind, inputs), some = bytes / blocks;
                for (int64_t b = 0; b < blocks; ++b) {
                    const auto [r, end] = share(count, b, blocks);
                    auto step = [&](auto n) { add(n, first + r, i, inputs, w, sums + r, Soon{w + 2 * PIECE + b * some, some}); };
                    switch (end - r) {
                        case 1: step(Index<1>{}); break;
                        case 2: step(Index<2>{}); break;
                        case 3: step(Index<3>{}); break;
                        case 4: step(Index<4>{}); break;
                        case 5: if constexpr (Most > 4) step(Index<5>{}); break;
                    }
                }
                w += bytes;
            }
            for (int64_t r = 0; r < count; ++r) done(first + r, t, sums[r]);
        }
}

// Adds to the sums [N][32] of N rows those over some inputs of a tile, of which two registers of outputs are summed at a time.
template <Kind K, int N>
__attribute__((noinline)) void add_floats(const uint8_t* w, const float* x, int64_t width, int64_t inputs, float (*sums)[TILE], Soon soon) {
    soon.within((inputs + INPUTS<K> - 1) / INPUTS<K> * (ACROSS / 2));
    for (int first = 0; first < ACROSS; first += 2) {
        wf total[N][2];
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            total[r][0] = load_some(sums[r] + FLOATS * first);
            total[r][1] = load_some(sums[r] + FLOATS * (first + 1));
        }
        const uint8_t* at = w;
        const float* from = x;
        for (int64_t i = 0; i < inputs; i += INPUTS<K>, at += STEP<K>, from += INPUTS<K>) {
            soon.ask();
#pragma GCC unroll 2
            for (int k = 0; k < INPUTS<K>; ++k) {
                const wf low = load_weights<K>(at, k, first), high = load_weights<K>(at, k, first + 1);
#pragma GCC unroll 8
                for (int r = 0; r < N; ++r) {
                    const wf b = repeat(from[r * width + k]);
                    total[r][0] = fma(low, b, total[r][0]);
                    total[r][1] = fma(high, b, total[r][1]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            store_some(sums[r] + FLOATS * first, total[r][0]);
            store_some(sums[r] + FLOATS * (first + 1), total[r][1]);
        }
    }
}

template <Kind K, typename Done> void float_pieces(const Matrix& m, Share tiles, const Activations& in, int64_t rows, Done done) {
    auto add = [&](auto n, int64_t row, int64_t first, int64_t inputs, const uint8_t* w, float (*sums)[TILE], Soon soon) {
        add_floats<K, n.value>(w, in.floats + row * in.width + first, in.width, inputs, sums, soon);
    };
    by_pieces<5, float>(m, tiles, rows, PIECE / (tile_bytes(K, 32) / 32), add, [&](int64_t row, int64_t t, const float* sums) {
        const vf out[1][1][2] = {{{load(sums), load(sums + 16)}}};
        finish<1, 1>(m, t, row, out, done);
    });
}

#endif

#if defined(__AVX512BF16__) && !defined(__AMX_INT8__)

// BF16 times rows that are rounded to it too.
template <int T, int R, typename Done>
INLINE void pair_tiles(const Matrix& m, int64_t t, const Activations& in, int64_t row, Done&& done) {
    const int64_t next = tile_bytes(m.kind, m.inputs), steps = round_up(m.inputs, 32) / 2;
    const Leads lead = leads(in, R);
    const uint8_t* tile = m.data + t * next;
    const uint16_t* x = in.halves + row * in.stride;
    vf sums[T][R][2] = {};
    for (int64_t i = 0; i < steps; ++i, tile += 128, x += 2) {
#pragma GCC unroll 2
        for (int n = 0; n < T; ++n) {
            const uint8_t* at = tile + n * next;
            ask(at, lead);
            const __m512bh low = (__m512bh)_mm512_loadu_si512(at), high = (__m512bh)_mm512_loadu_si512(at + 64);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                int32_t two; std::memcpy(&two, x + r * in.stride, 4);
                const __m512bh b = (__m512bh)_mm512_set1_epi32(two);
                sums[n][r][0] = (vf)_mm512_dpbf16_ps((__m512)sums[n][r][0], low, b);
                sums[n][r][1] = (vf)_mm512_dpbf16_ps((__m512)sums[n][r][1], high, b);
            }
        }
    }
    finish<T, R>(m, t, row, sums, done);
}

template <int R, typename Done>
INLINE void pair_sweep(const Matrix& m, Share tiles, const Activations& in, int64_t row, Done&& done) {
    int64_t t = tiles.begin;
    if constexpr (R <= FEW) if (!in.alone) for (; t + 2 <= tiles.end; t += 2) pair_tiles<2, R>(m, t, in, row, done);
    for (; t < tiles.end; ++t) pair_tiles<1, R>(m, t, in, row, done);
}

#endif

template <Kind K, int R, typename Done>
INLINE void float_sweep(const Matrix& m, Share tiles, const Activations& in, int64_t row, Done&& done) {
    int64_t t = tiles.begin;
    if constexpr (R <= PAIRED) {
        // Two at a time, side by side; or one of either half, where two streams without an end are read best.
        const int64_t half = (tiles.end - t) / 2, step = in.alone ? 1 : 2, apart = in.alone ? half : 1;
        for (int64_t i = 0; i < half; ++i) float_tiles<K, 2, R>(m, t + i * step, in, row, done, apart);
        t += 2 * half;
    }
    for (; t < tiles.end; ++t) float_tiles<K, 1, R>(m, t, in, row, done);
}

// Sums of whole numbers of one row and the outputs from `first` on -> what they stand for.
template <int P> INLINE vf scaled(const Matrix& m, int64_t first, const Activations& in, int64_t row, vf sums) {
    sums *= load(m.scale + first) * in.scales[row];
    if constexpr (P == 1) if (m.total) sums = fma(load(m.total + first), splat(in.middles[row]), sums);
    return sums;
}

// Whole sums of one row and tile -> what they stand for. Of a row in two parts, those of the second come behind.
template <int P>
INLINE void widen(const Matrix& m, int64_t t, const Activations& in, int64_t row, const vi (*sums)[2], vf (&out)[2]) {
    unroll<2>([&](auto half) {
        vf total = __builtin_convertvector(sums[0][half.value] - 128 * in.sums[row * P], vf);  // weights are kept as w + 128
        if constexpr (P == 2) {
            const vf fine = __builtin_convertvector(sums[1][half.value] - 128 * in.sums[row * P + 1], vf);
            total = fma(total, splat(256), fine);
        }
        out[half.value] = scaled<P>(m, t * TILE + 16 * half.value, in, row, total);
    });
}

// The same with its bias, to whom it belongs.
template <int P, typename Done>
INLINE void finish_whole(const Matrix& m, int64_t t, const Activations& in, int64_t row, const vi (*sums)[2], Done&& done) {
    vf out[2];
    widen<P>(m, t, in, row, sums, out);
    if (m.bias) {
        out[0] += load(m.bias + t * TILE);
        out[1] += load(m.bias + t * TILE + 16);
    }
    done(row, t, out[0], out[1]);
}

// Sums of R rows and T tiles side by side, which the memory serves better than one.
template <int T, int R, int P, typename Done>
INLINE void whole_tiles(const Matrix& m, int64_t t, const Activations& in, int64_t row, Done&& done) {
    const int64_t next = tile_bytes(m.kind, m.inputs), steps = (m.inputs + 3) / 4;
    const Leads lead = leads(in, R * P);
    const uint8_t* tile = m.data + t * next;
    const int8_t* x = in.whole + row * P * in.stride;
    ask_scales(m, t, T);
    vi sums[T][R * P][2] = {};
    for (int64_t i = 0; i < steps; ++i, tile += 128, x += 4) {
#pragma GCC unroll 2
        for (int n = 0; n < T; ++n) {
            const uint8_t* at = tile + n * next;
            ask(at, lead);
#if defined(__AVX512VNNI__)
            const __m512i low = _mm512_loadu_si512(at), high = _mm512_loadu_si512(at + 64);
#pragma GCC unroll 8
            for (int r = 0; r < R * P; ++r) {
                int32_t four; std::memcpy(&four, x + r * in.stride, 4);
                const __m512i b = _mm512_set1_epi32(four);
                sums[n][r][0] = (vi)_mm512_dpbusd_epi32((__m512i)sums[n][r][0], low, b);
                sums[n][r][1] = (vi)_mm512_dpbusd_epi32((__m512i)sums[n][r][1], high, b);
            }
#else
            for (int r = 0; r < R * P; ++r)
                for (int half = 0; half < 2; ++half)
                    for (int j = 0; j < 16; ++j) {
                        const uint8_t* w = at + 64 * half + 4 * j;
                        const int8_t* four = x + r * in.stride;
                        sums[n][r][half][j] += w[0] * four[0] + w[1] * four[1] + w[2] * four[2] + w[3] * four[3];
                    }
#endif
        }
    }
    vi kept[T][R * P][2];  // whose address may be taken
#pragma GCC unroll 2
    for (int n = 0; n < T; ++n)
#pragma GCC unroll 8
        for (int r = 0; r < R * P; ++r) {
            kept[n][r][0] = sums[n][r][0];
            kept[n][r][1] = sums[n][r][1];
        }
    for (int n = 0; n < T; ++n)
        for (int r = 0; r < R; ++r) finish_whole<P>(m, t + n, in, row + r, kept[n] + P * r, done);
}

template <int R, int P, typename Done>
INLINE void whole_sweep(const Matrix& m, Share tiles, const Activations& in, int64_t row, Done&& done) {
    int64_t t = tiles.begin;
    if constexpr (R * P <= FEW) if (!in.alone) for (; t + 2 <= tiles.end; t += 2) whole_tiles<2, R, P>(m, t, in, row, done);
    if constexpr (R * P <= ROWS) for (; t < tiles.end; ++t) whole_tiles<1, R, P>(m, t, in, row, done);
}

template <int R, typename Done>
__attribute__((noinline)) void sweep(const Matrix& m, Share tiles, const Activations& in, int64_t row, Done done) {
    if (is_whole(m)) return in.parts == 1 ? whole_sweep<R, 1>(m, tiles, in, row, done) : whole_sweep<R, 2>(m, tiles, in, row, done);
#if defined(__AVX512BF16__) && !defined(__AMX_INT8__)
    if (m.kind == Kind::BF16 && in.parts == 1) return pair_sweep<R>(m, tiles, in, row, done);
#endif
    if constexpr (R <= FLOAT_ROWS) switch (m.kind) {
        case Kind::F32: return float_sweep<Kind::F32, R>(m, tiles, in, row, done);
        case Kind::F16: return float_sweep<Kind::F16, R>(m, tiles, in, row, done);
        default: return float_sweep<Kind::BF16, R>(m, tiles, in, row, done);
    }
}

template <typename Done>
void sweep_some(int count, const Matrix& m, Share tiles, const Activations& in, int64_t row, Done done) {
    switch (count) {
        case 1: return sweep<1>(m, tiles, in, row, done);
        case 2: return sweep<2>(m, tiles, in, row, done);
        case 3: return sweep<3>(m, tiles, in, row, done);
        case 4: return sweep<4>(m, tiles, in, row, done);
        case 5: return sweep<5>(m, tiles, in, row, done);
        case 6: return sweep<6>(m, tiles, in, row, done);
        case 7: return sweep<7>(m, tiles, in, row, done);
        default: return sweep<8>(m, tiles, in, row, done);
    }
}

// Lines of a tile of INT4 that are read soon: one of the 17 of 64 inputs.
INLINE void ask_four(const uint8_t* tile, int line) {
    __builtin_prefetch(tile + 2 * NEAR_FOUR + 64 * line, 0, 2);
    __builtin_prefetch(tile + NEAR_FOUR + 64 * line, 0, 3);
}

// What nibbles of some outputs are multiplied with, per group of 32 inputs, and what is added: in all words the multiplier
// of each output, in all bytes 128 - 8 (or 7) x multiplier. At most 15 x 15 fits in a byte, so two are multiplied at once.
// `at`: of the first output among the 32 of the tile, times four.
struct Factors {
    wi by[2], add[2];
};

INLINE Factors factors(const uint8_t* tile, int at) {
    Factors f;
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        const wi m = spread(tile + 1024 + TILE * g + at / 4), most = m & 15, add = 128 - (most << 3) + (most & -(m >> 4 & 1));
        f.by[g] = most | most << 16;
        f.add[g] = add | add << 8;
        f.add[g] |= f.add[g] << 16;
    }
    return f;
}

// Line q of these outputs and 64 inputs, made wide.
INLINE void expand_line(const uint8_t* tile, int at, int q, const Factors& f, uint8_t* out) {
    ws both; std::memcpy(&both, tile + 128 * q + at, sizeof both);
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        const wb w = (wb)(((g ? both >> 4 : both) & 0x0f0f) * (ws)f.by[g]) + (wb)f.add[g];
        std::memcpy(out + 128 * (8 * g + q) + at, &w, sizeof w);
    }
}

// 64 inputs of a tile of INT4 as those of INT8: the same numbers exactly.
INLINE void expand_step(const uint8_t* tile, uint8_t* out) {
    for (int line = 0; line < 17; ++line) ask_four(tile, line);
#pragma GCC unroll 2
    for (int at = 0; at < 128; at += sizeof(wb)) {
        const Factors f = factors(tile, at);
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) expand_line(tile, at, q, f, out);
    }
}

void expand(const uint8_t* tile, int64_t inputs, uint8_t* out) {
    for (int64_t i = 0; i < inputs; i += 64, tile += FOUR, out += 64 * TILE) expand_step(tile, out);
}

#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)

// INT4 for N rows: while 64 inputs of a tile are multiplied, the next 64 are made wide, which other units of a core do.
template <int N, typename Done>
__attribute__((noinline)) void four_rows(const Matrix& m, Share tiles, const Activations& in, Done done) {
    alignas(64) uint8_t wide[2][64 * TILE];
    const uint8_t* w = m.data + tiles.begin * tile_bytes(m.kind, m.inputs);
    if (tiles.begin < tiles.end) expand_step(w, wide[0]);
    int turn = 0;
    for (int64_t t = tiles.begin; t < tiles.end; ++t) {
        const int8_t* x = in.whole;
        __m512i sums[N][2] = {};
        for (int64_t i = 0; i < m.inputs; i += 64, turn ^= 1) {
            const uint8_t* at = wide[turn];
            w += FOUR;  // behind the last step, the next tile or slack
            ask_four(w, 16);
#pragma GCC unroll 1
            for (int half = 0; half < 2; ++half) {
                const Factors f = factors(w, 64 * half);
#pragma GCC unroll 1
                for (int q = 0; q < 8; ++q, at += 128, x += 4) {
                    ask_four(w, 8 * half + q);
                    expand_line(w, 64 * half, q, f, wide[turn ^ 1]);
                    const __m512i low = _mm512_load_si512(at), high = _mm512_load_si512(at + 64);
#pragma GCC unroll 8
                    for (int r = 0; r < N; ++r) {
                        int32_t four; std::memcpy(&four, x + r * in.stride, 4);
                        const __m512i b = _mm512_set1_epi32(four);
                        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], low, b);
                        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], high, b);
                    }
                }
            }
        }
        vi kept[N][2];
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            kept[r][0] = (vi)sums[r][0];
            kept[r][1] = (vi)sums[r][1];
        }
        for (int r = 0; r < N; ++r) finish_whole<1>(m, t, in, r, kept + r, done);
    }
}

#endif

#if defined(DOTS) && !defined(__AMX_INT8__)

constexpr int SUMMED = REGISTERS < 32 ? 6 : ROWS;  // rows of which registers hold the sums of two registers of outputs

// Adds to the sums [N][32] of N rows of whole numbers, `stride` apart, those over `steps` times four inputs of a tile.
// Meanwhile `Lines` lines a step are asked for.
template <int N, int Lines>
__attribute__((noinline)) void add_steps(const uint8_t* w, const int8_t* x, int64_t stride, int64_t steps, int32_t* sums, const uint8_t* soon) {
    for (int first = 0; first < TILE; first += 2 * FLOATS) {
        wi total[N][2];
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            total[r][0] = load_whole(sums + r * TILE + first);
            total[r][1] = load_whole(sums + r * TILE + first + FLOATS);
        }
        const uint8_t *at = w + 4 * first, *next = soon;
        const int8_t* from = x;
        for (int64_t i = 0; i < steps; ++i, at += 128, from += 4, next += 64 * Lines) {
            if (first == 0)
#pragma GCC unroll 2
                for (int n = 0; n < Lines; ++n) {
                    __builtin_prefetch(next + 64 * n, 0, 3);
                    __builtin_prefetch(next + 64 * n + PIECE, 0, 2);
                }
            const wi low = load_whole(at), high = load_whole(at + sizeof low);
#pragma GCC unroll 8
            for (int r = 0; r < N; ++r) {
                int32_t four; std::memcpy(&four, from + r * stride, 4);
                const wi b = repeat_whole(four);
                total[r][0] = add_dots(total[r][0], low, b);
                total[r][1] = add_dots(total[r][1], high, b);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < N; ++r) {
            store_some((float*)sums + r * TILE + first, (wf)total[r][0]);
            store_some((float*)sums + r * TILE + first + FLOATS, (wf)total[r][1]);
        }
    }
}

template <int Lines>
void add_some(int64_t count, const uint8_t* w, const int8_t* x, int64_t stride, int64_t steps, int32_t* sums, const uint8_t* soon) {
    switch (count) {
        case 1: return add_steps<1, Lines>(w, x, stride, steps, sums, soon);
        case 2: return add_steps<2, Lines>(w, x, stride, steps, sums, soon);
        case 3: return add_steps<3, Lines>(w, x, stride, steps, sums, soon);
        case 4: return add_steps<4, Lines>(w, x, stride, steps, sums, soon);
        case 5: return add_steps<5, Lines>(w, x, stride, steps, sums, soon);
        case 6: return add_steps<6, Lines>(w, x, stride, steps, sums, soon);
        case 7: return add_steps<7, Lines>(w, x, stride, steps, sums, soon);
        default: return add_steps<8, Lines>(w, x, stride, steps, sums, soon);
    }
}

// More rows of whole numbers than registers hold sums of: a piece of a tile stays in the first cache while all of them
// pass it. That of INT4 is made wide there.
template <Kind K, int P, typename Done>
void piece_product(const Matrix& m, Share tiles, const Activations& in, int64_t rows, Done done) {
    constexpr int64_t most = 64 / P, piece = PIECE / TILE;  // rows whose sums stay near; inputs
    const int64_t bytes = tile_bytes(K, m.inputs), padded = round_up(m.inputs, 64);
    alignas(64) int32_t sums[most * P][TILE];
    alignas(64) uint8_t wide[PIECE];
    for (int64_t t = tiles.begin; t < tiles.end; ++t)
        for (int64_t first = 0; first < rows; first += most) {
            const int64_t count = std::min(most, rows - first) * P;
            std::memset(sums, 0, count * sizeof sums[0]);
            const uint8_t* w = m.data + t * bytes;
            const int8_t* x = in.whole + first * P * in.stride;
            for (int64_t i = 0; i < padded; i += piece, x += piece) {
                const int64_t inputs = std::min(piece, padded - i);
                const uint8_t* at = w;
                if constexpr (K == Kind::INT4) {
                    for (int64_t j = 0; j < inputs; j += 64, w += FOUR) expand_step(w, wide + j * TILE);
                    at = wide;
                } else {
                    w += inputs * TILE;
                }
                const uint8_t* soon = at + PIECE;
                const int64_t blocks = (count + SUMMED - 1) / SUMMED;  // of about as many rows each
                for (int64_t b = 0; b < blocks; ++b, soon += inputs / 2 * TILE) {
                    const bool asks = K == Kind::INT8 && !first && b < 2;
                    const auto [r, end] = share(count, b, blocks);
                    (!asks ? add_some<0> : blocks > 1 ? add_some<1> : add_some<2>)(
                        end - r, at, x + r * in.stride, in.stride, inputs / 4, sums[r], soon);
                }
            }
            for (int64_t r = 0; r < count / P; ++r) {
                vi both[P][2];
                std::memcpy(both, sums[r * P], sizeof both);
                finish_whole<P>(m, t, in, first + r, both, done);
            }
        }
}

#endif

#if defined(IN_PAIRS)
#include "products_pairs.inl"
#endif

#if defined(__AMX_INT8__)
#include "products_tiles.inl"
#else
constexpr bool TILES = false;
constexpr int64_t SIDE = 2;  // tiles side by side, at most
#endif

constexpr int64_t CALL = 64 * 1024;  // bytes of tiles that are worth a call where threads share a matrix

// This thread's tiles of m times every row; done(row, tile, outputs 0-15, outputs 16-31) takes each result.
template <typename Done>
void product_stored(const Matrix& m, const Activations& in, int64_t rows, Share mine, Done done) {
#if defined(__AMX_INT8__)
    if (m.kind == Kind::BF16 && rows == 1)
        return in.parts == 1 ? half_sweep<1, 1>(m, mine, in, done) : half_sweep<1, 2>(m, mine, in, done);
    if (m.kind == Kind::BF16 && rows == 2 && in.parts == 1) return half_sweep<2, 1>(m, mine, in, done);
    if (m.kind == Kind::INT8 && rows * in.parts > FEW)
        return in.parts == 1 ? tile_product<Kind::INT8, 1>(m, mine, in, rows, done)
                             : tile_product<Kind::INT8, 2>(m, mine, in, rows, done);
    if (m.kind == Kind::BF16 && rows)
        return in.parts == 1 ? tile_product<Kind::BF16, 1>(m, mine, in, rows, done)
                             : tile_product<Kind::BF16, 2>(m, mine, in, rows, done);
    if (m.kind == Kind::BF16) return;
#elif defined(DOTS)
    if (m.kind == Kind::INT8 && rows && (REGISTERS < 32 || rows * in.parts > ROWS))
        return in.parts == 1 ? piece_product<Kind::INT8, 1>(m, mine, in, rows, done) : piece_product<Kind::INT8, 2>(m, mine, in, rows, done);
#endif
    const int64_t most = is_whole(m) ? ROWS / in.parts : FLOAT_ROWS;  // sums that registers hold
#if !defined(__AVX512BW__)
    if (rows > most && !is_whole(m)) switch (m.kind) {
        case Kind::F32: return float_pieces<Kind::F32>(m, mine, in, rows, done);
        case Kind::F16: return float_pieces<Kind::F16>(m, mine, in, rows, done);
        default: return float_pieces<Kind::BF16>(m, mine, in, rows, done);
    }
#endif
    if (rows <= most) {
        if (rows) sweep_some((int)rows, m, mine, in, 0, done);
        return;
    }
    const int64_t blocks = (rows + most - 1) / most;
    for (int64_t t = mine.begin; t < mine.end; ++t)  // a tile stays near while all rows pass it
        for (int64_t b = 0; b < blocks; ++b) {
            const auto [row, end] = share(rows, b, blocks);
            sweep_some((int)(end - row), m, {t, t + 1}, in, row, done);
        }
}

// A matrix of some tiles of one of INT4, made wide in `room`, with everything that belongs to their outputs.
Matrix widened(const Matrix& m, Share tiles, Lines<uint8_t>& room) {
    const int64_t bytes = tile_bytes(Kind::INT8, m.inputs), count = tiles.end - tiles.begin, first = tiles.begin * TILE;
    if ((int64_t)room.size() < count * bytes + SLACK) room.resize(count * bytes + SLACK);
    for (int64_t i = 0; i < count; ++i)
        expand(m.data + (tiles.begin + i) * tile_bytes(m.kind, m.inputs), m.inputs, room.data() + i * bytes);
    return {Kind::INT8, count * TILE, m.inputs, room.data(), m.scale + first, m.bias ? m.bias + first : nullptr, m.total ? m.total + first : nullptr};
}

// The same for every kind of matrix; `room` is for some tiles.
template <typename Done>
void product(const Matrix& m, const Activations& in, int64_t rows, Share mine, Lines<uint8_t>& room, Done done) {
#if defined(IN_PAIRS)
    if (m.kind == Kind::INT8 && rows)
        return in.parts == 1 ? pair_product<Kind::INT8, 1>(m, mine, in, rows, done) : pair_product<Kind::INT8, 2>(m, mine, in, rows, done);
    if (m.kind == Kind::INT4 && rows) return pair_product<Kind::INT4, 1>(m, mine, in, rows, done);
#endif
    if (m.kind != Kind::INT4) return product_stored(m, in, rows, mine, done);
#if defined(__AMX_INT8__)
    if (rows == 1) return four_sweep<1>(m, mine, in, done);
    if (rows == 2) return four_sweep<2>(m, mine, in, done);
    if (rows && rows <= 32) return tile_product<Kind::INT4, 1>(m, mine, in, rows, done);
#elif defined(__AVX512VNNI__)
    switch (rows) {
        case 0: return;
        case 1: return four_rows<1>(m, mine, in, done);
        case 2: return four_rows<2>(m, mine, in, done);
        case 3: return four_rows<3>(m, mine, in, done);
        case 4: return four_rows<4>(m, mine, in, done);
        case 5: return four_rows<5>(m, mine, in, done);
        case 6: return four_rows<6>(m, mine, in, done);
        case 7: return four_rows<7>(m, mine, in, done);
        case 8: return four_rows<8>(m, mine, in, done);
        default: return piece_product<Kind::INT4, 1>(m, mine, in, rows, done);
    }
#elif defined(DOTS)
    if (rows) return piece_product<Kind::INT4, 1>(m, mine, in, rows, done);
#endif
    const int64_t band = std::max<int64_t>(1, BAND / tile_bytes(Kind::INT8, m.inputs));
    for (int64_t t = mine.begin; t < mine.end; t += band) {
        const int64_t count = std::min(band, mine.end - t);
        product_stored(widened(m, {t, t + count}, room), in, rows, {0, count},
                       [&](int64_t r, int64_t i, vf low, vf high) { done(r, t + i, low, high); });
    }
}

// Hadamard's rotation: each number and its neighbour so far away become their sum and their difference.
template <int Apart> INLINE wf cross(wf v) {
    const wf sign = __builtin_convertvector(1 - 2 * ((lanes() / Apart) & 1), wf);
    return fma(v, sign, __builtin_shuffle(v, lanes() ^ Apart));
}

// The same for all numbers of N registers.
template <int Apart, int N> INLINE void cross_all(wf (&v)[N]) {
    if constexpr (Apart < FLOATS) {
#pragma GCC unroll 16
        for (int k = 0; k < N; ++k) v[k] = cross<Apart>(v[k]);
    } else {
        constexpr int apart = Apart / FLOATS;
#pragma GCC unroll 16
        for (int k = 0; k < N; ++k)
            if (!(k & apart)) {
                const wf a = v[k], b = v[k + apart];
                v[k] = a + b;
                v[k + apart] = a - b;
            }
    }
}

// `Numbers` at a time, which are a block or hold several.
template <int Numbers> INLINE void rotate_blocks(float* x, int64_t width, int64_t block) {
    const wf part = repeat(1.0f / std::sqrt((float)block));
    for (int64_t i = 0; i < width; i += Numbers) {
        wf v[Numbers / FLOATS];
#pragma GCC unroll 16
        for (int k = 0; k < Numbers / FLOATS; ++k) v[k] = load_some(x + i + FLOATS * k);
        if constexpr (Numbers > 16) cross_all<16>(v);
        if constexpr (Numbers > 32) cross_all<32>(v);
        if (block > 1) cross_all<1>(v);
        if (block > 2) cross_all<2>(v);
        if (block > 4) cross_all<4>(v);
        if (block > 8) cross_all<8>(v);
#pragma GCC unroll 16
        for (int k = 0; k < Numbers / FLOATS; ++k) store_some(x + i + FLOATS * k, v[k] * part);
    }
}

// A row of inputs in front of whole numbers, padded with zeros to 16: blocks of as many as divide it, each by Hadamard's
// matrix, which is its own inverse. What few inputs have much of, all of a block then have a part of, and fewer steps
// of a row's scale go to waste (QuaRot, 2404.00456). Weights are rotated alike before they are rounded.
void rotate(float* x, int64_t inputs) {
    const int64_t block = std::min<int64_t>(ROTATED, inputs & -inputs), width = round_up(inputs, 16);
    if (block == 64) rotate_blocks<64>(x, width, 64);
    else if (block == 32) rotate_blocks<32>(x, width, 32);
    else rotate_blocks<16>(x, width, block);
}

void rotate_rows(float* rows, int64_t count, int64_t inputs) {
    Lines<float> row(round_up(inputs, 16), 0.0f);
    for (int64_t r = 0; r < count; ++r, rows += inputs) {
        std::copy_n(rows, inputs, row.data());
        rotate(row.data(), inputs);
        std::copy_n(row.data(), inputs, rows);
    }
}

// A row as whole numbers times a scale, around the middle of what it holds; padded with zeros to the 64 inputs that a
// step of the widest product takes. In two parts, `stride` apart, of which the first counts 256 times, around zero.
// `totals`: the sum of each part. `x` has room for whole vectors.
void quantize(float* x, int64_t inputs, int parts, int8_t* out, int64_t stride, float& scale, float& middle, int32_t* totals) {
    const int64_t width = round_up(inputs, 16);
    for (int64_t i = inputs; i < width; ++i) x[i] = x[0];
    wf most = load_some(x), least = most, odd = wf{};
    for (int64_t i = 0; i < width; i += FLOATS) {
        const wf v = load_some(x + i);
        most = larger(most, v);  // which forgets a NaN, as the next does
        least = smaller(least, v);
        odd += v - v;
    }
    const float high = together(most, [](wf a, wf b) { return larger(a, b); }), low = together(least, [](wf a, wf b) { return smaller(a, b); });
    const float levels = parts == 1 ? 127 : 127 * 256, at = parts == 1 ? 0.5f * high + 0.5f * low : 0.0f;
    const float top = std::max(high - at, at - low), inverse = top > 0 ? levels / top : 0.0f;
    for (int64_t i = inputs; i < width; ++i) x[i] = at;
    wi sums[2] = {};
    for (int64_t i = 0; i < width; i += FLOATS) {
        wi q = __builtin_convertvector(nearest((load_some(x + i) - at) * inverse), wi);
        if (parts == 2) {
            const wi coarse = (q + 128) >> 8, fine = q - (coarse << 8);  // -128 to 127
            sums[1] += fine;
            store_bytes(out + stride + i, fine);
            q = coarse;
        }
        sums[0] += q;
        store_bytes(out + i, q);
    }
    middle = at;
    scale = top / levels + together(odd, [](wf a, wf b) { return a + b; });
    for (int part = 0; part < parts; ++part) {
        std::fill(out + part * stride + width, out + part * stride + round_up(width, 64), (int8_t)0);
        totals[part] = 0;
        for (int j = 0; j < FLOATS; ++j) totals[part] += sums[part][j];
    }
}

// The sum of every group of inputs of a row.
void sum_groups(const int8_t* x, int64_t width, int32_t* out) {
    for (int64_t i = 0; i < width; i += GROUP) {
        int32_t total = 0;
        for (int j = 0; j < GROUP; ++j) total += x[i + j];
        out[i / GROUP] = total;
    }
}

// What else of a quantized row its product asks for: beside INT4 its groups' sums. Products in pairs take two of them as
// numbers of sixteen bits, and beside INT8 the row so, both parts of a number together, and its sums over each SPAN.
void accompany(const Matrix& m, int parts, const int8_t* x, int64_t stride, [[maybe_unused]] uint16_t* halves, int32_t* groups) {
    if (m.kind == Kind::INT4) sum_groups(x, stride, groups);
#if defined(IN_PAIRS)
    if (m.kind == Kind::INT4) {
        for (int64_t i = 0; i < stride / (2 * GROUP); ++i) groups[i] = groups[2 * i + 1] * 65536 + (uint16_t)groups[2 * i];
        return;
    }
    for (int64_t first = 0; first < stride; first += SPAN) {
        int32_t sum = 0;
        for (int64_t i = first; i < std::min(first + SPAN, stride); ++i) {
            const int32_t number = parts == 2 ? 256 * x[i] + x[stride + i] : x[i];
            halves[i] = (uint16_t)number;
            sum += number;
        }
        groups[first / SPAN] = sum;
    }
#endif
}

// Matrix::total: what outputs are where every input is one.
void add_up(const Matrix& m, float* out) {
    const int64_t stride = round_up(m.inputs, 64);
    Lines<int8_t> ones(stride, 0);
    std::fill_n(ones.begin(), m.inputs, (int8_t)1);
    std::vector<int32_t> groups(stride / GROUP);
    Lines<uint16_t> halves(stride);
    accompany(m, 1, ones.data(), stride, halves.data(), groups.data());
    const float one = 1, none = 0;
    const int32_t sum = (int32_t)m.inputs;
    Lines<uint8_t> room;
    Matrix bare = m;
    bare.bias = nullptr;
    product(bare, {nullptr, ones.data(), &one, &none, &sum, groups.data(), halves.data(), 1, stride, stride, false}, 1, {0, m.tiles()}, room,
            [out](int64_t, int64_t t, vf low, vf high) {
                store(out + t * TILE, low);
                store(out + t * TILE + 16, high);
            });
}

// A row as `parts` rows of bfloat16 that add up to it, `stride` numbers apart, padded with zeros to the 32 inputs of a step.
void split(const float* x, int64_t width, int parts, uint16_t* out, int64_t stride) {
    for (int64_t i = 0; i < width; i += 16) {
        vf rest = load(x + i);
        for (int part = 0; part < parts; ++part) {
#if defined(__AVX512BF16__)
            const __m256i bits = (__m256i)_mm512_cvtneps_pbh((__m512)rest);  // the smallest numbers become zero, which products take them for
            _mm256_storeu_si256((__m256i*)(out + part * stride + i), bits);
            rest -= (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#else
            const vi bits = narrow(rest);
            store(out + part * stride + i, rest);
            rest -= (vf)(bits << 16);
#endif
        }
    }
}

// What a matrix does not multiply as it is.
bool is_changed(const Matrix& m, const Net& net) { return is_whole(m) || (m.kind == Kind::BF16 && (TILES || !net.exact)); }
