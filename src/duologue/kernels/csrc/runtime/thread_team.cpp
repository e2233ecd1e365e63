#include "runtime/thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace duologue {
namespace {

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Pauses between checks before a waiter gives its core away. Long enough for the imbalance of a phase (tens of
// microseconds); a descheduled partner takes milliseconds.
constexpr int kSpins = 4000;

}  // namespace

ThreadTeam::ThreadTeam(int threads) : size_(threads < 1 ? 1 : threads) {
    try {
        for (int thread = 1; thread < size_; ++thread) workers_.emplace_back(&ThreadTeam::worker, this, thread);
    } catch (...) {
        stop();  // a std::thread that is destroyed while it runs ends the process
        throw;
    }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_.store(true);
        generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(const std::function<void(int)>& work) {
    if (size_ > 1) {
        work_ = &work;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            generation_.fetch_add(1);
        }
        wake_.notify_all();
    }
    work(0);
    barrier();
}

void ThreadTeam::barrier() {
    if (size_ == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    int spins = 0;
    while (phase_.load(std::memory_order_acquire) == phase) {
        pause();
        if (++spins >= kSpins) std::this_thread::yield();
    }
}

void ThreadTeam::worker(int thread) {
    uint64_t seen = 0;
    while (true) {
        // Spin briefly: in steady decoding the next step starts within a fraction of a millisecond.
        int spins = 0;
        while (generation_.load(std::memory_order_acquire) == seen && spins < kSpins) {
            pause();
            ++spins;
        }
        if (generation_.load(std::memory_order_acquire) == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        }
        seen = generation_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        (*work_)(thread);
        barrier();
    }
}

}  // namespace duologue
