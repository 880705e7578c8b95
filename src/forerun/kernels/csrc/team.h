// Threads that run passes together: they spin briefly between passes, then sleep; inside a pass they meet at barriers.
// Where others need the cores, fewer come: a thread that waits for a core makes all wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace forerun {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Work that threads take in pieces, each first of its own share, then of what others have not come to: on a machine that
// is shared, or whose memory favours a core, nobody waits for long. Who takes what is a matter of time, so a piece may
// not depend on who does it.
class Deal {
public:
    struct Piece {
        int64_t begin, end;
    };

    explicit Deal(int size) : hands_(size), size_(size) {}
    Deal(const Deal&) = delete;
    Deal& operator=(const Deal&) = delete;

    // From the next round on, as many take part; nobody may be taking.
    void among(int size) {
        size_ = size;
        for (Hand& hand : hands_) {
            hand.round = hands_[0].round;
            hand.left.store((uint64_t)hand.round << 48);  // rounds that it missed may have used up all numbers
        }
    }

    // A new round, of which every thread takes until nothing is left; all meet before the next.
    void begin(int id) { ++hands_[id].round; }

    // Half of what is left of a share of [0, total), but `least` or more, in whole units where there are such; total is
    // below 2^24. Empty where everything is taken.
    Piece take(int id, int64_t total, int64_t least, int64_t unit) {
        const uint64_t round = hands_[id].round;
        for (int k = 0; k < size_; ++k) {
            const int whose = (id + k) % size_;
            std::atomic<uint64_t>& left = hands_[whose].left;
            uint64_t seen = left.load();
            while (true) {
                Piece all{(int64_t)(seen >> 24 & LIMIT), (int64_t)(seen & LIMIT)};
                if (seen >> 48 != round) all = {total * whose / size_, total * (whose + 1) / size_};  // nobody was here yet
                const int64_t there = all.end - all.begin;
                if (!there) break;
                const int64_t many = std::min(there, (std::max({least, there / 2, int64_t{1}}) + unit - 1) / unit * unit);
                const Piece piece = k ? Piece{all.end - many, all.end} : Piece{all.begin, all.begin + many};
                (k ? all.end : all.begin) += k ? -many : many;
                if (left.compare_exchange_weak(seen, round << 48 | (uint64_t)all.begin << 24 | (uint64_t)all.end)) return piece;
            }
        }
        return {0, 0};
    }

private:
    static constexpr uint64_t LIMIT = (1 << 24) - 1;
    struct alignas(64) Hand {
        std::atomic<uint64_t> left{0};  // a round in 16 bits, then begin and end of what nobody has taken in it
        uint16_t round = 0;
    };
    std::vector<Hand> hands_;
    int size_;
};

// How many threads of a team come to its next run: fewer where waiting for one costs more than doing without it, for a
// multiple of the time that was lost; then one more is tried. The multiple grows while trials fail, so that they cost
// little where others stay. All times in seconds.
class Turnout {
public:
    explicit Turnout(int size) : size_(size), now_(size) {}
    int now() const { return now_; }

    // A run has ended: how long threads slept until another came, how long it took, and when that was.
    void after(double lost, double took, double at) {
        const int some = std::max(1, now_ / 8);
        const double kept = std::exp(-took / MEMORY);
        lost_ = lost_ * kept + lost;
        worked_ = worked_ * kept + took - lost;
        if (now_ > 1 && lost >= HELD_UP && lost_ * (now_ - 1) > worked_) {  // one less takes that much longer, at most
            times_ = at < until_ + pause_ ? std::min(2 * times_, TIMES) : 2;
            pause_ = std::min(lost_ * times_, LONGEST);
            until_ = at + pause_;
            come(now_ - some);
        } else if (now_ < size_ && at >= until_) {
            come(std::min(size_, now_ + some));
        }
    }

private:
    static constexpr double HELD_UP = 1e-3;  // less is what it takes to wake up
    static constexpr double MEMORY = 0.25, LONGEST = 1, TIMES = 32;

    // Each number is judged by its own runs.
    void come(int many) {
        now_ = many;
        lost_ = worked_ = 0;
    }

    int size_, now_;
    double lost_ = 0, worked_ = MEMORY;  // lately
    double times_ = 2, pause_ = 0, until_ = 0;
};

// Work beside a team's runs, done once: by a thread of a team that has nothing else to do, or by whoever needs it done.
class Errand {
public:
    explicit Errand(std::function<void()> work) : work_(std::move(work)) {}

    // What it throws is kept for who asks.
    void run() noexcept {
        try {
            work_();
        } catch (...) {
            problem_ = std::current_exception();
        }
        done_.store(true);
    }
    bool done() const { return done_.load(); }
    std::exception_ptr problem() const { return problem_; }

private:
    const std::function<void()> work_;
    std::exception_ptr problem_;
    std::atomic<bool> done_{false};
};

class Team {
public:
    explicit Team(int size);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }
    int coming() const { return coming_; }  // of them, to a run
    Deal& deal() { return deal_; }
    // Run `work(id)` on every thread, the caller being 0; one run at a time. Throws in a forked process, which has none
    // of the threads.
    void run(const std::function<void(int)>& work);

    bool here() const;  // whether this is the process of its threads, and no fork of it
    // Have a thread do an errand, until it is taken back. False where none can, or one is there already.
    bool post(Errand& errand);
    // True where nobody has begun it, and nobody will.
    bool take_back(Errand& errand) {
        Errand* posted = &errand;
        return errand_.compare_exchange_strong(posted, nullptr);
    }

    // All threads of a run have come here. Whoever waits calls `meanwhile`, which is short, again and again.
    template <class Meanwhile> void meet(Meanwhile meanwhile) {
        if (coming_ == 1) return;
        const int turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1) + 1 == coming_) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.fetch_add(1);
            wake();
            return;
        }
        wait([&] { return turn_.load() != turn; }, meanwhile);  // whoever is late may be waiting for this very core
    }

private:
    static constexpr int PATIENCE = 4096;
    static constexpr uint64_t COMING = 0xffff;
    static constexpr std::chrono::milliseconds LOOK{50};
    static constexpr std::chrono::microseconds LINGER{1500};  // behind a run and PATIENCE, while a draft is made: to be woken takes 40
    void serve(int id);

    // Until `done`, which asks an atomic that is changed before `wake`: at first without sleeping.
    template <class Done, class Meanwhile>
    void wait(Done done, Meanwhile meanwhile) {
        for (int spins = 0; !done(); ++spins) {
            if (spins < PATIENCE) meanwhile();
            else return sleep(done, true);
        }
    }
    void sleep(const std::function<bool()>& done, bool brief);

    // Behind a change of an atomic by a read-modify-write, which, unlike a store, no later load overtakes: whoever is
    // not counted among the sleepers here sees the change. std::atomic's notify relies on the same and does not say so.
    void wake() {
        if (sleepers_.load()) rouse();
    }
    void rouse(bool everybody = false);

    const int size_;
    int coming_;
    Deal deal_;
    Turnout turnout_;
    const int owner_;  // process
    const std::function<void(int)>* work_ = nullptr;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> turn_{0};
    alignas(64) std::atomic<uint64_t> call_{0};  // a number for every run, then how many come, in 16 bits
    alignas(64) std::atomic<int> busy_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    std::atomic<Errand*> errand_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<int64_t> slept_{0};  // nanoseconds that threads of this run waited in the kernel
    std::mutex one_;
    struct Bed {
        std::mutex mutex;
        std::condition_variable bell, door;  // for those who come to a run; for those who may come again
    };
    std::unique_ptr<Bed> bed_ = std::make_unique<Bed>();
    std::vector<std::thread> threads_;
};

}  // namespace forerun
