// A fixed team of threads that runs one function together, with barriers inside it.
//
// A forward step has about 200 phases of a few microseconds each, so threads meet at spinning barriers within a step and
// sleep only between steps. A thread that waits long (its partner was descheduled) yields its core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace duologue {

class ThreadTeam {
public:
    // `threads` counts the caller, which works as thread 0. Throws std::system_error when the system refuses a thread; then
    // none is left running.
    explicit ThreadTeam(int threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int size() const { return size_; }

    // Runs work(thread) on every thread of the team and returns when all have finished. Not reentrant; work must not throw.
    void run(const std::function<void(int)>& work);

    // Only inside run(): returns when every thread of the team has called it. Writes before it are seen after it.
    void barrier();

private:
    void worker(int thread);
    void stop();

    const int size_;
    std::vector<std::thread> workers_;
    const std::function<void(int)>* work_ = nullptr;

    alignas(64) std::atomic<uint64_t> generation_{0};  // one more for each run()
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace duologue
