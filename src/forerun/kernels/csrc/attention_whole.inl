// Attention over an int8 cache in tile registers: eight queries of one KV head at a time. Included by attention.inl.
//
// Queries and weights are whole numbers of sixteen bits here, two bytes each that stand beside each other in a tile, so
// that all sums are exact: their order, and entries that weigh nothing, leave no trace in a row's bits.

constexpr int64_t WHOLE_QUERIES = 24;  // that look at the same keys, eight at a time, while these are near

#if defined(__AMX_INT8__)

constexpr int64_t BLOCK = 64, EIGHT = 8;  // keys and queries
constexpr size_t SAFE = 512;              // blocks whose sums fit into 32 bits: 512 * 64 * 255 * 127
constexpr float QUERY_MAX = 127 * 256, WEIGHT_MAX = 65535, TOTAL_ONE = 1 << 30;

struct Block {
    const int64_t* entries;
    int64_t count;  // real ones; the rest are hidden
    bool together;  // they follow each other in the cache, which goes on behind a short block
    int64_t entry(int64_t i) const { return entries[std::min(i, count - 1)]; }
};

void find_blocks(const int64_t* entries, int64_t from, int64_t to, int64_t rows, std::vector<Block>& out) {
    out.clear();
    for (int64_t at = from; at < to; at += BLOCK) {
        Block& b = out.emplace_back(Block{entries + at, std::min(BLOCK, to - at), entries[at] + BLOCK <= rows});
        for (int64_t i = 1; i < b.count; ++i) b.together &= b.entries[i] == b.entries[0] + i;
    }
}

// Rows of a block where they lie, or in `room`, zero-padded to whole tiles: [64, dim rounded up to 64].
const int8_t* block_rows(const Held<int8_t>& held, const Block& b, int8_t* room) {
    const int64_t padded = round_up(held.dim, BLOCK);
    if (b.together && padded == held.dim) return held.at(b.entries[0]);
    for (int64_t i = 0; i < BLOCK; ++i) {
        std::memcpy(room + i * padded, held.at(b.entry(i)), held.dim);
        std::memset(room + i * padded + held.dim, 0, padded - held.dim);
    }
    return room;
}

const float* block_scales(const Held<int8_t>& held, const Block& b, float* room) {
    if (b.together && b.count == BLOCK) return held.scales + b.entries[0];
    for (int64_t i = 0; i < BLOCK; ++i) room[i] = held.scales[b.entry(i)];
    return room;
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
void multiply_keys(const int8_t* rows, int64_t dim, const uint8_t* queries, int32_t* out) {
    const int64_t stride = round_up(dim, BLOCK);
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t i = 0; i < dim; i += 64, queries += 1024) {
        _tile_loadd(6, queries, 64);
        _tile_loadd(4, rows + i, stride);
        _tile_loadd(5, rows + 16 * stride + i, stride);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 6);
        _tile_loadd(4, rows + 32 * stride + i, stride);
        _tile_loadd(5, rows + 48 * stride + i, stride);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 5, 6);
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
    _tile_stored(2, out + 512, 64);
    _tile_stored(3, out + 768, 64);
}

// Those sums -> scores of every query.
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

// Scores -> weights times the scales of the values; the largest of these, by which they are taken whole, and the
// factor that sums of such whole numbers times values are multiplied with. NaN where a score or a scale is.
std::pair<float, float> weigh_whole(float* scores, float top, const float* value_scales, int64_t width) {
    __m512i totals = _mm512_setzero_si512();  // of the weights alone
    vf most = zero(), odd = zero();
    for (int64_t j = 0; j < width; j += 16) {
        const vf w = (vf)rough_exponential((__m512)(load(scores + j) - top)), parts = w * TOTAL_ONE;
        totals = _mm512_add_epi64(totals, _mm512_cvtps_epi64(_mm512_castps512_ps256((__m512)parts)));
        totals = _mm512_add_epi64(totals, _mm512_cvtps_epi64(_mm512_extractf32x8_ps((__m512)parts, 1)));
        const vf v = w * load(value_scales + j);
        most = larger(most, v);
        odd = fma(v, zero(), odd);
        store(scores + j, v);
    }
    const float total = (float)_mm512_reduce_add_epi64(totals) / TOTAL_ONE, largest_weight = largest(most);
    return {largest_weight, largest_weight / WEIGHT_MAX / total + sum(odd)};
}

// Weights of query `q` as bytes: [blocks][8 high, 8 low][64 keys].
void part_weights(const float* weights, float most, int64_t width, int64_t q, uint8_t* out) {
    const float step = most > 0 ? WEIGHT_MAX / most : 0.0f;
    for (int64_t j = 0; j < width; j += 16) {
        const __m512i whole = _mm512_cvtps_epi32((__m512)(load(weights + j) * step));
        uint8_t* to = out + j / BLOCK * 1024 + q * 64 + j % BLOCK;
        _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
        _mm_storeu_si128((__m128i*)(to + 512), _mm512_cvtepi32_epi8(whole));
    }
}

// Sixty-four dimensions of a block's values as fours of keys: [4][16 fours][16][4]; of every sixteen dimensions,
// 4 i to 4 i + 3 stand in part i.
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

    Bench(Lines<float>& scratch, int64_t dim, int64_t width) {
        const int64_t padded = round_up(dim, BLOCK);
        const int64_t need = (16 + 64) * padded + 16 * width + 4096 + 4096 + 4 * width + 4 * EIGHT * width + 64;
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

// Sums of weights times values over dimensions [first, first + 64): [8][64], the dimensions in the order of four_values.
void blend_whole(const Held<int8_t>& values, const std::vector<Block>& blocks, int64_t first, int64_t count, const Bench& room,
                 int64_t (&out)[EIGHT][64]) {
    std::memset(out, 0, sizeof out);
    for (size_t begin = 0; begin < blocks.size(); begin += SAFE) {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
        for (size_t i = begin; i < std::min(blocks.size(), begin + SAFE); ++i) {
            four_values(block_rows(values, blocks[i], room.rows) + first, round_up(values.dim, BLOCK), room.fours);
            _tile_loadd(6, room.weights + 1024 * i, 64);
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
        for (int64_t q = 0; q < count; ++q)
            for (int64_t part = 0; part < 4; ++part) {
                const int32_t* sums = room.sums + 256 * part + 16 * q;
                for (int i = 0; i < 16; ++i) out[q][16 * part + i] += 256 * (int64_t)sums[i] + sums[16 * EIGHT + i];
            }
    }
}

// Those sums of one query -> numbers of a head.
void give_whole(const int64_t* sums, float factor, int64_t dim, float* out) {
    float row[64], ordered[64];
    for (int i = 0; i < 64; ++i) row[i] = (float)sums[i] * factor;
    for (int part = 0; part < 4; ++part)
        for (int i = 0; i < 4; ++i) std::memcpy(ordered + 16 * i + 4 * part, row + 16 * part + 4 * i, 16);
    std::memcpy(out, ordered, 4 * std::min<int64_t>(64, dim));
}

// At most eight queries, from `first` of the unit's on, over entries from `from` on.
void attend_eight(const Look& look, const Unit& u, const std::vector<Sight>& sights, int64_t from, const std::vector<Block>& blocks,
                  int64_t first) {
    const auto& [net, layer, strip, plan, q, out, stride, scratch] = look;
    const int64_t group = net.heads / net.kv_heads, dim = net.dim, count = std::min(EIGHT, group * u.count - first);
    const int64_t width = BLOCK * (int64_t)blocks.size();
    const Held<int8_t> keys = keys_of<int8_t>(strip, u.head, dim), values = values_of<int8_t>(strip, u.head, dim);
    const Bench room(scratch, dim, width);
    const float* queries[EIGHT];
    float *scores[EIGHT], *outs[EIGHT], scales[EIGHT], factors[EIGHT];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (u.segment->start + u.first + (first + i) / group) * stride + (u.head * group + (first + i) % group) * dim;
        queries[i] = q + at;
        outs[i] = out + at;
        scores[i] = room.scores + i * width;
    }
    turn_whole(queries, count, dim, room.queries, scales);
    for (size_t i = 0; i < blocks.size(); ++i) {
        alignas(64) float held[BLOCK];
        multiply_keys(block_rows(keys, blocks[i], room.rows), dim, room.queries, room.sums);
        give_scores(room.sums, block_scales(keys, blocks[i], held), scales, count, BLOCK * i, scores);
        float* scale = room.scales + BLOCK * i;
        if (const float* found = block_scales(values, blocks[i], scale); found != scale) std::memcpy(scale, found, 4 * BLOCK);
    }
    for (int64_t i = 0; i < count; ++i) {
        const float top = hide_scores(scores[i] - from, from, from + width, sights[(first + i) / group], net.attention_cap);
        const auto [most, factor] = weigh_whole(scores[i], top, room.scales, width);
        part_weights(scores[i], most, width, i, room.weights);
        factors[i] = factor;
    }
    for (int64_t at = 0; at < dim; at += 64) {
        int64_t sums[EIGHT][64];
        blend_whole(values, blocks, at, count, room, sums);
        for (int64_t i = 0; i < count; ++i) give_whole(sums[i], factors[i], dim - at, outs[i] + at);
    }
}

void attend_whole(const Look& look, const Unit& u) {
    static thread_local std::vector<Sight> sights;
    static thread_local std::vector<Block> blocks;
    const auto [from, to] = see_all(look, u, sights);
    find_blocks(u.entries, from, to, look.strip.rows, blocks);
    for (int64_t first = 0; first < look.net.heads / look.net.kv_heads * u.count; first += EIGHT)
        attend_eight(look, u, sights, from, blocks, first);
}

#else

void attend_whole(const Look&, const Unit&) {}

#endif
