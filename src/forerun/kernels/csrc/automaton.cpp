#include "automaton.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace forerun {

// Edges

size_t Automaton::place(int32_t from, int32_t token) const {
    uint64_t key = (uint64_t)(uint32_t)from << 32 | (uint32_t)token;
    key = (key ^ key >> 31) * 0x9E3779B185EBCA87u;
    return (size_t)(key >> 32) & (table_.size() - 1);
}

int32_t Automaton::find(int32_t state, int32_t token) const {
    int32_t edge = states_[state].first;
    for (int i = 0; i < NEAR && edge != NONE; ++i, edge = edges_[edge].next)
        if (edges_[edge].token == token) return edge;
    if (edge == NONE) return NONE;
    for (size_t at = place(state, token);; at = (at + 1) & (table_.size() - 1)) {
        const int32_t held = table_[at];
        if (held == NONE || (edges_[held].from == state && edges_[held].token == token)) return held;
    }
}

void Automaton::link(int32_t from, int32_t token, int32_t to) {
    const int32_t edge = (int32_t)edges_.size();
    edges_.push_back({from, token, to, NONE});
    State& state = states_[from];
    (state.last == NONE ? state.first : edges_[state.last].next) = edge;
    state.last = edge;
    if (++state.degree > NEAR) file(edge);
}

void Automaton::file(int32_t edge) {
    if (2 * ++filed_ > table_.size()) {
        std::vector<int32_t> old(std::max<size_t>(64, 2 * table_.size()), NONE);
        old.swap(table_);
        filed_ = 1;
        for (const int32_t held : old)
            if (held != NONE) file(held);
    }
    size_t at = place(edges_[edge].from, edges_[edge].token);
    while (table_[at] != NONE) at = (at + 1) & (table_.size() - 1);
    table_[at] = edge;
}

// Growing

int32_t Automaton::add(int32_t last, int32_t token) {
    int32_t edge = find(last, token), from = last;
    int32_t state;
    if (edge != NONE) {  // another sequence went this way
        state = edges_[edge].to;
        if (states_[state].length != states_[last].length + 1) state = split(last, token, state);
    } else {
        state = (int32_t)states_.size();
        states_.emplace_back();
        states_[state].length = states_[last].length + 1;
        for (; from != NONE && (edge = find(from, token)) == NONE; from = states_[from].link) link(from, token, state);
        int32_t shorter = ROOT;
        if (from != NONE) {
            shorter = edges_[edge].to;
            if (states_[shorter].length != states_[from].length + 1) shorter = split(from, token, shorter);
        }
        states_[state].link = shorter;
    }
    count(state);
    return state;
}

// The contexts of `to` that are no longer than that of `from` and the token get a state of their own.
int32_t Automaton::split(int32_t from, int32_t token, int32_t to) {
    const int32_t part = (int32_t)states_.size();
    State copy = states_[to];
    copy.length = states_[from].length + 1;
    copy.first = copy.last = NONE;
    copy.degree = 0;
    states_.push_back(copy);
    for (int32_t edge = states_[to].first; edge != NONE; edge = edges_[edge].next)
        link(part, edges_[edge].token, edges_[edge].to);
    states_[to].link = part;
    for (; from != NONE; from = states_[from].link) {
        const int32_t edge = find(from, token);
        if (edge == NONE || edges_[edge].to != to) break;
        edges_[edge].to = part;
    }
    return part;
}

void Automaton::count(int32_t state) {
    ++clock_;
    for (int i = 0; i < COUNTED && state != ROOT; ++i, state = states_[state].link) {
        ++states_[state].count;
        states_[state].time = clock_;
    }
}

// Matching

// The state that holds the context now: it may have been split since.
Match Automaton::settle(Match at) const {
    while (at.state != ROOT && at.length <= states_[states_[at.state].link].length) at.state = states_[at.state].link;
    return at;
}

Match Automaton::step(Match at, int32_t token) const {
    at = settle(at);
    for (;;) {
        const int32_t edge = find(at.state, token);
        if (edge != NONE) return {edges_[edge].to, at.length + 1};
        if (at.state == ROOT) return {};
        at.state = states_[at.state].link;
        at.length = states_[at.state].length;
    }
}

// Guessing

// A text that repeats itself, or was cut, goes on as the longest part of the context did that went on.
int32_t Automaton::lasting(int32_t state) const {
    while (state != ROOT && states_[state].first == NONE) state = states_[state].link;
    return state;
}

Guess Automaton::tree(Match at, int budget, double factor, double least) const {
    Guess best;
    at = settle(at);
    for (int i = 0; i < TRIED && at.state != ROOT; ++i) {
        const int room = (int)std::min((double)budget, factor * at.length);
        if (room <= best.score) break;  // no node is worth more than one token
        Guess found = grow(at.state, room, least);
        if (found.score > best.score) best = std::move(found);
        at = {states_[at.state].link, states_[states_[at.state].link].length};
    }
    return best;
}

// The likeliest paths, best first.
Guess Automaton::grow(int32_t state, int budget, double least) const {
    using Entry = std::tuple<double, int32_t, int32_t, int32_t, int32_t, double>;
    std::priority_queue<Entry> open;  // reach, time, the earlier found first, edge, parent, chance
    Guess guess;
    int32_t number = 0;
    const auto look = [&](int32_t at, int32_t parent, double reach) {
        int64_t total = 0;
        int seen = 0;
        if ((at = lasting(at)) == ROOT) return;
        for (int32_t e = states_[at].first; e != NONE && seen < SEEN; e = edges_[e].next, ++seen)
            total += states_[edges_[e].to].count;
        seen = 0;
        for (int32_t e = states_[at].first; e != NONE && seen < SEEN; e = edges_[e].next, ++seen) {
            const State& to = states_[edges_[e].to];
            const double chance = (double)to.count / (double)total;
            if (to.count > 0 && reach * chance >= least) open.push({reach * chance, to.time, --number, e, parent, chance});
        }
    };
    look(state, NONE, 1.0);
    while (!open.empty() && (int)guess.tokens.size() < budget) {
        const auto [reach, time, order, edge, parent, chance] = open.top();
        open.pop();
        guess.tokens.push_back(edges_[edge].token);
        guess.parents.push_back(parent);
        guess.chances.push_back(chance);
        guess.score += reach;
        if ((int)guess.tokens.size() < budget) look(edges_[edge].to, (int32_t)guess.tokens.size() - 1, reach);
    }
    return guess;
}

// One continuation: that of the latest occurrence, or the most frequent token after token.
Guess Automaton::chain(Match at, int budget, bool latest) const {
    Guess guess;
    double reach = 1.0;
    for (int32_t state = settle(at).state; (int)guess.tokens.size() < budget;) {
        int32_t best = NONE;
        int64_t total = 0;
        int seen = 0;
        std::pair<int32_t, int32_t> most{0, 0};
        if ((state = lasting(state)) == ROOT) break;
        for (int32_t e = states_[state].first; e != NONE && seen < SEEN; e = edges_[e].next, ++seen) {
            const State& to = states_[edges_[e].to];
            const std::pair<int32_t, int32_t> rank{latest ? to.time : to.count, to.time};
            total += to.count;
            if (to.count > 0 && rank > most) {
                most = rank;
                best = e;
            }
        }
        if (best == NONE) break;
        state = edges_[best].to;
        const double chance = (double)states_[state].count / (double)total;
        reach *= chance;
        guess.tokens.push_back(edges_[best].token);
        guess.parents.push_back((int32_t)guess.tokens.size() - 2);
        guess.chances.push_back(chance);
        guess.score += reach;
    }
    return guess;
}

int64_t Automaton::bytes() const {
    return (int64_t)(states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) + table_.capacity() * 4);
}

}  // namespace forerun
