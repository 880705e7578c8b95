// Logits after penalties, biases and bans, as kernels/bends.py has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace forerun {

struct Bend {
    float repetition, presence, frequency;
    std::vector<int64_t> text;  // of which penalties know
    size_t prompt;              // as many tokens of it were read, the others written
    std::vector<int64_t> biased;
    std::vector<double> biases;
    std::optional<std::vector<int64_t>> allowed;

    // A row [vocab] that follows the text and a path, without what is banned there; `counts` [vocab] are zeros, and stay so.
    void write(const float* row, int64_t vocab, std::span<const int64_t> path, std::span<const int64_t> banned, float* counts, float* out) const {
        constexpr float never = -std::numeric_limits<float>::infinity();
        const std::span<const int64_t> whole(text), written = whole.subspan(prompt);
        std::copy_n(row, vocab, out);
        if (repetition != 1)
            for (const auto part : {whole, path})
                for (const int64_t token : part) out[token] = row[token] > 0 ? row[token] / repetition : row[token] * repetition;
        if (presence != 0 || frequency != 0) {
            for (const auto part : {written, path})
                for (const int64_t token : part) ++counts[token];
            for (const auto part : {written, path})
                for (const int64_t token : part) {
                    if (counts[token] > 0) out[token] = out[token] - presence - frequency * counts[token];
                    counts[token] = 0;
                }
        }
        for (size_t i = 0; i < biased.size(); ++i) out[biased[i]] += (float)biases[i];
        for (const int64_t token : banned) out[token] = never;
        if (allowed) {
            std::vector<float> left;
            for (const int64_t token : *allowed) left.push_back(out[token]);
            std::fill_n(out, vocab, never);
            for (size_t i = 0; i < left.size(); ++i) out[(*allowed)[i]] = left[i];
        }
    }
};

}  // namespace forerun
