// The likeliest tokens of a row of logits in their order, the chance of each, and the entropy of the whole row.
//
// One sweep finds the largest of every patch, a second one the masses; a token more costs a look at the largest of
// all patches and at one patch.
#pragma once

constexpr int64_t PATCH = 256;

struct Patches {
    const float* row;
    int64_t vocab;
    std::vector<float> largest_of;

    Patches(const float* row, int64_t vocab) : row(row), vocab(vocab), largest_of((vocab + PATCH - 1) / PATCH) {
        for (int64_t b = 0; b < (int64_t)largest_of.size(); ++b) largest_of[b] = top(b);
    }

    float most() const { return *std::max_element(largest_of.begin(), largest_of.end()); }

    float top(int64_t b) const {
        const int64_t end = std::min(vocab, (b + 1) * PATCH);
        float most = largest(tops(b));
        for (int64_t j = end - (end - b * PATCH) % 16; j < end; ++j) most = row[j] > most ? row[j] : most;
        return most;
    }

    // The largest of each of sixteen parts of patch b, without a rest that does not fill them.
    vf tops(int64_t b) const {
        const int64_t begin = b * PATCH, end = std::min(vocab, begin + PATCH);
        vf found = splat(-std::numeric_limits<float>::infinity());
        for (int64_t j = begin; j + 16 <= end; j += 16) found = larger(found, load(row + j));
        return found;
    }

    // The largest of patch b among what comes after token `at` with value `v` in the order of ranks.
    float rest(int64_t b, float v, int64_t at) const {
        const int64_t end = std::min(vocab, (b + 1) * PATCH);
        const wf nothing = repeat(-std::numeric_limits<float>::infinity());
        wf below = nothing;
        wi again = {};  // equal ones that come later
        int64_t j = b * PATCH;
        for (; j + FLOATS <= end; j += FLOATS) {
            const wf x = load_some(row + j);
            again |= (x == v) & (lanes() > (int32_t)(at - j));
            below = larger(below, select(x < v, x, nothing));
        }
        float most = together(below, [](wf a, wf b) { return larger(a, b); });
        bool equal = any(again);
        for (; j < end; ++j) {
            equal |= row[j] == v && j > at;
            most = row[j] < v && row[j] > most ? row[j] : most;
        }
        return equal ? v : most;
    }

    // The first token of patch b that has value v and an id above `above`.
    int64_t find(int64_t b, float v, int64_t above) const {
        int64_t j = std::max(b * PATCH, above + 1);
        const int64_t last = std::min(vocab, (b + 1) * PATCH) - 1;
        while (j + FLOATS <= last && !any(load_some(row + j) == v)) j += FLOATS;
        while (j < last && row[j] != v) ++j;
        return std::min(j, vocab - 1);
    }
};

// How far logits lie below the largest, times `cold`, one over the temperature; as far as a token weighs nothing at most.
INLINE wf below(wf logits, float top, float cold) { return larger(repeat(-88.0f), (logits - top) * cold); }

// Calls f(register of logits, where they stand, how many they are) for all of a row; what is behind its end is -inf.
template <typename F> INLINE void registers(const float* row, int64_t count, F&& f) {
    int64_t j = 0;
    for (; j + FLOATS <= count; j += FLOATS) f(load_some(row + j), j, FLOATS);
    if (j == count) return;
    float tail[FLOATS];
    std::fill_n(tail, FLOATS, -std::numeric_limits<float>::infinity());
    std::copy_n(row + j, count - j, tail);
    f(load_some(tail), j, (int)(count - j));
}

INLINE double total(wf v) {
    double found = 0;
    for (int i = 0; i < FLOATS; ++i) found += v[i];
    return found;
}

// out: `count` tokens, `count` chances (0 where there are fewer tokens), entropy in nats.
void ranks(const float* row, int64_t vocab, int64_t count, double* out) {
    Patches patches(row, vocab);
    std::vector<float>& most = patches.largest_of;
    const float top = patches.most();
    double mass = 0, slope = 0;
    for (int64_t j = 0; j < vocab; j += PATCH) {
        wf sums = {}, slopes = {};
        registers(row + j, std::min(vocab - j, PATCH), [&](wf logits, int64_t, int) {
            const wf apart = below(logits, top, 1.0f);
            const wf weight = exponential(apart);
            sums += weight;
            slopes = fma(weight, apart, slopes);
        });
        mass += total(sums);
        slope += total(slopes);
    }
    std::vector<int64_t> taken(most.size(), -1);  // the last of a patch's tokens
    std::vector<float> value(most.size());        // and its logit
    for (int64_t i = 0; i < count; ++i) {
        const int64_t b = std::max_element(most.begin(), most.end()) - most.begin();
        const float v = most[b];
        const bool again = taken[b] >= 0 && value[b] == v;
        const int64_t at = patches.find(b, v, again ? taken[b] : -1);
        out[i] = (double)at;
        out[count + i] = std::exp((double)v - top) / mass;
        taken[b] = at;
        value[b] = v;
        most[b] = patches.rest(b, v, at);
    }
    out[2 * count] = std::log(mass) - slope / mass;
}
