// Weights in the order in which passes read them.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "net.h"

namespace forerun {

// One matrix, packed; owns its memory.
class Packed {
public:
    Packed(Kind kind, int64_t outputs, int64_t inputs);
    ~Packed();
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;

    // Rows of `source` [rows, inputs] (kind F32, F16 or BF16) become the outputs that `to` names.
    void fill(const void* source, Kind kind, int64_t rows, const int64_t* to);
    void bias(const float* values, int64_t rows, const int64_t* to);
    // What output `row` holds, as floats [inputs].
    void row(int64_t row, float* out) const;

    Matrix matrix() const;
    int64_t bytes() const { return size_ + (int64_t)scale_.size() * 4; }

private:
    Kind kind_;
    int64_t outputs_, inputs_, size_;
    uint8_t* data_;
    std::vector<float> scale_, bias_;
    uint8_t* place(int64_t row, int64_t input) const;
};

}  // namespace forerun
