#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>

#include "half.h"
#include "unable.h"

// What rounding spends its time in, compiled for registers of 512 bits too: the same numbers. For AVX2 that gained nothing.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define WIDE_TOO __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define WIDE_TOO
#endif
#define INLINE inline __attribute__((always_inline))  // into both

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

// To the nearest whole number, ties to even, for numbers within 2^22: what nearbyint gives, in two additions.
INLINE float whole(float x) { return (x + 12582912.0f) - 12582912.0f; }

INLINE float within(float x, float low, float high) { return x > low ? (x < high ? x : high) : low; }

// Sums are kept in lanes, which compilers turn into vectors.
constexpr int LANES = 16;

INLINE float sum(const float* lanes) {
    float total = 0;
    for (int j = 0; j < LANES; ++j) total += lanes[j];
    return total;
}

// A row as floats, with zeros up to `padded`.
void widen(const void* source, Kind kind, int64_t first, int64_t count, int64_t padded, float* out) {
    if (kind == Kind::F32) std::memcpy(out, (const float*)source + first, count * 4);
    const uint16_t* bits = (const uint16_t*)source + first;
    if (kind == Kind::BF16)
        for (int64_t i = 0; i < count; ++i) out[i] = widen_bfloat(bits[i]);
    if (kind == Kind::F16)
        for (int64_t i = 0; i < count; ++i) out[i] = widen_half(bits[i]);
    std::fill(out + count, out + padded, 0.0f);
}

INLINE float largest(const float* values, int64_t count) {  // without its sign; of a multiple of LANES
    float lanes[LANES] = {};
    for (int64_t i = 0; i < count; i += LANES)
        for (int j = 0; j < LANES; ++j) {
            const float a = std::fabs(values[i + j]);
            lanes[j] = a > lanes[j] ? a : lanes[j];
        }
    return *std::max_element(lanes, lanes + LANES);
}

float odd(const float* values, int64_t count) {  // zero, or NaN where a value is not finite; of a multiple of LANES
    float lanes[LANES] = {};
    for (int64_t i = 0; i < count; i += LANES)
        for (int j = 0; j < LANES; ++j) lanes[j] += values[i + j] - values[i + j];
    return sum(lanes);
}

// The square of what is lost when weights become whole numbers from `low` to `high` times `unit`.
INLINE float loss(const float* values, int64_t count, float unit, float inverse, float low, float high) {
    float lanes[LANES] = {};
    for (int64_t i = 0; i < count; i += LANES)
        for (int j = 0; j < LANES; ++j) {
            const float off = values[i + j] - whole(within(values[i + j] * inverse, low, high)) * unit;
            lanes[j] += off * off;
        }
    return sum(lanes);
}

INLINE void round_all(const float* values, int64_t count, float inverse, float low, float high, int8_t* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = (int8_t)whole(within(values[i] * inverse, low, high));
}

constexpr float EIGHT = 127;

// The largest weight that INT8 is to hold; larger ones are cut to it.
INLINE float top_of_eight(const float* values, int64_t count, Scales scales) {
    const float top = largest(values, count);
    if (scales == Scales::NEAREST || !(top > 0)) return top;
    float best = top, least = std::numeric_limits<float>::infinity();
    for (int step = 0, worse = 0; step < 60 && worse < 6; ++step, ++worse) {
        const float cut = top * (1 - 0.01f * step);
        const float lost = loss(values, count, cut / EIGHT, EIGHT / cut, -EIGHT, EIGHT);
        if (lost < least) least = lost, best = cut, worse = 0;
    }
    return best;
}

// One output in INT8; returns its scale.
WIDE_TOO float fit_eight(const float* values, int64_t count, Scales scales, int8_t* wholes) {
    const float top = top_of_eight(values, count, scales);
    round_all(values, count, top > 0 ? EIGHT / top : 0.0f, -EIGHT, EIGHT, wholes);
    return top / EIGHT;
}

// One output in INT4.
struct Four {
    std::vector<int8_t> wholes, multipliers;
    float scale = 0, lost = 0;
    explicit Four(int64_t padded) : wholes(padded), multipliers(padded / GROUP) {}
};

// The multiplier of one group, given the scale of its output; returns what is lost. `top`: the group's largest weight,
// which is to become -8, over -8. `wide`: look further, and at the other sign.
INLINE float multiply_group(const float* group, float scale, float top, bool wide, int8_t& multiplier) {
    const int sign = top < 0 ? -1 : 1;
    const int near = scale > 0 ? (int)std::ceil(std::fmin(std::fabs(top) / scale, 64.0f)) : 1;
    const int from = std::max(1, wide ? std::min(near, MULTIPLIER_MAX) * 6 / 10 : near - 3);
    const int to = std::min(MULTIPLIER_MAX, std::max(1, near + wide));
    float least = std::numeric_limits<float>::infinity();
    for (int m = std::min(from, to); m <= to; ++m)
        for (int turned = 0; turned <= (int)wide; ++turned) {
            const int signed_m = (turned ? -sign : sign) * m;
            const float unit = signed_m * scale, lost = loss(group, GROUP, unit, unit != 0 ? 1 / unit : 0, -8, 7);
            if (lost < least) least = lost, multiplier = (int8_t)signed_m;
        }
    if (!(least < std::numeric_limits<float>::infinity())) multiplier = 1;
    return least;
}

WIDE_TOO void fit(const float* values, const std::vector<float>& tops, int64_t groups, float scale, bool wide, Four& out) {
    out.scale = scale;
    out.lost = 0;
    for (int64_t g = 0; g < groups; ++g) {
        const float* group = values + g * GROUP;
        out.lost += multiply_group(group, scale, tops[g], wide, out.multipliers[g]);
        const float unit = out.multipliers[g] * scale;
        round_all(group, GROUP, unit != 0 ? 1 / unit : 0, -8, 7, out.wholes.data() + g * GROUP);
    }
}

// The scale that loses least once whole numbers and multipliers are chosen.
float best_scale(const float* values, int64_t groups, const Four& four) {
    double along = 0, square = 0;
    for (int64_t i = 0; i < groups * GROUP; ++i) {
        const float whole = (float)(four.wholes[i] * four.multipliers[i / GROUP]);
        along += (double)values[i] * whole;
        square += (double)whole * whole;
    }
    return square > 0 && along > 0 ? (float)(along / square) : four.scale;
}

// The best of several scales, then made better twice. Never loses more than NEAREST, which `best` is when it comes.
void fit_best(const float* values, const std::vector<float>& tops, int64_t groups, Four& best) {
    Four tried = best;
    const float scale = best.scale;
    for (const float share : {0.93f, 0.86f, 0.79f, 0.72f}) {
        fit(values, tops, groups, scale * share, false, tried);
        if (tried.lost < best.lost) best = tried;
    }
    for (int round = 0; round < 3; ++round) {
        fit(values, tops, groups, best_scale(values, groups, best), true, tried);
        if (!(tried.lost < best.lost)) break;
        best = tried;
    }
}

// Rows in parts, one thread each, where there is enough to do.
template <class Work>
void spread(int64_t rows, int64_t weights, Work work) {
    constexpr int64_t least = 1 << 18;  // weights that are worth a thread
    const int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
    const int64_t parts = std::max<int64_t>(1, std::min({weights / least, most, rows}));
    std::vector<std::thread> others;
    for (int64_t p = 1; p < parts; ++p) {
        const int64_t from = rows * p / parts, to = rows * (p + 1) / parts;
        try {
            others.emplace_back(work, from, to);
        } catch (const std::system_error&) {  // no thread is to be had
            work(from, to);
        }
    }
    work(0, rows / parts);
    for (std::thread& other : others) other.join();
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
            throw Unable("no memory for " + std::to_string(bytes >> 20) + " MiB of weights; free some, or use a smaller dtype.");
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

void Arena::expect() {
#ifdef MADV_HUGEPAGE
    for (const Chunk& chunk : chunks_) madvise(first(chunk.memory), chunk.used / LARGE * LARGE, MADV_HUGEPAGE);
#endif
}

void Arena::settle() {
    constexpr int collapse = 25;  // MADV_COLLAPSE, since Linux 6.1
    for (const Chunk& chunk : chunks_) madvise(first(chunk.memory), chunk.used / LARGE * LARGE, collapse);
}

Arena::~Arena() {
    for (const Chunk& chunk : chunks_) munmap(chunk.memory, chunk.size + LARGE + SLACK);
}

Packed::Packed(std::shared_ptr<Arena> arena, Kind kind, int64_t outputs, int64_t inputs, bool blank)
    : arena_(std::move(arena)), kind_(kind), outputs_(outputs), inputs_(inputs) {
    const int64_t padded = round_up(outputs, TILE);
    size_ = padded / TILE * tile_bytes(kind, inputs);
    data_ = arena_->take(size_);
    if (blank && kind == Kind::INT8) std::memset(data_, 128, size_);
    if (blank && kind == Kind::INT4)
        for (int64_t at = 0; at < size_; at += FOUR) std::memset(data_ + at, 0x88, 1024);
    if (kind == Kind::INT8 || kind == Kind::INT4) scale_.assign(padded, 0.0f);
}

uint8_t* Packed::lane(int64_t row) const { return data_ + row / TILE * tile_bytes(kind_, inputs_); }

void Packed::fill(const void* source, Kind kind, int64_t rows, const int64_t* to, Scales scales) {
    if (kind_ != Kind::INT8 && kind_ != Kind::INT4) {
        if (kind_ != kind)
            throw std::invalid_argument("float weights are packed as they are; give them in the precision of the matrix.");
        const int64_t stride = inputs_ * (kind == Kind::F32 ? 4 : 2);
        return spread(rows, rows * inputs_, [&](int64_t from, int64_t end) {
            for (int64_t r = from; r < end; ++r) put_floats(to[r], (const uint8_t*)source + r * stride);
        });
    }
    const int64_t padded = round_up(inputs_, 64);
    spread(rows, rows * inputs_, [&](int64_t from, int64_t end) {
        std::vector<float> values(padded), tops(groups());
        Four four(padded);
        for (int64_t r = from; r < end; ++r) {
            widen(source, kind, r * inputs_, inputs_, padded, values.data());
            const float broken = odd(values.data(), padded);  // weights that are not finite must not look as if they were
            if (kind_ == Kind::INT8) {
                const float scale = fit_eight(values.data(), padded, scales, four.wholes.data());
                put_eight(to[r], four.wholes.data(), scale + broken);
                continue;
            }
            float most = 0;
            for (int64_t g = 0; g < groups(); ++g) {  // the weight that is largest without its sign becomes -8
                const float* group = values.data() + g * GROUP;
                const float* top = std::max_element(group, group + GROUP, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
                tops[g] = -*top / 8;
                most = std::fmax(most, std::fabs(tops[g]));
            }
            fit(values.data(), tops, groups(), most / MULTIPLIER_MAX, false, four);
            if (scales == Scales::LEAST_SQUARES) fit_best(values.data(), tops, groups(), four);
            put_four(to[r], four.wholes.data(), four.multipliers.data(), four.scale + broken);
        }
    });
}

void Packed::codes(const int8_t* wholes, const int8_t* multipliers, const float* scales, int64_t rows, const int64_t* to) {
    if (kind_ != Kind::INT8 && kind_ != Kind::INT4)
        throw std::invalid_argument("whole numbers belong into a matrix of INT8 or INT4.");
    std::vector<int8_t> row(round_up(inputs_, 64));
    for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(row.data(), wholes + r * inputs_, inputs_);
        if (kind_ == Kind::INT8) put_eight(to[r], row.data(), scales[r]);
        else put_four(to[r], row.data(), multipliers + r * groups(), scales[r]);
    }
}

void Packed::put_floats(int64_t row, const void* source) {
    uint8_t* at = lane(row) + offset(kind_, row % TILE, 0);
    if (kind_ == Kind::F32) {
        const float* from = (const float*)source;
        for (int64_t i = 0; i < inputs_; ++i) std::memcpy(at + i * TILE * 4, from + i, 4);
        return;
    }
    const uint16_t* from = (const uint16_t*)source;
    const int64_t each = kind_ == Kind::BF16 ? 2 : 1, pairs = inputs_ / each * each;  // inputs that lie together
    for (int64_t i = 0; i < pairs; i += each) std::memcpy(at + i * TILE * 2, from + i, 2 * each);
    if (pairs < inputs_) std::memcpy(at + pairs * TILE * 2, from + pairs, 2);
}

void Packed::put_eight(int64_t row, const int8_t* wholes, float scale) {
    uint8_t* at = lane(row) + offset(kind_, row % TILE, 0);
    for (int64_t i = 0; i < inputs_; i += 4) {
        uint32_t four;
        std::memcpy(&four, wholes + i, 4);
        four ^= 0x80808080u;  // + 128
        std::memcpy(at + i / 4 * TILE * 4, &four, 4);
    }
    scale_[row] = scale;
}

void Packed::put_four(int64_t row, const int8_t* wholes, const int8_t* multipliers, float scale) {
    for (int64_t i = 0; i < inputs_; i += 64) {
        uint8_t* step = lane(row) + Nibble(row % TILE, i).byte;
        const bool second = i / GROUP + 1 < groups();
        const bool low = multipliers[i / GROUP] < 0, high = second && multipliers[i / GROUP + 1] < 0;
        for (int64_t quad = 0; quad < 8; ++quad)  // -w x -m is kept where m is below zero
            for (int64_t j = quad * 4; j < quad * 4 + 4; ++j) {
                const int a = wholes[i + j], b = wholes[i + j + 32];
                step[quad * 128 + j % 4] = (uint8_t)((low ? 7 - a : a + 8) | (high ? 7 - b : b + 8) << 4);
            }
    }
    for (int64_t g = 0; g < groups(); ++g) {
        const int m = multipliers[g];
        lane(row)[Nibble(row % TILE, g * GROUP).multiplier] = (uint8_t)(m < 0 ? FLIPPED - m : m);
    }
    scale_[row] = scale;
}

std::vector<std::pair<uintptr_t, int64_t>> Packed::spans(bool biased) {
    if (biased) bias_.resize(round_up(outputs_, TILE), 0.0f);
    return {{(uintptr_t)data_, size_}, {(uintptr_t)scale_.data(), (int64_t)scale_.size() * 4}, {(uintptr_t)bias_.data(), (int64_t)bias_.size() * 4}};
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
