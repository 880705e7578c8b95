// What Python sees of the compiled kernels, forerun.kernels._native: packed matrices, a decoder made of them, a team of
// threads, and passes.
//
// Does not: compute. Kernels stand in pass.inl, compiled once per instruction set as isa_<name>.cpp; CMakeLists.txt
// defines FORERUN_AVX2 and FORERUN_AVX512 where those files were compiled.

#include <bit>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "net.h"
#include "pack.h"
#include "processor.h"
#include "team.h"
#include "unable.h"

namespace nb = nanobind;
using namespace forerun;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const int8_t, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PackedPtr = std::shared_ptr<Packed>;

// Zen 4, where Net::alone was measured. AMD's family 25 has Zen 3 as well, which reads faster where it is asked ahead.
bool reads_alone() {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!has_avx512()) return false;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx) return false;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 8 & 15) + (eax >> 20 & 255) == 25;
#else
    return false;
#endif
}

// The compiled instruction sets that this processor can run, the best one first.
const std::vector<const Isa*>& usable() {
    static const std::vector<const Isa*> all = [] {
        std::vector<const Isa*> found;
#if defined(FORERUN_AMX)
        if (has_amx()) found.push_back(isa_amx());
#endif
#if defined(FORERUN_AVX512)
        if (has_avx512()) found.push_back(isa_avx512());
#endif
#if defined(FORERUN_AVX512VNNI)
        if (has_avx512vnni()) found.push_back(isa_avx512vnni());
#endif
#if defined(FORERUN_AVXVNNI)
        if (has_avxvnni()) found.push_back(isa_avxvnni());
#endif
#if defined(FORERUN_AVX2)
        if (has_avx2()) found.push_back(isa_avx2());
#endif
        found.push_back(isa_plain());
        return found;
    }();
    return all;
}

std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name);
    return found;
}

const Isa* by_name(const std::string& name) {
    for (const Isa* isa : usable())
        if (name == isa->name) return isa;
    throw std::invalid_argument("this machine or build does not run the kernels '" + name + "'; take one of isas().");
}

std::vector<float> padded(const Floats& values, int64_t to = TILE) {
    std::vector<float> copy(round_up(values.size(), to), 0.0f);
    std::memcpy(copy.data(), values.data(), values.size() * sizeof(float));
    return copy;
}

// A decoder and everything it points to. Passes do not change it.
struct Decoder {
    Net net;
    const Isa* isa = nullptr;
    std::vector<PackedPtr> matrices;
    std::deque<std::vector<float>> vectors;  // a deque: what it holds stays where it is
    nb::object embedding;
    std::shared_ptr<Decoder> base;  // what a grown one was made of, and points into
    bool whole = false, half = false;   // some matrix is of whole numbers, of bfloat16
    int64_t numel = 0;

    const float* keep(const Floats& values, int64_t to = TILE) {
        vectors.push_back(padded(values, to));
        return vectors.back().data();
    }
    Norm norm(const std::optional<Floats>& gain, const std::optional<Floats>& bias) {
        return {gain ? keep(*gain) : nullptr, bias ? keep(*bias) : nullptr};
    }
    Matrix use(const PackedPtr& packed) {
        matrices.push_back(packed);
        Matrix matrix = packed->matrix();
        numel += matrix.outputs * matrix.inputs;
        if (is_whole(matrix) && parts_of(matrix.kind, net.exact) == 1) {
            vectors.emplace_back(matrix.padded());
            isa->total(matrix, vectors.back().data());
            matrix.total = vectors.back().data();
        }
        whole |= is_whole(matrix);
        half |= matrix.kind == Kind::BF16;
        return matrix;
    }
};

// Tokens, parents and chances of a draft; which of its nodes each entry of the cache is, or -1; entries of each pass after
// the first; whether all was sound.
struct Grown {
    std::vector<int64_t> tokens, parents;
    std::vector<double> chances;
    std::vector<int64_t> read, widths;
    bool sound;
};

template <typename T> nb::tuple tuple_of(const std::vector<T>& values) {
    nb::object made = nb::steal(PyTuple_New((Py_ssize_t)values.size()));
    for (size_t i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(made.ptr(), (Py_ssize_t)i, nb::cast(values[i]).release().ptr());
    return nb::cast<nb::tuple>(made);
}

// The same as Python has it.
using Told = std::tuple<nb::tuple, nb::tuple, nb::tuple, std::vector<int64_t>, std::vector<int64_t>, bool>;

std::vector<Told> told(std::vector<Grown> trees) {
    std::vector<Told> all;
    for (Grown& t : trees) all.emplace_back(tuple_of(t.tokens), tuple_of(t.parents), tuple_of(t.chances), std::move(t.read), std::move(t.widths), t.sound);
    return all;
}

// A draft that grows: candidates by the chance of their whole path, of which the likeliest are the best tree so far. What
// growth.py's Pool and the tree `opt-tree` are together, step for step.
struct Best {
    static constexpr int64_t ROOT = -1;
    struct Candidate {
        int64_t above, token;
        double chance, reach;
        int64_t node = ROOT;  // none yet
    };
    int64_t size, levels;  // nodes of the draft, passes
    double gain;           // the least number of expected tokens for which one more level is grown
    double bar;            // the least reach of a node
    std::vector<Candidate> found;
    std::vector<int64_t> parents, tokens, depths;  // of nodes
    std::vector<double> chances;
    std::vector<int64_t> behind{ROOT}, read;  // candidates of the next pass; nodes of passes so far, in the cache's order
    std::vector<int64_t> widths;              // of the passes after the first
    double expected = 0;
    bool sound = true;

    int64_t plant(int64_t candidate) {
        if (candidate == ROOT) return ROOT;
        if (found[candidate].node == ROOT) {
            const int64_t parent = plant(found[candidate].above);
            found[candidate].node = (int64_t)parents.size();
            parents.push_back(parent);
            tokens.push_back(found[candidate].token);
            chances.push_back(found[candidate].chance);
            depths.push_back(parent == ROOT ? 0 : depths[parent] + 1);
        }
        return found[candidate].node;
    }

    // The likeliest, best first, the earliest found where several are equal.
    std::vector<int64_t> best() const {
        std::vector<int64_t> order(found.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [this](int64_t a, int64_t b) { return found[a].reach > found[b].reach; });
        order.resize(std::min<size_t>(order.size(), size));
        while (!order.empty() && !(found[order.back()].reach > 0 && found[order.back()].reach >= bar)) order.pop_back();
        return order;
    }

    // A pass has found `count` tokens and chances behind each of `behind`; whether there is another.
    void answer(const double* ranks, int64_t count) {
        const int64_t fresh = (int64_t)found.size();
        for (size_t r = 0; r < behind.size(); ++r, ranks += 2 * count + 1) {
            const double above = behind[r] == ROOT ? 1.0 : found[behind[r]].reach;
            for (int64_t i = 0; i < count; ++i) found.push_back({behind[r], (int64_t)ranks[i], ranks[count + i], above * ranks[count + i]});
        }
        const std::vector<int64_t> order = best();
        const double before = expected, least = (int64_t)order.size() == size ? found[order.back()].reach : 0.0;
        expected = 0;
        behind.clear();
        for (int64_t candidate : order) {
            expected += found[candidate].reach;
            if (candidate >= fresh && found[candidate].reach > least) behind.push_back(candidate);
        }
        if (expected - before < gain || !--levels) behind.clear();
        for (int64_t candidate : behind) read.push_back(plant(candidate));
        if (!behind.empty()) widths.push_back((int64_t)behind.size());
    }

    Grown draft() {
        std::vector<int64_t> kept = best(), said, above;
        std::vector<double> likely;
        std::sort(kept.begin(), kept.end());  // parents first
        for (int64_t& one : kept) one = plant(one);
        std::vector<int64_t> place(parents.size(), ROOT);
        for (int64_t node : kept) {
            place[node] = (int64_t)said.size();
            said.push_back(tokens[node]);
            above.push_back(parents[node] == ROOT ? ROOT : place[parents[node]]);
            likely.push_back(chances[node]);
        }
        for (int64_t& node : read) node = place[node];
        return {std::move(said), std::move(above), std::move(likely), std::move(read), std::move(widths), sound};
    }
};

using Tokens = std::vector<int64_t>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The three penalties, the text that they know, how much of it is the prompt, biases and all that is allowed.
using Bends = std::tuple<float, float, float, Tokens, int64_t, Ids, Doubles, std::optional<Ids>>;

void check(std::span<const int64_t> tokens, int64_t vocab) {
    for (const int64_t token : tokens)
        if (token < 0 || token >= vocab) throw std::invalid_argument("the vocabulary has no such token.");
}

Tokens numbers(const Ids& ids) { return {ids.data(), ids.data() + ids.size()}; }

Bend bend_of(const Bends& bends, int64_t vocab) {
    const auto& [repetition, presence, frequency, text, prompt_length, biased, biases, allowed] = bends;
    Bend bend{repetition, presence, frequency, text, std::min<size_t>(prompt_length, text.size()), numbers(biased),
              {biases.data(), biases.data() + biases.size()}, {}};
    if (allowed) bend.allowed = numbers(*allowed);
    for (const Tokens* some : {&bend.text, &bend.biased}) check(*some, vocab);
    if (bend.allowed) check(*bend.allowed, vocab);
    return bend;
}

constexpr std::chrono::microseconds KEPT{500};  // in which whoever waits for trees lets nobody have the interpreter

// Scratch memory and the layers' strips of one cache.
struct Session {
    std::shared_ptr<Decoder> decoder;
    std::shared_ptr<Team> team;
    std::shared_ptr<Team> helper;  // a larger one: it shares wide passes, or a thread of it grows trees beside the host
    int64_t wide = 0;              // rows from which a pass is shared so
    std::vector<Strip> strips;
    Workspace ws;
    Plan plan;
    std::vector<Run> runs;

    void prepare(int threads) {
        const Net& net = decoder->net;
        const int64_t hidden = round_up(net.hidden, TILE), q = net.heads * net.dim, kv = net.kv_heads * net.dim;
        const int64_t widest = round_up(std::max({hidden, q + 2 * kv, q, net.ffn}), 64);
        const int64_t rows = std::max(plan.rows, plan.num_wanted);
        auto room = [](auto& v, int64_t n) { if ((int64_t)v.size() < n) v.resize(n); };
        room(ws.x, rows * hidden);
        if (net.parallel) room(ws.before, rows * hidden);
        room(ws.a, rows * widest + 64);
        room(ws.b, rows * widest + 64);
        const int64_t halves = decoder->half ? parts_of(Kind::BF16, net.exact) : 1;  // whole numbers may be kept as sixteen bits, too
        if (decoder->half || decoder->whole) room(ws.halves, (rows * halves + 32) * widest + 64);  // products read whole blocks of rows
        if (decoder->whole) {
            const int64_t parts = rows * parts_of(Kind::INT8, net.exact);
            room(ws.quantized, (parts + 32) * widest + 64);
            room(ws.scales, rows);
            room(ws.middles, rows);
            room(ws.sums, parts);
            room(ws.groups, rows * widest / GROUP);
        }
        room(ws.turns, rows * (int64_t)net.ropes.size() * 2 * round_up(net.dim, 16));
        room(ws.entry, rows);
        room(ws.crowns, plan.num_wanted * CROWNS);
        room(ws.scores, threads);
        room(ws.wide, threads);
        room(ws.bent, threads);
        room(ws.counts, threads);
        int64_t all = 0;
        for (const Segment& s : plan.segments) all += s.past + s.base + s.count;
        room(ws.all, all);
        int64_t* at = ws.all.data();
        for (const Segment& s : plan.segments) {
            int64_t* first = at;
            const int64_t* end = at + s.past + s.base + s.count;  // the runs may have room for more
            for (int64_t i = 0; i < s.num_runs; ++i)
                for (int64_t j = 0; j < s.runs[i].count && at < end; ++j) *at++ = s.runs[i].first + j;
            for (int64_t r = 0; r < s.count; ++r) ws.entry[s.start + r] = first[s.past + s.base + r];
        }
    }

    // What is found of rows of logits: the best token of each, its logit, the row's mass and what its lot draws.
    using Draws = std::optional<std::vector<std::tuple<int64_t, float, float>>>;
    using Finds = std::tuple<std::vector<int64_t>, std::vector<float>, std::vector<float>, Draws>;
    struct Found {
        std::vector<int64_t> best;
        std::vector<float> peak, mass;
        std::vector<Drawn> drawn;
        explicit Found(int64_t rows) : best(rows), peak(rows), mass(rows), drawn(rows, {-1}) {}

        // As Python has it; without draws where there were no lots.
        Finds told(bool lots) {
            Draws draws;
            if (lots) draws.emplace();
            if (lots) for (const Drawn& d : drawn) draws->emplace_back(d.token, d.chance, d.norm);
            return {std::move(best), std::move(peak), std::move(mass), std::move(draws)};
        }
    };
    using Parts = std::vector<std::pair<int64_t, int64_t>>;

    // A plan of all layers, whose rows from `first` on go to `found`. `numbers`: tokens, positions and wanted rows.
    void read(const int64_t* numbers, int64_t rows, const std::vector<int64_t>& segments, const Parts& parts, uintptr_t logits,
              int64_t num_wanted, Found& found, int64_t first) {
        plan.best = found.best.data() + first;
        plan.peak = found.peak.data() + first;
        plan.mass = found.mass.data() + first;
        plan.drawn = found.drawn.data() + first;
        plan.rows = rows;
        plan.tokens = numbers;
        plan.positions = numbers + rows;
        plan.wanted = numbers + 2 * rows;
        plan.num_wanted = num_wanted;
        plan.lots.clear();
        plan.logits = (float*)logits;
        const Net& net = decoder->net;
        for (int64_t r = 0; r < plan.rows; ++r)
            if (plan.tokens[r] < 0 || plan.tokens[r] >= net.vocab || plan.positions[r] < 0 ||
                (net.positions && plan.positions[r] >= net.context))
                throw std::out_of_range("row " + std::to_string(r) + " of a pass has token " + std::to_string(plan.tokens[r]) +
                                        " at position " + std::to_string(plan.positions[r]) + ", which this model does not have.");
        runs.clear();
        for (const auto& [begin, many] : parts) runs.push_back({begin, many});
        plan.segments.clear();
        for (size_t i = 0; i < segments.size(); i += 7) {
            const int64_t* s = segments.data() + i;
            plan.segments.push_back({s[0], s[1], s[2], s[3], (const uint8_t*)s[4], runs.data() + s[5], s[6]});
        }
        const int count = (int)net.layers.size();
        plan.layers.resize(count);
        for (int i = 0; i < count; ++i) plan.layers[i] = i;
        plan.hidden.assign(count, nullptr);
    }

    // The row of a lot, its cut-offs, keys, the draft's tokens and parents, whether odds are asked for, and what bends the
    // row and must not follow, where anything does.
    using Lots = std::vector<std::tuple<int64_t, double, int64_t, double, double, double, double, double, std::vector<uint64_t>, Tokens,
                                        Tokens, bool, std::optional<std::pair<Bends, Tokens>>>>;

    // Have the pass that was read draw.
    void draw(const Lots& lots) {
        for (const auto& [row, temperature, top_k, top_p, min_p, typical_p, epsilon, eta, keys, tokens, parents, odds, bent] : lots) {
            if (row < 0 || row + (int64_t)tokens.size() >= plan.num_wanted || parents.size() != tokens.size())
                throw std::invalid_argument("the rows of a lot are not those that are asked for.");
            plan.lots.push_back({row, {temperature, top_k, top_p, min_p, typical_p, epsilon, eta}, keys, tokens, parents, odds, {}, {}});
            if (!bent) continue;
            plan.lots.back().bend = bend_of(bent->first, decoder->net.vocab);
            check(plan.lots.back().banned = bent->second, decoder->net.vocab);
        }
    }

    // `apart`: on a thread that the helper cannot do without.
    void pass(bool apart = false) {
        Team& by = !apart && plan.rows >= wide && helper->here() ? *helper : *team;
        prepare(by.size());
        by.run([this, &by](int id) { decoder->isa->pass(decoder->net, strips, plan, ws, by, id); });
    }

    // `numbers`: tokens, positions and wanted rows, as a list: to look into an array takes a microsecond.
    Finds run(const std::vector<int64_t>& numbers, int64_t rows, const std::vector<int64_t>& segments, const Parts& parts, uintptr_t logits,
              int64_t num_wanted, const std::optional<std::vector<int64_t>>& layers, const std::vector<std::pair<int64_t, uintptr_t>>& hidden,
              const Lots& lots) {
        Found found(num_wanted);
        read(numbers.data(), rows, segments, parts, logits, num_wanted, found, 0);
        draw(lots);
        if (layers) plan.layers.assign(layers->begin(), layers->end());
        plan.hidden.assign(plan.layers.size(), nullptr);
        for (const auto& [at, address] : hidden) plan.hidden[at] = (float*)address;
        {
            nb::gil_scoped_release release;
            pass();
        }
        return found.told(!lots.empty());
    }

    // Where a pass's numbers begin, its rows, segments, parts, logits and num_wanted; its lots; and behind the first, from
    // which row of the pass before each row has its token.
    using Step = std::tuple<int64_t, int64_t, std::vector<int64_t>, Parts, uintptr_t, int64_t, Lots, std::vector<int64_t>>;

    // Passes in a row. `numbers`: tokens, positions and wanted rows of each.
    Finds follow(std::vector<int64_t> numbers, const std::vector<Step>& steps) {
        nb::gil_scoped_release release;
        int64_t total = 0, first = 0;
        bool lots = false;
        for (const Step& step : steps) {
            total += std::get<5>(step);
            lots = lots || !std::get<6>(step).empty();
        }
        Found found(total);
        std::vector<int64_t> next;  // of every wanted row of the pass before
        for (const auto& [at, rows, segments, parts, logits, num_wanted, drawing, sources] : steps) {
            int64_t* tokens = numbers.data() + at;
            for (size_t r = 0; r < sources.size(); ++r) tokens[r] = next[sources[r]];
            read(tokens, rows, segments, parts, logits, num_wanted, found, first);
            draw(drawing);
            pass();
            next.assign(plan.best, plan.best + num_wanted);
            for (const Lot& lot : plan.lots) next[lot.row] = plan.drawn[lot.row].token;
            first += num_wanted;
        }
        return found.told(lots);
    }

    // Committed tokens, those to be read behind them, where all lie with room for a tree, and its rule as Best has it.
    using Sprout = std::tuple<int64_t, std::vector<int64_t>, Parts, std::tuple<int64_t, int64_t, double, double>>;
    using Sprouts = std::vector<Sprout>;

    // Best trees in as many passes as the deepest one needs, of which the first reads the tokens that they grow behind.
    std::vector<Grown> grow(const Sprouts& sprouts, bool apart = false) {
        const int64_t vocab = decoder->net.vocab;
        std::vector<Best> trees;
        std::vector<int64_t> numbers, positions, ends, segments, growing(sprouts.size());
        Parts parts;
        for (const auto& [past, fresh, runs, rule] : sprouts) {
            const auto& [size, levels, gain, bar] = rule;
            const int64_t start = (int64_t)numbers.size(), count = (int64_t)fresh.size();
            trees.push_back({size, levels, gain, bar});
            for (int64_t value : {start, count, past, (int64_t)0, (int64_t)0, (int64_t)parts.size(), (int64_t)runs.size()}) segments.push_back(value);
            numbers.insert(numbers.end(), fresh.begin(), fresh.end());
            for (int64_t i = 0; i < count; ++i) positions.push_back(past + i);
            ends.push_back(start + count - 1);
            parts.insert(parts.end(), runs.begin(), runs.end());
        }
        int64_t rows = (int64_t)numbers.size(), wanted = (int64_t)sprouts.size();
        numbers.insert(numbers.end(), positions.begin(), positions.end());
        numbers.insert(numbers.end(), ends.begin(), ends.end());
        std::vector<int64_t> table = segments;
        std::iota(growing.begin(), growing.end(), 0);
        std::vector<std::vector<uint8_t>> masks(sprouts.size());
        const bool single = std::any_of(trees.begin(), trees.end(), [&](const Best& tree) { return std::min(tree.size, vocab) == 1; });
        while (true) {
            if ((int64_t)scores.size() < wanted * vocab) scores.resize(wanted * vocab);
            Found found(wanted);
            read(numbers.data(), rows, table, parts, (uintptr_t)scores.data(), wanted, found, 0);
            if (!single) plan.mass = nullptr;  // ranks weigh the rows again
            pass(apart);
            int64_t row = 0;
            for (int64_t at : growing) {
                Best& tree = trees[at];
                const int64_t many = (int64_t)tree.behind.size(), count = std::min(tree.size, vocab);
                ranked.resize(many * (2 * count + 1));
                for (int64_t r = 0; r < many; ++r, ++row) {
                    tree.sound = tree.sound && std::isfinite(found.peak[row]);
                    double* out = ranked.data() + r * (2 * count + 1);
                    if (count == 1) {
                        out[0] = (double)found.best[row];
                        out[1] = 1.0 / (double)found.mass[row];
                    } else if (tree.sound) {
                        usable().front()->ranks(scores.data() + row * vocab, vocab, count, out);
                    }
                }
                if (tree.sound) tree.answer(ranked.data(), count);
                else tree.behind.clear();
            }
            // The next pass: nodes below what the first one read, after the nodes that passes before have read.
            std::erase_if(growing, [&](int64_t at) { return trees[at].behind.empty(); });
            if (growing.empty()) break;
            std::vector<int64_t> tokens;
            positions.clear();
            table.clear();
            for (int64_t at : growing) {
                const Best& tree = trees[at];
                const int64_t* s = segments.data() + 7 * at;
                const int64_t past = s[1] + s[2], count = (int64_t)tree.behind.size(), all = (int64_t)tree.read.size();
                masks[at].assign(count * all, 0);
                for (int64_t r = 0; r < count; ++r) {
                    const int64_t node = tree.read[all - count + r];
                    for (int64_t seen = node; seen != Best::ROOT; seen = tree.parents[seen])
                        masks[at][r * all + (std::find(tree.read.begin(), tree.read.end(), seen) - tree.read.begin())] = 1;
                    tokens.push_back(tree.tokens[node]);
                    positions.push_back(past + tree.depths[node]);
                }
                for (int64_t value : {(int64_t)tokens.size() - count, count, past, all - count, (int64_t)masks[at].data(), s[5], s[6]}) table.push_back(value);
            }
            rows = wanted = (int64_t)tokens.size();
            numbers = std::move(tokens);
            numbers.insert(numbers.end(), positions.begin(), positions.end());
            for (int64_t r = 0; r < rows; ++r) numbers.push_back(r);
        }
        std::vector<Grown> out;
        for (Best& tree : trees) out.push_back(tree.draft());
        return out;
    }

    // The same by the helper's thread, or at the latest when they are asked for; until then nothing else may run.
    void begin(Sprouts sprouts) {
        if (errand) throw std::logic_error("trees grow here already.");
        errand = std::make_unique<Errand>([this, sprouts = std::move(sprouts)] { grown = grow(sprouts, true); });
        posted = team->size() == 1 && helper->post(*errand);  // else one of those whom its passes wait for would have it
    }

    std::vector<Told> end() {
        if (!errand) throw std::logic_error("no trees grow here.");
        settle();
        const std::unique_ptr<Errand> ended = std::move(errand);
        if (ended->problem()) std::rethrow_exception(ended->problem());
        return told(std::move(grown));
    }

    void settle() {
        if (!posted || helper->take_back(*errand)) {
            nb::gil_scoped_release release;
            return errand->run();
        }
        // An event loop that gets the interpreter keeps it for milliseconds, and takes the core that the trees grow on.
        const auto since = std::chrono::steady_clock::now();
        while (!errand->done() && std::chrono::steady_clock::now() - since < KEPT) std::this_thread::yield();
        if (errand->done()) return;
        nb::gil_scoped_release release;
        while (!errand->done()) {
            if (!helper->here()) throw Unable("a draft was growing when the process forked, and its thread stayed behind; load the model in the child.");
            std::this_thread::yield();
        }
    }

    ~Session() {  // whoever is at it reads what is about to go
        if (!errand || !posted || helper->take_back(*errand)) return;
        while (!errand->done() && helper->here()) std::this_thread::yield();
    }

    nb::object memory;               // whose strips these are
    std::unique_ptr<Errand> errand;  // that grows trees
    bool posted = false;
    std::vector<Grown> grown;

    std::vector<float> scores;   // of the passes of trees that grow [rows, vocab]
    std::vector<double> ranked;  // and what is likeliest there
};

// Seconds in which a team reads the whole pages of a buffer once: as so many streams per thread, so many bytes ahead.
// Threads share as in passes, since memory may serve one core better than another.
template <int STREAMS, int AHEAD> double read_so(Team& team, uintptr_t address, int64_t bytes) {
    constexpr int64_t PAGE = 4096, LEAST = 16, LINE = 8;  // bytes, pages, words
    std::atomic<uint64_t> total{0};
    const auto began = std::chrono::steady_clock::now();
    team.run([&](int id) {
        uint64_t sums[LINE] = {};
        team.deal().begin(id);
        while (true) {
            const auto [from, to] = team.deal().take(id, bytes / PAGE, LEAST, 1);
            if (from == to) break;
            const uint64_t* words = (const uint64_t*)(address + from * PAGE);
            const int64_t stream = (to - from) * PAGE / 8 / STREAMS;
            for (int64_t i = 0; i < stream; i += LINE)
#pragma GCC unroll 8
                for (int64_t s = 0; s < STREAMS; ++s) {
                    const uint64_t* at = words + s * stream + i;
                    __builtin_prefetch(at + AHEAD / 8, 0, 3);
#pragma GCC unroll 8
                    for (int64_t j = 0; j < LINE; ++j) sums[j] += at[j];
                }
        }
        for (uint64_t sum : sums) total += sum;
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// As fast as it can, by which passes are judged. Processors differ in what serves them best: one stream keeps too few
// lines on their way from memory on one, and on another eight do.
double read_once(Team& team, uintptr_t address, int64_t bytes) {
    nb::gil_scoped_release release;
    return std::min({read_so<8, 1024>(team, address, bytes), read_so<4, 512>(team, address, bytes), read_so<1, 768>(team, address, bytes)});
}

}  // namespace

void bind_texts(nb::module_& m);  // texts.cpp
void bind_turns(nb::module_& m);  // turns.cpp
void bind_bell(nb::module_& m);   // bell.cpp

NB_MODULE(_native, m) {
    nb::exception<Unable>(m, "Unable", nb::module_::import_("forerun.errors").attr("ModelError"));
    bind_texts(m);
    bind_turns(m);
    bind_bell(m);
    m.def("race", [](const Floats& p, uint32_t first, uint32_t second, const std::optional<Rows>& ids) {
        if (!ids) return usable().front()->race(p.data(), nullptr, (int64_t)p.size(), first, second);
        const std::vector<uint32_t> listed(ids->data(), ids->data() + ids->size());
        if (listed.size() != p.size()) throw std::invalid_argument("an id for each of the chances is needed");
        return usable().front()->race(p.data(), listed.data(), (int64_t)p.size(), first, second);
    }, nb::arg(), nb::arg(), nb::arg(), nb::arg() = nb::none());
    m.def("ranks", [](uintptr_t logits, int64_t rows, int64_t vocab, int64_t count, uintptr_t out) {
        for (int64_t i = 0; i < rows; ++i)
            usable().front()->ranks((const float*)logits + i * vocab, vocab, count, (double*)out + i * (2 * count + 1));
    });
    m.def("logprob", [](uintptr_t logits, int64_t vocab, int64_t token, int64_t count) {
        const float* row = (const float*)logits;
        check({&token, 1}, vocab);
        count = std::clamp<int64_t>(count, 1, vocab);
        std::vector<double> found(2 * count + 1);
        usable().front()->ranks(row, vocab, count, found.data());
        std::vector<std::pair<int64_t, double>> best;
        for (int64_t i = 0; i < count; ++i) best.emplace_back((int64_t)found[i], std::log(found[count + i]));
        int64_t above = 0;
        for (int64_t j = 0; j < vocab; ++j) above += row[j] > row[token];
        return std::make_tuple(row[token] - (double)row[best[0].first] + best[0].second, above + 1, best);
    }, "Of a row: a token's log-probability and its rank, and the likeliest tokens with theirs.");
    m.def("chances", [](uintptr_t logits, int64_t rows, int64_t vocab, double temperature, int64_t top_k, double top_p, double min_p,
                        double typical_p, double epsilon, double eta, uintptr_t out) {
        const Cuts cuts{temperature, top_k, top_p, min_p, typical_p, epsilon, eta};
        for (int64_t i = 0; i < rows; ++i)
            usable().front()->chances((const float*)logits + i * vocab, vocab, cuts, (float*)out + i * vocab);
    }, nb::call_guard<nb::gil_scoped_release>(), "Logits [rows, vocab] as chances behind cut-offs.");
    m.def("draw", [](uintptr_t logits, int64_t vocab, double temperature, int64_t top_k, double top_p, double min_p, double typical_p,
                     double epsilon, double eta, uint32_t first, uint32_t second) {
        const Cuts cuts{temperature, top_k, top_p, min_p, typical_p, epsilon, eta};
        return usable().front()->draw((const float*)logits, vocab, cuts, first, second, false).token;
    }, "The token that a key draws from these chances of one row.");
    m.def("likeliest", [](const Floats& logits, const Bits& bits) {
        if ((int64_t)bits.size() < ((int64_t)logits.size() + 7) / 8) throw std::invalid_argument("a bit for each of the logits is needed");
        return usable().front()->likeliest(logits.data(), bits.data(), (int64_t)logits.size());
    }, "The first of a row's likeliest tokens whose bit is set; -1 where no token is left.");
    m.def("count", [](const Bits& bits) {
        int64_t found = 0;
        for (size_t i = 0; i < bits.size(); ++i) found += std::popcount(bits.data()[i]);
        return found;
    }, "How many bits are set.");
    m.def("places", [](const Bits& bits, uintptr_t out) {
        int64_t* next = (int64_t*)out;
        for (size_t i = 0; i < bits.size(); ++i)
            for (unsigned rest = bits.data()[i]; rest; rest &= rest - 1) *next++ = 8 * (int64_t)i + std::countr_zero(rest);
    }, "Which bits are set, one place of `out` for each.");
    m.def("bend", [](uintptr_t logits, int64_t rows, int64_t vocab, const Bends& bends, const std::vector<Tokens>& paths,
                     const std::vector<Tokens>& bans, uintptr_t out) {
        const Bend bend = bend_of(bends, vocab);
        std::vector<float> counts(vocab);
        for (int64_t i = 0; i < rows; ++i) {
            const Tokens none, &path = paths.at(i), &banned = bans.empty() ? none : bans.at(i);
            check(path, vocab);
            check(banned, vocab);
            bend.write((const float*)logits + i * vocab, vocab, path, banned, counts.data(), (float*)out + i * vocab);
        }
    }, "Logits [rows, vocab] after penalties for a text and what follows it, biases and bans.");
    m.def("rotate", [](uintptr_t rows, int64_t count, int64_t inputs) { usable().front()->rotate((float*)rows, count, inputs); },
          nb::call_guard<nb::gil_scoped_release>(), "Turns floats [count, inputs] to what is rounded to whole numbers, and back.");
    m.def("isa", [] { return names().front(); }, "The fastest kernels that run on this machine.");
    m.def("isas", &names, "Kernels that run on this machine, the fastest first.");

    nb::class_<Arena>(m, "Arena").def(nb::init<>()).def("expect", &Arena::expect).def("settle", &Arena::settle, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Packed>(m, "Packed")
        .def("__init__", [](Packed* p, std::shared_ptr<Arena> arena, int kind, int64_t outputs, int64_t inputs, bool blank) {
            new (p) Packed(std::move(arena), (Kind)kind, outputs, inputs, blank);
        }, nb::arg("arena"), nb::arg("kind"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("blank") = true)
        .def("fill", [](Packed& p, uintptr_t source, int kind, Rows to, int scales) {
            nb::gil_scoped_release release;
            p.fill((const void*)source, (Kind)kind, (int64_t)to.size(), to.data(), (Scales)scales);
        }, nb::arg("source"), nb::arg("kind"), nb::arg("to"), nb::arg("scales") = 0)
        .def("codes", [](Packed& p, Codes wholes, Codes multipliers, Floats scales, Rows to) {
            const size_t rows = to.size(), groups = p.kind() == Kind::INT4 ? p.groups() : 0;
            if (wholes.size() != rows * p.inputs() || multipliers.size() != rows * groups || scales.size() != rows)
                throw std::invalid_argument("whole numbers, multipliers and scales are not those of the rows.");
            p.codes(wholes.data(), multipliers.data(), scales.data(), (int64_t)rows, to.data());
        })
        .def("spans", &Packed::spans, nb::arg("biased") = false)
        .def_prop_ro("kind", [](const Packed& p) { return (int)p.kind(); })
        .def_prop_ro("outputs", &Packed::outputs)
        .def_prop_ro("inputs", &Packed::inputs)
        .def("bias", [](Packed& p, Floats values, Rows to) { p.bias(values.data(), (int64_t)to.size(), to.data()); })
        .def("row", [](const Packed& p, int64_t row, uintptr_t out) { p.row(row, (float*)out); })
        .def_prop_ro("nbytes", &Packed::bytes);

    nb::class_<Deal>(m, "Deal")
        .def(nb::init<int>())
        .def("among", &Deal::among)
        .def("begin", &Deal::begin)
        .def("take", [](Deal& d, int id, int64_t total, int64_t least, int64_t unit) {
            const auto [begin, end] = d.take(id, total, least, unit);
            return std::pair(begin, end);
        }, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Turnout>(m, "Turnout").def(nb::init<int>()).def_prop_ro("now", &Turnout::now).def("after", &Turnout::after);
    nb::class_<Team>(m, "Team", nb::is_weak_referenceable()).def(nb::init<int>()).def_prop_ro("size", &Team::size).def_prop_ro("coming", &Team::coming);

    m.def("read", &read_once);

    m.attr("LAYOUT") = LAYOUT;
    m.def("xxh64", [](uintptr_t address, int64_t bytes) { return xxh64((const uint8_t*)address, bytes); },
          nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", [](Decoder* d, const std::string& isa, const std::vector<int64_t>& sizes, const std::vector<double>& numbers) {
            new (d) Decoder();
            d->isa = by_name(isa);
            Net& n = d->net;
            n.vocab = sizes[0]; n.hidden = sizes[1]; n.heads = sizes[2]; n.kv_heads = sizes[3]; n.dim = sizes[4];
            n.layer_norm = sizes[5]; n.parallel = sizes[6]; n.gated = sizes[7]; n.activation = (Activation)sizes[8];
            n.exact = sizes[9];
            n.alone = reads_alone();
            n.eps = (float)numbers[0]; n.attention_scale = (float)numbers[1]; n.attention_cap = (float)numbers[2];
            n.logit_cap = (float)numbers[3]; n.embed_scale = (float)numbers[4]; n.residual_scale = (float)numbers[5];
            n.logit_scale = (float)numbers[6];
        })
        .def("rope", [](Decoder& d, std::vector<float> frequencies, std::vector<float> beyond, float scale, int64_t border) {
            d.net.ropes.push_back({std::move(frequencies), std::move(beyond), scale, border});
        })
        .def("layer", [](Decoder& d, PackedPtr qkv, PackedPtr o, PackedPtr up, PackedPtr down,
                         const std::vector<std::optional<Floats>>& norms, std::optional<Floats> qk_gain, int rope, int64_t window) {
            Layer layer;
            layer.qkv = d.use(qkv); layer.o = d.use(o); layer.up = d.use(up); layer.down = d.use(down);
            layer.attention = d.norm(norms[0], norms[1]);
            layer.attention_post = d.norm(norms[2], norms[3]);
            layer.mlp = d.norm(norms[4], norms[5]);
            layer.mlp_post = d.norm(norms[6], norms[7]);
            layer.qk_gain = qk_gain ? d.keep(*qk_gain) : nullptr;
            layer.rope = rope;
            layer.window = window;
            d.net.layers.push_back(layer);
            d.net.ffn = std::max(d.net.ffn, layer.down.inputs);
        }, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def("copy", [](std::shared_ptr<Decoder> d) {
            auto copy = std::make_shared<Decoder>();
            copy->net = d->net; copy->isa = d->isa; copy->whole = d->whole; copy->half = d->half; copy->numel = d->numel; copy->base = d;
            return copy;
        })
        .def("repeat", [](Decoder& d, PackedPtr qkv, PackedPtr o, PackedPtr up, PackedPtr down) {
            Layer layer = d.net.layers.back();
            layer.qkv = d.use(qkv); layer.o = d.use(o); layer.up = d.use(up); layer.down = d.use(down);
            layer.window = 0;
            d.net.layers.push_back(layer);
            d.net.ffn = std::max(d.net.ffn, layer.down.inputs);
        })
        .def_prop_ro("kind", [](const Decoder& d) { return (int)d.net.layers.back().qkv.kind; })
        .def_ro("numel", &Decoder::numel)
        .def_prop_ro("widths", [](const Decoder& d) {
            std::vector<int64_t> widths;
            for (const Layer& layer : d.net.layers) widths.push_back(layer.down.inputs);
            return widths;
        })
        .def("ends", [](Decoder& d, nb::object embedding, uintptr_t address, int kind, std::optional<Floats> positions,
                        Floats gain, std::optional<Floats> bias, PackedPtr head) {
            d.embedding = embedding;
            d.net.embed = (const void*)address;
            d.net.embed_kind = (Kind)kind;
            d.net.positions = positions ? d.keep(*positions) : nullptr;
            d.net.context = positions ? (int64_t)positions->size() / d.net.hidden : 0;
            d.net.final_norm = {d.keep(gain), bias ? d.keep(*bias) : nullptr};
            d.net.head = d.use(head);
        }, nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg());

    nb::class_<Session>(m, "Session")
        .def("__init__", [](Session* s, std::shared_ptr<Decoder> decoder, std::shared_ptr<Team> team, int kind, Table strips,
                            nb::object memory, std::shared_ptr<Team> helper, int64_t wide) {
            new (s) Session();
            s->decoder = decoder;
            s->team = team;
            s->memory = std::move(memory);
            s->helper = helper;
            s->wide = wide;
            for (size_t i = 0; i < strips.shape(0); ++i) {
                const int64_t* row = strips.data() + 6 * i;
                s->strips.push_back({(Kind)kind, (void*)row[0], (void*)row[1], (float*)row[2], (float*)row[3], row[4], row[5]});
            }
        })
        .def("run", &Session::run)
        .def("follow", &Session::follow)
        .def("grow", [](Session& s, const Session::Sprouts& sprouts) {
            std::vector<Grown> grown;
            {
                nb::gil_scoped_release release;
                grown = s.grow(sprouts);
            }
            return told(std::move(grown));
        })
        .def("begin", &Session::begin)
        .def("end", &Session::end);
}
