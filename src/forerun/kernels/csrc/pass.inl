// One pass of the decoder, for the instruction set that includes this file.
//
// A row's result is the same to the bit whatever rows, requests, tree nodes and threads it shares the pass with:
// products sum over inputs in order (floats) or exactly (integers), sums over keys run in order of the entries with
// exact zeros for hidden ones, and everything else looks at one row alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "half.h"
#include "net.h"
#include "team.h"

namespace forerun {
namespace {

#include "simd.inl"

constexpr int ROWS = 8;             // rows that share one sweep over a tile
constexpr int64_t LEAD = 8 * 1024;  // bytes that weights are asked for in advance

// Activations of a pass, rows of `width` values; floats, or whole numbers with one scale per row.
struct Activations {
    const float* floats;
    const int8_t* whole;
    const float* scales;
    const int32_t* sums;
    int64_t width;
};

struct Share {
    int64_t begin, end;
};

Share share(int64_t total, int id, int size) { return {total * id / size, total * (id + 1) / size}; }

bool is_whole(const Matrix& m) { return m.kind == Kind::INT8 || m.kind == Kind::INT4; }

// ---- products ------------------------------------------------------------------------------------------------------

template <Kind K, int R>
INLINE void float_tile(const uint8_t* tile, int64_t inputs, const Activations& in, int64_t row, vf (&out)[R][2]) {
    constexpr int step = K == Kind::F32 ? 128 : 64;
    const float* x = in.floats + row * in.width;
    unroll<R>([&](auto r) { out[r.value][0] = out[r.value][1] = zero(); });
    for (int64_t i = 0; i < inputs; ++i, tile += step) {
        __builtin_prefetch(tile + LEAD, 0, 2);
        vf low, high;
        load_weights<K>(tile, low, high);
        unroll<R>([&](auto r) {
            const vf b = splat(x[r.value * in.width + i]);
            out[r.value][0] = fma(low, b, out[r.value][0]);
            out[r.value][1] = fma(high, b, out[r.value][1]);
        });
    }
}

// Whole sums of one row and tile -> what they stand for.
INLINE void widen(const Matrix& m, int64_t t, const Activations& in, int64_t row, vi low, vi high, vf (&out)[2]) {
    const int32_t offset = 128 * in.sums[row];  // weights are kept as w + 128
    const float scale = in.scales[row];
    out[0] = __builtin_convertvector(low - offset, vf) * (load(m.scale + t * TILE) * scale);
    out[1] = __builtin_convertvector(high - offset, vf) * (load(m.scale + t * TILE + 16) * scale);
}

template <int R>
INLINE void whole_tile(const uint8_t* tile, const Matrix& m, int64_t t, const Activations& in, int64_t row,
                       vf (&out)[R][2]) {
    const int8_t* x = in.whole + row * in.width;
    const int64_t steps = (m.inputs + 3) / 4;
    vi sums[R][2];
    unroll<R>([&](auto r) { sums[r.value][0] = sums[r.value][1] = vi{}; });
    for (int64_t i = 0; i < steps; ++i, tile += 128) {
        __builtin_prefetch(tile + LEAD, 0, 2);
        __builtin_prefetch(tile + LEAD + 64, 0, 2);
#if defined(__AVX512VNNI__)
        const __m512i low = _mm512_loadu_si512(tile), high = _mm512_loadu_si512(tile + 64);
        unroll<R>([&](auto r) {
            int32_t four; std::memcpy(&four, x + r.value * in.width + 4 * i, 4);
            const __m512i b = _mm512_set1_epi32(four);
            sums[r.value][0] = (vi)_mm512_dpbusd_epi32((__m512i)sums[r.value][0], low, b);
            sums[r.value][1] = (vi)_mm512_dpbusd_epi32((__m512i)sums[r.value][1], high, b);
        });
#else
        unroll<R>([&](auto r) {
            const int8_t* four = x + r.value * in.width + 4 * i;
            for (int half = 0; half < 2; ++half)
                for (int j = 0; j < 16; ++j) {
                    const uint8_t* w = tile + 64 * half + 4 * j;
                    sums[r.value][half][j] += w[0] * four[0] + w[1] * four[1] + w[2] * four[2] + w[3] * four[3];
                }
        });
#endif
    }
    unroll<R>([&](auto r) { widen(m, t, in, row + r.value, sums[r.value][0], sums[r.value][1], out[r.value]); });
}

template <int R, typename Done>
INLINE void tile_rows(const Matrix& m, int64_t t, const Activations& in, int64_t row, Done&& done) {
    const uint8_t* tile = m.data + t * tile_bytes(m.kind, m.inputs);
    vf out[R][2];
    switch (m.kind) {
        case Kind::F32: float_tile<Kind::F32, R>(tile, m.inputs, in, row, out); break;
        case Kind::F16: float_tile<Kind::F16, R>(tile, m.inputs, in, row, out); break;
        case Kind::BF16: float_tile<Kind::BF16, R>(tile, m.inputs, in, row, out); break;
        default: whole_tile<R>(tile, m, t, in, row, out); break;
    }
    if (m.bias) {
        const vf low = load(m.bias + t * TILE), high = load(m.bias + t * TILE + 16);
        unroll<R>([&](auto r) { out[r.value][0] += low; out[r.value][1] += high; });
    }
    unroll<R>([&](auto r) { done(row + r.value, t, out[r.value][0], out[r.value][1]); });
}

// Two tiles side by side: for few rows the sums of one are too few to hide the time that each addition takes.
template <Kind K, int R, typename Done>
INLINE void float_pair(const Matrix& m, int64_t t, const Activations& in, int64_t row, Done&& done) {
    constexpr int step = K == Kind::F32 ? 128 : 64;
    const uint8_t* tile = m.data + t * tile_bytes(K, m.inputs);
    const int64_t next = tile_bytes(K, m.inputs);
    const float* x = in.floats + row * in.width;
    vf out[R][4];
    unroll<R>([&](auto r) { unroll<4>([&](auto i) { out[r.value][i.value] = zero(); }); });
    for (int64_t i = 0; i < m.inputs; ++i, tile += step) {
        vf w[4];
        __builtin_prefetch(tile + LEAD, 0, 2);
        __builtin_prefetch(tile + next + LEAD, 0, 2);
        load_weights<K>(tile, w[0], w[1]);
        load_weights<K>(tile + next, w[2], w[3]);
        unroll<R>([&](auto r) {
            const vf b = splat(x[r.value * in.width + i]);
            unroll<4>([&](auto j) { out[r.value][j.value] = fma(w[j.value], b, out[r.value][j.value]); });
        });
    }
    if (m.bias)
        unroll<4>([&](auto j) {
            const vf bias = load(m.bias + t * TILE + 16 * j.value);
            unroll<R>([&](auto r) { out[r.value][j.value] += bias; });
        });
    unroll<R>([&](auto r) {
        done(row + r.value, t, out[r.value][0], out[r.value][1]);
        done(row + r.value, t + 1, out[r.value][2], out[r.value][3]);
    });
}

template <int R, typename Done>
__attribute__((noinline)) void sweep(const Matrix& m, Share tiles, const Activations& in, int64_t row, Done done) {
    int64_t t = tiles.begin;
    if constexpr (R <= 2)
        for (; t + 2 <= tiles.end && !is_whole(m); t += 2) switch (m.kind) {
            case Kind::F32: float_pair<Kind::F32, R>(m, t, in, row, done); break;
            case Kind::F16: float_pair<Kind::F16, R>(m, t, in, row, done); break;
            default: float_pair<Kind::BF16, R>(m, t, in, row, done); break;
        }
    for (; t < tiles.end; ++t) tile_rows<R>(m, t, in, row, done);
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

#if defined(__AMX_INT8__)

constexpr int64_t AMX_FROM = 3;  // rows from which tile registers are faster; the sums are the same

// Registers 0-3: sums of two blocks of rows times two halves of a tile; 4, 5: the rows; 6, 7: the weights.
void configure(int64_t first, int64_t second) {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    const int64_t rows[8] = {first, first, second, second, first, second, 16, 16};
    for (int i = 0; i < 8; ++i) {
        config.bytes[i] = 64;
        config.rows[i] = (uint8_t)rows[i];
    }
    asm volatile("" : : "r"(&config) : "memory");  // gcc 12 believes that the next line reads eight bytes
    _tile_loadconfig(&config);
}

// Whole sums of a tile and up to 32 rows.
template <bool Two> INLINE void tile_sums(const uint8_t* w, const int8_t* x, int64_t width, int64_t steps, int32_t* out) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < steps; ++i, x += 64, w += 64 * TILE) {
        unroll<32>([&](auto line) { __builtin_prefetch(w + LEAD + 64 * line.value, 0, 2); });
        _tile_loadd(6, w, 128);
        _tile_loadd(7, w + 64, 128);
        _tile_loadd(4, x, width);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if constexpr (Two) {
            _tile_loadd(5, x + 16 * width, width);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, out, 128);
    _tile_stored(1, out + 16, 128);
    if constexpr (Two) {
        _tile_stored(2, out + 16 * TILE, 128);
        _tile_stored(3, out + 16 * TILE + 16, 128);
    }
}

// As `product`. Blocks of more than 32 rows read room behind the last row, which the caller has, and drop its sums.
template <typename Done>
void tile_product(const Matrix& m, Share tiles, const Activations& in, int64_t rows, Done done) {
    const int64_t steps = tile_bytes(m.kind, m.inputs) / (64 * TILE);
    if (rows > 32) configure(16, 16);
    else configure(std::min<int64_t>(rows, 16), rows > 16 ? rows - 16 : 16);
    alignas(64) int32_t sums[32 * TILE];
    for (int64_t t = tiles.begin; t < tiles.end; ++t)
        for (int64_t row = 0; row < rows; row += 32) {
            const uint8_t* w = m.data + t * tile_bytes(m.kind, m.inputs);
            const int8_t* x = in.whole + row * in.width;
            if (rows - row > 16) tile_sums<true>(w, x, in.width, steps, sums);
            else tile_sums<false>(w, x, in.width, steps, sums);
            for (int64_t r = 0; r < std::min<int64_t>(32, rows - row); ++r) {
                vi low, high;
                vf out[2];
                std::memcpy(&low, sums + r * TILE, 64);
                std::memcpy(&high, sums + r * TILE + 16, 64);
                widen(m, t, in, row + r, low, high, out);
                if (m.bias) {
                    out[0] += load(m.bias + t * TILE);
                    out[1] += load(m.bias + t * TILE + 16);
                }
                done(row + r, t, out[0], out[1]);
            }
        }
    _tile_release();
}

#endif

// This thread's tiles of m times every row; done(row, tile, outputs 0-15, outputs 16-31) takes each result.
template <typename Done>
void product(const Matrix& m, const Activations& in, int64_t rows, Team& team, int id, Done done) {
    const Share mine = share(m.tiles(), id, team.size());
#if defined(__AMX_INT8__)
    if (m.kind == Kind::INT8 && rows >= AMX_FROM) return tile_product(m, mine, in, rows, done);
#endif
    if (rows <= ROWS) {
        if (rows) sweep_some((int)rows, m, mine, in, 0, done);
        return;
    }
    for (int64_t t = mine.begin; t < mine.end; ++t)  // a tile stays near while all rows pass it
        for (int64_t row = 0; row < rows; row += ROWS)
            sweep_some((int)std::min<int64_t>(ROWS, rows - row), m, {t, t + 1}, in, row, done);
}

// Rows are padded with zeros to the 64 inputs that a step of the widest product takes.
void quantize(const float* x, int64_t width, int8_t* out, float& scale, int32_t& total) {
    vf most = zero();
    for (int64_t i = 0; i < width; i += 16) most = larger(most, magnitude(load(x + i)));
    const float top = largest(most), inverse = top > 0 ? 127.0f / top : 0.0f;
    vi sums = vi{};
    for (int64_t i = 0; i < width; i += 16) {
        const vi q = __builtin_convertvector(nearest(load(x + i) * inverse), vi);
        sums += q;
#if defined(__AVX512F__)
        _mm_storeu_si128((__m128i*)(out + i), _mm512_cvtepi32_epi8((__m512i)q));
#else
        for (int j = 0; j < 16; ++j) out[i + j] = (int8_t)q[j];
#endif
    }
    std::fill(out + width, out + round_up(width, 64), (int8_t)0);
    scale = top / 127.0f;
    total = 0;
    for (int j = 0; j < 16; ++j) total += sums[j];
    if (!(top <= std::numeric_limits<float>::max())) scale = std::numeric_limits<float>::quiet_NaN();
}

// ---- rows ----------------------------------------------------------------------------------------------------------

void normalise(const Net& net, const Norm& norm, const float* x, int64_t n, float* out) {
    const int64_t padded = round_up(n, TILE);
    if (!net.layer_norm) {
        vf squares = zero();
        for (int64_t i = 0; i < padded; i += 16) squares = fma(load(x + i), load(x + i), squares);
        const float inverse = 1.0f / std::sqrt(sum(squares) / n + net.eps);
        for (int64_t i = 0; i < padded; i += 16) store(out + i, load(x + i) * inverse * load(norm.gain + i));
        return;
    }
    vf total = zero();
    for (int64_t i = 0; i < padded; i += 16) total += load(x + i);
    const float mean = sum(total) / n;
    vf squares = zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) { const vf d = load(x + i) - mean; squares = fma(d, d, squares); }
    float rest = 0;
    for (int64_t j = i; j < n; ++j) rest += (x[j] - mean) * (x[j] - mean);
    const float inverse = 1.0f / std::sqrt((sum(squares) + rest) / n + net.eps);
    for (i = 0; i < padded; i += 16) {
        vf y = (load(x + i) - mean) * inverse * load(norm.gain + i);
        if (norm.bias) y += load(norm.bias + i);
        store(out + i, y);
    }
}

void embed(const Net& net, int64_t token, int64_t position, float* out) {
    const int64_t n = net.hidden, padded = round_up(n, TILE);
    if (!net.embed) {
        read_row(net.head, token, out);
    } else if (net.embed_kind == Kind::F32) {
        std::copy_n((const float*)net.embed + token * n, n, out);
    } else {
        const uint16_t* bits = (const uint16_t*)net.embed + token * n;
        if (net.embed_kind == Kind::BF16) for (int64_t i = 0; i < n; ++i) out[i] = widen_bfloat(bits[i]);
        else for (int64_t i = 0; i < n; ++i) out[i] = widen_half(bits[i]);
    }
    if (net.embed_scale != 1) for (int64_t i = 0; i < n; ++i) out[i] *= net.embed_scale;
    if (net.positions) for (int64_t i = 0; i < n; ++i) out[i] += net.positions[position * n + i];
    for (int64_t i = n; i < padded; ++i) out[i] = 0;
}

// cos and sin per pair of every row: [rows, pairs, 2].
void turn(const Rope& rope, int64_t position, float* out) {
    const auto& frequencies = !rope.beyond.empty() && position >= rope.border ? rope.beyond : rope.frequencies;
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = (float)position * frequencies[i];
        out[2 * i] = (float)std::cos(angle) * rope.scale;
        out[2 * i + 1] = (float)std::sin(angle) * rope.scale;
    }
}

// One head, normed and turned: pairs lie side by side.
void shape_head(const Net& net, const Layer& layer, const float* in, int64_t head, const float* turns, float scale,
                float* out) {
    const int64_t dim = net.dim;
    int64_t i = 0;
    float inverse = 1;
    const float* gain = layer.qk_gain ? layer.qk_gain + head * dim : nullptr;
    if (gain) {
        float squares = 0;
        for (int64_t j = 0; j < dim; ++j) squares += in[j] * in[j];
        inverse = 1.0f / std::sqrt(squares / dim + net.eps);
    }
    auto value = [&](int64_t j) { return gain ? in[j] * inverse * gain[j] : in[j]; };
    if (turns) {
        const int64_t pairs = (int64_t)net.ropes[layer.rope].frequencies.size();
        for (int64_t p = 0; p < pairs; ++p, i += 2) {
            const float a = value(i), b = value(i + 1), c = turns[2 * p], s = turns[2 * p + 1];
            out[i] = (a * c - b * s) * scale;
            out[i + 1] = (a * s + b * c) * scale;
        }
    }
    for (; i < dim; ++i) out[i] = value(i) * scale;
}

// ---- attention -----------------------------------------------------------------------------------------------------

// A vector of a head; the last one may be short.
INLINE vf load_part(const float* p, int64_t i, int64_t dim) {
    if (i + 16 <= dim) return load(p + i);
    float f[16] = {};
    for (int64_t j = i; j < dim; ++j) f[j - i] = p[j];
    return load(f);
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
#else
    float in[16][16], out[16][16];
    std::memcpy(in, v, sizeof in);
    for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 16; ++i) out[i][k] = in[k][i];
    std::memcpy(v, out, sizeof out);
#endif
}

constexpr int BLOCKS = 4;  // of sixteen keys, turned together

// Entries [at, at + 64) as [block][dimension][16 keys]; behind `end` the last one again.
void turn_keys(const float* keys, const int64_t* entries, int64_t at, int64_t end, int64_t dim, float* out) {
    for (int64_t first = at; first < at + 16 * BLOCKS; first += 16, out += 16 * dim)
        for (int64_t i = 0; i < dim; i += 16) {
            vf v[16];
            for (int k = 0; k < 16; ++k) v[k] = load_part(keys + entries[std::min(first + k, end - 1)] * dim, i, dim);
            transpose(v);
            for (int64_t k = 0; k < std::min<int64_t>(16, dim - i); ++k) store(out + 16 * (i + k), v[k]);
        }
}

// Scores of Q queries against B blocks of keys, over the dimensions in order.
template <int Q, int B>
INLINE void score(const float* const* queries, const float* turned, int64_t dim, int64_t at, float* const* out) {
    vf sums[Q][B];
    unroll<Q>([&](auto q) { unroll<B>([&](auto b) { sums[q.value][b.value] = zero(); }); });
    for (int64_t i = 0; i < dim; ++i) {
        vf k[B];
        unroll<B>([&](auto b) { k[b.value] = load(turned + 16 * (b.value * dim + i)); });
        unroll<Q>([&](auto q) {
            const vf x = splat(queries[q.value][i]);
            unroll<B>([&](auto b) { sums[q.value][b.value] = fma(x, k[b.value], sums[q.value][b.value]); });
        });
    }
    unroll<Q>([&](auto q) { unroll<B>([&](auto b) { store(out[q.value] + at + 16 * b.value, sums[q.value][b.value]); }); });
}

// Scores of `many` queries against entries [begin, end); `out` has room for 64 more.
void score_all(const float* const* queries, int64_t many, const float* keys, const int64_t* entries, int64_t begin,
               int64_t end, int64_t dim, float* const* out) {
    alignas(64) float turned[16 * BLOCKS * 1024];
    for (int64_t at = begin; at < end; at += 16 * BLOCKS) {
        turn_keys(keys, entries, at, end, dim, turned);
        int64_t q = 0;
        for (; q + 4 <= many; q += 4) {
            score<4, 2>(queries + q, turned, dim, at, out + q);
            score<4, 2>(queries + q, turned + 32 * dim, dim, at + 32, out + q);
        }
        for (; q < many; ++q) score<1, 4>(queries + q, turned, dim, at, out + q);
    }
}

// Weighted sums of values for Q queries, entry after entry, each with the sum of its weights.
template <int N, int Q>
void blend(const float* const* weights, const float* values, const int64_t* entries, int64_t begin, int64_t end,
           float* const* out) {
    vf sums[Q][N], totals[Q];
    unroll<Q>([&](auto q) {
        totals[q.value] = zero();
        unroll<N>([&](auto i) { sums[q.value][i.value] = zero(); });
    });
    for (int64_t j = begin; j < end; ++j) {
        const float* value = values + entries[j] * (N * 16);
        vf v[N];
        unroll<N>([&](auto i) { v[i.value] = load(value + 16 * i.value); });
        unroll<Q>([&](auto q) {
            const vf w = splat(weights[q.value][j]);
            totals[q.value] += w;
            unroll<N>([&](auto i) { sums[q.value][i.value] = fma(w, v[i.value], sums[q.value][i.value]); });
        });
    }
    unroll<Q>([&](auto q) {
        unroll<N>([&](auto i) { store(out[q.value] + 16 * i.value, sums[q.value][i.value] / totals[q.value]); });
    });
}

void blend_any(const float* weights, const float* values, const int64_t* entries, int64_t begin, int64_t end,
               int64_t dim, float* out) {
    float total = 0;
    for (int64_t i = 0; i < dim; ++i) out[i] = 0;
    for (int64_t j = begin; j < end; ++j) {
        total += weights[j];
        for (int64_t i = 0; i < dim; ++i) out[i] += weights[j] * values[entries[j] * dim + i];
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

// Scores -> weights e^(score - most), hidden entries exactly 0, over [from, to) which covers what the row sees.
void weigh(float* scores, int64_t from, int64_t to, const Sight& sight, float cap) {
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
    vf most = splat(nothing);
    for (int64_t j = from; j < end; j += 16) most = larger(most, load(scores + j));
    const float top = largest(most);
    for (int64_t j = from; j < end; j += 16) store(scores + j, exponential(load(scores + j) - top));
}

constexpr int64_t SCORES = 1 << 17;  // that rows sharing the turned keys may have together: half a MiB

struct Unit {
    const Segment* segment;
    const int64_t* entries;
    int64_t head, first, count;  // KV head; rows of the segment
};

template <int N>
void attend(const Net& net, const Layer& layer, const Strip& strip, const Plan& plan, const Unit& u, const float* q,
            int64_t stride, float* out, int64_t out_stride, std::vector<float>& scratch) {
    const Segment& s = *u.segment;
    const int64_t group = net.heads / net.kv_heads, dim = net.dim, all = s.past + s.base + s.count;
    const int64_t width = all + 32 * BLOCKS, many = group * u.count;
    if ((int64_t)scratch.size() < width * many) scratch.resize(width * many);
    const float *keys = strip.keys + u.head * strip.stride, *values = strip.values + u.head * strip.stride;
    std::vector<Sight> sights(u.count);
    int64_t from = all, to = 0;
    for (int64_t r = 0; r < u.count; ++r) {
        const int64_t row = u.first + r;
        see(s, row, plan.positions[s.start + row], layer.window, sights[r]);
        from = std::min(from, sights[r].begin);
        to = std::max(to, sights[r].end);
    }
    std::vector<const float*> queries(many), weights(many);
    std::vector<float*> scores(many), outs(many);
    for (int64_t i = 0; i < many; ++i) {
        const int64_t row = s.start + u.first + i / group, head = u.head * group + i % group;
        queries[i] = q + row * stride + head * dim;
        outs[i] = out + row * out_stride + head * dim;
        weights[i] = scores[i] = scratch.data() + i * width;
    }
    score_all(queries.data(), many, keys, u.entries, from, to, dim, scores.data());
    for (int64_t i = 0; i < many; ++i) weigh(scores[i], from, to, sights[i / group], net.attention_cap);
    int64_t k = 0;
    if constexpr (N == 4) for (; k + 4 <= many; k += 4) blend<N, 4>(weights.data() + k, values, u.entries, from, to, outs.data() + k);
    if constexpr (N > 0) {
        for (; k + 2 <= many; k += 2) blend<N, 2>(weights.data() + k, values, u.entries, from, to, outs.data() + k);
        for (; k < many; ++k) blend<N, 1>(weights.data() + k, values, u.entries, from, to, outs.data() + k);
    }
    for (; k < many; ++k) blend_any(weights[k], values, u.entries, from, to, dim, outs[k]);
}

// ---- the pass ------------------------------------------------------------------------------------------------------

struct Sizes {
    int64_t hidden, q, kv, qkv, out, ffn, widest;
    explicit Sizes(const Net& net) {
        hidden = round_up(net.hidden, TILE);
        q = net.heads * net.dim;
        kv = net.kv_heads * net.dim;
        qkv = round_up(q + 2 * kv, TILE);
        out = round_up(q, TILE);
        ffn = round_up(net.ffn, TILE);
        widest = round_up(std::max({hidden, qkv, out, ffn}), 64);
    }
};

class Passing {
public:
    Passing(const Net& net, const std::vector<Strip>& strips, const Plan& plan, Workspace& ws, Team& team, int id)
        : net(net), strips(strips), plan(plan), ws(ws), team(team), id(id), size(net), rows(plan.rows) {}

    void run() {
        mine(rows, [&](int64_t r) {
            embed(net, plan.tokens[r], plan.positions[r], x(r));
            for (size_t i = 0, at = 0; i < net.ropes.size(); at += 2 * net.ropes[i++].frequencies.size())
                turn(net.ropes[i], plan.positions[r], ws.turns.data() + r * turns_width() + at);
        });
        for (size_t i = 0; i < plan.layers.size(); ++i) {
            run_layer(net.layers[plan.layers[i]], strips[plan.layers[i]]);
            if (!plan.hidden[i]) continue;
            team.meet();
            mine(rows, [&](int64_t r) { std::copy_n(x(r), net.hidden, plan.hidden[i] + r * net.hidden); });
        }
        team.meet();
        if (plan.num_wanted) logits();
    }

private:
    const Net& net;
    const std::vector<Strip>& strips;
    const Plan& plan;
    Workspace& ws;
    Team& team;
    const int id;
    const Sizes size;
    const int64_t rows;

    float* x(int64_t r) { return ws.x.data() + r * size.hidden; }
    float* a(int64_t r) { return ws.a.data() + r * size.widest; }
    float* b(int64_t r) { return ws.b.data() + r * size.widest; }
    int64_t turns_width() const {
        int64_t total = 0;
        for (const auto& rope : net.ropes) total += 2 * (int64_t)rope.frequencies.size();
        return total;
    }
    const float* turns(const Layer& layer, int64_t r) const {
        if (layer.rope < 0) return nullptr;
        int64_t at = 0;
        for (int i = 0; i < layer.rope; ++i) at += 2 * (int64_t)net.ropes[i].frequencies.size();
        return ws.turns.data() + r * turns_width() + at;
    }

    // The first most likely token of a row, its logit (NaN where the row has one) and the sum of e^(logit - peak).
    void crown(int64_t i) {
        const float* row = plan.logits + i * net.vocab;
        const int64_t whole = net.vocab / 16 * 16;
        vf most = splat(-std::numeric_limits<float>::infinity());
        vi broken = vi{};
        for (int64_t j = 0; j < whole; j += 16) {
            const vf v = load(row + j);
            broken |= v != v;
            most = larger(most, v);
        }
        float top = largest(most);
        for (int64_t j = whole; j < net.vocab; ++j) top = row[j] > top ? row[j] : top;
        bool bad = false;
        for (int j = 0; j < 16; ++j) bad |= broken[j] != 0;
        for (int64_t j = whole; j < net.vocab; ++j) bad |= row[j] != row[j];
        int64_t best = 0;
        while (best < net.vocab && !(bad ? row[best] != row[best] : row[best] == top)) ++best;
        vf mass = zero();
        for (int64_t j = 0; j < whole; j += 16) mass += exponential(load(row + j) - top);
        float rest = sum(mass);
        for (int64_t j = whole; j < net.vocab; ++j) rest += std::exp(row[j] - top);
        plan.best[i] = best;
        plan.peaks[2 * i] = bad ? std::numeric_limits<float>::quiet_NaN() : top;
        plan.peaks[2 * i + 1] = rest;
    }

    template <typename F> void mine(int64_t total, F&& f) {
        const Share s = share(total, id, team.size());
        for (int64_t i = s.begin; i < s.end; ++i) f(i);
    }

    auto into_a() {
        return [this](int64_t r, int64_t t, vf low, vf high) {
            store(a(r) + t * TILE, low);
            store(a(r) + t * TILE + 16, high);
        };
    }

    // Rows of `count` floats, made by fill(row, out) -> what a matrix of this kind multiplies.
    template <typename Fill> Activations prepare(const Matrix& m, int64_t count, int64_t width, Fill&& fill) {
        mine(count, [&](int64_t r) {
            fill(r, b(r));
            if (is_whole(m)) quantize(b(r), width, ws.quantized.data() + r * size.widest, ws.scales[r], ws.sums[r]);
        });
        team.meet();
        return {ws.b.data(), ws.quantized.data(), ws.scales.data(), ws.sums.data(), size.widest};
    }

    Activations normed(const Matrix& m, const Norm& norm, const float* from) {
        return prepare(m, rows, size.hidden, [&](int64_t r, float* out) {
            if (norm.gain) normalise(net, norm, from + r * size.hidden, net.hidden, out);
            else std::copy_n(from + r * size.hidden, size.hidden, out);
        });
    }

    void run_layer(const Layer& layer, const Strip& strip) {
        team.meet();
        if (net.parallel) mine(rows, [&](int64_t r) { std::copy_n(x(r), size.hidden, ws.before.data() + r * size.hidden); });
        attention(layer, strip);
        team.meet();
        feed_forward(layer);
    }

    void attention(const Layer& layer, const Strip& strip) {
        const Activations in = normed(layer.qkv, layer.attention, ws.x.data());
        product(layer.qkv, in, rows, team, id, into_a());
        team.meet();
        place(layer, strip);
        team.meet();
        look(layer, strip);
        team.meet();
        if (is_whole(layer.o)) prepare(layer.o, rows, size.out, [](int64_t, float*) {});
        const Activations seen{ws.b.data(), ws.quantized.data(), ws.scales.data(), ws.sums.data(), size.widest};
        add(layer.o, seen, layer.attention_post);
    }

    // Queries in place, keys and values to the cache.
    void place(const Layer& layer, const Strip& strip) {
        const int64_t heads = net.heads + 2 * net.kv_heads, dim = net.dim;
        mine(rows * heads, [&](int64_t i) {
            const int64_t r = i / heads, head = i % heads;
            float* from = a(r) + head * dim;
            if (head < net.heads) {
                float turned[1024];
                shape_head(net, layer, from, head, turns(layer, r), net.attention_scale, turned);
                std::copy_n(turned, dim, from);
            } else if (head < net.heads + net.kv_heads) {
                float* to = strip.keys + (head - net.heads) * strip.stride + ws.entry[r] * dim;
                shape_head(net, layer, from, head, turns(layer, r), 1, to);
            } else {
                std::copy_n(from, dim, strip.values + (head - net.heads - net.kv_heads) * strip.stride + ws.entry[r] * dim);
            }
        });
    }

    void look(const Layer& layer, const Strip& strip) {
        const int64_t group = net.heads / net.kv_heads;
        int64_t number = 0;
        const int64_t* entries = ws.all.data();
        for (const Segment& s : plan.segments) {
            const int64_t all = s.past + s.base + s.count;
            const int64_t block = std::clamp<int64_t>(SCORES / (all * group), 1, 16);
            for (int64_t first = 0; first < s.count; first += block)
                for (int64_t head = 0; head < net.kv_heads; ++head)
                    if (number++ % team.size() == id)
                        look_at(layer, strip, {&s, entries, head, first, std::min(block, s.count - first)});
            entries += all;
        }
        mine(rows, [&](int64_t r) { for (int64_t i = size.q; i < size.out; ++i) b(r)[i] = 0; });
    }

    void look_at(const Layer& layer, const Strip& strip, const Unit& u) {
        auto& scratch = ws.scores[id];
        switch (net.dim) {
            case 64: return attend<4>(net, layer, strip, plan, u, ws.a.data(), size.widest, ws.b.data(), size.widest, scratch);
            case 128: return attend<8>(net, layer, strip, plan, u, ws.a.data(), size.widest, ws.b.data(), size.widest, scratch);
            default: return attend<0>(net, layer, strip, plan, u, ws.a.data(), size.widest, ws.b.data(), size.widest, scratch);
        }
    }

    // x += m times the rows, through a norm where the family has one there.
    void add(const Matrix& m, const Activations& in, const Norm& post) {
        if (!post.gain && net.residual_scale == 1) {
            product(m, in, rows, team, id, [this](int64_t r, int64_t t, vf low, vf high) {
                float* at = x(r) + t * TILE;
                store(at, load(at) + low);
                store(at + 16, load(at + 16) + high);
            });
            return;
        }
        product(m, in, rows, team, id, into_a());
        team.meet();
        mine(rows, [&](int64_t r) {
            if (post.gain) normalise(net, post, a(r), net.hidden, a(r));
            for (int64_t i = 0; i < size.hidden; i += 16)
                store(x(r) + i, fma(load(a(r) + i), splat(net.residual_scale), load(x(r) + i)));
        });
    }

    void feed_forward(const Layer& layer) {
        const Norm& norm = net.parallel && !layer.mlp.gain ? layer.attention : layer.mlp;
        Activations in = normed(layer.up, norm, net.parallel ? ws.before.data() : ws.x.data());
        product(layer.up, in, rows, team, id, [this](int64_t r, int64_t t, vf low, vf high) {
            if (net.gated) return store(a(r) + t * 16, activate(net.activation, low) * high);
            store(a(r) + t * TILE, activate(net.activation, low));
            store(a(r) + t * TILE + 16, activate(net.activation, high));
        });
        team.meet();
        const int64_t width = layer.down.inputs, padded = round_up(width, TILE);
        in = prepare(layer.down, rows, padded, [&](int64_t r, float* out) {
            std::copy_n(a(r), width, out);
            std::fill(out + width, out + padded, 0.0f);
        });
        add(layer.down, in, layer.mlp_post);
    }

    void logits() {
        const Activations in = prepare(net.head, plan.num_wanted, size.hidden, [&](int64_t i, float* out) {
            const int64_t r = plan.wanted ? plan.wanted[i] : i;
            normalise(net, net.final_norm, x(r), net.hidden, out);
        });
        product(net.head, in, plan.num_wanted, team, id, [this](int64_t i, int64_t t, vf low, vf high) {
            low *= net.logit_scale;
            high *= net.logit_scale;
            if (net.logit_cap > 0) {
                low = hyperbolic_tangent(low / net.logit_cap) * net.logit_cap;
                high = hyperbolic_tangent(high / net.logit_cap) * net.logit_cap;
            }
            float* at = plan.logits + i * net.vocab + t * TILE;
            if ((t + 1) * TILE <= net.vocab) {
                store(at, low);
                store(at + 16, high);
                return;
            }
            float both[32];
            store(both, low);
            store(both + 16, high);
            std::copy_n(both, net.vocab - t * TILE, at);
        });
        team.meet();
        mine(plan.num_wanted, [&](int64_t i) { crown(i); });
    }
};

void run_pass(const Net& net, const std::vector<Strip>& strips, const Plan& plan, Workspace& ws, Team& team, int id) {
    Passing(net, strips, plan, ws, team, id).run();
}

}  // namespace
}  // namespace forerun
