// Attention over a bfloat16 cache in tile registers: sixteen queries of one KV head at a time. Included by attention.inl.
//
// Keys are taken in groups of 32 by their place on the row's own path, the same place in whatever pass the row runs;
// within a group sums have the order of the hardware, and hidden keys weigh exactly nothing. So a row's bits are its own.

#if defined(__AMX_BF16__)

constexpr int64_t GROUP_KEYS = 32, QUERIES = 16;

bool tiles_attend(const Net& net) { return net.dim % 32 == 0 && net.heads / net.kv_heads <= QUERIES; }
void release() { _tile_release(); }

// 32 floats -> 32 bfloat16.
INLINE __m512i narrow_two(const float* p) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p));
}

// A group of keys that rows look at: the unit's rows all, or one of them.
struct Group {
    int64_t entries[GROUP_KEYS];
    int64_t count = 0;  // real ones; the rest repeat the last and are hidden
    int64_t row = -1;   // of the unit; -1: all
    int64_t place = 0;  // of the first on the path
    bool together = true;  // whether they lie side by side
};

// The groups of a unit: first those that its rows share, then, where a mask parts the rows, each row's own.
void group_keys(const Segment& s, const Unit& u, int64_t from, int64_t to, std::vector<Group>& out) {
    out.clear();
    auto add = [&](int64_t row, int64_t place, int64_t count, auto&& entry) {
        for (int64_t first = 0; first < count; first += GROUP_KEYS) {
            Group& g = out.emplace_back();
            g.count = std::min(GROUP_KEYS, count - first);
            g.row = row;
            g.place = place + first;
            for (int64_t i = 0; i < GROUP_KEYS; ++i) g.entries[i] = u.entries[entry(first + std::min(i, g.count - 1))];
            for (int64_t i = 1; i < GROUP_KEYS; ++i) g.together &= g.entries[i] == g.entries[0] + i;
        }
    };
    const int64_t begin = from / GROUP_KEYS * GROUP_KEYS;
    if (!s.mask) return add(-1, begin, to - begin, [&](int64_t i) { return begin + i; });
    const int64_t shared = s.past / GROUP_KEYS * GROUP_KEYS, open = s.base + s.count;
    if (begin < shared) add(-1, begin, shared - begin, [&](int64_t i) { return begin + i; });
    const int64_t start = std::max(begin, shared);
    std::vector<int64_t> path;
    for (int64_t r = 0; r < u.count; ++r) {
        path.clear();
        for (int64_t j = start; j < s.past; ++j) path.push_back(j);
        const uint8_t* mask = s.mask + (u.first + r) * open;
        for (int64_t j = 0; j < open; ++j)
            if (mask[j]) path.push_back(s.past + j);
        add(r, start, (int64_t)path.size(), [&](int64_t i) { return path[i]; });
    }
}

// Thirty-two rows of the cache as one block: where they lie, or gathered into `room`.
const uint16_t* rows_of(const uint16_t* strip, const Group& g, int64_t dim, uint16_t* room) {
    if (g.together) return strip + g.entries[0] * dim;
    for (int64_t i = 0; i < GROUP_KEYS; ++i) std::memcpy(room + i * dim, strip + g.entries[i] * dim, 2 * dim);
    return room;
}

// Queries as pairs of dimensions: [dim / 32][16 pairs][16 queries].
void turn_queries(const float* const* queries, int64_t many, int64_t dim, uint8_t* out) {
    for (int64_t i = 0; i < dim; i += 32, out += 1024) {
        vf v[16];
        for (int q = 0; q < QUERIES; ++q) v[q] = q < many ? (vf)narrow_two(queries[q] + i) : zero();
        transpose(v);
        for (int q = 0; q < 16; ++q) store((float*)out + 16 * q, v[q]);
    }
}

// Scores [32 keys][16 queries].
void score_group(const uint16_t* keys, int64_t dim, const uint8_t* queries, float* out) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < dim; i += 32, queries += 1024) {
        _tile_loadd(4, queries, 64);
        _tile_loadd(5, keys + i, 2 * dim);
        _tile_loadd(6, keys + 16 * dim + i, 2 * dim);
        _tile_dpbf16ps(0, 5, 4);
        _tile_dpbf16ps(1, 6, 4);
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
}

// Hidden keys of a group get minus infinity, for each row of the unit that sees the group at all.
void hide(const Group& g, const std::vector<Sight>& sights, int64_t each, int64_t many, float* scores) {
    const float nothing = -std::numeric_limits<float>::infinity();
    for (int64_t q = 0; q < many; ++q) {
        const Sight& sight = sights[q / each];
        if (g.row >= 0 && g.row != q / each) {
            for (int64_t i = 0; i < GROUP_KEYS; ++i) scores[16 * i + q] = nothing;
            continue;
        }
        for (int64_t i = 0; i < std::min(GROUP_KEYS, sight.begin - g.place); ++i) scores[16 * i + q] = nothing;
        for (int64_t i = std::clamp<int64_t>(sight.end - g.place, 0, g.count); i < GROUP_KEYS; ++i) scores[16 * i + q] = nothing;
    }
}

// Scores -> weights, in place of which they are written as [16 queries][32 keys] bfloat16; adds to the totals.
void weigh_group(float* scores, vf top, vf& total) {
    alignas(64) static constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i interleave = _mm512_load_si512(order);
    vf pairs[16];
    unroll<16>([&](auto k) {
        constexpr int i = 2 * k.value;
        const __m512 first = rough_exponential((__m512)(load(scores + 16 * i) - top));
        const __m512 second = rough_exponential((__m512)(load(scores + 16 * i + 16) - top));
        total += (vf)first;
        total += (vf)second;
        pairs[k.value] = (vf)_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    });
    transpose(pairs);
    unroll<16>([&](auto q) { store(scores + 16 * q.value, pairs[q.value]); });
}

// Values as pairs of keys: [dim / 16][16 pairs][16 dimensions], the dimensions of each 32 in the order 0-3, 8-11, ...
void pair_values(const uint16_t* values, int64_t dim, uint8_t* out) {
    for (int64_t i = 0; i < dim; i += 32, out += 2048)
        for (int64_t k = 0; k < 16; ++k) {
            const __m512i a = _mm512_loadu_si512(values + 2 * k * dim + i), b = _mm512_loadu_si512(values + (2 * k + 1) * dim + i);
            _mm512_storeu_si512(out + 64 * k, _mm512_unpacklo_epi16(a, b));
            _mm512_storeu_si512(out + 1024 + 64 * k, _mm512_unpackhi_epi16(a, b));
        }
}

// What every query saw, [dim / 16][16 queries][16 dimensions as above] -> rows of `outs`.
void give(const float* seen, vf total, int64_t many, int64_t dim, float* const* outs) {
    float totals[16];
    store(totals, total);
    for (int64_t q = 0; q < many; ++q)
        for (int64_t i = 0; i < dim; i += 32) {
            const __m512 a = _mm512_loadu_ps(seen + 16 * i + 16 * q), b = _mm512_loadu_ps(seen + 16 * i + 16 * q + 256);
            const __m512 low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xee);  // quarters a a b b
            store(outs[q] + i, (vf)_mm512_shuffle_f32x4(low, low, 0xd8) / totals[q]);  // a b a b
            store(outs[q] + i + 16, (vf)_mm512_shuffle_f32x4(high, high, 0xd8) / totals[q]);
        }
}

// Sums of 64 dimensions over all groups.
template <int Blocks> void blend_tiles(const uint8_t* weights, const uint8_t* values, int64_t stride, int64_t groups, float* out) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Blocks == 4) { _tile_zero(2); _tile_zero(3); }
    for (int64_t g = 0; g < groups; ++g, weights += 2048, values += stride) {
        _tile_loadd(4, weights, 64);
        _tile_loadd(5, values, 64);
        _tile_loadd(6, values + 1024, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
        if constexpr (Blocks == 4) {
            _tile_loadd(5, values + 2048, 64);
            _tile_loadd(6, values + 3072, 64);
            _tile_dpbf16ps(2, 4, 5);
            _tile_dpbf16ps(3, 4, 6);
        }
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
    if constexpr (Blocks == 4) { _tile_stored(2, out + 512, 64); _tile_stored(3, out + 768, 64); }
}

void attend_tiles(const Look& look, const Unit& u) {
    const auto& [net, layer, strip, plan, q, out, stride, scratch] = look;
    const Segment& s = *u.segment;
    const int64_t each = net.heads / net.kv_heads, dim = net.dim, many = each * u.count;
    static thread_local std::vector<Group> groups;
    static thread_local std::vector<Sight> sights;
    if ((int64_t)sights.size() < u.count) sights.resize(u.count);
    int64_t from = std::numeric_limits<int64_t>::max(), to = 0;
    for (int64_t r = 0; r < u.count; ++r) {
        Sight& sight = sights[r];
        const int64_t position = plan.positions[s.start + u.first + r];
        sight.begin = layer.window ? std::max<int64_t>(0, position - layer.window + 1) : 0;
        sight.end = s.mask ? std::numeric_limits<int64_t>::max() : s.past + s.base + u.first + r + 1;
        from = std::min(from, sight.begin);
        to = std::max(to, sight.end);
    }
    group_keys(s, u, from, to, groups);
    const float* queries[QUERIES];
    float* outs[QUERIES];
    for (int64_t i = 0; i < many; ++i) {
        const int64_t at = (s.start + u.first + i / each) * stride + (u.head * each + i % each) * dim;
        queries[i] = q + at;
        outs[i] = out + at;
    }
    const int64_t count = (int64_t)groups.size(), pairs = dim / 16 * 1024;
    const int64_t need = dim / 32 * 1024 + 64 * dim + 64 * dim + count * (2048 + pairs) + 128;
    if ((int64_t)scratch.size() * 4 < need) scratch.resize(need / 4 + 1);
    uint8_t* room = (uint8_t*)round_up((int64_t)scratch.data(), 64);
    uint8_t* turned = room;
    uint16_t* gathered = (uint16_t*)(turned + dim / 32 * 1024);
    float* seen = (float*)((uint8_t*)gathered + 64 * dim);
    uint8_t* weights = (uint8_t*)seen + 64 * dim;
    uint8_t* values = weights + count * 2048;
    const uint16_t* keys = (const uint16_t*)strip.keys + u.head * strip.stride;
    const uint16_t* held = (const uint16_t*)strip.values + u.head * strip.stride;
    turn_queries(queries, many, dim, turned);
    vf top = splat(-std::numeric_limits<float>::infinity());
    for (int64_t g = 0; g < count; ++g) {
        if (g + 1 < count) {  // asked for where it mostly lies, side by side
            const int64_t next = groups[g + 1].entries[0] * dim;
            for (int64_t i = 0; i < GROUP_KEYS * dim; i += 32) {
                __builtin_prefetch(keys + next + i, 0, 3);
                __builtin_prefetch(held + next + i, 0, 3);
            }
        }
        float* scores = (float*)(weights + 2048 * g);
        score_group(rows_of(keys, groups[g], dim, gathered), dim, turned, scores);
        pair_values(rows_of(held, groups[g], dim, gathered), dim, values + g * pairs);
        if (net.attention_cap > 0)
            for (int64_t i = 0; i < GROUP_KEYS; ++i)
                store(scores + 16 * i, hyperbolic_tangent(load(scores + 16 * i) * (1.0f / net.attention_cap)) * net.attention_cap);
        hide(groups[g], sights, each, many, scores);
        for (int64_t i = 0; i < GROUP_KEYS; ++i) top = larger(top, load(scores + 16 * i));
    }
    vf total = zero();
    for (int64_t g = 0; g < count; ++g) weigh_group((float*)(weights + 2048 * g), top, total);
    int64_t i = 0;
    for (; i + 64 <= dim; i += 64) blend_tiles<4>(weights, values + i * 64, pairs, count, seen + 16 * i);
    if (i < dim) blend_tiles<2>(weights, values + i * 64, pairs, count, seen + 16 * i);
    give(seen, total, many, dim, outs);
}

#else

bool tiles_attend(const Net&) { return false; }
void attend_tiles(const Look&, const Unit&) {}
void configure() {}
void release() {}

#endif
