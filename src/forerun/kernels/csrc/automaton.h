// A suffix automaton of many sequences (Blumer et al. 1985), with counts, grown token by token.
//
// A state is a set of contexts that ended at the same places: those longer than its link's, up to its own length. It
// knows how often they occurred and when they did last. kernels/automaton.py says the same in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

constexpr int32_t ROOT = 0, NONE = -1;
constexpr int COUNTED = 64;  // contexts that one token adds to, the longest first; more there are in periodic text only
constexpr int SEEN = 64;     // continuations of a context that are looked at, in the order in which they came up
constexpr int NEAR = 4;      // edges of a state that are searched one after the other; the rest are hashed
constexpr int TRIED = 8;     // contexts that a draft is tried with, the longest first

struct Match {
    int32_t state = ROOT, length = 0;  // the longest suffix that occurs, and a state that holds it
};

struct Guess {
    std::vector<int32_t> tokens, parents;
    std::vector<double> chances;  // of a node, given its parent
    double score = 0;             // expected number of accepted nodes
};

class Automaton {
public:
    Automaton() : states_(1) {}

    int32_t add(int32_t last, int32_t token);
    Match step(Match at, int32_t token) const;
    Match earlier(int32_t last) const { return {states_[last].link, states_[states_[last].link].length}; }
    Guess tree(Match at, int budget, double factor, double least) const;
    Guess chain(Match at, int budget, bool latest) const;
    int64_t bytes() const;
    int64_t states() const { return (int64_t)states_.size(); }

private:
    struct State {
        int32_t length = 0, link = NONE, first = NONE, last = NONE, degree = 0, count = 0, time = 0;
    };
    struct Edge {
        int32_t from, token, to, next;
    };

    int32_t find(int32_t state, int32_t token) const;  // an edge
    void link(int32_t from, int32_t token, int32_t to);
    void file(int32_t edge);
    int32_t split(int32_t from, int32_t token, int32_t to);
    void count(int32_t state);
    Match settle(Match at) const;
    int32_t lasting(int32_t state) const;
    Guess grow(int32_t state, int budget, double least) const;
    size_t place(int32_t from, int32_t token) const;

    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_;  // edges behind the first NEAR of a state, by hash; open addressing
    size_t filed_ = 0;
    int32_t clock_ = 0;
};

}  // namespace forerun
