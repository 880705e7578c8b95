// One pass of the decoder, for the instruction set that includes this file.
//
// A row's result is the same to the bit whatever rows, requests, tree nodes and threads it shares the pass with:
// products sum over inputs in order (floats) or exactly (integers), sums over keys run in order of the entries with
// exact zeros for hidden ones, or exactly too, and everything else looks at one row alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
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
#include "race.inl"
#include "ranks.inl"
#include "cuts.inl"
#include "masks.inl"

constexpr int ROWS = 8;             // rows that share one sweep over a tile
constexpr int ACROSS = TILE / FLOATS;  // registers of a tile's outputs
constexpr int FLOAT_ROWS = REGISTERS < 32 ? 2 : ROWS, PAIRED = REGISTERS < 32 ? 1 : 2;  // of floats; that take two tiles side by side
constexpr int64_t LEAD = 8 * 1024;  // bytes that weights are asked for in advance
constexpr int FEW = 4;              // rows of numbers that are rounded, up to which vectors may take two tiles side by side; tile registers from there on
constexpr int64_t NEAR_FOUR = 4 * FOUR;
constexpr int64_t BAND = 256 * 1024;  // bytes of tiles that stay in the second cache while many rows pass them
constexpr int64_t PIECE = 8 * 1024;   // bytes of a tile that stay in the first cache while many rows pass them
constexpr int64_t ASKED = 128 * 1024;  // bytes that are asked for while a thread waits
constexpr int64_t SLACK = 64 * 1024;  // behind a tile that is made in memory

// Activations of a pass, rows of `width` values; floats, or whole numbers.
struct Activations {
    const float* floats;
    const int8_t* whole;
    const float *scales, *middles;  // a row is its whole numbers times the one, and the other added to each
    const int32_t* sums;     // of each part of a row
    const int32_t* groups;   // sums of some of its inputs each, and
    const uint16_t* halves;  // its numbers as sixteen bits: accompany(); or a row as bfloat16
    int parts;               // rows of whole numbers or bfloat16 for each
    int64_t width, stride;   // numbers from one row to the next: of floats, of the others
    bool alone;              // Net::alone
};

struct Share {
    int64_t begin, end;
};

Share share(int64_t total, int id, int size) { return {total * id / size, total * (id + 1) / size}; }

#include "products.inl"

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
        if (is_whole(net.head)) rotate(out, n);  // its own inverse
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

// What a head is multiplied by at a position: cosines, then signed sines, of `room` numbers each; 1 and 0 where nothing turns.
void turn(const Rope& rope, int64_t position, int64_t room, float* out) {
    const auto& frequencies = !rope.beyond.empty() && position >= rope.border ? rope.beyond : rope.frequencies;
    std::fill(out, out + room, 1.0f);
    std::fill(out + room, out + 2 * room, 0.0f);
    const size_t count = frequencies.size();
    for (size_t first = 0; first < count; first += 8) {
        const size_t some = std::min<size_t>(8, count - first);
        doubles angles = {}, sines, cosines;
        for (size_t i = 0; i < some; ++i) angles[i] = (float)position * frequencies[first + i];
        circle(angles, sines, cosines);
        for (size_t i = 0; i < some; ++i) {
            float* at = out + 2 * (first + i);
            at[0] = at[1] = (float)cosines[i] * rope.scale;
            at[room + 1] = (float)sines[i] * rope.scale;
            at[room] = -at[room + 1];
        }
    }
}

// One head, normed and turned: pairs lie side by side. Writes whole vectors.
void shape_head(const Net& net, const Layer& layer, const float* in, int64_t head, const float* turns, float scale,
                float* out) {
    const int64_t dim = net.dim, room = round_up(dim, 16);
    const float* gain = layer.qk_gain ? layer.qk_gain + head * dim : nullptr;
    auto some = [&](const float* from, int64_t i) {  // what lies behind a head is not its own
        if (i + 16 <= dim) return load(from + i);
        float last[16] = {};
        std::copy(from + i, from + dim, last);
        return load(last);
    };
    float inverse = 1;
    if (gain) {
        vf squares = zero();
        for (int64_t i = 0; i < dim; i += 16) squares = fma(some(in, i), some(in, i), squares);
        inverse = 1.0f / std::sqrt(sum(squares) / dim + net.eps);
    }
    for (int64_t i = 0; i < dim; i += 16) {
        vf v = some(in, i);
        if (gain) v *= inverse * some(gain, i);
        if (turns) {
            v = v * load(turns + i) + swap_pairs(v) * load(turns + room + i);
        }
        store(out + i, v * scale);
    }
}

#include "attention.inl"

// ---- the pass ------------------------------------------------------------------------------------------------------

struct Sizes {
    int64_t hidden, q, kv, qkv, out, ffn, widest, turn;
    explicit Sizes(const Net& net) {
        hidden = round_up(net.hidden, TILE);
        q = net.heads * net.dim;
        kv = net.kv_heads * net.dim;
        qkv = round_up(q + 2 * kv, TILE);
        out = round_up(q, TILE);
        ffn = round_up(net.ffn, TILE);
        widest = round_up(std::max({hidden, qkv, out, ffn}), 64);
        turn = round_up(net.dim, 16);
    }
};

class Passing {
public:
    Passing(const Net& net, const std::vector<Strip>& strips, const Plan& plan, Workspace& ws, Team& team, int id)
        : net(net), strips(strips), plan(plan), ws(ws), team(team), id(id), size(net), rows(plan.rows) {}

    void run() {
        mine(rows, [&](int64_t r) {
            embed(net, plan.tokens[r], plan.positions[r], x(r));
            for (int i = 0; i < (int)net.ropes.size(); ++i) turn(net.ropes[i], plan.positions[r], size.turn, turns(i, r));
        });
        for (size_t i = 0; i < plan.layers.size(); ++i) {
            const bool last = i + 1 == plan.layers.size();
            run_layer(net.layers[plan.layers[i]], strips[plan.layers[i]], last ? net.head : net.layers[plan.layers[i + 1]].qkv);
            if (!plan.hidden[i]) continue;
            meet();
            mine(rows, [&](int64_t r) { std::copy_n(x(r), net.hidden, plan.hidden[i] + r * net.hidden); });
        }
        meet();
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

    const uint8_t *asked = nullptr, *asked_to = nullptr;  // what is asked for while this thread waits

    // This matrix comes next, and first the thread's own share of it.
    void expect(const Matrix& m) {
        const Share s = share(m.tiles(), id, team.coming());
        const int64_t bytes = tile_bytes(m.kind, m.inputs);
        asked = m.data + s.begin * bytes;
        asked_to = std::min(m.data + s.end * bytes, asked + ASKED);
    }

    void meet() {
        team.meet([this] {
            if (asked >= asked_to) return relax();
#pragma GCC unroll 4
            for (int line = 0; line < 4; ++line) __builtin_prefetch(asked + 64 * line, 0, 2);
            asked += 256;
        });
    }

    float* x(int64_t r) { return ws.x.data() + r * size.hidden; }
    float* a(int64_t r) { return ws.a.data() + r * size.widest; }
    float* b(int64_t r) { return ws.b.data() + r * size.widest; }
    float* turns(int rope, int64_t r) {
        return rope < 0 ? nullptr : ws.turns.data() + (r * (int64_t)net.ropes.size() + rope) * 2 * size.turn;
    }

    // The first largest of a part of a row's logits (NaN where there is one), and the sum of e^(logit - that) where it is asked for.
    Peak crown(const float* row, int64_t begin, int64_t end, bool weighed) const {
        const int64_t whole = begin + (end - begin) / 16 * 16, fours = begin + (end - begin) / (4 * FLOATS) * (4 * FLOATS);
        const wf nothing = repeat(-std::numeric_limits<float>::infinity());
        wf most[4] = {nothing, nothing, nothing, nothing};  // one alone would wait for itself at every step
        wi broken = wi{};
        int64_t j = begin;
        for (; j < fours; j += 4 * FLOATS)
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                const wf v = load_some(row + j + k * FLOATS);
                broken |= v != v;
                most[k] = larger(most[k], v);
            }
        for (; j < whole; j += FLOATS) {
            const wf v = load_some(row + j);
            broken |= v != v;
            most[0] = larger(most[0], v);
        }
        float top = together(larger(larger(most[0], most[1]), larger(most[2], most[3])), [](wf a, wf b) { return larger(a, b); });
        for (int64_t j = whole; j < end; ++j) top = row[j] > top ? row[j] : top;
        bool bad = any(broken);
        for (int64_t j = whole; j < end; ++j) bad |= row[j] != row[j];
        int64_t best = begin;
        while (best < whole && !any(bad ? load_some(row + best) != load_some(row + best) : load_some(row + best) == repeat(top))) best += FLOATS;
        while (best + 1 < end && !(bad ? row[best] != row[best] : row[best] == top)) ++best;
        const float shown = bad ? std::numeric_limits<float>::quiet_NaN() : top;
        if (!weighed) return {best, shown, 0};
        vf mass = zero();
        for (int64_t j = begin; j < whole; j += 16) mass += exponential(load(row + j) - top);
        float rest = sum(mass);
        for (int64_t j = whole; j < end; ++j) rest += std::exp(row[j] - top);
        return {best, shown, rest};
    }

    // That of whole rows. The parts are the same however many threads there are; each takes about what it wrote.
    void crown_all() {
        const int64_t each = std::max(CROWN, round_up((net.vocab + CROWNS - 1) / CROWNS, 16)), parts = (net.vocab + each - 1) / each;
        mine(parts, [&](int64_t part) {
            for (int64_t i = 0; i < plan.num_wanted; ++i)
                ws.crowns[i * CROWNS + part] = crown(plan.logits + i * net.vocab, part * each, std::min(net.vocab, (part + 1) * each), plan.mass);
        });
        meet();
        mine(plan.num_wanted, [&](int64_t i) {
            const Peak* found = ws.crowns.data() + i * CROWNS;
            Peak top = found[0];
            for (int64_t part = 1; part < parts && top.value == top.value; ++part)
                if (!(found[part].value <= top.value)) top = found[part];
            plan.best[i] = top.token;
            plan.peak[i] = top.value;
            if (!plan.mass) return;
            plan.mass[i] = 0;
            for (int64_t part = 0; part < parts; ++part)  // one that holds nothing but minus infinity weighs nothing
                if (found[part].value != -std::numeric_limits<float>::infinity())
                    plan.mass[i] += found[part].mass * std::exp(found[part].value - top.value);
        });
    }

    template <typename F> void mine(int64_t total, F&& f) {
        const Share s = share(total, id, team.coming());
        for (int64_t i = s.begin; i < s.end; ++i) f(i);
    }

    // This thread's part of m times the rows, whichever it comes to be.
    template <typename Done> void multiply(const Matrix& m, const Activations& in, int64_t count, Done done) {
        if (team.coming() == 1) return product(m, in, count, {0, m.tiles()}, ws.wide[id], done);
        const int64_t least = CALL / tile_bytes(m.kind, m.inputs);
        team.deal().begin(id);
        while (true) {
            const auto [begin, end] = team.deal().take(id, m.tiles(), least, SIDE);
            if (begin == end) return;
            product(m, in, count, {begin, end}, ws.wide[id], done);
        }
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
            const int parts = parts_of(m.kind, net.exact);
            const int64_t stride = stride_of(m);
            int8_t* whole = ws.quantized.data() + r * parts * stride;
            if (is_whole(m)) {
                rotate(b(r), m.inputs);
                quantize(b(r), m.inputs, parts, whole, stride, ws.scales[r], ws.middles[r], ws.sums.data() + r * parts);
                accompany(m, parts, whole, stride, ws.halves.data() + r * stride, ws.groups.data() + r * (stride / GROUP));
            } else if (is_changed(m, net)) {
                halve(r, width, parts, stride);
            }
        });
        meet();
        return activations(m);
    }

    static int64_t stride_of(const Matrix& m) { return round_up(m.inputs, 64); }

    void halve(int64_t r, int64_t width, int parts, int64_t stride) {
        uint16_t* out = ws.halves.data() + r * parts * stride;
        split(b(r), width, parts, out, stride);
        if (!TILES) for (int64_t i = 0; i < width; i += 16) store(b(r) + i, load(out + i));
    }

    Activations activations(const Matrix& m) const {
        return {ws.b.data(), ws.quantized.data(), ws.scales.data(), ws.middles.data(), ws.sums.data(), ws.groups.data(), ws.halves.data(), parts_of(m.kind, net.exact), size.widest, stride_of(m), net.alone};
    }

    Activations normed(const Matrix& m, const Norm& norm, const float* from) {
        return prepare(m, rows, size.hidden, [&](int64_t r, float* out) {
            if (norm.gain) normalise(net, norm, from + r * size.hidden, net.hidden, out);
            else std::copy_n(from + r * size.hidden, size.hidden, out);
        });
    }

    void run_layer(const Layer& layer, const Strip& strip, const Matrix& next) {
        meet();
        if (net.parallel) mine(rows, [&](int64_t r) { std::copy_n(x(r), size.hidden, ws.before.data() + r * size.hidden); });
        attention(layer, strip);
        meet();
        feed_forward(layer, next);
    }

    void attention(const Layer& layer, const Strip& strip) {
        const Activations in = normed(layer.qkv, layer.attention, ws.x.data());
        multiply(layer.qkv, in, rows, into_a());
        expect(layer.o);
        meet();
        place(layer, strip);
        meet();
        look(layer, strip);
        meet();
        if (is_changed(layer.o, net)) prepare(layer.o, rows, size.out, [](int64_t, float*) {});
        expect(layer.up);
        add(layer.o, activations(layer.o), layer.attention_post);
    }

    // Queries in place, keys and values to the cache.
    void place(const Layer& layer, const Strip& strip) {
        const int64_t heads = net.heads + 2 * net.kv_heads, dim = net.dim;
        mine(rows * heads, [&](int64_t i) {
            const int64_t r = i / heads, head = i % heads, kv = head - net.heads;
            float turned[HEAD_MAX];
            const float* from = a(r) + head * dim;
            if (kv < net.kv_heads) {
                shape_head(net, layer, from, head, turns(layer.rope, r), kv < 0 ? net.attention_scale : 1, turned);
                from = turned;
            }
            if (kv < 0) std::copy_n(turned, dim, a(r) + head * dim);
            else keep(strip, kv, ws.entry[r], from);
        });
    }

    // A head of a row to the cache; heads of values follow those of keys.
    void keep(const Strip& strip, int64_t kv, int64_t entry, const float* from) {
        const bool key = kv < net.kv_heads;
        const int64_t head = kv % net.kv_heads, at = head * strip.stride + entry * net.dim;
        void* to = key ? strip.keys : strip.values;
        float* scales = key ? strip.key_scales : strip.value_scales;
        if (strip.kind == Kind::F32) std::copy_n(from, net.dim, (float*)to + at);
        else if (strip.kind == Kind::INT8) encode(from, net.dim, (int8_t*)to + at, scales[head * strip.rows + entry]);
        else for (int64_t i = 0; i < net.dim; ++i) ((uint16_t*)to)[at + i] = narrow_value(from[i]);
    }

    void look(const Layer& layer, const Strip& strip) {
        const bool half = strip.kind == Kind::BF16, whole = strip.kind == Kind::INT8;
        const bool tiles = half ? tiles_attend(net) : whole && TILES;
        const int64_t group = net.heads / net.kv_heads;
        if (tiles) configure();
        auto keys_of = [](const Segment& s) { return s.past + s.base + s.count; };
        auto rows_of = [&](const Segment& s) {  // that look together
            return tiles ? std::max<int64_t>(1, (whole ? WHOLE_QUERIES : 16) / group)
                         : std::clamp<int64_t>(SCORES / (keys_of(s) * group), 1, 16);
        };
        // What can be parted between threads: tile registers take a block of rows as one. A head's keys stay with a thread.
        auto steps_of = [&](const Segment& s) { return tiles ? (s.count + rows_of(s) - 1) / rows_of(s) : s.count; };
        int64_t total = 0, before = 0;  // keys that are looked at, by all steps and by those before
        for (const Segment& s : plan.segments) total += steps_of(s) * net.kv_heads * keys_of(s);
        auto mine_at = [&](int64_t step, int64_t all) { return (2 * (before + step * all) + all) * team.coming() / (2 * total) == id; };
        const int64_t* entries = ws.all.data();
        static thread_local std::vector<Unit> units;
        units.clear();
        for (const Segment& s : plan.segments) {
            const int64_t all = keys_of(s), block = rows_of(s), steps = steps_of(s);
            for (int64_t head = 0; head < net.kv_heads; ++head, before += steps * all) {
                int64_t begin = 0, end;
                while (begin < steps && !mine_at(begin, all)) ++begin;
                for (end = begin; end < steps && mine_at(end, all);) ++end;
                if (tiles) begin *= block, end = std::min(end * block, s.count);
                for (int64_t first = begin; first < end; first += block)
                    units.push_back({&s, entries, head, first, std::min(block, end - first)});
            }
            entries += all;
        }
        const Look look{net, layer, strip, plan, ws.a.data(), ws.b.data(), size.widest, ws.scores[id]};
        for (size_t i = 0; i < units.size(); ++i) {
            const Unit &unit = units[i], *next = i + 1 < units.size() ? &units[i + 1] : nullptr;
            if (tiles && whole) attend_whole(look, unit);
            else if (tiles) attend_tiles(look, unit);
            else if (whole) attend_any<int8_t>(look, unit, next);
            else if (half) attend_any<uint16_t>(look, unit, next);
            else attend_any<float>(look, unit, next);
        }
        if (tiles) release();
        mine(rows, [&](int64_t r) { for (int64_t i = size.q; i < size.out; ++i) b(r)[i] = 0; });
    }

    // x += m times the rows, through a norm where the family has one there.
    void add(const Matrix& m, const Activations& in, const Norm& post) {
        if (!post.gain && net.residual_scale == 1) {
            multiply(m, in, rows, [this](int64_t r, int64_t t, vf low, vf high) {
                float* at = x(r) + t * TILE;
                store(at, load(at) + low);
                store(at + 16, load(at + 16) + high);
            });
            return;
        }
        multiply(m, in, rows, into_a());
        meet();
        mine(rows, [&](int64_t r) {
            if (post.gain) normalise(net, post, a(r), net.hidden, a(r));
            for (int64_t i = 0; i < size.hidden; i += 16)
                store(x(r) + i, fma(load(a(r) + i), splat(net.residual_scale), load(x(r) + i)));
        });
    }

    void feed_forward(const Layer& layer, const Matrix& next) {
        const Norm& norm = net.parallel && !layer.mlp.gain ? layer.attention : layer.mlp;
        Activations in = normed(layer.up, norm, net.parallel ? ws.before.data() : ws.x.data());
        multiply(layer.up, in, rows, [this](int64_t r, int64_t t, vf low, vf high) {
            if (net.gated) return store(a(r) + t * 16, activate(net.activation, low) * high);
            store(a(r) + t * TILE, activate(net.activation, low));
            store(a(r) + t * TILE + 16, activate(net.activation, high));
        });
        expect(layer.down);
        meet();
        const int64_t width = layer.down.inputs, padded = round_up(width, TILE);
        in = prepare(layer.down, rows, padded, [&](int64_t r, float* out) {
            std::copy_n(a(r), width, out);
            std::fill(out + width, out + padded, 0.0f);
        });
        expect(next);
        add(layer.down, in, layer.mlp_post);
    }

    void logits() {
        const Activations in = prepare(net.head, plan.num_wanted, size.hidden, [&](int64_t i, float* out) {
            const int64_t r = plan.wanted[i];
            normalise(net, net.final_norm, x(r), net.hidden, out);
        });
        multiply(net.head, in, plan.num_wanted, [this](int64_t i, int64_t t, vf low, vf high) {
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
        meet();
        crown_all();
        draw_all();
    }

    // The draws of a lot, as far down as they find nodes.
    void draw_down(const Lot& lot) {
        int64_t node = -1;
        for (const uint64_t key : lot.keys) {
            const Drawn found = plan.drawn[lot.row + 1 + node] = drawn(lot, plan.logits + (lot.row + 1 + node) * net.vocab, key);
            int64_t next = 0;
            while (next < (int64_t)lot.tokens.size() && (lot.parents[next] != node || lot.tokens[next] != found.token)) ++next;
            if (next == (int64_t)lot.tokens.size()) return;
            node = next;
        }
    }

    Drawn drawn(const Lot& lot, const float* row, uint64_t key) {
        if (lot.bend) {
            std::vector<float>&bent = ws.bent[id], &counts = ws.counts[id];
            bent.resize(net.vocab);
            counts.resize(net.vocab);
            lot.bend->write(row, net.vocab, {}, lot.banned, counts.data(), bent.data());
            row = bent.data();
        }
        const bool greedy = lot.cuts.temperature == 0;
        if (lot.bend || greedy) {
            const Peak top = crown(row, 0, net.vocab, false);
            if (top.value == -std::numeric_limits<float>::infinity()) return {-1};
            if (greedy) return {top.token};
        }
        return draw(row, net.vocab, lot.cuts, (uint32_t)key, (uint32_t)(key >> 32), lot.odds);
    }

    // What lots draw, a row at a time: one may take many times what another takes.
    void draw_all() {
        if (plan.lots.empty()) return;
        const int64_t all = (int64_t)plan.lots.size();
        const auto some = [&](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; ++at) draw_down(plan.lots[at]);
        };
        if (team.coming() == 1) return some(0, all);
        team.deal().begin(id);
        while (true) {
            const auto [begin, end] = team.deal().take(id, all, 1, 1);
            if (begin == end) return;
            some(begin, end);
        }
    }
};

void run_pass(const Net& net, const std::vector<Strip>& strips, const Plan& plan, Workspace& ws, Team& team, int id) {
    Passing(net, strips, plan, ws, team, id).run();
}

}  // namespace
}  // namespace forerun
