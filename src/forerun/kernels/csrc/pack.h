// Weights in the order in which passes read them.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "net.h"

namespace forerun {

// Memory of many matrices: they lie one behind the other, on large pages where the system has them.
class Arena {
public:
    Arena() = default;
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    uint8_t* take(int64_t bytes);  // zeros, at a multiple of 64
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
    Packed(std::shared_ptr<Arena> arena, Kind kind, int64_t outputs, int64_t inputs);

    // Rows of `source` [rows, inputs] (kind F32, F16 or BF16) become the outputs that `to` names.
    void fill(const void* source, Kind kind, int64_t rows, const int64_t* to);
    void bias(const float* values, int64_t rows, const int64_t* to);
    // What output `row` holds, as floats [inputs].
    void row(int64_t row, float* out) const;

    Matrix matrix() const;
    int64_t bytes() const { return size_ + (int64_t)scale_.size() * 4; }

private:
    std::shared_ptr<Arena> arena_;
    Kind kind_;
    int64_t outputs_, inputs_, size_;
    uint8_t* data_;
    std::vector<float> scale_, bias_;
    void fill_four(const void* source, Kind kind, int64_t rows, const int64_t* to);
    void put(int64_t row, const int8_t* wholes, const int8_t* multipliers, float scale);
    uint8_t* place(int64_t row, int64_t input) const;
};

}  // namespace forerun
