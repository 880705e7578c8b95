// Runs a CUDA kernel source on the CPU, to test its logic without a GPU: the same names as device.cuh, by plain C++.
// Every thread of every block is a fiber; all fibers share one OS thread and hand over only where they wait. A seed
// draws the order of warps, lanes and asynchronous copies, so that a missing wait shows as a wrong result under some
// seeds. What it cannot show: missing memory fences (memory here is sequentially consistent) and races between two
// statements that have no wait between them.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#ifndef THREADS
#error "define THREADS, the threads of a block"
#endif
#ifndef EMULATE_STACK
#define EMULATE_STACK (128 << 10)  // bytes of a fiber's stack; only the pages it touches cost memory
#endif
#ifndef EMULATE_LOOKS
#define EMULATE_LOOKS 1000000  // of a thread for words that are not there yet; more is taken for a deadlock
#endif
static_assert(THREADS % 32 == 0 && EMULATE_STACK % 4096 == 0);

#define DEVICE static inline
#define METHOD inline
#define FIXED constexpr
#define __grid_constant__
#define KERNEL(name) static inline void name
#define UNROLL
#define UNROLL_NOT

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(16) Four { u32 x, y, z, w; };

namespace emulator {

// Switching stacks by hand, since swapcontext makes a system call each time.
#if defined(__x86_64__) && !defined(EMULATE_UCONTEXT)
struct Context { void* stack; };
// noipa: the compiler must take this for a call that changes every caller-saved register and all memory. It ends in
// a jump, since the processor would foretell a return to the place of the call, which is always another fiber's.
__attribute__((naked, noipa)) static void switch_to(Context* /*from: rdi*/, const Context* /*to: rsi*/) {
    asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; mov %rsp, (%rdi)\n"
        "mov (%rsi), %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; pop %rcx; jmp *%rcx");
}
inline void prepare(Context& c, char* low, size_t bytes, void (*entry)()) {
    void** top = (void**)(low + bytes);  // 16-aligned; top[-1] is where entry expects a return address
    top[-2] = (void*)entry;
    c.stack = top - 8;  // six registers, zero as fresh pages are, then entry
}
#else
typedef ucontext_t Context;
inline void switch_to(Context* from, const Context* to) { swapcontext(from, to); }
inline void prepare(Context& c, char* low, size_t bytes, void (*entry)()) {
    getcontext(&c);
    c.uc_stack.ss_sp = low, c.uc_stack.ss_size = bytes, c.uc_link = nullptr;
    makecontext(&c, entry, 0);
}
#endif

struct Block;
struct Warp;
struct Fiber {
    Context context;
    Block* block;
    Warp* warp;
    int thread, lane, looks;
    const char* where;  // what it last waited for, with a number that tells such places apart
    u64 detail;
};
struct Slot { u32 a[4], b[2], out; float c[4]; };  // a lane's operands and result in a collective
struct Warp {
    u32 ready;          // lanes that can run
    bool queued, slow;  // queued: is in Run::ready; slow: seldom chosen there
    const char* kind;   // of the collective that `arrived` lanes wait in
    int argument, arrived;
    Slot slot[32];
};
struct Named { int count = 0; std::vector<Fiber*> waiting; };
struct Block {
    char* shared;
    int index, alive, copies;
    Named named[16];
};
struct Barrier {
    u64* at;
    int count, arrivals;  // arrivals still missing in this phase
    long long bytes;      // expected and not yet copied; below 0 where a copy came before its expect, as in PTX
    u32 parity;           // of the phase under way
    std::vector<Fiber*> waiting;
};
struct Copy { char* to; const char* from; u32 bytes; u64* barrier; Block* block; };
struct GridWait { Fiber* fiber; const u32* counter; u32 target; };
struct Run {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<Block> blocks;
    std::vector<Warp*> ready;
    std::vector<Barrier> barriers;
    std::vector<Copy> copies;
    std::vector<GridWait> grid;
    char *shared, *shared_end;  // of all blocks, one after the other
    size_t shared_bytes, shared_stride;  // what a block asked for; from block to block, with unused bytes between
    u64 random;
    size_t alive;
    Context scheduler;
    std::function<void()> body;
};
inline Run* run;
inline Fiber* me;  // null while the scheduler runs
inline u64 switches;  // fibers resumed since the program started, to measure speed

[[noreturn, gnu::format(printf, 1, 2)]] inline void misuse(const char* format, ...) {
    if (me) fprintf(stderr, "emulate: block %d thread %d: ", me->block->index, me->thread);
    else fprintf(stderr, "emulate: ");
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    abort();
}

inline u32 draw(u32 below) {  // splitmix64
    u64 z = run->random += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9, z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (z >> 32 & 0xFFFFFFFF) * below >> 32;
}

inline void make_ready(Warp& w, u32 lanes) {
    w.ready |= lanes;
    if (w.ready && !w.queued) w.queued = true, run->ready.push_back(&w);
}
inline void make_ready(std::vector<Fiber*>& fibers) {
    for (Fiber* f : fibers) make_ready(*f->warp, 1u << f->lane);
    fibers.clear();
}
inline void wait_in(const char* where, u64 detail) {  // returns once somebody made this fiber ready
    me->where = where, me->detail = detail;
    switch_to(&me->context, &run->scheduler);
}
inline void give_way() {
    make_ready(*me->warp, 1u << me->lane);
    wait_in("give_way", 0);
}

inline bool in_any_shared(const void* p) { return run->shared <= p && p < run->shared_end; }
inline bool in_own_shared(const void* p, size_t bytes) {
    return me->block->shared <= p && (const char*)p + bytes <= me->block->shared + run->shared_bytes;
}
inline void check_global(const char* name, const void* p, size_t alignment) {
    if ((size_t)p % alignment) misuse("%s of %p, which is not a multiple of %zu", name, p, alignment);
    if (in_any_shared(p)) misuse("%s of %p, which is shared memory", name, p);
}

// All lanes put their operands into their slots and come here; the last one computes for all and runs on.
template <class F> void meet(const char* kind, int argument, F compute) {
    Warp& w = *me->warp;
    if (w.arrived && (w.kind != kind || w.argument != argument))
        misuse("lanes of one warp call different collectives, %s(%d) and %s(%d)", w.kind, w.argument, kind, argument);
    w.kind = kind, w.argument = argument;
    if (++w.arrived < 32) return wait_in(kind, argument);
    compute(w.slot);
    w.arrived = 0;
    make_ready(w, ~(1u << me->lane));
}
inline Slot& my_slot() { return me->warp->slot[me->lane]; }

inline u32 shuffle(const char* kind, u32 v, int mask) {
    if (mask < 0 || mask > 31) misuse("%s with mask %d", kind, mask);
    Slot& mine = my_slot();
    mine.a[0] = v;
    meet(kind, mask, [mask](Slot* s) { for (int i = 0; i < 32; i++) s[i].out = s[i ^ mask].a[0]; });
    return mine.out;
}

inline double low(u32 v) { return std::bit_cast<float>(v << 16); }
inline double high(u32 v) { return std::bit_cast<float>(v & 0xFFFF0000); }

// Products of bf16 are exact in double; k goes up in one fixed order, so a row does not depend on other rows.
typedef double Pair [[gnu::vector_size(16)]];  // g++ -O2 keeps these in registers
inline void mma_all(Slot* s) {
    double a[16][16];
    Pair b[16][4];
    for (int lane = 0; lane < 32; lane++) {
        int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            double* to = &a[group + i % 2 * 8][pair + i / 2 * 8];
            to[0] = low(s[lane].a[i]), to[1] = high(s[lane].a[i]);
        }
        for (int i = 0; i < 2; i++)
            b[pair + i * 8][group / 2][group % 2] = low(s[lane].b[i]),
                b[pair + i * 8 + 1][group / 2][group % 2] = high(s[lane].b[i]);
    }
    for (int row = 0; row < 16; row++) {
        Pair sum[4] = {};
        for (int k = 0; k < 16; k++)
            sum[0] += a[row][k] * b[k][0], sum[1] += a[row][k] * b[k][1], sum[2] += a[row][k] * b[k][2],
                sum[3] += a[row][k] * b[k][3];
        for (int n = 0; n < 8; n++) {
            float& c = s[row % 8 * 4 + n / 2].c[row / 8 * 2 + n % 2];
            c = float(c + sum[n / 2][n % 2]);
        }
    }
}

// The u64 of a barrier holds a mark and the index of its state, so that writing over a barrier is found out.
constexpr u64 MARK = 0xBA221E5Full << 32;
inline Barrier* find(u64* b) {
    u64 index = *b ^ MARK;
    return index < run->barriers.size() && run->barriers[index].at == b ? &run->barriers[index] : nullptr;
}
inline Barrier& barrier(const char* name, u64* b) {
    if ((size_t)b % 8 || !in_own_shared(b, 8)) misuse("%s of %p, not 8 aligned bytes of shared memory", name, (void*)b);
    Barrier* found = find(b);
    if (!found)
        misuse("%s of shared byte %td, where no barrier is set up, or one was written over", name,
               (char*)b - me->block->shared);
    return *found;
}
inline void settle(Barrier& b) {
    if (b.arrivals || b.bytes) return;
    b.parity ^= 1, b.arrivals = b.count;
    make_ready(b.waiting);
}
inline void arrive(const char* name, u64* at, u32 bytes) {
    Barrier& b = barrier(name, at);
    if (!b.arrivals) misuse("%s: more arrivals than the count of the barrier, %d, in one phase", name, b.count);
    b.bytes += bytes, b.arrivals--;
    if (b.bytes >= 1 << 20) misuse("%s: a barrier can expect less than 2^20 bytes, not %lld", name, b.bytes);
    settle(b);
}

// The source is read only now, so that a source changed before the copy was waited for shows too.
inline void finish_copy() {
    std::swap(run->copies[draw(run->copies.size())], run->copies.back());
    Copy c = run->copies.back();
    run->copies.pop_back();
    memcpy(c.to, c.from, c.bytes);
    c.block->copies--;
    Barrier* b = find(c.barrier);
    if (!b) misuse("copy_async: its barrier was written over while the copy was under way");
    b->bytes -= c.bytes;
    if (b->bytes <= -(1 << 20)) misuse("copy_async: 2^20 bytes or more came before the barrier expected them");
    settle(*b);
}

inline void wake_grid() {
    std::erase_if(run->grid, [](const GridWait& g) {
        if (int(*g.counter - g.target) < 0) return false;
        make_ready(*g.fiber->warp, 1u << g.fiber->lane);
        return true;
    });
}
inline u32 grid_add(const char* name, u32* counter) {
    check_global(name, counter, 4);
    u32 old = (*counter)++;
    if (!run->grid.empty()) wake_grid();
    return old;
}

inline void named_sync(const char* name, int id, int count) {
    Named& n = me->block->named[id];
    if (me->thread >= count) misuse("%s %d of the first %d threads called by another thread", name, id, count);
    if (n.waiting.size() && n.count != count)
        misuse("%s %d called with count %d while others wait with count %d", name, id, count, n.count);
    n.count = count;
    if ((int)n.waiting.size() + 1 == count) return make_ready(n.waiting);
    n.waiting.push_back(me);
    if ((int)n.waiting.size() >= count) misuse("%s %d: more threads wait than its count, %d", name, id, count);
    wait_in(name, id);
}

inline void fiber_main() {
    run->body();
    Block& b = *me->block;
    run->alive--;
    if (!--b.alive) {
        if (b.copies) misuse("the block ended with %d copies still under way", b.copies);
        for (size_t i = run->shared_bytes; i < run->shared_stride; i++)
            if (b.shared[i] != -1) misuse("somebody wrote past the end of shared memory, at byte %zu", i);
    }
    wait_in("finished", 0);
    abort();
}

[[noreturn]] inline void deadlock() {
    std::map<std::pair<std::string, u64>, std::pair<size_t, Fiber*>> places;
    for (Fiber& f : run->fibers) {
        auto& place = places[{f.where, f.detail}];
        if (!place.first++) place.second = &f;
    }
    fprintf(stderr, "emulate: deadlock, no fiber can run and no copy is under way. Where the fibers are:\n");
    for (auto& [where, n] : places)
        fprintf(stderr, "  %s %llu: %zu fibers, the first of them block %d thread %d\n", where.first.c_str(),
                where.second, n.first, n.second->block->index, n.second->thread);
    misuse("deadlock");
}

}  // namespace emulator

DEVICE int thread_index() { return emulator::me->thread; }
DEVICE int block_index() { return emulator::me->block->index; }
DEVICE int grid_size() { return emulator::run->blocks.size(); }
DEVICE char* shared_memory() { return emulator::me->block->shared; }

DEVICE float bits_to_float(u32 v) { return std::bit_cast<float>(v); }
DEVICE u32 float_to_bits(float v) { return std::bit_cast<u32>(v); }
DEVICE float exp2_(float v) { return std::exp2(v); }
DEVICE float rsqrt_(float v) { return float(1 / std::sqrt(double(v))); }
DEVICE void sincos_(float angle, float* sin, float* cos) { *sin = std::sin(angle), *cos = std::cos(angle); }
DEVICE u32 pack_bf16(float low, float high) {
    auto round = [](float v) {
        u32 bits = float_to_bits(v);
        return v != v ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;  // cvt turns every NaN into 0x7FFF
    };
    return round(low) | round(high) << 16;
}
DEVICE u32 multiply_bf16(u32 a, u32 b) {
    return pack_bf16(bits_to_float(a << 16) * bits_to_float(b << 16),
                     bits_to_float(a & 0xffff0000u) * bits_to_float(b & 0xffff0000u));
}
DEVICE void set_flag(u32* shared, u32 value) { *shared = value; }
DEVICE u32 is_set(const u32* shared) { return *shared; }

DEVICE float shuffle_xor(float v, int mask) {
    return bits_to_float(emulator::shuffle("shuffle_xor", float_to_bits(v), mask));
}
DEVICE int shuffle_xor_int(int v, int mask) { return emulator::shuffle("shuffle_xor_int", v, mask); }
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    emulator::Slot& mine = emulator::my_slot();
    mine = {{a0, a1, a2, a3}, {b0, b1}, 0, {c[0], c[1], c[2], c[3]}};
    emulator::meet("mma", 0, emulator::mma_all);
    memcpy(c, mine.c, sizeof c);
}
DEVICE u32 transpose8(u32 v) {
    emulator::Slot& mine = emulator::my_slot();
    mine.a[0] = v;
    emulator::meet("transpose8", 0, [](emulator::Slot* s) {
        auto at = [s](int row, int column) { return s[row * 4 + column / 2].a[0] >> column % 2 * 16 & 0xFFFF; };
        for (int i = 0; i < 32; i++) s[i].out = at(i % 4 * 2, i / 4) | at(i % 4 * 2 + 1, i / 4) << 16;
    });
    return mine.out;
}
DEVICE void warp_sync() { emulator::meet("warp_sync", 0, [](emulator::Slot*) {}); }

DEVICE void block_sync(int id, int count) {
    if (id < 1 || id > 15 || count < 32 || count > THREADS || count % 32)
        emulator::misuse("block_sync(%d, %d): id is 1 to 15, count a multiple of 32 up to THREADS", id, count);
    emulator::named_sync("block_sync", id, count);
}
DEVICE void block_sync_all() { emulator::named_sync("block_sync_all", 0, THREADS); }

DEVICE void barrier_init(u64* b, int count) {
    using namespace emulator;
    if ((size_t)b % 8 || !in_own_shared(b, 8)) misuse("barrier_init outside 8 aligned bytes of shared memory");
    if (count < 1 || count >= 1 << 20) misuse("barrier_init with count %d", count);
    if (find(b)) misuse("barrier_init of a barrier that is set up already");
    *b = MARK ^ run->barriers.size();
    run->barriers.push_back({b, count, count, 0, 0, {}});
}
DEVICE void barrier_init_fence() {}
DEVICE void barrier_arrive(u64* b) { emulator::arrive("barrier_arrive", b, 0); }
DEVICE void barrier_expect(u64* b, u32 bytes) { emulator::arrive("barrier_expect", b, bytes); }
DEVICE void barrier_wait(u64* b, u32 parity) {
    using namespace emulator;
    if (parity > 1) misuse("barrier_wait with parity %u", parity);
    if (barrier("barrier_wait", b).parity != parity) return;
    barrier("barrier_wait", b).waiting.push_back(me);
    wait_in(parity ? "barrier_wait for parity 1 at shared byte" : "barrier_wait for parity 0 at shared byte",
            (char*)b - me->block->shared);
    // try_wait may look so late that it sees the parity of two phases on, and then waits for a wrong phase.
    if (barrier("barrier_wait", b).parity == parity)
        misuse("barrier_wait for parity %u at shared byte %td: two phases ended before this thread went on, so nothing "
               "holds back who arrives until this thread has seen its phase", parity, (char*)b - me->block->shared);
}
DEVICE void copy_async(void* shared, const void* global, u32 bytes, u64* b) {
    using namespace emulator;
    if (bytes % 16 || !bytes) misuse("copy_async of %u bytes, not a multiple of 16", bytes);
    if ((size_t)shared % 16 || !in_own_shared(shared, bytes))
        misuse("copy_async to %p, which is not 16-aligned or not within the block's shared memory", shared);
    check_global("copy_async", global, 16);
    barrier("copy_async", b);
    memset(shared, 0xFF, bytes);  // NaN, so that reading too early shows
    run->copies.push_back({(char*)shared, (const char*)global, bytes, b, me->block});
    me->block->copies++;
}

DEVICE Four load_shared(const void* p) {
    if ((size_t)p % 16) emulator::misuse("load_shared of %p, which is not a multiple of 16", p);
    if (!emulator::in_own_shared(p, 16)) emulator::misuse("load_shared of %p, outside the block's shared memory", p);
    return *(const Four*)p;
}
DEVICE Four load_read_only(const void* p) {
    emulator::check_global("load_read_only", p, 16);
    return *(const Four*)p;
}
// Loads of what other blocks write let others run first: often where a loop may spin on the value, else now and then.
DEVICE Four load_fresh(const void* p) {
    emulator::check_global("load_fresh", p, 16);
    if (!emulator::draw(16)) emulator::give_way();
    return *(const Four*)p;
}
DEVICE float load_fresh_float(const float* p) {
    emulator::check_global("load_fresh_float", p, 4);
    if (!emulator::draw(16)) emulator::give_way();
    return *p;
}
DEVICE u32 load_fresh_u32(const u32* p) {
    emulator::check_global("load_fresh_u32", p, 4);
    emulator::give_way();
    return *p;
}

DEVICE void store_fresh(u16* p, u32 pair) {
    emulator::check_global("store_fresh", p, 4);
    std::memcpy(p, &pair, 4);
}
DEVICE void look_again() {
    if (++emulator::me->looks > EMULATE_LOOKS) emulator::misuse("looked %d times for what nobody writes", EMULATE_LOOKS);
    emulator::give_way();
}

DEVICE void grid_arrive(u32* counter) { emulator::grid_add("grid_arrive", counter); }
DEVICE bool grid_count(u32* counter, u32 most) {
    const bool last = emulator::grid_add("grid_count", counter) == most - 1;
    if (last) *counter = 0;
    return last;
}
DEVICE void grid_wait(const u32* counter, u32 target) {
    emulator::check_global("grid_wait", counter, 4);
    while (int(*counter - target) < 0) {
        emulator::run->grid.push_back({emulator::me, counter, target});
        emulator::wait_in("grid_wait for", target);
    }
}
DEVICE void system_fence() {}

// Runs kernel(p) in every thread of `blocks` blocks, all of them resident, and returns when all are through.
template <class F, class Params>
void emulate(int blocks, size_t shared_bytes, unsigned seed, F kernel, const Params& p) {
    using namespace emulator;
    if (run) misuse("emulate called within emulate");
    Run r{};
    run = &r;
    r.random = seed * 0x2545F4914F6CDD1Dull + 1;
    r.body = [&] { kernel(p); };
    r.alive = size_t(blocks) * THREADS;
    r.shared_bytes = shared_bytes, r.shared_stride = (shared_bytes + 2047) / 1024 * 1024;
    r.shared = (char*)aligned_alloc(1024, r.shared_stride * blocks);
    r.shared_end = r.shared + r.shared_stride * blocks;
    const size_t guard = 4096, stride = EMULATE_STACK + guard;
    char* stacks = (char*)mmap(nullptr, r.alive * stride, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!r.shared || stacks == MAP_FAILED) misuse("no memory for %d blocks", blocks);
    memset(r.shared, 0xFF, r.shared_stride * blocks);
    r.fibers.resize(r.alive), r.warps.resize(r.alive / 32), r.blocks.resize(blocks);
    for (int b = 0; b < blocks; b++)
        r.blocks[b].shared = r.shared + b * r.shared_stride, r.blocks[b].index = b, r.blocks[b].alive = THREADS;
    for (size_t i = 0; i < r.fibers.size(); i++) {
        Fiber& f = r.fibers[i];
        f.block = &r.blocks[i / THREADS], f.warp = &r.warps[i / 32];
        f.thread = i % THREADS, f.lane = i % 32, f.where = "not started";
        char* low = stacks + i * stride;
        if (i < 16000) mprotect(low, guard, PROT_NONE);  // Linux allows 65530 mappings; further stacks go unguarded
        // Tops at different offsets in their pages, or all stacks would fight for the same few sets of the cache.
        prepare(f.context, low + guard, EMULATE_STACK - f.lane * 128, fiber_main);
    }
    for (Warp& w : r.warps) w.slow = !draw(4), make_ready(w, ~0u);
    // By the seed: how far some warps are held back, and in how many turns one copy is done.
    const u32 patience = 1 << draw(4) * 2, copy_every[] = {2, 16, 128, 1024}, late = copy_every[draw(4)];

    while (r.alive) {
        if (r.copies.size() && (r.ready.empty() || !draw(late))) finish_copy();
        if (r.ready.empty()) {
            wake_grid();  // a plain store may have changed a counter
            if (r.ready.empty() && r.copies.empty()) deadlock();
            continue;
        }
        u32 chosen = draw(r.ready.size());
        while (r.ready[chosen]->slow && draw(patience)) chosen = draw(r.ready.size());
        std::swap(r.ready[chosen], r.ready.back());
        Warp& w = *r.ready.back();
        r.ready.pop_back();
        u32 lanes = std::exchange(w.ready, 0), step = draw(16) * 2 + 1, first = draw(32);
        w.queued = false;
        for (u32 i = 0; i < 32 && lanes; i++) {
            u32 lane = (first + i * step) % 32;
            if (!(lanes >> lane & 1)) continue;
            lanes &= ~(1u << lane);
            me = &r.fibers[(&w - r.warps.data()) * 32 + lane];
            switches++;
            switch_to(&r.scheduler, &me->context);
            me = nullptr;
            if (!draw(128)) break;  // now and then other warps come between the lanes of this one
        }
        make_ready(w, lanes);
    }
    munmap(stacks, r.fibers.size() * stride);
    free(r.shared);
    run = nullptr;
}

// What only tells a GPU how to be fast.
static inline void bring_near(const void*) {}
static inline void bring_closer(const void*) {}
static inline void fewer_registers() {}
static inline void more_registers() {}
