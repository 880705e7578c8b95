// A whole pass of a gated decoder over up to 16 rows in one launch: every weight is read once, and memory never waits.
//
// One block per multiprocessor stays for the pass. Its last warp does nothing but ask for weights, in the order in
// which they will be needed and as far ahead as shared memory holds, across layers: weights depend on nothing. Sixteen
// warps multiply, attend and norm. A block owns tiles of eight outputs; a warp owns inputs and holds its part of all rows
// in registers. One more warp adds the sixteen parts of a sum in order and makes of it what it is for, while the others
// multiply on. So a row has the same bits whatever the other rows are, and eight rows cost what one costs.
//
// Between the parts of a layer blocks do not meet: every word that one hands on has a place of its own on a board, which
// says "not yet" until it is written, and whoever needs it looks until it is there. The pass after this one uses the
// other of two boards, and makes this one say "not yet" again. A pair of bfloat16 that was rounded here never has that
// word's bits: what is not a number is rounded to another one.
//
// Attention reads 16 entries per warp, by their place in a request: splits of 256 entries, always cut at the same
// places. A leaf's path is a chain of its own, so that a row sees its entries in order, whatever lies between them.
//
// Compiled for one model's sizes: HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, LAYERS, BLOCKS (of the grid), ROWS (8 or
// 16), STAGES (of the ring), DESK (bytes of shared memory behind it), DEPTH and PATIENT (stages that are asked for at
// a time, the latter while somebody waits for anything else), FEWER and MORE (registers of threads that bring or settle,
// and of those that multiply), TURNING (rotary positions or none), BIAS (of queries,
// keys and values), PARAMS (bytes of the argument). Does not: sample; know requests; round weights.

constexpr int WARPS = 16;  // that multiply; one more settles what comes of it, and one brings weights
constexpr int WORKERS = 32 * WARPS;
constexpr int SEGMENT = 1024;                 // inputs of a tile that arrive together
constexpr int PITCH = SEGMENT * 2 + 64;       // bytes between a tile's rows: each starts 16 banks further
constexpr int STAGE = 8 * PITCH;
constexpr int CHUNK = 4;                      // segments whose inputs a warp keeps in registers
constexpr int SPLIT = 16 * WARPS;             // entries that a block attends to at a time
constexpr int MOST = 16;                      // rows
constexpr int HALVES = ROWS / 8;
constexpr int ALL = WORKERS + 32;             // threads of a block that meet between parts
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int TAILS = 512;
constexpr float LOG2E = 1.4426950408889634f;
constexpr u32 NOT_YET = 0xffffffffu;  // `resident.py` fills boards with it
#define NOTHING bits_to_float(0xff800000u)  // less than any score

enum Part { QKV, OUT, UP, DOWN, HEAD };

FIXED int inputs(int part) { return part == OUT ? HEADS * DIM : part == DOWN ? FFN : HIDDEN; }
FIXED int tiles(int part) {
    return part == QKV ? (HEADS + 2 * KV_HEADS) * DIM / 8
         : part == UP  ? FFN / 4
         : part == HEAD ? (VOCAB + 7) / 8
                        : HIDDEN / 8;
}
FIXED int segments(int k) { return (k + SEGMENT - 1) / SEGMENT; }
FIXED int chunks(int k) { return (segments(k) + CHUNK - 1) / CHUNK; }
FIXED int span(int k) { return (segments(k) + chunks(k) - 1) / chunks(k); }  // segments of a chunk
FIXED int held(int k) {  // tiles of a block whose sums are kept at once
    int most = 1;
    for (int part = QKV; chunks(k) > 1 && part <= HEAD; part++) {
        const int mine = inputs(part) == k ? (tiles(part) + BLOCKS - 1) / BLOCKS : 0;
        most = mine > most ? mine : most;
    }
    return most;
}

struct Layer {
    const u16 *qkv, *out, *up, *down, *bias, *attention_norm, *mlp_norm;
    u16 *keys, *values;  // [heads, entries, dim]
    u64 window;          // positions that a row sees; 0: all
};

struct Chain {
    int count, rows;      // how many, and where they start in `chain_rows`
    int settled, length;  // entries by their place, and all: those after come from the tail
    int first, table;     // the row of entry 0; or where the rows of every sixteenth entry start; then first is -1
    int tail, start;      // where its last entries start in `tail`; its first item
};

struct Params {
    const Layer* layers;
    const u16 *embed, *head, *final_norm;
    const float* frequencies;  // radians per position [dim / 2]
    u16 *board, *stale;         // [layers, 16, ROW]: of this pass, and the last one's
    float *partial, *weights;   // of attention's splits: [items, 16, dim], [items, 16, 2]
    u32 *counts, *meeting;      // of splits that are done [items]; of blocks that have come to the end, ever
    float *logits, *bests;      // [wanted, vocab]; [3, blocks, 16]
    double* facts;              // [3, 16]: best token, its logit and the mass
    double* told;               // the same, in the host's memory
    u16* hidden;                // [asked, 16, hidden]
    const int* table;           // rows of the cache
    const long long* given;     // tokens that replace the first ones
    u64 entries;                // rows of a head in the cache
    float scale, rope_scale, eps;
    u32 target;  // what `meeting` stands at when all have come
    int rows, items, steps, with_head, given_count, stale_rows, stale_steps;
    int token[MOST], position[MOST], to[MOST], wanted[MOST];  // wanted: which of the logits a row's are; -1: none
    int chain_rows[MOST];
    int chain_count;
    Chain chain[MOST];
    int tail[TAILS];
    short plan[LAYERS], slot[LAYERS];  // layers in order; where a layer's output goes in `hidden`, or -1
};

// A row of the board, in halves of words: x in the middle of a layer and at its end, what was seen, what DOWN takes, queries,
// keys and values; then the sums that both x are rounded from.
constexpr int MIDDLE = 0, END = HIDDEN, SEEN = 2 * HIDDEN, INNER = SEEN + HEADS * DIM, TURNED = INNER + FFN;
constexpr int SUMS = TURNED + (HEADS + 2 * KV_HEADS) * DIM, ROW = SUMS + 4 * HIDDEN;
static_assert(ROW == BOARD, "the host lays out the board in another way");

DEVICE u16* place(const Params& p, int step, int row) { return p.board + static_cast<u64>(step * MOST + row) * ROW; }
DEVICE float* sums_of(const Params& p, int step, int row, bool end) {
    return reinterpret_cast<float*>(place(p, step, row) + SUMS) + (end ? HIDDEN : 0);
}
DEVICE bool missing(const Four& v) { return v.x == NOT_YET || v.y == NOT_YET || v.z == NOT_YET || v.w == NOT_YET; }
DEVICE float wait_for(const float* at) {
    float v = load_fresh_float(at);
    while (float_to_bits(v) == NOT_YET) {
        look_again();
        v = load_fresh_float(at);
    }
    return v;
}

static_assert(sizeof(Params) == PARAMS, "the host lays out the argument in another way");

DEVICE float low_of(u32 pair) { return bits_to_float(pair << 16); }
DEVICE float high_of(u32 pair) { return bits_to_float(pair & 0xffff0000u); }
DEVICE float larger(float a, float b) { return b > a ? b : a; }
DEVICE float largest_of(const float (&of)[WARPS]) {
    float found = NOTHING;
    UNROLL
    for (int i = 0; i < WARPS; i++) found = larger(found, of[i]);
    return found;
}
DEVICE void store_two(float* to, float a, float b) { to[0] = a, to[1] = b; }
DEVICE Four zero() { return Four{0, 0, 0, 0}; }

// Stages of shared memory that are filled and emptied in turn. Where they are is known when this is compiled, so that no
// register has to hold it.
struct Ring {
    int at;
    u32 lap;

    METHOD void next() {
        if (++at == STAGES) at = 0, lap ^= 1;
    }
    METHOD char* stage() const { return shared_memory() + at * STAGE; }
    METHOD static u64* full(int at) { return reinterpret_cast<u64*>(shared_memory() + STAGES * STAGE) + at; }
    METHOD static u64* empty(int at) { return full(STAGES + at); }
};

struct Best {
    float value, mass;
    int token;
};

// What a block attends to: an item, by lane.
struct Table {
    int head, split, splits, length, height;  // of the query rows, how many there are
    int entry[SPLIT];                         // where an entry is: `entry_row`, or -1
    int row[16], position[16], at[16];        // of a query row: of the pass, or -1; where in its row its head is
};

// Shared memory behind the ring.
struct Desk {
    float parts[2][WARPS][128];   // sums of every warp, two tiles in turn; of attention, what eight warps have seen
    u64 ready[2], vacant[2];      // barriers: whether a tile's sums are there, and whether they were taken
    float squares[WARPS][MOST];
    float most[16][WARPS], masses[16][WARPS];  // of attention: largest scores, and sums of what they are the largest of
    float turns[ROWS][DIM];       // cosine and sine of every pair of a row's dimensions
    Table table;
    Best bests[HALVES][32];       // of those who settle
    Layer layers[2];              // this one and the next: in registers there is no room for it
    const u16* weights[2][4];     // the same for the warp that brings weights, which is ahead
    u32 last, eager;              // eager: nobody waits for anything but weights
};
DEVICE Desk& desk() { return *reinterpret_cast<Desk*>(shared_memory() + STAGES * (STAGE + 16)); }

static_assert(sizeof(Desk) <= DESK, "the host gives less shared memory than the desk takes");

DEVICE int first_tile(int turn) {
    const int tile = block_index() - turn;
    return tile < 0 ? tile + BLOCKS : tile;
}

DEVICE int turned(int turn, int part) { return (turn + tiles(part)) % BLOCKS; }

DEVICE int weight_row(int part, int tile, int n) {
    if (part == UP) return (n & 1) * FFN + tile * 4 + (n >> 1);  // gate and up of an output stand beside each other
    const int row = tile * 8 + n;
    return part == HEAD && row >= VOCAB ? VOCAB - 1 : row;
}

// The last warp: ask for a part's weights.
template <int K> DEVICE void bring(int part, const u16* weight, Ring& ring, int& turn) {
    const int lane = thread_index() % 32;
    UNROLL_NOT
    for (int chunk = 0; chunk < chunks(K); chunk++) {
        const int begin = chunk * span(K), end = begin + span(K) < segments(K) ? begin + span(K) : segments(K);
        UNROLL_NOT
        for (int tile = first_tile(turn); tile < tiles(part); tile += BLOCKS) {
            const u16* row = weight + static_cast<u64>(weight_row(part, tile, lane & 7)) * K;
            UNROLL_NOT
            for (int segment = begin; segment < end; segment++) {
                const int left = K - segment * SEGMENT;
                const u32 bytes = 2 * (left < SEGMENT ? left : SEGMENT);
                const int before = ring.at - (is_set(&desk().eager) ? DEPTH : PATIENT);  // more at a time only makes others wait
                barrier_wait(Ring::full(before < 0 ? before + STAGES : before), before < 0 ? ring.lap ^ 1 : ring.lap);
                barrier_wait(Ring::empty(ring.at), ring.lap ^ 1);
                if (lane == 0) barrier_expect(Ring::full(ring.at), 8 * bytes);
                warp_sync();
                if (lane < 8) copy_async(ring.stage() + lane * PITCH, row + segment * SEGMENT, bytes, Ring::full(ring.at));
                ring.next();
            }
        }
    }
    turn = turned(turn, part);
}

// What a worker needs at every turn.
struct Worker {
    const Params& p;
    Ring ring;
    int turn;
    int side;     // which of the desk's two rooms for sums is next
    u32 lap;      // whose use it is, even or odd
    int warp, lane, row, quarter;  // of a matrix of 8 columns: the row a lane holds (and row + 8), and which quarter

    METHOD void gather() { block_sync(1, WORKERS); }
    METHOD void meet() { block_sync(2, ALL); }  // with the warp that settles
    METHOD void turn_over() {
        side ^= 1;
        if (side == 0) lap ^= 1;
    }
};

// Where a warp's b-th block of 32 inputs is, counted from a chunk's first segment.
DEVICE int input_of(const Worker& w, int begin, int block) {
    return ((begin + block / 2) * 32 + (block % 2) * WARPS + w.warp) * 32 + w.quarter * 8;
}

// `waits`: for the rows to be there.
template <int K, int N> DEVICE void read_rows(const Worker& w, Four (&x)[N][HALVES], const u16* const (&from)[HALVES], int begin, bool waits) {
    UNROLL
    for (int block = 0; block < N; block++) {
        const int k = input_of(w, begin, block);
        UNROLL
        for (int half = 0; half < HALVES; half++) x[block][half] = k < K && from[half] ? load_fresh(from[half] + k) : zero();
    }
    for (bool again = waits; again;) {
        again = false;
        UNROLL
        for (int block = 0; block < N; block++)
            UNROLL
            for (int half = 0; half < HALVES; half++) {
                if (!missing(x[block][half])) continue;
                x[block][half] = load_fresh(from[half] + input_of(w, begin, block));
                again = true;
            }
        if (again) look_again();
    }
    warp_sync();
}

DEVICE u32 gained(u32 pair, u32 gain, float& squares) {
    squares += low_of(pair) * low_of(pair);
    squares += high_of(pair) * high_of(pair);
    return multiply_bf16(pair, gain);
}

// Multiply by a norm's gains, and sum the squares of this lane's rows. What both are divided by waits for the result.
template <int N>
DEVICE void gain_rows(const Worker& w, Four (&x)[N][HALVES], float (&squares)[HALVES], const u16* gain, int begin) {
    UNROLL
    for (int block = 0; block < N; block++) {
        const int k = input_of(w, begin, block);
        const Four g = k < HIDDEN ? load_read_only(gain + k) : zero();
        UNROLL
        for (int half = 0; half < HALVES; half++) {
            Four& v = x[block][half];
            float& sum = squares[half];
            v = Four{gained(v.x, g.x, sum), gained(v.y, g.y, sum), gained(v.z, g.z, sum), gained(v.w, g.w, sum)};
        }
    }
}

// Put a warp's sums of squares down; whoever settles a row adds them after the next gathering.
DEVICE void share_squares(const Worker& w, float (&squares)[HALVES]) {
    UNROLL
    for (int half = 0; half < HALVES; half++) {
        squares[half] += shuffle_xor(squares[half], 1);
        squares[half] += shuffle_xor(squares[half], 2);
        if (w.quarter == 0) desk().squares[w.warp][w.row + 8 * half] = squares[half];
    }
}

DEVICE float norm_of(const Worker& w, int row) {
    float all = 0;
    UNROLL
    for (int i = 0; i < WARPS; i++) all += desk().squares[i][row];
    return rsqrt_(all / HIDDEN + w.p.eps);
}

// This warp's weights of a tile's segment.
struct Piece {
    Four half[2];
};

DEVICE Piece take_piece(Worker& w, const Ring& ring) {
    barrier_wait(Ring::full(ring.at), ring.lap);
    const char* const at = ring.stage() + w.row * PITCH + w.warp * 64 + w.quarter * 16;
    return Piece{load_shared(at), load_shared(at + WARPS * 64)};  // beyond the inputs: what was there before, unused
}

// A tile's segments from `begin`, as many as `count`: this warp's inputs of eight outputs, times those of all rows. The
// next weights are on their way while these are multiplied.
template <int K, int N> DEVICE void multiply(Worker& w, float (&sum)[4], const Four (&x)[N][HALVES], int begin, int count) {
    float other[4] = {};
    Piece next = take_piece(w, w.ring);
    UNROLL
    for (int i = 0; i < N / 2; i++) {
        if (i >= count) continue;
        const Piece piece = next;
        Ring ahead = w.ring;
        ahead.next();
        if (i + 1 < N / 2 && i + 1 < count) next = take_piece(w, ahead);
        UNROLL
        for (int half = 0; half < 2; half++) {
            if (((begin + i) * 32 + half * WARPS + w.warp) * 32 >= K) continue;
            const Four &low = x[2 * i + half][0], high = HALVES > 1 ? x[2 * i + half][HALVES - 1] : zero(), &b = piece.half[half];
            mma(sum, low.x, high.x, low.y, high.y, b.x, b.y);
            mma(other, low.z, high.z, low.w, high.w, b.z, b.w);
        }
        warp_sync();
        if (w.lane == 0) barrier_arrive(Ring::empty(w.ring.at));
        w.ring = ahead;
    }
    UNROLL
    for (int i = 0; i < 4; i++) sum[i] += other[i];
}

// What a result is added to; asked for before the tile, so that nobody waits for it.
DEVICE void before(const Worker& w, int part, int step, int tile, int row, float (&old)[2]) {
    if (part != OUT && part != DOWN) return;
    const Params& p = w.p;
    const int column = tile * 8 + w.quarter * 2;
    if (part == OUT && step == 0) {  // the first layer's x is the embedding
        const int token = row < p.given_count ? static_cast<int>(p.given[row]) : p.token[row];
        const u32 pair = *reinterpret_cast<const u32*>(p.embed + static_cast<u64>(token) * HIDDEN + column);
        old[0] = low_of(pair), old[1] = high_of(pair);
        return;
    }
    const float* const at = sums_of(p, part == OUT ? step - 1 : step, row, part == OUT) + column;
    old[0] = wait_for(at), old[1] = wait_for(at + 1);
}

// Two outputs of a row that stand beside each other, to where they belong.
DEVICE void settle(Worker& w, int part, int step, const Layer& layer, int tile, int row, float a, float b, const float (&old)[2]) {
    const Params& p = w.p;
    const int n = w.quarter * 2, column = tile * 8 + n;
    if (part == QKV) {
        const int head = column / DIM, d = column % DIM;
        if (BIAS) {
            const u32 bias = *reinterpret_cast<const u32*>(layer.bias + column);
            a += low_of(bias), b += high_of(bias);
        }
        if (TURNING && head < HEADS + KV_HEADS) {
            const float cos = desk().turns[row][d], sin = desk().turns[row][d + 1], turned = a * cos - b * sin;
            b = a * sin + b * cos;
            a = turned;
        }
        const u32 pair = pack_bf16(a, b);
        store_fresh(place(p, step, row) + TURNED + column, pair);
        if (head >= HEADS) {  // for passes to come
            const int which = head - HEADS, kv = which % KV_HEADS;
            u16* const to = (which < KV_HEADS ? layer.keys : layer.values) + (static_cast<u64>(kv) * p.entries + p.to[row]) * DIM + d;
            *reinterpret_cast<u32*>(to) = pair;
        }
    } else if (part == OUT || part == DOWN) {
        a += old[0], b += old[1];
        const u32 pair = pack_bf16(a, b);
        store_fresh(place(p, step, row) + (part == OUT ? MIDDLE : END) + column, pair);
        store_two(sums_of(p, step, row, part == DOWN) + column, a, b);
        const int slot = part == DOWN ? p.slot[step] : -1;
        if (slot >= 0) *reinterpret_cast<u32*>(p.hidden + (static_cast<u64>(slot) * MOST + row) * HIDDEN + column) = pair;
    } else if (part == UP) {
        const float gated = a / (1 + exp2_(-a * LOG2E)) * b;
        const u32 other = float_to_bits(shuffle_xor(gated, 1));  // two lanes hold what one word of memory takes
        if ((w.quarter & 1) == 0 && row < p.rows)
            store_fresh(place(p, step, row) + INNER + tile * 4 + w.quarter, pack_bf16(gated, bits_to_float(other)));
    } else {
        const int at = p.wanted[row];
        Best& kept = desk().bests[row / 8][w.lane];
        Best best = kept;
        UNROLL
        for (int i = 0; i < 2; i++) {
            const float v = i ? b : a;
            if (column + i >= VOCAB || at < 0) continue;
            p.logits[static_cast<u64>(at) * VOCAB + column + i] = v;
            if (v > best.value) {
                best.mass = best.mass * exp2_((best.value - v) * LOG2E) + 1;
                best.value = v, best.token = column + i;
            } else {
                best.mass += exp2_((v - best.value) * LOG2E);
            }
        }
        kept = best;
    }
}

// A warp's part of a tile's sums, for those who settle.
DEVICE void hand_over(Worker& w, const float (&sum)[4]) {
    barrier_wait(desk().vacant + w.side, w.lap ^ 1);
    float(&mine)[WARPS][128] = desk().parts[w.side];
    UNROLL
    for (int half = 0; half < HALVES; half++) {
        mine[w.warp][half * 64 + w.lane * 2] = sum[2 * half];
        mine[w.warp][half * 64 + w.lane * 2 + 1] = sum[2 * half + 1];
    }
    warp_sync();
    if (w.lane == 0) barrier_arrive(desk().ready + w.side);
    w.turn_over();
}

// The warp that settles: sums of all warps of a part's tiles, in order, and what they are for.
DEVICE void settle_all(Worker& w, int part, int step, bool normed) {
    const Layer& layer = desk().layers[step & 1];
    float size[HALVES];
    UNROLL
    for (int half = 0; half < HALVES; half++) size[half] = normed ? 0 : 1;
    UNROLL_NOT
    for (int tile = first_tile(w.turn); tile < tiles(part); tile += BLOCKS) {
        float old[HALVES][2] = {}, sum[HALVES][2] = {};
        UNROLL
        for (int half = 0; half < HALVES; half++)
            if (w.row + 8 * half < w.p.rows) before(w, part, step, tile, w.row + 8 * half, old[half]);
        warp_sync();
        barrier_wait(desk().ready + w.side, w.lap);
        UNROLL
        for (int half = 0; half < HALVES; half++) {
            const float* const mine = &desk().parts[w.side][0][half * 64 + w.lane * 2];
            UNROLL
            for (int i = 0; i < WARPS; i++) sum[half][0] += mine[i * 128], sum[half][1] += mine[i * 128 + 1];
            if (size[half] == 0) size[half] = norm_of(w, w.row + 8 * half);
        }
        warp_sync();
        if (w.lane == 0) barrier_arrive(desk().vacant + w.side);
        w.turn_over();
        UNROLL
        for (int half = 0; half < HALVES; half++) {
            const int row = w.row + 8 * half;
            // all lanes: `settle` may ask their neighbours; a row that is none writes nothing
            if (part == UP || row < w.p.rows)
                settle(w, part, step, layer, tile, row, sum[half][0] * size[half], sum[half][1] * size[half], old[half]);
        }
    }
    w.turn = turned(w.turn, part);
}

// One product: [rows, K] times a part's tiles of this block; normed, where there are gains. In the first layer x is the
// embedding of tokens.
template <int K> DEVICE void product(Worker& w, int part, int step, const u16* source, const u16* gain) {
    const bool first = part == QKV && step == 0;
    constexpr int N = 2 * span(K), HELD = held(K);
    const Params& p = w.p;
    const u16* from[HALVES];
    UNROLL
    for (int half = 0; half < HALVES; half++) {
        const int row = w.row + 8 * half;
        from[half] = row < p.rows ? source + row * ROW : nullptr;
        if (first && row < p.rows) {
            const long long token = row < p.given_count ? p.given[row] : p.token[row];
            from[half] = p.embed + token * HIDDEN;
        }
    }
    w.meet();  // the desk is still being read
    float squares[HALVES] = {};
    Four x[N][HALVES];
    float sums[HELD][4] = {};
    UNROLL_NOT
    for (int chunk = 0; chunk < chunks(K); chunk++) {
        const int begin = chunk * span(K), end = begin + span(K) < segments(K) ? begin + span(K) : segments(K);
        read_rows<K>(w, x, from, begin, !first);
        if (thread_index() == 0 && chunk == 0) set_flag(&desk().eager, 1);
        if (gain) gain_rows(w, x, squares, gain, begin);
        if (gain && end == segments(K)) share_squares(w, squares);
        if (chunks(K) == 1) {
            UNROLL_NOT
            for (int tile = first_tile(w.turn); tile < tiles(part); tile += BLOCKS) {
                float sum[4] = {};
                multiply<K>(w, sum, x, 0, segments(K));
                hand_over(w, sum);
            }
        } else {
            UNROLL
            for (int i = 0; i < HELD; i++) {
                if (first_tile(w.turn) + i * BLOCKS >= tiles(part)) continue;
                multiply<K>(w, sums[i], x, begin, end - begin);
            }
        }
    }
    if (chunks(K) > 1) {
        UNROLL
        for (int i = 0; i < HELD; i++) {
            if (first_tile(w.turn) + i * BLOCKS < tiles(part)) hand_over(w, sums[i]);
        }
    }
    if (thread_index() == 0) set_flag(&desk().eager, 0);
    w.turn = turned(w.turn, part);
}

// The row of the cache that holds a chain's entry; of an entry of this pass, its row there as -2, -3 and so on.
DEVICE int entry_row(const Params& p, const Chain& chain, int entry) {
    const int found = entry >= chain.settled ? p.tail[chain.tail + entry - chain.settled]
                    : chain.first >= 0 ? chain.first + entry : p.table[chain.table + entry / 16] + entry % 16;
    UNROLL_NOT
    for (int row = 0; row < p.rows; row++)
        if (p.to[row] == found) return -2 - row;
    return found;
}

DEVICE int first_item() { return BLOCKS - 1 - block_index(); }  // blocks with a tile less first, mostly

// Read out what item of attention a number stands for: the query rows of some cells and one key head, over one split
// of a chain's entries. It is the same in every layer.
DEVICE void take_item(Worker& w, int index) {
    const Params& p = w.p;
    int number = 0;
    while (number + 1 < p.chain_count && index >= p.chain[number + 1].start) number++;
    const Chain& chain = p.chain[number];
    const int left = index - chain.start, splits = (chain.length + SPLIT - 1) / SPLIT;
    const int parts = (chain.count * GROUP + 15) / 16, split = left % splits, part = left / splits % parts;
    const int head = left / splits / parts, height = chain.count * GROUP - part * 16;
    Table& t = desk().table;
    const int i = thread_index();
    if (i == 0) t.head = head, t.split = split, t.splits = splits, t.length = chain.length, t.height = height;
    if (i < SPLIT) t.entry[i] = split * SPLIT + i < chain.length ? entry_row(p, chain, split * SPLIT + i) : -1;
    if (i < 16) {
        t.row[i] = i < height ? p.chain_rows[chain.rows + (part * 16 + i) / GROUP] : -1;
        t.position[i] = i < height ? p.position[t.row[i]] : -1;
        t.at[i] = (head * GROUP + (part * 16 + i) % GROUP) * DIM;
    }
    w.gather();
}

// Entries that earlier passes wrote come closer.
DEVICE void expect_entries(const Worker& w, const Layer& layer) {
    const Table& t = desk().table;
    const int entry = t.entry[w.warp * 16 + w.lane / 2];
    if (entry < 0) return;
    const u16* const at = (w.lane & 1 ? layer.values : layer.keys) + (t.head * w.p.entries + entry) * DIM;
    UNROLL
    for (int d = 0; d < DIM; d += 64) bring_closer(at + d);
}

// Where a head's key (0) or value (1) of an entry is: in the cache, or where this pass puts it.
DEVICE const u16* entry_at(const Params& p, const Layer& layer, int step, int entry, int which) {
    const int head = desk().table.head;
    if (entry >= 0) return (which ? layer.values : layer.keys) + (head * p.entries + entry) * DIM;
    return place(p, step, entry < -1 ? -2 - entry : 0) + TURNED + (HEADS + which * KV_HEADS + head) * DIM;
}

template <int N> DEVICE void wait_for(Four (&v)[N], const u16* at) {
    UNROLL
    for (int i = 0; i < N; i++)
        while (missing(v[i])) {
            look_again();
            v[i] = load_fresh(at + i * 32);
        }
}

DEVICE void attend(Worker& w, int step, const Layer& layer, int index) {
    constexpr int BANDS = DIM / 32;  // of a head's 64 bytes each
    constexpr int ROOM = 2 * WARPS * 128 / (8 * DIM);  // warps whose part of eight rows the desk has room for
    const Params& p = w.p;
    const Table& t = desk().table;
    const int window = static_cast<int>(layer.window), base = t.split * SPLIT + w.warp * 16;
    const bool both = t.height > 8;  // whether there are query rows in the second half
    float scores[2][4] = {}, seen[BANDS * 4][4] = {}, most[2] = {NOTHING, NOTHING}, mass[2] = {};
    if (base < t.length) {
        Four q[2][BANDS], k[2][BANDS], v[2][BANDS];
        UNROLL
        for (int part = 0; part < 2; part++) {
            const int entry = t.entry[w.warp * 16 + part * 8 + w.row];
            const u16* const key = entry_at(p, layer, step, entry, 0) + w.quarter * 8;
            const u16* const value = entry_at(p, layer, step, entry, 1) + w.quarter * 8;
            UNROLL
            for (int band = 0; band < BANDS; band++) {
                k[part][band] = entry == -1 ? zero() : load_fresh(key + band * 32);
                if (DIM <= 64) v[part][band] = entry == -1 ? zero() : load_fresh(value + band * 32);
            }
        }
        UNROLL
        for (int half = 0; half < 2; half++) {
            const int row = half && !both ? -1 : t.row[w.row + 8 * half];
            const u16* const at = place(p, step, row < 0 ? 0 : row) + TURNED + t.at[w.row + 8 * half] + w.quarter * 8;
            UNROLL
            for (int band = 0; band < BANDS; band++) q[half][band] = row < 0 ? zero() : load_fresh(at + band * 32);
            if (row >= 0) wait_for(q[half], at);
        }
        UNROLL
        for (int part = 0; part < 2; part++) {
            const int entry = t.entry[w.warp * 16 + part * 8 + w.row];
            if (entry >= -1) continue;
            wait_for(k[part], entry_at(p, layer, step, entry, 0) + w.quarter * 8);
            if (DIM <= 64) wait_for(v[part], entry_at(p, layer, step, entry, 1) + w.quarter * 8);
        }
        warp_sync();
        UNROLL
        for (int part = 0; part < 2; part++)
            UNROLL
            for (int band = 0; band < BANDS; band++) {
                const Four &low = q[0][band], &high = q[1][band], &b = k[part][band];
                mma(scores[part], low.x, high.x, low.y, high.y, b.x, b.y);
                mma(scores[part], low.z, high.z, low.w, high.w, b.z, b.w);
            }
        UNROLL
        for (int part = 0; DIM > 64 && part < 2; part++) {  // only now are there registers for them
            const int entry = t.entry[w.warp * 16 + part * 8 + w.row];
            const u16* const at = entry_at(p, layer, step, entry, 1) + w.quarter * 8;
            UNROLL
            for (int band = 0; band < BANDS; band++) v[part][band] = entry == -1 ? zero() : load_fresh(at + band * 32);
            if (entry < -1) wait_for(v[part], at);
        }
        warp_sync();
        UNROLL
        for (int half = 0; half < 2; half++) {
            if (half && !both) continue;
            const int position = t.position[w.row + 8 * half];
            UNROLL
            for (int i = 0; i < 4; i++) {
                const int entry = base + (i / 2) * 8 + w.quarter * 2 + i % 2;
                float& s = scores[i / 2][2 * half + i % 2];
                const bool sees = entry <= position && (window == 0 || entry > position - window);
                s = sees ? s * p.scale * LOG2E : NOTHING;
                most[half] = larger(most[half], s);
            }
            most[half] = larger(most[half], shuffle_xor(most[half], 1));
            most[half] = larger(most[half], shuffle_xor(most[half], 2));
            UNROLL
            for (int i = 0; i < 4; i++) {
                float& s = scores[i / 2][2 * half + i % 2];
                s = s == NOTHING ? 0 : exp2_(s - most[half]);
                mass[half] += s;
            }
            mass[half] += shuffle_xor(mass[half], 1);
            mass[half] += shuffle_xor(mass[half], 2);
        }
        const u32 a0 = pack_bf16(scores[0][0], scores[0][1]), a1 = pack_bf16(scores[0][2], scores[0][3]);
        const u32 a2 = pack_bf16(scores[1][0], scores[1][1]), a3 = pack_bf16(scores[1][2], scores[1][3]);
        UNROLL
        for (int band = 0; band < BANDS; band++) {
            const Four &first = v[0][band], &second = v[1][band];
            mma(seen[band * 4], a0, a1, a2, a3, transpose8(first.x), transpose8(second.x));
            mma(seen[band * 4 + 1], a0, a1, a2, a3, transpose8(first.y), transpose8(second.y));
            mma(seen[band * 4 + 2], a0, a1, a2, a3, transpose8(first.z), transpose8(second.z));
            mma(seen[band * 4 + 3], a0, a1, a2, a3, transpose8(first.w), transpose8(second.w));
        }
    }
    UNROLL
    for (int half = 0; half < 2; half++)
        if (w.quarter == 0) desk().most[w.row + 8 * half][w.warp] = most[half];
    w.gather();
    // What the warps saw, eight rows at a time, added in the warps' order.
    const int mine = thread_index() * 2, owned = mine / DIM;
    const bool settles = mine < 8 * DIM;
    UNROLL
    for (int half = 0; half < 2; half++) {
        if (half && !both) continue;
        const float top = largest_of(desk().most[w.row + 8 * half]);
        const float factor = most[half] == NOTHING ? 0 : exp2_(most[half] - top);
        if (w.quarter == 0) desk().masses[w.row + 8 * half][w.warp] = mass[half] * factor;
        float first = 0, second = 0;
        UNROLL_NOT
        for (int from = 0; from < WARPS; from += ROOM) {
            if (w.warp >= from && w.warp < from + ROOM) {
                float* const to = &desk().parts[0][0][0] + ((w.warp - from) * 8 + w.row) * DIM + w.quarter * 8;
                UNROLL
                for (int i = 0; i < BANDS * 4; i++)
                    store_two(to + (i / 4) * 32 + (i % 4) * 2, seen[i][2 * half] * factor, seen[i][2 * half + 1] * factor);
            }
            w.gather();
            if (settles) {
                UNROLL
                for (int i = 0; i < ROOM; i++) {
                    const float* const at = &desk().parts[0][0][0] + i * 8 * DIM + mine;
                    first += at[0], second += at[1];
                }
            }
            if (from + ROOM < WARPS || (half == 0 && both)) w.gather();
        }
        if (!settles) continue;
        const int query = owned + 8 * half;
        float total = 0;
        UNROLL
        for (int i = 0; i < WARPS; i++) total += desk().masses[query][i];
        if (t.splits > 1) {  // put together below
            float* const at = p.partial + (static_cast<u64>(index) * 16 + query) * DIM + mine % DIM;
            store_two(at, first, second);
            if (mine % DIM == 0) store_two(p.weights + (index * 16 + query) * 2, largest_of(desk().most[query]), total);
        } else if (t.row[query] >= 0) {
            store_fresh(place(p, step, t.row[query]) + SEEN + t.at[query] + mine % DIM, pack_bf16(first / total, second / total));
        }
    }
    if (t.splits == 1) return;
    w.gather();
    const int group = index - t.split;
    if (thread_index() == 0) desk().last = grid_count(p.counts + group, t.splits);
    w.gather();
    if (!desk().last) return;  // the block that is the last with a group of splits puts them together
    UNROLL_NOT
    for (int half = 0; half < (both ? 2 : 1); half++) {
        const int query = owned + 8 * half;
        if (!settles || t.row[query] < 0) continue;
        const float* const at = p.weights + (group * 16 + query) * 2;
        const float* const parts = p.partial + (static_cast<u64>(group) * 16 + query) * DIM + mine % DIM;
        float top = NOTHING, total = 0, first = 0, second = 0;
        UNROLL_NOT
        for (int i = 0; i < t.splits; i++) top = larger(top, load_fresh_float(at + i * 32));
        UNROLL_NOT
        for (int i = 0; i < t.splits; i++) {
            const float m = load_fresh_float(at + i * 32), factor = m == NOTHING ? 0 : exp2_(m - top);
            total += load_fresh_float(at + i * 32 + 1) * factor;
            first += load_fresh_float(parts + i * 16 * DIM) * factor;
            second += load_fresh_float(parts + i * 16 * DIM + 1) * factor;
        }
        store_fresh(place(p, step, t.row[query]) + SEEN + t.at[query] + mine % DIM, pack_bf16(first / total, second / total));
    }
}

DEVICE Best better(const Best& a, const Best& b) {
    const bool other = b.value > a.value || (b.value == a.value && b.token < a.token);
    const Best &most = other ? b : a, &less = other ? a : b;
    if (less.value == NOTHING) return most;
    return Best{most.value, most.mass + less.mass * exp2_((less.value - most.value) * LOG2E), most.token};
}

DEVICE Best shuffled(const Best& mine, int mask) {
    return Best{shuffle_xor(mine.value, mask), shuffle_xor(mine.mass, mask), shuffle_xor_int(mine.token, mask)};
}

constexpr int FOUND = BLOCKS * MOST;

// The most likely token of every wanted row, of a block's tiles.
DEVICE void put_best(const Worker& w) {
    const Params& p = w.p;
    UNROLL
    for (int half = 0; half < HALVES; half++) {
        Best best = desk().bests[half][w.lane];
        best = better(best, shuffled(best, 1));
        best = better(best, shuffled(best, 2));
        const int at = block_index() * MOST + w.row + 8 * half;
        if (w.quarter == 0) p.bests[at] = best.value, p.bests[FOUND + at] = best.mass, p.bests[2 * FOUND + at] = bits_to_float(best.token);
    }
}

// The same of all blocks.
DEVICE void choose(Worker& w) {
    const Params& p = w.p;
    w.meet();
    if (w.warp != 0) return;
    if (w.lane == 0) {
        grid_arrive(p.meeting);
        if (block_index() < p.rows) grid_wait(p.meeting, p.target);
    }
    warp_sync();
    const int row = block_index();
    UNROLL_NOT
    for (int r = row; r < p.rows; r += BLOCKS) {
        if (p.wanted[r] < 0) continue;
        Best found{NOTHING, 0, 0x7fffffff};
        UNROLL_NOT
        for (int b = w.lane; b < BLOCKS; b += 32) {
            const int at = b * MOST + r;
            const Best theirs{load_fresh_float(p.bests + at), load_fresh_float(p.bests + FOUND + at), static_cast<int>(float_to_bits(load_fresh_float(p.bests + 2 * FOUND + at)))};
            found = better(found, theirs);
        }
        UNROLL
        for (int step = 1; step < 32; step *= 2) found = better(found, shuffled(found, step));
        if (w.lane < 3) {
            const bool sound = found.mass == found.mass;  // a number
            const double said = w.lane == 0 ? found.token : w.lane == 2 ? found.mass : sound ? found.value : found.mass;
            p.facts[w.lane * MOST + p.wanted[r]] = said;
            p.told[w.lane * MOST + p.wanted[r]] = said;
        }
    }
}

DEVICE const u16* word_of(const Layer* layer, int word) { return reinterpret_cast<const u16* const*>(layer)[word]; }

// Threads of a warp that hold a layer's words put them down.
DEVICE void take_layer(Worker& w, int step) {
    constexpr int WORDS = sizeof(Layer) / 8;
    if (thread_index() < WORDS && step < w.p.steps)
        reinterpret_cast<const u16**>(desk().layers + (step & 1))[thread_index()] = word_of(w.p.layers + w.p.plan[step], thread_index());
}

// The last pass's board says "not yet" again, for the next: this block's part of some steps.
DEVICE void clear(const Worker& w, int from, int to) {
    const Params& p = w.p;
    const int words = p.stale_rows * (ROW / 8);
    UNROLL_NOT
    for (int step = from; step < to && step < p.stale_steps; step++)
        UNROLL_NOT
        for (int i = block_index() * WORKERS + thread_index(); i < words; i += BLOCKS * WORKERS)
            reinterpret_cast<Four*>(p.stale + static_cast<u64>(step) * MOST * ROW)[i] = Four{NOT_YET, NOT_YET, NOT_YET, NOT_YET};
}

KERNEL(forerun_pass)(const __grid_constant__ Params p) {
    Ring ring{0, 0};
    if (thread_index() == 0) {
        UNROLL_NOT
        for (int i = 0; i < STAGES; i++) barrier_init(Ring::full(i), 1), barrier_init(Ring::empty(i), WARPS);
        UNROLL
        for (int i = 0; i < 2; i++) barrier_init(desk().ready + i, WARPS), barrier_init(desk().vacant + i, 1);
        barrier_init_fence();
        desk().eager = 1;
    }
    block_sync_all();
    if (thread_index() >= WORKERS) {
        fewer_registers();
        const int lane = thread_index() % 32;
        if (thread_index() < ALL) {
            Worker w{p, ring, 0, 0, 0, WARPS, lane, lane / 4, lane % 4};
            UNROLL
            for (int half = 0; half < HALVES; half++) desk().bests[half][lane] = Best{NOTHING, 0, 0x7fffffff};
            UNROLL_NOT
            for (int at = 0; at < 4 * p.steps + p.with_head; at++) {
                const int step = at / 4, part = step == p.steps ? HEAD : at % 4;
                w.meet();
                settle_all(w, part, step, part != OUT && part != DOWN);
                if (part == QKV && first_item() < p.items) w.meet();  // attention uses the same room
            }
            if (p.with_head) put_best(w), w.meet();
            return;
        }
        if (thread_index() < THREADS - 32) return;
        int turn = 0;
        if (lane < 4) desk().weights[0][lane] = word_of(p.layers + p.plan[0], lane);
        UNROLL_NOT
        for (int at = 0; at < 4 * p.steps + p.with_head; at++) {
            const int step = at / 4, part = step == p.steps ? HEAD : at % 4;
            if (part == QKV && lane < 4 && step + 1 < p.steps)
                desk().weights[(step + 1) & 1][lane] = word_of(p.layers + p.plan[step + 1], lane);
            warp_sync();
            const u16* const weight = part == HEAD ? p.head : desk().weights[step & 1][part];
            if (part == DOWN) bring<FFN>(part, weight, ring, turn);
            else if (HEADS * DIM != HIDDEN && part == OUT) bring<HEADS * DIM>(part, weight, ring, turn);
            else bring<HIDDEN>(part, weight, ring, turn);
        }
        return;
    }
    more_registers();
    const int lane = thread_index() % 32;
    Worker w{p, ring, 0, 0, 0, thread_index() / 32, lane, lane / 4, lane % 4};
    take_layer(w, 0);
    if (TURNING) {
        UNROLL_NOT
        for (int i = thread_index(); i < p.rows * DIM / 2; i += WORKERS) {
            const int row = i / (DIM / 2), pair = i % (DIM / 2);
            float sin, cos;
            sincos_(p.position[row] * p.frequencies[pair], &sin, &cos);
            desk().turns[row][2 * pair] = cos * p.rope_scale, desk().turns[row][2 * pair + 1] = sin * p.rope_scale;
        }
    }
    w.gather();
    if (first_item() < p.items) take_item(w, first_item());
    const int ahead = (w.warp * 32 + w.lane) * 64;  // who brings which part of a norm's gains closer
    UNROLL_NOT
    for (int at = 0; at < 4 * p.steps + p.with_head; at++) {  // one place for all products: code is read from memory too
        const int step = at / 4, part = step == p.steps ? HEAD : at % 4;
        const Layer& layer = desk().layers[step & 1];
        const u16* const source = part == OUT ? place(p, step, 0) + SEEN : part == DOWN ? place(p, step, 0) + INNER
                                : part == UP ? place(p, step, 0) + MIDDLE : place(p, step > 0 ? step - 1 : 0, 0) + END;
        const u16* const gain = part == QKV ? layer.attention_norm : part == UP ? layer.mlp_norm : part == HEAD ? p.final_norm : nullptr;
        if (part == DOWN) product<FFN>(w, part, step, source, gain);
        else if (HEADS * DIM != HIDDEN && part == OUT) product<HEADS * DIM>(w, part, step, source, gain);
        else product<HIDDEN>(w, part, step, source, gain);
        if (part == UP) {
            take_layer(w, step + 1);
            clear(w, step, step + 1 < p.steps ? step + 1 : p.stale_steps);
        }
        const u16* const next = part == QKV ? layer.mlp_norm : step + 1 < p.steps ? desk().layers[(step + 1) & 1].attention_norm : p.final_norm;
        if ((part == QKV || part == DOWN) && ahead < HIDDEN) bring_near(next + ahead);
        if (part != QKV) continue;
        if (first_item() < p.items) {
            if (p.items > BLOCKS) take_item(w, first_item());  // others were taken since
            expect_entries(w, layer);
        }
        UNROLL_NOT
        for (int index = first_item(); index < p.items; index += BLOCKS) {
            if (index == first_item()) w.meet();
            else w.gather(), take_item(w, index);  // the desk is still being read
            attend(w, step, layer, index);
        }
    }
    if (p.with_head) choose(w);
}
