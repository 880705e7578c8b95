// Threads that run passes together: they spin briefly between passes, then sleep; inside a pass they meet at barriers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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

class Team {
public:
    explicit Team(int size);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }
    // Run `work(id)` on every thread, the caller being 0; one run at a time. Throws in a forked process, which has none
    // of the threads.
    void run(const std::function<void(int)>& work);

    // All threads of a run have come here.
    void meet() {
        if (size_ == 1) return;
        const int turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.fetch_add(1);
            wake();
            return;
        }
        wait([&] { return turn_.load() != turn; });  // whoever is late may be waiting for this very core
    }

private:
    static constexpr int PATIENCE = 4096;
    static constexpr std::chrono::milliseconds LOOK{50};
    void serve(int id);

    // Until `done`, which asks an atomic that is changed before `wake`: at first without sleeping.
    template <class Done>
    void wait(Done done) {
        for (int spins = 0; !done(); ++spins) {
            if (spins < PATIENCE) relax();
            else return sleep(done, true);
        }
    }
    void sleep(const std::function<bool()>& done, bool brief);

    // Behind a change of an atomic by a read-modify-write, which, unlike a store, no later load overtakes: whoever is
    // not counted among the sleepers here sees the change. std::atomic's notify relies on the same and does not say so.
    void wake() {
        if (sleepers_.load()) rouse();
    }
    void rouse();

    const int size_;
    const int owner_;  // process
    const std::function<void(int)>* work_ = nullptr;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> turn_{0};
    alignas(64) std::atomic<unsigned> round_{0};
    alignas(64) std::atomic<int> busy_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex one_;
    struct Bed {
        std::mutex mutex;
        std::condition_variable bell;
    };
    std::unique_ptr<Bed> bed_ = std::make_unique<Bed>();
    std::vector<std::thread> threads_;
};

}  // namespace forerun
