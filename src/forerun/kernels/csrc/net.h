// The decoder as the passes see it: shapes, packed weights, and what one pass has to do. Plain data, shared by all
// instruction sets; nothing here owns memory except Workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>

#include "bend.h"

namespace forerun {

// How the numbers of a matrix are kept. Float kinds multiply float32 activations; integer kinds quantize them per row.
enum class Kind : int { F32 = 0, F16 = 1, BF16 = 2, INT8 = 3, INT4 = 4 };

constexpr int TILE = 32;      // outputs whose weights lie together
constexpr int GROUP = 32;     // inputs that share a multiplier in INT4
constexpr int ROTATED = 64;   // inputs of whole numbers that are rotated together, at most
constexpr int FLIPPED = 16;   // bit of a multiplier
constexpr int FOUR = 16 * 64 + 64;  // bytes of 64 inputs of a tile of INT4: nibbles, then multipliers
constexpr int CROWNS = 32; // parts of a row of logits that are looked through one by one, at most,
constexpr int64_t CROWN = 1024;  // and logits of each, at least
constexpr int HEAD_MAX = 1024; // numbers of a head

// A weight matrix [outputs, inputs] in tiles of 32 outputs, zero-padded; a tile is one contiguous stream.
//   F32, F16:       [tile][input][32]
//   BF16:           [tile][input / 2][32][2], inputs padded to 32
//   INT8:           [tile][input / 4][32][4] as weight + 128, inputs padded to 64
//   INT4:           [tile][input / 64][8 x 2 x 64 bytes of two nibbles][2 x 32 multipliers], inputs padded to 64;
//                   a weight is (nibble - 8) x multiplier (1-15) of its group of 32 inputs x scale of its output;
//                   (nibble - 7) x multiplier x scale where the multiplier is marked as FLIPPED
struct Matrix {
    Kind kind = Kind::F32;
    int64_t outputs = 0, inputs = 0;
    const uint8_t* data = nullptr;
    const float* scale = nullptr;  // [outputs padded to a tile]; INT8, INT4
    const float* bias = nullptr;   // [outputs padded to a tile], or none
    const float* total = nullptr;  // [outputs padded to a tile]: an output's weights added up; where activations are
                                   // whole numbers of eight bits, whose zero stands for the middle of what a row holds
    int64_t tiles() const { return (outputs + TILE - 1) / TILE; }
    int64_t padded() const { return tiles() * TILE; }
};

inline bool is_whole(const Matrix& m) { return m.kind == Kind::INT8 || m.kind == Kind::INT4; }

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Bytes of one tile.
inline int64_t tile_bytes(Kind kind, int64_t inputs) {
    switch (kind) {
        case Kind::F32: return inputs * TILE * 4;
        case Kind::F16: return inputs * TILE * 2;
        case Kind::BF16: return round_up(inputs, 32) * TILE * 2;
        case Kind::INT8: return round_up(inputs, 64) * TILE;
        case Kind::INT4: return round_up(inputs, 64) / 64 * FOUR;
    }
    return 0;
}

// Rows that stand for one row of activations beside a matrix: two of bfloat16 add up to a float32 to one part in 2^18, one is
// rounded; two of eight bits make sixteen. What four bits lose is so much more that one row of eight will do.
inline int parts_of(Kind kind, bool exact) {
    if (!exact) return 1;
    return kind == Kind::BF16 || kind == Kind::INT8 ? 2 : 1;
}

// What an output of a matrix holds, as floats [inputs].
void read_row(const Matrix& m, int64_t row, float* out);

struct Norm {
    const float* gain = nullptr;  // none: there is no such norm
    const float* bias = nullptr;
};

struct Layer {
    Matrix qkv, o, up, down;
    Norm attention, attention_post, mlp, mlp_post;
    const float* qk_gain = nullptr;  // [heads + kv_heads, dim]
    int rope = -1;                   // index into Net::ropes
    int64_t window = 0;              // positions seen, its own included; 0: all
};

struct Rope {
    std::vector<float> frequencies, beyond;  // radians per position, per pair
    float scale = 1;
    int64_t border = 0;
};

enum class Activation : int { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

struct Net {
    int64_t vocab = 0, hidden = 0, heads = 0, kv_heads = 0, dim = 0;
    int64_t ffn = 0;  // the widest feed-forward of all layers
    float eps = 1e-6f;
    bool exact = true;  // activations keep more bits than weights: parts_of
    bool alone = false;  // the processor reads long streams of weights best, few at a time, and for few rows without being asked ahead
    bool layer_norm = false, parallel = false, gated = true;
    Activation activation = Activation::SILU;
    float attention_scale = 1, attention_cap = 0, logit_cap = 0, embed_scale = 1, residual_scale = 1, logit_scale = 1;
    const void* embed = nullptr;  // [vocab, hidden] in embed_kind: F32, F16 or BF16; none: the rows of `head`
    Kind embed_kind = Kind::F32;
    const float* positions = nullptr;  // [context, hidden], or none
    int64_t context = 0;               // rows of `positions`
    Norm final_norm;
    Matrix head;
    std::vector<Layer> layers;
    std::vector<Rope> ropes;
};

// Keys and values of one layer: [kv_heads, rows, dim] of F32, BF16 or INT8, rows numbered by the cache.
struct Strip {
    Kind kind = Kind::F32;
    void *keys = nullptr, *values = nullptr;
    float *key_scales = nullptr, *value_scales = nullptr;  // of INT8: [kv_heads, rows]
    int64_t stride = 0, rows = 0;  // elements and scales from one head to the next
};

struct Run {
    int64_t first, count;  // consecutive rows of the cache
};

struct Segment {
    int64_t start, count, past, base;
    const uint8_t* mask;  // [count, base + count], or none: causal
    const Run* runs;      // where its past + base + count entries lie, in order
    int64_t num_runs;
};

// Cut-offs in their order, as a Sampling has them: what takes nothing out is 0 (top_k, min_p, epsilon, eta) or 1.
struct Cuts {
    double temperature;
    int64_t top_k;
    double top_p, min_p, typical_p, epsilon, eta;

    bool any() const { return top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1 || epsilon > 0 || eta > 0; }
};

// A token to be drawn from a row of logits by a key, the likeliest one at temperature 0; and from the row behind the node
// of a draft that it is, if it is one, by the next key, and so on.
struct Lot {
    int64_t row;  // of those that are asked for; node i of the draft has row + 1 + i
    Cuts cuts;
    std::vector<uint64_t> keys;
    std::vector<int64_t> tokens, parents;  // of the draft; -1: the root
    bool odds;  // whether the chances are asked for as well
    std::optional<Bend> bend;
    std::vector<int64_t> banned;
};

struct Drawn {
    int64_t token;                // -1: there is none
    float chance = 0, norm = 0;  // of the token; the root of the sum of all chances squared
};

struct Plan {
    int64_t rows = 0;
    const int64_t *tokens = nullptr, *positions = nullptr;
    std::vector<Segment> segments;
    const int64_t* wanted = nullptr;  // rows whose logits are asked for
    int64_t num_wanted = 0;
    float* logits = nullptr;  // [num_wanted, vocab]
    int64_t* best = nullptr;  // [num_wanted]
    float *peak = nullptr, *mass = nullptr;  // [num_wanted]: logit of the best token; sum of e^(logit - that), or null: not asked for
    std::vector<Lot> lots;
    Drawn* drawn = nullptr;  // [num_wanted]
    std::vector<int> layers;
    std::vector<float*> hidden;  // per entry of `layers`: where its output [rows, hidden] goes, or none
};

struct Peak {
    int64_t token;
    float value, mass;
};

// Memory that begins with a line of the cache: a vector that lies across two costs twice.
template <typename T> struct OnLines {
    using value_type = T;
    static constexpr std::align_val_t line{64};
    OnLines() = default;
    template <typename U> OnLines(const OnLines<U>&) {}
    T* allocate(size_t n) { return (T*)::operator new(n * sizeof(T), line); }
    void deallocate(T* p, size_t) { ::operator delete(p, line); }
    template <typename U> bool operator==(const OnLines<U>&) const { return true; }
    template <typename U> bool operator!=(const OnLines<U>&) const { return false; }
};
template <typename T> using Lines = std::vector<T, OnLines<T>>;

// Scratch memory of a pass; grows and is kept.
struct Workspace {
    Lines<float> x, before, a, b, turns;
    Lines<int8_t> quantized;
    Lines<uint16_t> halves;
    std::vector<Lines<uint8_t>> wide;  // per thread: tiles of INT4 as those of INT8
    std::vector<float> scales, middles;
    std::vector<Peak> crowns;  // of each part of a row of logits
    std::vector<int32_t> sums, groups;
    std::vector<Lines<float>> scores;  // per thread
    std::vector<std::vector<float>> bent, counts;  // per thread: a row of logits and how often the text has each token
    std::vector<int64_t> entry;              // row of the cache that every row of the pass writes
    std::vector<int64_t> all;                // 0, 1, 2, ...
};

// Waits for all threads of a pass; give up the processor after a while, because others may need it.
class Team;

struct Isa {
    const char* name;
    void (*pass)(const Net&, const std::vector<Strip>&, const Plan&, Workspace&, Team&, int id);
    int64_t (*race)(const float* p, const uint32_t* ids, int64_t count, uint32_t first, uint32_t second);
    void (*ranks)(const float* row, int64_t vocab, int64_t count, double* out);
    void (*chances)(const float* row, int64_t vocab, const Cuts&, float* out);
    Drawn (*draw)(const float* row, int64_t vocab, const Cuts&, uint32_t first, uint32_t second, bool odds);
    int64_t (*likeliest)(const float* row, const uint8_t* bits, int64_t vocab);
    void (*rotate)(float* rows, int64_t count, int64_t inputs);
    void (*total)(const Matrix&, float* out);  // [outputs padded to a tile]: Matrix::total
};

const Isa* isa_amx();
const Isa* isa_avx512();
const Isa* isa_avx512vnni();
const Isa* isa_avxvnni();
const Isa* isa_avx2();
const Isa* isa_plain();

}  // namespace forerun
