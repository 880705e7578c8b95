// Attention over an int8 cache in tile registers: eight queries of one KV head at a time. Included by attention.inl.
//
// Queries and weights are whole numbers of sixteen bits here, two bytes each that stand beside each other in a tile, so
// that all sums are exact: their order, and entries that weigh nothing, leave no trace in a row's bits.

#if defined(__AMX_INT8__)

constexpr int64_t BLOCK = 64, EIGHT = 8;  // keys and queries
constexpr int64_t BLOCKS_AHEAD = 2;       // whose keys or values are asked for in advance
constexpr int64_t SAFE = 512;             // blocks whose sums fit into 32 bits: 512 * 64 * 255 * 127
constexpr float QUERY_MAX = 127 * 256, WEIGHT_MAX = 65535, TOTAL_ONE = 1 << 30;

struct Block {
    const int8_t* rows;
    int64_t stride;
    const int64_t* entries;
    int64_t count;  // real ones
    bool together;  // a whole block of rows that follow each other
};

Block block_at(const int64_t* entries, int64_t at, int64_t to) {
    Block b{nullptr, 0, entries + at, std::min(BLOCK, to - at), to - at >= BLOCK};
    for (int64_t i = 1; i < b.count; ++i) b.together &= b.entries[i] == b.entries[0] + i;
    return b;
}

// Rows of a block where they lie, or in `room`, zero-padded to whole tiles.
void find_rows(const Held<int8_t>& held, Block& b, int8_t* room) {
    const int64_t padded = round_up(held.dim, BLOCK);
    b.rows = b.together && padded == held.dim ? held.at(b.entries[0]) : room;
    b.stride = padded;
    if (b.rows != room) return;
    for (int64_t i = 0; i < BLOCK; ++i, room += padded) {
        std::memcpy(room, held.at(b.entries[std::min(i, b.count - 1)]), held.dim);
        std::memset(room + held.dim, 0, padded - held.dim);
    }
}

const float* find_scales(const Held<int8_t>& held, const Block& b, float* room) {
    if (b.together) return held.scales + b.entries[0];
    for (int64_t i = 0; i < BLOCK; ++i) room[i] = held.scales[b.entries[std::min(i, b.count - 1)]];
    return room;
}

void ask_for(const Held<int8_t>& held, const int64_t* entries, int64_t at, int64_t to) {
    for (int64_t j = at; j < std::min(at + BLOCK, to); ++j)
        for (int64_t i = 0; i < held.dim; i += 64) __builtin_prefetch(held.at(entries[j]) + i, 0, 3);
}

// Sixteen whole numbers of sixteen bits -> their high and their low bytes.
INLINE void part_signed(__m512i whole, int8_t* high, int8_t* low) {
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)high, _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128((__m128i*)low, _mm512_cvtepi32_epi8(_mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8))));
}

// Queries as fours of dimensions: [dim / 64][16 fours][8 high, 8 low][4]; returns nothing of those behind `count`.
void turn_whole(const float* const* queries, int64_t count, int64_t dim, uint8_t* out, float* scales) {
    for (int64_t q = 0; q < count; ++q) {
        vf most = zero(), odd = zero();
        for (int64_t i = 0; i < dim; i += 16) {
            const vf v = load_part(queries[q], i, dim);
            most = larger(most, magnitude(v));
            odd += v - v;
        }
        scales[q] = largest(most) / QUERY_MAX + sum(odd);
    }
    for (int64_t first = 0; first < dim; first += 64, out += 1024) {
        alignas(64) int8_t bytes[16][64] = {};
        for (int64_t q = 0; q < count; ++q)
            for (int64_t i = first; i < std::min(first + 64, dim); i += 16) {
                const vf v = load_part(queries[q], i, dim) / (scales[q] > 0 ? scales[q] : 1.0f);
                part_signed(_mm512_cvtps_epi32((__m512)v), bytes[q] + i - first, bytes[EIGHT + q] + i - first);
            }
        vf v[16];
        std::memcpy(v, bytes, sizeof v);
        transpose(v);
        std::memcpy(out, v, sizeof v);
    }
}

// Sums of products of a block's keys with the parts of all queries: [64 keys][16].
void multiply_keys(const Block& b, int64_t dim, const uint8_t* queries, int32_t* out) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t i = 0; i < dim; i += 64, queries += 1024) {
        _tile_loadd(6, queries, 64);
        _tile_loadd(4, b.rows + i, b.stride);
        _tile_loadd(5, b.rows + 16 * b.stride + i, b.stride);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 6);
        _tile_loadd(4, b.rows + 32 * b.stride + i, b.stride);
        _tile_loadd(5, b.rows + 48 * b.stride + i, b.stride);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 5, 6);
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
    _tile_stored(2, out + 512, 64);
    _tile_stored(3, out + 768, 64);
}

// Those sums -> scores of every query, at `at`.
void give_scores(const int32_t* sums, const float* key_scales, const float* scales, int64_t count, int64_t at, float* const* out) {
    for (int64_t k = 0; k < BLOCK; k += 16, sums += 256) {
        vf v[16];
        std::memcpy(v, sums, sizeof v);
        transpose(v);
        for (int64_t q = 0; q < count; ++q) {
            const vf high = __builtin_convertvector((vi)v[q], vf), low = __builtin_convertvector((vi)v[EIGHT + q], vf);
            store(out[q] + at + k, fma(high, splat(256.0f), low) * load(key_scales + k) * scales[q]);
        }
    }
}

// What a query's weights, times the scales of the values, come to.
struct Sum {
    int64_t total;  // of the weights alone, in parts of TOTAL_ONE
    float most;
    float odd;      // 0, or NaN where a weight or a value is not finite
};

Sum scale_weights(float* weights, const float* value_scales, int64_t width) {
    __m512i totals = _mm512_setzero_si512();
    vf most = zero(), odd = zero();
    for (int64_t j = 0; j < width; j += 16) {
        const vf w = load(weights + j), parts = w * TOTAL_ONE, v = w * load(value_scales + j);
        totals = _mm512_add_epi64(totals, _mm512_cvtps_epi64(_mm512_castps512_ps256((__m512)parts)));
        totals = _mm512_add_epi64(totals, _mm512_cvtps_epi64(_mm512_extractf32x8_ps((__m512)parts, 1)));
        most = larger(most, v);
        odd = fma(v, zero(), odd);
        store(weights + j, v);
    }
    return {_mm512_reduce_add_epi64(totals), largest(most), sum(odd)};
}

// Weights as bytes, [blocks][8 high, 8 low][64 keys], of query `q`.
void part_weights(const float* weights, float most, int64_t width, int64_t q, uint8_t* out) {
    const float step = most > 0 ? WEIGHT_MAX / most : 0.0f;
    for (int64_t j = 0; j < width; j += 16) {
        const __m512i whole = _mm512_cvtps_epi32((__m512)(load(weights + j) * step));
        uint8_t* to = out + j / BLOCK * 1024 + q * 64 + j % BLOCK;
        _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
        _mm_storeu_si128((__m128i*)(to + 512), _mm512_cvtepi32_epi8(whole));
    }
}

// Sixty-four dimensions of a block's values as fours of keys: [4][16 fours][16 dimensions][4], 4 i + j of every
// sixteen dimensions in block i.
void four_values(const int8_t* rows, int64_t stride, uint8_t* out) {
    for (int64_t k = 0; k < 16; ++k, rows += 4 * stride, out += 64) {
        const __m512i a = _mm512_loadu_si512(rows), b = _mm512_loadu_si512(rows + stride);
        const __m512i c = _mm512_loadu_si512(rows + 2 * stride), d = _mm512_loadu_si512(rows + 3 * stride);
        const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
        const __m512i ef = _mm512_unpackhi_epi8(a, b), gh = _mm512_unpackhi_epi8(c, d);
        _mm512_store_si512(out, _mm512_unpacklo_epi16(ab, cd));
        _mm512_store_si512(out + 1024, _mm512_unpackhi_epi16(ab, cd));
        _mm512_store_si512(out + 2048, _mm512_unpacklo_epi16(ef, gh));
        _mm512_store_si512(out + 3072, _mm512_unpackhi_epi16(ef, gh));
    }
}

// Room of a unit, in the thread's scratch memory.
struct Bench {
    uint8_t *queries, *weights, *fours;
    int8_t* rows;
    int32_t* sums;  // [4][16][16]
    float *scales, *scores;
    int64_t width;  // of a row of scores

    Bench(std::vector<float>& scratch, int64_t dim, int64_t entries) {
        const int64_t padded = round_up(dim, BLOCK);
        width = round_up(entries, BLOCK) + BLOCK;
        const int64_t need = 80 * padded + 16 * width + 4096 + 4096 + 4 * width + 4 * EIGHT * width + 128;
        if ((int64_t)scratch.size() * 4 < need) scratch.resize(need / 4 + 1);
        queries = (uint8_t*)round_up((int64_t)scratch.data(), 64);
        rows = (int8_t*)(queries + 16 * padded);
        weights = (uint8_t*)(rows + 64 * padded);
        fours = weights + 16 * width;
        sums = (int32_t*)(fours + 4096);
        scales = (float*)(sums + 1024);
        scores = scales + width;
    }
};

// Dimensions [first, first + 64) of what queries saw, as sums of weights times values: [8][64].
void blend_whole(const Held<int8_t>& values, const int64_t* entries, int64_t from, int64_t to, int64_t first, const Bench& room,
                 int64_t (&out)[EIGHT][64]) {
    std::memset(out, 0, sizeof out);
    for (int64_t at = from; at < to; at += SAFE * BLOCK) {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (int64_t j = at; j < std::min(to, at + SAFE * BLOCK); j += BLOCK) {
            Block b = block_at(entries, j, to);
            find_rows(values, b, room.rows);
            ask_for(values, entries, j + BLOCKS_AHEAD * BLOCK, to);
            four_values(b.rows + first, b.stride, room.fours);
            _tile_loadd(6, room.weights + (j - from) / BLOCK * 1024, 64);
            _tile_loadd(4, room.fours, 64);
            _tile_loadd(5, room.fours + 1024, 64);
            _tile_dpbusd(0, 6, 4);
            _tile_dpbusd(1, 6, 5);
            _tile_loadd(4, room.fours + 2048, 64);
            _tile_loadd(5, room.fours + 3072, 64);
            _tile_dpbusd(2, 6, 4);
            _tile_dpbusd(3, 6, 5);
        }
        _tile_stored(0, room.sums, 64);
        _tile_stored(1, room.sums + 256, 64);
        _tile_stored(2, room.sums + 512, 64);
        _tile_stored(3, room.sums + 768, 64);
        for (int64_t q = 0; q < EIGHT; ++q)
            for (int64_t i = 0; i < 64; ++i) {
                const int32_t* sum = room.sums + i / 4 % 4 * 256 + q * 16 + i / 16 * 4 + i % 4;
                out[q][i] += 256 * (int64_t)sum[0] + sum[EIGHT * 16];
            }
    }
}

// At most eight queries, from `first` of the unit's on.
void attend_eight(const Look& look, const Unit& u, const std::vector<Sight>& sights, std::pair<int64_t, int64_t> seen, int64_t first) {
    const auto& [net, layer, strip, plan, q, out, stride, scratch] = look;
    const auto [from, to] = seen;
    const int64_t group = net.heads / net.kv_heads, dim = net.dim, count = std::min(EIGHT, group * u.count - first);
    const Held<int8_t> keys = keys_of<int8_t>(strip, u.head, dim), values = values_of<int8_t>(strip, u.head, dim);
    const Bench room(scratch, dim, to - from);
    const float* queries[EIGHT];
    float *scores[EIGHT], *outs[EIGHT], scales[EIGHT];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (u.segment->start + u.first + (first + i) / group) * stride + (u.head * group + (first + i) % group) * dim;
        queries[i] = q + at;
        outs[i] = out + at;
        scores[i] = room.scores + i * room.width - from;
    }
    turn_whole(queries, count, dim, room.queries, scales);
    for (int64_t at = from; at < to; at += BLOCK) {
        Block b = block_at(u.entries, at, to);
        alignas(64) float held[BLOCK];
        find_rows(keys, b, room.rows);
        ask_for(keys, u.entries, at + BLOCKS_AHEAD * BLOCK, to);
        multiply_keys(b, dim, room.queries, room.sums);
        give_scores(room.sums, find_scales(keys, b, held), scales, count, at, scores);
    }
    const int64_t width = round_up(to - from, BLOCK);
    for (int64_t j = 0; j < width; ++j) room.scales[j] = values.scales[u.entries[std::min(from + j, to - 1)]];
    float factors[EIGHT];
    for (int64_t i = 0; i < count; ++i) {
        weigh(scores[i], from, to, sights[(first + i) / group], net.attention_cap);
        std::fill(scores[i] + to, scores[i] + from + width, 0.0f);
        const Sum sum = scale_weights(scores[i] + from, room.scales, width);
        part_weights(scores[i] + from, sum.most, width, i, room.weights);
        factors[i] = sum.most / WEIGHT_MAX / ((float)sum.total / TOTAL_ONE) + sum.odd;
    }
    for (int64_t at = 0; at < dim; at += 64) {
        int64_t sums[EIGHT][64];
        blend_whole(values, u.entries, from, to, at, room, sums);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t j = 0; j < std::min<int64_t>(64, dim - at); ++j) outs[i][at + j] = (float)sums[i][j] * factors[i];
    }
}

void attend_whole(const Look& look, const Unit& u) {
    static thread_local std::vector<Sight> sights;
    const auto seen = see_all(look, u, sights);
    for (int64_t first = 0; first < look.net.heads / look.net.kv_heads * u.count; first += EIGHT)
        attend_eight(look, u, sights, seen, first);
}

#else

void attend_whole(const Look&, const Unit&) {}

#endif
