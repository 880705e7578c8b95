#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "half.h"

namespace forerun {
namespace {

constexpr int64_t SLACK = 64 * 1024;  // passes ask for weights ahead, beyond the end too
constexpr int64_t LARGE = 2 << 20;   // bytes of a large page
constexpr int64_t CHUNK = 1 << 30;
constexpr int MULTIPLIER_MAX = 15;  // of a group of INT4: -8 x 15 is still a whole number of eight bits

uint8_t* first(uint8_t* memory) { return (uint8_t*)round_up((int64_t)memory, LARGE); }  // large page from here on

float read(const void* source, Kind kind, int64_t i) {
    if (kind == Kind::F32) return ((const float*)source)[i];
    const uint16_t bits = ((const uint16_t*)source)[i];
    return kind == Kind::BF16 ? widen_bfloat(bits) : widen_half(bits);
}

// Where in a tile an input of output `lane` lies.
int64_t offset(Kind kind, int64_t lane, int64_t input) {
    switch (kind) {
        case Kind::F32: return (input * TILE + lane) * 4;
        case Kind::F16: return (input * TILE + lane) * 2;
        case Kind::BF16: return (input / 2 * TILE + lane) * 4 + input % 2 * 2;
        default: return (input / 4 * TILE + lane) * 4 + input % 4;
    }
}

// A nibble of INT4: its byte in the tile, and whether it is the upper one; and the multiplier of its group.
struct Nibble {
    int64_t byte, multiplier;
    bool upper;
    Nibble(int64_t lane, int64_t input) {
        const int64_t step = input / 64 * FOUR, quad = input % 64 / 4, half = lane / 16;
        byte = step + (quad % 8 * 2 + half) * 64 + lane % 16 * 4 + input % 4;
        upper = quad >= 8;
        multiplier = step + 1024 + (upper ? TILE : 0) + lane;
    }
};

// How far multiples of `unit` are from a group's weights when each weight is a whole number of them from -8 to 7.
float distance(const float* group, int64_t count, float unit) {
    float total = 0;
    const float inverse = unit != 0 ? 1 / unit : 0;
    for (int64_t i = 0; i < count; ++i) {
        const float q = std::fmin(7.0f, std::fmax(-8.0f, std::nearbyint(group[i] * inverse)));
        total += (group[i] - q * unit) * (group[i] - q * unit);
    }
    return total;
}

}  // namespace

void read_row(const Matrix& m, int64_t row, float* out) {
    const uint8_t* tile = m.data + row / TILE * tile_bytes(m.kind, m.inputs);
    const int64_t lane = row % TILE;
    for (int64_t i = 0; i < m.inputs; ++i) {
        if (m.kind == Kind::INT4) {
            const Nibble n(lane, i);
            const int nibble = n.upper ? tile[n.byte] >> 4 : tile[n.byte] & 15, by = tile[n.multiplier];
            out[i] = (nibble - (by & FLIPPED ? 7 : 8)) * (by & 15) * m.scale[row];
            continue;
        }
        const uint8_t* at = tile + offset(m.kind, lane, i);
        out[i] = m.kind == Kind::INT8 ? ((int)*at - 128) * m.scale[row] : read(at, m.kind, 0);
    }
}

uint8_t* Arena::take(int64_t bytes) {
    const int64_t room = round_up(bytes, 64);
    if (chunks_.empty() || chunks_.back().used + room > chunks_.back().size) {
        const int64_t size = round_up(std::max(room, CHUNK), LARGE);
        // Room that nothing writes to costs nothing.
        void* memory = mmap(nullptr, size + LARGE + SLACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            throw std::runtime_error("no memory for " + std::to_string(bytes >> 20) + " MiB of weights; free some, or use a smaller dtype.");
        chunks_.push_back({(uint8_t*)memory, size, 0});
    }
    Chunk& chunk = chunks_.back();
    uint8_t* at = first(chunk.memory) + chunk.used;
    chunk.used += room;
#ifdef MADV_HUGEPAGE
    uint8_t *begin = first(at), *end = (uint8_t*)((uintptr_t)(at + room) / LARGE * LARGE);
    if (begin < end) madvise(begin, end - begin, MADV_HUGEPAGE);  // advice only, here and below
#endif
    return at;
}

void Arena::settle() {
    constexpr int collapse = 25;  // MADV_COLLAPSE, since Linux 6.1
    for (const Chunk& chunk : chunks_) madvise(first(chunk.memory), chunk.used / LARGE * LARGE, collapse);
}

Arena::~Arena() {
    for (const Chunk& chunk : chunks_) munmap(chunk.memory, chunk.size + LARGE + SLACK);
}

Packed::Packed(std::shared_ptr<Arena> arena, Kind kind, int64_t outputs, int64_t inputs)
    : arena_(std::move(arena)), kind_(kind), outputs_(outputs), inputs_(inputs) {
    const int64_t padded = round_up(outputs, TILE);
    size_ = padded / TILE * tile_bytes(kind, inputs);
    data_ = arena_->take(size_);
    if (kind == Kind::INT8) std::memset(data_, 128, size_);
    if (kind == Kind::INT4)
        for (int64_t at = 0; at < size_; at += FOUR) std::memset(data_ + at, 0x88, 1024);
    if (kind == Kind::INT8 || kind == Kind::INT4) scale_.assign(padded, 0.0f);
}

uint8_t* Packed::place(int64_t row, int64_t input) const {
    return data_ + row / TILE * tile_bytes(kind_, inputs_) + offset(kind_, row % TILE, input);
}

void Packed::fill(const void* source, Kind kind, int64_t rows, const int64_t* to) {
    if (kind_ == Kind::INT4) return fill_four(source, kind, rows, to);
    if (kind_ != Kind::INT8 && kind_ != kind)
        throw std::invalid_argument("float weights are packed as they are; give them in the precision of the matrix.");
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = r * inputs_;
        if (kind_ == Kind::F32) {
            const float* from = (const float*)source + first;
            for (int64_t i = 0; i < inputs_; ++i) std::memcpy(place(to[r], i), from + i, 4);
        } else if (kind_ != Kind::INT8) {
            const uint16_t* from = (const uint16_t*)source + first;
            uint8_t* at = place(to[r], 0);
            const int64_t each = kind_ == Kind::BF16 ? 2 : 1;  // inputs that lie together
            for (int64_t i = 0; i < inputs_; i += each)
                std::memcpy(at + i * TILE * 2, from + i, 2 * std::min(each, inputs_ - i));
        } else {
            float top = 0;
            for (int64_t i = 0; i < inputs_; ++i) top = std::fmax(top, std::fabs(read(source, kind, first + i)));
            const float inverse = top > 0 ? 127.0f / top : 0.0f;
            scale_[to[r]] = top / 127.0f;
            for (int64_t i = 0; i < inputs_; ++i)
                *place(to[r], i) = (uint8_t)((int)std::nearbyint(read(source, kind, first + i) * inverse) + 128);
        }
    }
}

void Packed::fill_four(const void* source, Kind kind, int64_t rows, const int64_t* to) {
    const int64_t groups = (inputs_ + GROUP - 1) / GROUP;
    std::vector<float> values(groups * GROUP, 0.0f), tops(groups);
    std::vector<int8_t> multipliers(groups), wholes(groups * GROUP);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < inputs_; ++i) values[i] = read(source, kind, r * inputs_ + i);
        float most = 0;
        for (int64_t g = 0; g < groups; ++g) {  // the weight that is largest without its sign becomes -8
            const float* group = values.data() + g * GROUP;
            const float* top = std::max_element(group, group + GROUP, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
            tops[g] = -*top / 8;
            most = std::fmax(most, std::fabs(tops[g]));
        }
        const float scale = most / MULTIPLIER_MAX;
        for (int64_t g = 0; g < groups; ++g) {
            const float* group = values.data() + g * GROUP;
            const int sign = tops[g] < 0 ? -1 : 1;
            const int near = scale > 0 ? (int)std::ceil(std::fabs(tops[g]) / scale) : 1;
            float least = std::numeric_limits<float>::infinity();
            for (int m = std::max(1, near - 3); m <= std::min(MULTIPLIER_MAX, std::max(1, near)); ++m) {
                const float off = distance(group, GROUP, sign * m * scale);
                if (off < least) least = off, multipliers[g] = (int8_t)(sign * m);
            }
            if (!(least < std::numeric_limits<float>::infinity())) multipliers[g] = 1;
            const float unit = multipliers[g] * scale, inverse = unit != 0 ? 1 / unit : 0;
            for (int64_t i = 0; i < GROUP; ++i)
                wholes[g * GROUP + i] = (int8_t)std::fmin(7.0f, std::fmax(-8.0f, std::nearbyint(group[i] * inverse)));
        }
        put(to[r], wholes.data(), multipliers.data(), scale);
    }
}

void Packed::put(int64_t row, const int8_t* wholes, const int8_t* multipliers, float scale) {
    uint8_t* tile = data_ + row / TILE * tile_bytes(kind_, inputs_);
    for (int64_t i = 0; i < inputs_; ++i) {
        const Nibble n(row % TILE, i);
        uint8_t& byte = tile[n.byte];
        const int m = multipliers[i / GROUP];  // -w x -m is kept where m is below zero
        const uint8_t bits = (uint8_t)(m < 0 ? 7 - wholes[i] : wholes[i] + 8);
        byte = n.upper ? (byte & 0x0f) | (uint8_t)(bits << 4) : (byte & 0xf0) | bits;
        tile[n.multiplier] = (uint8_t)(m < 0 ? FLIPPED - m : m);
    }
    scale_[row] = scale;
}

void Packed::bias(const float* values, int64_t rows, const int64_t* to) {
    bias_.resize(round_up(outputs_, TILE), 0.0f);
    for (int64_t r = 0; r < rows; ++r) bias_[to[r]] = values[r];
}

void Packed::row(int64_t row, float* out) const { read_row(matrix(), row, out); }

Matrix Packed::matrix() const {
    return {kind_, outputs_, inputs_, data_, scale_.empty() ? nullptr : scale_.data(), bias_.empty() ? nullptr : bias_.data()};
}

}  // namespace forerun
