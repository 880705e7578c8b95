#include "team.h"

#include <unistd.h>

#include <stdexcept>

namespace forerun {

Team::Team(int size) : size_(size < 1 ? 1 : size), deal_(size_), owner_(getpid()) {
    for (int id = 1; id < size_; ++id) threads_.emplace_back([this, id] { serve(id); });
}

Team::~Team() {
    if (getpid() != owner_) {
        for (auto& thread : threads_) thread.detach();  // they run in the other process,
        bed_.release();  // and sleep there: to end what they wait for would wait for them
        return;
    }
    stop_.store(true);
    round_.fetch_add(1);
    wake();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    std::lock_guard<std::mutex> lock(one_);
    if (size_ == 1) return work(0);
    if (getpid() != owner_)
        throw std::runtime_error("this model was loaded before the process forked, and its threads stayed behind; load it in the child.");
    work_ = &work;
    busy_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1);
    wake();
    work(0);
    wait([this] { return busy_.load() == 0; });
    work_ = nullptr;
}

void Team::serve(int id) {
    unsigned seen = 0;
    while (true) {
        const auto called = [&] { return round_.load() != seen; };
        for (int spins = 0; !called() && spins < PATIENCE; ++spins) relax();
        if (!called()) sleep(called, false);
        seen = round_.load();
        if (stop_.load()) return;
        (*work_)(id);
        if (busy_.fetch_sub(1) == 1) wake();
    }
}

// In the kernel. Brief sleeps, those within a run, end now and then to look, and ring again for everybody: a wake-up that
// the system loses costs a moment then, and not all requests for ever.
void Team::sleep(const std::function<bool()>& done, bool brief) {
    std::unique_lock<std::mutex> lock(bed_->mutex);
    sleepers_.fetch_add(1);
    while (!done()) {
        if (!brief) bed_->bell.wait(lock);
        else if (bed_->bell.wait_for(lock, LOOK) == std::cv_status::timeout) bed_->bell.notify_all();
    }
    sleepers_.fetch_sub(1);
}

void Team::rouse() {
    std::lock_guard<std::mutex> lock(bed_->mutex);  // a sleeper that has just looked is asleep when this is had
    bed_->bell.notify_all();
}

}  // namespace forerun
