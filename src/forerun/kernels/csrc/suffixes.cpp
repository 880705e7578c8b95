#include "suffixes.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace forerun {
namespace {

// The first suffix that is not less than the pattern, or with `after` the first that is greater and does not begin with it.
int64_t bound(const Text& text, const int32_t* pattern, int length, bool after) {
    int64_t low = 0, high = text.size;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2, begin = text.suffixes[middle];
        const int64_t room = std::min<int64_t>(length, text.size - begin);
        int64_t i = 0;
        while (i < room && text.tokens[begin + i] == pattern[i]) ++i;
        const bool less = i == length ? after : i == room || text.tokens[begin + i] < pattern[i];
        (less ? low : high) = less ? middle + 1 : middle;
    }
    return low;
}

}  // namespace

// A suffix of the pattern that occurs has only suffixes that occur, so the longest is found by halving.
Range longest(const Text& text, const std::vector<int32_t>& pattern, int least) {
    Range best{0, 0, 0};
    int known = least - 1, most = (int)pattern.size();
    while (known < most) {
        const int length = known + (most - known + 1) / 2;
        const int32_t* end = pattern.data() + pattern.size();
        const int64_t low = bound(text, end - length, length, false), high = bound(text, end - length, length, true);
        if (low < high) {
            best = {low, high, length};
            known = length;
        } else {
            most = length - 1;
        }
    }
    return best;
}

// The most frequent continuations of up to `most` suffixes of the range, evenly chosen, as a tree: best first.
Guess prefixes(const Text& text, Range range, int depth, int most, int budget, double least) {
    using Entry = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t>;
    const int64_t found = range.high - range.low, count = std::min<int64_t>(found, most);
    std::vector<int64_t> begins((size_t)count);
    for (int64_t i = 0; i < count; ++i) begins[i] = text.suffixes[range.low + i * found / count] + range.length;
    std::priority_queue<Entry> open;  // count, the earlier found first, first of them, depth, parent, count of the parent
    int32_t number = 0;
    const auto look = [&](int32_t first, int32_t size, int32_t level, int32_t parent) {
        for (int32_t i = first; i < first + size;) {
            const int64_t at = begins[i] + level;
            const int32_t token = at < text.size ? text.tokens[at] : -1;
            int32_t end = i + 1;
            while (end < first + size && begins[end] + level < text.size && text.tokens[begins[end] + level] == token) ++end;
            if (token >= 0 && end - i >= least * (double)count) open.push({end - i, --number, i, level, parent, size});
            i = end;
        }
    };
    Guess guess;
    look(0, (int32_t)count, 0, -1);
    while (!open.empty() && (int)guess.tokens.size() < budget) {
        const auto [size, order, first, level, parent, whole] = open.top();
        open.pop();
        guess.tokens.push_back(text.tokens[begins[first] + level]);
        guess.parents.push_back(parent);
        guess.chances.push_back((double)size / (double)whole);
        guess.score += (double)size / (double)count;
        if (level + 1 < depth) look(first, size, level + 1, (int32_t)guess.tokens.size() - 1);
    }
    return guess;
}

}  // namespace forerun
