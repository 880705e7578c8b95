// Checks each name of emulate.h against a plain formula, under several seeds; test_emulate.py compiles and runs it.
#include "emulate.h"

#include <sys/wait.h>
#include <unistd.h>

#include <set>

static_assert(THREADS == 96, "the tests below are for three warps");
static void check(bool good, const char* what) {
    if (!good) fprintf(stderr, "selftest: %s is wrong\n", what), exit(1);
}
static u64 noise_state = 1;
static float noise() {  // -1 to 1
    noise_state = noise_state * 6364136223846793005 + 1442695040888963407;
    return int(noise_state >> 40) / 8388608.f - 1;
}
static float bf16(float v) { return bits_to_float(pack_bf16(0, v)); }

// ---- collectives, each warp with data of its own -------------------------------------------------------------------
struct Collect { u32 a[THREADS][4], b[THREADS][2], matrix[THREADS], transposed[THREADS]; float c[THREADS][4];
                 float value[THREADS], shuffled[THREADS]; int number[THREADS], sum[THREADS]; };
KERNEL(collect) (Collect* p) {
    int t = thread_index();
    u32 *a = p->a[t], *b = p->b[t];
    mma(p->c[t], a[0], a[1], a[2], a[3], b[0], b[1]);
    p->transposed[t] = transpose8(p->matrix[t]);
    p->shuffled[t] = shuffle_xor(p->value[t], 5);
    int sum = p->number[t];
    for (int mask = 16; mask; mask /= 2) sum += shuffle_xor_int(sum, mask);
    warp_sync();
    p->sum[t] = sum;
}
static void test_collectives(unsigned seed) {
    static float A[3][16][16], B[3][16][8], C[3][16][8];
    Collect p;
    for (int w = 0; w < 3; w++) {
        for (auto& row : A[w]) for (float& v : row) v = bf16(noise());
        for (auto& row : B[w]) for (float& v : row) v = bf16(noise());
        for (auto& row : C[w]) for (float& v : row) v = noise();
    }
    for (int t = 0; t < THREADS; t++) {  // element i of a lane's fragment, in the words of the PTX ISA
        int w = t / 32, group = t % 32 / 4, in_group = t % 4;
        u16 a[8], b[4];
        for (int i = 0; i < 8; i++) {
            int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, col = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
            a[i] = float_to_bits(A[w][row][col]) >> 16;
        }
        for (int i = 0; i < 4; i++)
            b[i] = float_to_bits(B[w][in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group]) >> 16;
        for (int i = 0; i < 4; i++) p.c[t][i] = C[w][i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
        memcpy(p.a[t], a, 16), memcpy(p.b[t], b, 8);
        u32 at = w * 1000 + group * 8 + in_group * 2;  // the 8x8 matrix holds 1000 w + 8 row + column
        p.matrix[t] = at | (at + 1) << 16;
        p.value[t] = noise(), p.number[t] = t;
    }
    emulate(1, 0, seed, collect, &p);
    for (int t = 0; t < THREADS; t++) {
        int w = t / 32, group = t % 32 / 4, in_group = t % 4;
        for (int i = 0; i < 4; i++) {
            int row = i < 2 ? group : group + 8, col = in_group * 2 + (i & 1);
            long double sum = C[w][row][col];
            for (int k = 0; k < 16; k++) sum += (long double)A[w][row][k] * B[w][k][col];
            check(std::fabs(p.c[t][i] - sum) <= 6e-8 * std::fabs(sum) + 1e-15, "mma");
        }
        u32 at = w * 1000 + in_group * 2 * 8 + group;
        check(p.transposed[t] == (at | (at + 8) << 16), "transpose8");
        check(p.shuffled[t] == p.value[t / 32 * 32 + (t % 32 ^ 5)], "shuffle_xor");
        check(p.sum[t] == w * 32 * 32 + 31 * 16, "shuffle_xor_int");
    }
}

static void test_scalars() {
    check(pack_bf16(1.f, -2.f) == 0xC0003F80, "pack_bf16: low half first");
    check(pack_bf16(bits_to_float(0x3F808000), bits_to_float(0x3F818000)) == 0x3F823F80, "pack_bf16: ties to even");
    check(pack_bf16(bits_to_float(0x3F808001), bits_to_float(0x3F807FFF)) == 0x3F803F81, "pack_bf16: nearest");
    check(pack_bf16(3.4e38f, bits_to_float(0xFFFFFFFF)) == 0x7FFF7F80, "pack_bf16: overflow and NaN");
    float s, c;
    sincos_(.7f, &s, &c);
    check(std::fabs(s - .644217687) < 1e-7 && std::fabs(c - .764842187) < 1e-7, "sincos_");
    check(exp2_(-3) == .125f && rsqrt_(16) == .25f && float_to_bits(-0.f) == 1u << 31, "exp2_, rsqrt_, bits");
}

// ---- a producer warp fills a ring of stages, two warps consume it ---------------------------------------------------
struct Ring { const Four* tiles; u32* out; int early; };
constexpr int STAGES = 3, TILES = 20, TILE = 64;  // in Four; 20 tiles are more than 6 laps
KERNEL(ring) (Ring p) {
    char* shared = shared_memory();
    u64 *full = (u64*)(shared + STAGES * TILE * 16), *empty = full + STAGES;
    int t = thread_index();
    if (t == 0) for (int s = 0; s < STAGES; s++) barrier_init(full + s, 1), barrier_init(empty + s, 64);
    barrier_init_fence();
    block_sync_all();
    u32 sum = 0;
    for (int i = 0; i < TILES; i++) {
        int stage = i % STAGES;
        u32 lap = i / STAGES & 1;
        char* tile = shared + stage * TILE * 16;
        const Four* from = p.tiles + (block_index() * TILES + i) * TILE;
        if (t >= 64) {
            barrier_wait(empty + stage, lap ^ 1);  // returns at once on the first lap
            warp_sync();  // before lane 0 issues, or the other lanes could sleep through two phases of `empty`
            if (t == 64) {
                barrier_expect(full + stage, TILE * 16);
                copy_async(tile, from, TILE * 8, full + stage);
                copy_async(tile + TILE * 8, from + TILE / 2, TILE * 8, full + stage);
            }
        } else {
            if (!p.early) barrier_wait(full + stage, lap);
            Four v = load_shared(tile + (t ^ 21) * 16);
            if (p.early) barrier_wait(full + stage, lap);
            sum = sum * 3 + v.x + v.w;
            block_sync(1, 64);
            barrier_arrive(empty + stage);
        }
    }
    if (t < 64) p.out[block_index() * 64 + t] = sum;
    barrier_wait(full + (TILES - 1) % STAGES, (TILES - 1) / STAGES & 1);
}
static bool ring_is_right(unsigned seed, int early) {
    static Four tiles[2 * TILES * TILE];
    for (u32 i = 0; i < 2 * TILES * TILE; i++) tiles[i] = {i * 2654435761u, 7, 7, i};
    u32 out[128];
    emulate(2, STAGES * TILE * 16 + 16 * STAGES, seed, ring, Ring{tiles, out, early});
    bool right = true;
    for (int n = 0; n < 128; n++) {
        u32 sum = 0;
        for (int i = 0; i < TILES; i++) {
            Four v = tiles[(n / 64 * TILES + i) * TILE + (n % 64 ^ 21)];
            sum = sum * 3 + v.x + v.w;
        }
        right &= sum == out[n];
    }
    return right;
}

// ---- three blocks hand values round -------------------------------------------------------------------------------
struct Grid { u32 *counter, *tickets, *flag; Four* values; float* sums; int forgetful; };
KERNEL(grid) (Grid p) {
    int t = thread_index(), b = block_index(), n = grid_size();
    if (!t) p.tickets[b] = grid_count(p.counter + 1, n);
    for (u32 round = 0; round < 5; round++) {
        Four* values = p.values + round * 3 * THREADS;
        values[b * THREADS + t] = {float_to_bits(round * 1000 + b * 100 + t), 0, 0, round};
        block_sync_all();
        if (!t) {
            grid_arrive(p.counter);
            if (!p.forgetful) grid_wait(p.counter, n * (round + 1));
        }
        block_sync_all();
        Four v = load_fresh(values + (b + 1) % n * THREADS + t);
        p.sums[b * THREADS + t] += bits_to_float(v.x) + load_fresh_float((float*)(values + (b + 2) % n * THREADS + t));
    }
    if (b == 2 && !t) *p.flag = 1, system_fence();
    while (!load_fresh_u32(p.flag)) {}
}
static bool grid_is_right(unsigned seed, int forgetful) {
    u32 counter[2] = {}, tickets[3], flag = 0;
    static Four values[5 * 3 * THREADS];
    memset(values, 0, sizeof values);
    float sums[3 * THREADS] = {};
    emulate(3, 0, seed, grid, Grid{counter, tickets, &flag, values, sums, forgetful});
    check(tickets[0] + tickets[1] + tickets[2] == 1 && counter[1] == 0, "grid_count");
    bool right = counter[0] == 15;
    for (int n = 0; n < 3 * THREADS; n++)
        right &= sums[n] == 20000 + 5 * (300 - n / THREADS * 100) + 10 * (n % THREADS);
    return right;
}

// ---- misuse, each in a child that must abort with the right sentence ------------------------------------------------
static Four global_four[4];
template <class F> static void must_abort(const char* sentence, F kernel) {
    int ends[2], status;
    check(!pipe(ends), "pipe");
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        emulate(2, 1024, 7, kernel, 0);
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, n);
    close(ends[0]);
    waitpid(child, &status, 0);
    bool good = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && said.find(sentence) != said.npos;
    if (!good) fprintf(stderr, "wanted \"%s\", got: %s\n", sentence, said.c_str());
    check(good, "a misuse");
}
static u64* barrier_of(int count) {  // set up for all threads
    u64* b = (u64*)shared_memory();
    if (!thread_index()) barrier_init(b, count);
    block_sync_all();
    return b;
}
static void test_misuse() {
    must_abort("block_sync 3: 128 fibers", [](int) { if (thread_index() < 64) block_sync(3, 96); });
    must_abort("barrier_wait for parity 0 at shared byte 0: 192 fibers", [](int) { barrier_wait(barrier_of(1), 0); });
    must_abort("grid_wait for 3: 2 fibers", [](int) {
        static u32 counter = 0;
        if (!thread_index()) grid_arrive(&counter), grid_wait(&counter, 3);
    });
    must_abort("for what nobody writes", [](int) { while (!thread_index()) look_again(); });
    must_abort("warp_sync 0: 186 fibers", [](int) { if (thread_index() % 32) warp_sync(); });
    must_abort("different collectives", [](int) { thread_index() % 32 ? warp_sync() : (void)transpose8(0); });
    must_abort("different collectives", [](int) { shuffle_xor(0, thread_index() % 32 ? 1 : 2); });
    must_abort("more arrivals than the count of the barrier, 2", [](int) {
        u64* b = barrier_of(2);
        if (!thread_index()) barrier_expect(b, 16), barrier_arrive(b), barrier_arrive(b);
    });
    must_abort("two phases ended before this thread", [](int) {
        static u32 zero = 0;
        u64* b = barrier_of(1);
        if (!thread_index()) barrier_wait(b, 0);
        if (thread_index() != 32) return;
        for (int i = 0; i < 10000; i++) load_fresh_u32(&zero);  // until thread 0 surely waits
        barrier_arrive(b), barrier_arrive(b);
    });
    must_abort("no barrier is set up", [](int) { barrier_arrive((u64*)shared_memory() + 1); });
    must_abort("set up already", [](int) { barrier_init((u64*)shared_memory(), 1); });
    must_abort("not a multiple of 16", [](int) { copy_async(shared_memory() + 64, global_four, 24, barrier_of(1)); });
    must_abort("still under way", [](int) { copy_async(shared_memory() + 64, global_four, 16, barrier_of(1)); });
    must_abort("within the block's shared", [](int) { copy_async(shared_memory() + 64, global_four, 1024, nullptr); });
    must_abort("not a multiple of 16", [](int) { load_shared(shared_memory() + 8); });
    must_abort("not a multiple of 16", [](int) { load_fresh((char*)global_four + 4); });
    must_abort("is shared memory", [](int) { load_fresh(shared_memory()); });
    must_abort("outside the block's shared", [](int) { load_shared(global_four); });
    must_abort("past the end of shared memory, at byte 1024", [](int) { shared_memory()[1024] = 0; });
    must_abort("called by another thread", [](int) { block_sync(1, 64); });
    must_abort("with count", [](int) { block_sync(1, thread_index() % 2 && thread_index() < 64 ? 64 : 96); });
}

int main() {
    const unsigned seeds = 40;
    unsigned early = 0, forgetful = 0;
    test_scalars();
    for (unsigned seed = 0; seed < seeds; seed++) {
        test_collectives(seed);
        check(ring_is_right(seed, 0), "the ring");
        check(grid_is_right(seed, 0), "the grid barrier");
        early += !ring_is_right(seed, 1), forgetful += !grid_is_right(seed, 1);
    }
    check(early > seeds / 2 && forgetful > seeds / 2, "finding a missing wait");
    test_misuse();
    printf("all right; of %u seeds %u show a missing barrier_wait and %u a missing grid_wait\n",
           seeds, early, forgetful);
}
