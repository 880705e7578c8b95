// A row of logits as chances behind cut-offs, in the order of kernels/cuts.py, or the token that a key draws from these.
//
// Which tokens a first cut-off can leave at most is known from the largest logit and the mass of the row; all else
// looks at these few, and orders none of them, where an ordered row of a large vocabulary takes as long as a pass.
#pragma once

struct Chosen {
    int64_t id;
    float logit;
    float rank;  // the higher the sooner it is chosen; of equal ones the lowest id
    double p;
};

class Cutting {
public:
    Cutting(const float* row, int64_t vocab, const Cuts& cuts)
        : row(row), vocab(vocab), cuts(cuts), cold((float)(1.0 / cuts.temperature)), patches(row, vocab), top(patches.most()) {}

    void write(float* out) {
        if (!sound()) {
            std::fill_n(out, vocab, std::numeric_limits<float>::quiet_NaN());
        } else if (!cuts.any()) {
            spread(out);
        } else {
            choose();
            std::fill_n(out, vocab, 0.0f);
            for (const Chosen& c : left) out[c.id] = (float)c.p;
        }
    }

    // What `race` finds among the chances that `write` writes; who is left out is no runner.
    Drawn draw(uint32_t first, uint32_t second, bool odds) {
        if (!sound()) return {0};
        if (!cuts.any()) {
            const std::unique_ptr<float[]> all(new float[vocab]);
            spread(all.get());
            const int64_t token = race(all.get(), nullptr, vocab, first, second);
            return {token, all[token], odds ? norm(all.get(), vocab) : 0};
        }
        choose();
        std::vector<float> p;
        std::vector<uint32_t> ids;
        for (const Chosen& c : left) {
            p.push_back((float)c.p);
            ids.push_back((uint32_t)c.id);
        }
        const int64_t token = race(p.data(), ids.data(), (int64_t)ids.size(), first, second);
        const auto at = std::find(ids.begin(), ids.end(), (uint32_t)token) - ids.begin();
        return {token, p[at], odds ? norm(p.data(), (int64_t)p.size()) : 0};
    }

private:
    const float* row;
    int64_t vocab;
    const Cuts& cuts;
    float cold;  // one over the temperature
    Patches patches;
    float top;
    std::vector<Chosen> left;
    double scale = 0;  // the logarithm of what chances are shares of

    // The tokens that stay, and their chances.
    void choose() {
        gather();
        if (cuts.top_k > 0 && cuts.top_k < (int64_t)left.size()) {
            std::nth_element(left.begin(), left.begin() + cuts.top_k, left.end(), sooner);
            left.resize(cuts.top_k);
            share();
        }
        if (cuts.top_p < 1) reach(cuts.top_p);
        if (cuts.min_p > 0) above(cuts.min_p * most(), false);
        if (cuts.typical_p < 1) {
            const double even = entropy();
            for (Chosen& c : left) c.rank = (float)-std::abs(log_of(c) + even);  // the less it surprises
            reach(cuts.typical_p);
        }
        if (cuts.epsilon > 0) above(cuts.epsilon, true);
        if (cuts.eta > 0) above(std::min(cuts.eta, std::sqrt(cuts.eta) * std::exp(-entropy())), true);
    }

    static float norm(const float* p, int64_t count) {
        wf squares = {};
        registers(p, count, [&](wf some, int64_t, int) {
            const wf p = larger(some, wf{});  // behind the end is -inf
            squares += p * p;
        });
        return (float)std::sqrt(total(squares));
    }

    static bool sooner(const Chosen& a, const Chosen& b) { return a.rank != b.rank ? a.rank > b.rank : a.id < b.id; }

    // Whether the row has a distribution: numbers alone, and a largest that is finite.
    bool sound() const {
        int broken = !std::isfinite(top);
        for (int64_t j = 0; j < vocab; ++j) broken |= row[j] != row[j];
        return !broken;
    }

    // What tokens weigh, where the likeliest weighs one; all of them together.
    double weigh(const float* logits, int64_t count, float* out) const {
        wf sums = {};
        registers(logits, count, [&](wf some, int64_t at, int here) {
            const wf weight = exponential(below(some, top, cold));
            sums += weight;
            if (here == FLOATS) return store_some(out + at, weight);
            for (int i = 0; i < here; ++i) out[at + i] = weight[i];
        });
        return total(sums);
    }

    // Chances of all tokens.
    void spread(float* out) const {
        double all = 0;
        for (int64_t j = 0; j < vocab; j += PATCH) all += weigh(row + j, std::min(vocab - j, PATCH), out + j);
        const float share = (float)(1 / all);
        for (int64_t j = 0; j < vocab; ++j) out[j] *= share;
    }

    // What all tokens weigh. `near`: the least of a few distances from the likeliest within which they weigh a share of it.
    double weight(double share, double& near) const {
        constexpr int STEPS = 6;
        constexpr float steps[STEPS] = {1, 2, 4, 6, 9, 13};  // nats
        double all = 0, within[STEPS] = {};
        float found[PATCH] = {};
        for (int64_t j = 0; j < vocab; j += PATCH) {
            const int64_t here = std::min(vocab - j, PATCH);
            std::fill(found + here, std::end(found), 0.0f);
            all += weigh(row + j, here, found);
            const float nearest = (top - patches.largest_of[j / PATCH]) * cold - 1e-3f;
            for (int i = 0; i < STEPS; ++i) {
                if (steps[i] < nearest) continue;
                const float least = std::exp(-steps[i]);
                wf part = {};
                for (int64_t k = 0; k < PATCH; k += FLOATS) {  // one register at a time, which all compilers compare as one
                    const wf weight = load_some(found + k);
                    part += weight >= least ? weight : wf{};
                }
                within[i] += total(part);
            }
        }
        const auto enough = std::find_if(within, within + STEPS, [&](double part) { return part > share * all * (1 + 1e-5); });
        near = enough == within + STEPS ? std::numeric_limits<double>::infinity() : steps[enough - within];
        return all;
    }

    // All that the first cut-off can leave, with their chances: before it, or where it needs no more, among themselves.
    // A thousandth of a nat is more than rounding makes of a bound.
    void gather() {
        const double heat = cuts.temperature, slack = 1e-3 * heat;
        double bound = top - 87 * heat, whole = 0;  // below, a float has no weight for it
        if (cuts.top_k > 0) {
            bound = std::max(bound, kth());
        } else if (cuts.top_p < 1) {
            double near;
            whole = weight(cuts.top_p, near);  // all below the bound together would not make up what may be left out
            bound = std::max({bound, top - heat * near - slack, top + heat * std::log((1 - cuts.top_p) / (double)vocab * whole) - slack});
        } else if (cuts.min_p > 0) {
            bound = std::max(bound, top + heat * std::log(cuts.min_p) - slack);
        }
        for (int64_t b = 0; b < (int64_t)patches.largest_of.size(); ++b) {
            if (patches.largest_of[b] < bound) continue;
            const int64_t begin = b * PATCH, here = std::min(vocab - begin, PATCH);
            int places[PATCH], found = 0;
            for (int i = 0; i < here; ++i) {
                places[found] = i;
                found += row[begin + i] >= bound;
            }
            for (int i = 0; i < found; ++i) left.push_back({begin + places[i], row[begin + places[i]], row[begin + places[i]], 0});
        }
        float logits[PATCH], found[PATCH];
        for (size_t i = 0; i < left.size(); i += PATCH) {
            const int64_t here = std::min((int64_t)(left.size() - i), PATCH);
            for (int64_t k = 0; k < here; ++k) logits[k] = left[i + k].logit;
            weigh(logits, here, found);
            for (int64_t k = 0; k < here; ++k) left[i + k].p = found[k];
        }
        share(whole);
    }

    // A logit that at least `top_k` tokens reach: as many patches have one, or as many parts of patches.
    double kth() const {
        std::vector<float> found = patches.largest_of;
        if (cuts.top_k > (int64_t)found.size()) {
            found.resize(found.size() * 16);
            for (size_t b = 0; b < patches.largest_of.size(); ++b) store(found.data() + 16 * b, patches.tops((int64_t)b));
        }
        if (cuts.top_k > (int64_t)found.size()) return -std::numeric_limits<double>::infinity();
        std::nth_element(found.begin(), found.begin() + (cuts.top_k - 1), found.end(), std::greater<float>());
        return found[cuts.top_k - 1];
    }

    // Chances of what is left, of a whole or among themselves.
    void share(double whole = 0) {
        if (whole == 0)
            for (const Chosen& c : left) whole += c.p;
        for (Chosen& c : left) c.p /= whole;
        scale += std::log(whole);
    }

    // Keep the shortest beginning, in the order of ranks, with at least this mass, and the first always. The end of it is
    // in one of a few intervals of ranks; there halves are parted until the one that holds it is one token.
    void reach(double mass) {
        constexpr int INTERVALS = 256;
        auto begin = left.begin(), end = left.end();
        double before = 0;
        const auto [low, high] = std::minmax_element(begin, end, [](const Chosen& a, const Chosen& b) { return a.rank < b.rank; });
        if (left.size() > INTERVALS && low->rank < high->rank) {
            const double first = high->rank, per = (INTERVALS - 1) / (first - low->rank);
            const auto interval = [&](const Chosen& c) { return (int)((first - c.rank) * per); };
            double masses[INTERVALS] = {};
            for (const Chosen& c : left) masses[interval(c)] += c.p;
            int at = 0;
            while (at < INTERVALS - 1 && before + masses[at] < mass) before += masses[at++];
            begin = std::partition(begin, end, [&](const Chosen& c) { return interval(c) < at; });
            end = std::partition(begin, end, [&](const Chosen& c) { return interval(c) == at; });
        }
        while (end - begin > 1) {
            const auto middle = begin + (end - begin) / 2;
            std::nth_element(begin, middle, end, sooner);
            double sooner_ones = 0;
            for (auto c = begin; c != middle; ++c) sooner_ones += c->p;
            if (before + sooner_ones < mass) {
                before += sooner_ones;
                begin = middle;
            } else {
                end = middle;
            }
        }
        left.erase(end, left.end());
        share();
    }

    double most() const {
        double found = 0;
        for (const Chosen& c : left) found = std::max(found, c.p);
        return found;
    }

    // Of its chance, by its logit: there are many.
    double log_of(const Chosen& c) const { return ((double)c.logit - top) / cuts.temperature - scale; }

    double entropy() const {
        double found = 0;
        for (const Chosen& c : left) found -= c.p * log_of(c);
        return found;
    }

    // Keep tokens of at least this chance, and the likeliest where `always`.
    void above(double floor, bool always) {
        int64_t best = -1;
        if (always) {
            const auto rarer = [](const Chosen& a, const Chosen& b) { return a.p != b.p ? a.p < b.p : a.id > b.id; };
            best = std::max_element(left.begin(), left.end(), rarer)->id;
        }
        std::erase_if(left, [&](const Chosen& c) { return c.p < floor && c.id != best; });
        share();
    }
};

void chances(const float* row, int64_t vocab, const Cuts& cuts, float* out) { Cutting(row, vocab, cuts).write(out); }

Drawn draw(const float* row, int64_t vocab, const Cuts& cuts, uint32_t first, uint32_t second, bool odds) {
    return Cutting(row, vocab, cuts).draw(first, second, odds);
}
