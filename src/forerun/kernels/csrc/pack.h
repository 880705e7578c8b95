// Weights in the order in which passes read them.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "net.h"

namespace forerun {

constexpr int LAYOUT = 4;  // how the bytes of tiles lie (net.h), which parts have which kind, what is rotated; files hold it

// How the scales of whole numbers are chosen: by the largest weight, or by the least square of what rounding takes away.
enum class Scales : int { NEAREST = 0, LEAST_SQUARES = 1 };

// Memory of many matrices: they lie one behind the other, on large pages where the system has them.
class Arena {
public:
    Arena() = default;
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    uint8_t* take(int64_t bytes);  // zeros, at a multiple of 64
    // Everything is taken and nothing written: whole large pages are used from the start.
    void expect();
    // Everything is filled: what lies on small pages moves to large ones where whole ones are full.
    void settle();

private:
    struct Chunk {
        uint8_t* memory;
        int64_t size, used;
    };
    std::vector<Chunk> chunks_;
};

// One matrix, packed, in an arena.
class Packed {
public:
    // `blank`: every weight is zero; otherwise they are whatever is written to spans().
    Packed(std::shared_ptr<Arena> arena, Kind kind, int64_t outputs, int64_t inputs, bool blank = true);

    // Rows of `source` [rows, inputs] (kind F32, F16 or BF16) become the outputs that `to` names.
    void fill(const void* source, Kind kind, int64_t rows, const int64_t* to, Scales scales = Scales::NEAREST);
    // Whole numbers [rows, inputs] of INT8 or INT4, multipliers [rows, groups] of INT4 and scales [rows], as they are.
    void codes(const int8_t* wholes, const int8_t* multipliers, const float* scales, int64_t rows, const int64_t* to);
    void bias(const float* values, int64_t rows, const int64_t* to);
    // What output `row` holds, as floats [inputs].
    void row(int64_t row, float* out) const;

    Matrix matrix() const;
    // Addresses and bytes of the weights, the scales and the biases; `biased` makes room for biases.
    std::vector<std::pair<uintptr_t, int64_t>> spans(bool biased);
    Kind kind() const { return kind_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t groups() const { return (inputs_ + GROUP - 1) / GROUP; }
    int64_t bytes() const { return size_ + (int64_t)scale_.size() * 4; }

private:
    std::shared_ptr<Arena> arena_;
    Kind kind_;
    int64_t outputs_, inputs_, size_;
    uint8_t* data_;
    std::vector<float> scale_, bias_;
    uint8_t* lane(int64_t row) const;  // where its tile begins
    void put_floats(int64_t row, const void* source);
    void put_eight(int64_t row, const int8_t* wholes, float scale);
    void put_four(int64_t row, const int8_t* wholes, const int8_t* multipliers, float scale);
};

}  // namespace forerun
