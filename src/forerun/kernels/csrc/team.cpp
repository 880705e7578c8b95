#include "team.h"

#include <unistd.h>

#include "unable.h"

namespace forerun {

Team::Team(int size) : size_(size < 1 ? 1 : size), coming_(size_), deal_(size_), turnout_(size_), owner_(getpid()) {
    for (int id = 1; id < size_; ++id) threads_.emplace_back([this, id] { serve(id); });
}

Team::~Team() {
    if (!here()) {
        for (auto& thread : threads_) thread.detach();  // they run in the other process,
        bed_.release();  // and sleep there: to end what they wait for would wait for them
        return;
    }
    stop_.store(true);
    call_.fetch_add(1 << 16);
    rouse(true);
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    std::lock_guard<std::mutex> lock(one_);
    if (size_ == 1) return work(0);
    if (!here())
        throw Unable("this model was loaded before the process forked, and its threads stayed behind; load it in the child.");
    const int before = coming_;
    coming_ = turnout_.now();
    if (coming_ != before) deal_.among(coming_);
    slept_.store(0, std::memory_order_relaxed);
    const auto began = std::chrono::steady_clock::now();
    if (coming_ == 1) {
        work(0);
    } else {
        work_ = &work;
        busy_.store(coming_ - 1, std::memory_order_relaxed);
        call_.store(((call_.load() >> 16) + 1) << 16 | (uint64_t)coming_);
        if (coming_ > before) rouse(true);
        else wake();
        work(0);
        wait([this] { return busy_.load() == 0; }, relax);
        work_ = nullptr;
    }
    const auto ended = std::chrono::steady_clock::now();
    const std::chrono::duration<double> took = ended - began, at = ended.time_since_epoch();
    turnout_.after((double)slept_.load() * 1e-9 / std::max(1, coming_ - 1), took.count(), at.count());
}

bool Team::here() const { return getpid() == owner_; }

bool Team::post(Errand& errand) {
    Errand* none = nullptr;
    if (size_ == 1 || !here() || !errand_.compare_exchange_strong(none, &errand)) return false;
    wake();
    return true;
}

void Team::serve(int id) {
    uint64_t seen = 0;
    while (true) {
        const auto called = [&] { return call_.load() != seen || errand_.load(); };
        for (int spins = 0; !called() && spins < PATIENCE; ++spins) relax();
        const auto since = std::chrono::steady_clock::now();
        while (!called() && std::chrono::steady_clock::now() - since < LINGER) std::this_thread::yield();  // whoever wants the core has it
        if (!called()) sleep(called, false);
        if (call_.load() == seen) {
            if (Errand* errand = errand_.exchange(nullptr)) errand->run();
            continue;
        }
        seen = call_.load();  // whom it names, the run waits for
        if (stop_.load()) return;
        if ((int)(seen & COMING) <= id) {  // it sleeps where no bell of a run wakes it
            std::unique_lock<std::mutex> lock(bed_->mutex);
            bed_->door.wait(lock, [&] { return stop_.load() || (int)(call_.load() & COMING) > id; });
            continue;
        }
        (*work_)(id);
        if (busy_.fetch_sub(1) == 1) wake();
    }
}

// In the kernel. Brief sleeps, those within a run, end now and then to look, and ring again for everybody: a wake-up that
// the system loses costs a moment then, and not all requests for ever.
void Team::sleep(const std::function<bool()>& done, bool brief) {
    const auto since = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(bed_->mutex);
    sleepers_.fetch_add(1);
    while (!done()) {
        if (!brief) bed_->bell.wait(lock);
        else if (bed_->bell.wait_for(lock, LOOK) == std::cv_status::timeout) bed_->bell.notify_all();
    }
    sleepers_.fetch_sub(1);
    if (!brief) return;
    slept_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - since).count();
}

void Team::rouse(bool everybody) {
    std::lock_guard<std::mutex> lock(bed_->mutex);  // a sleeper that has just looked is asleep when this is had
    bed_->bell.notify_all();
    if (everybody) bed_->door.notify_all();
}

}  // namespace forerun
