// Searching a suffix array of token ids; kernels/suffixes.py says the same in Python.
#pragma once

#include <cstdint>
#include <vector>

#include "automaton.h"

namespace forerun {

struct Text {
    const int32_t* tokens;    // ids; -1 ends a document
    const int32_t* suffixes;  // where they begin, in order
    int64_t size;
};

struct Range {
    int64_t low, high;  // suffixes that begin with the pattern
    int32_t length;     // of the pattern
};

Range longest(const Text& text, const std::vector<int32_t>& pattern, int least);
Guess prefixes(const Text& text, Range range, int depth, int most, int budget, double least);

}  // namespace forerun
