#include "team.h"

#include <unistd.h>

#include <stdexcept>

namespace forerun {

Team::Team(int size) : size_(size < 1 ? 1 : size), owner_(getpid()) {
    for (int id = 1; id < size_; ++id) threads_.emplace_back([this, id] { serve(id); });
}

Team::~Team() {
    if (getpid() != owner_) {
        for (auto& thread : threads_) thread.detach();  // they run in the other process
        return;
    }
    stop_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    std::lock_guard<std::mutex> lock(one_);
    if (size_ == 1) return work(0);
    if (getpid() != owner_)
        throw std::runtime_error("this model was loaded before the process forked, and its threads stayed behind; load it in the child.");
    work_ = &work;
    busy_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(0);
    int left = busy_.load(std::memory_order_acquire);
    for (int spins = 0; left > 0; left = busy_.load(std::memory_order_acquire)) {
        if (spins++ < PATIENCE) relax();
        else busy_.wait(left, std::memory_order_acquire);
    }
    work_ = nullptr;
}

void Team::serve(int id) {
    unsigned seen = 0;
    while (true) {
        for (int spins = 0; round_.load(std::memory_order_acquire) == seen && spins < PATIENCE; ++spins) relax();
        round_.wait(seen, std::memory_order_acquire);  // sleeps in the kernel
        seen = round_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        (*work_)(id);
        busy_.fetch_sub(1, std::memory_order_release);
        busy_.notify_all();
    }
}

}  // namespace forerun
