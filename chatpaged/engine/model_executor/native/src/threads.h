// A team of threads that carries out one function together, with barriers in between.
//
// Between two barriers of a step lie some ten microseconds, so whoever waits at one spins at first; on a machine with more work than
// cores it gives its core away after a while. Between two steps lie milliseconds: there the threads sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class Team {
   public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }
    // Calls work(thread) in all threads, the caller being thread 0; returns when all are done. One caller at a time.
    void run(const std::function<void(int)>& work);
    // Inside `run`: waits for all threads. The counter of `next` is 0 again afterwards.
    void barrier();
    // Inside `run`: hands out the numbers from 0 on, `count` at a time; the first of them.
    int next(int count) { return counter_.fetch_add(count, std::memory_order_relaxed); }

   private:
    void loop(int thread);
    void leave_shared_core(int thread);
    void end();

    const int size_;
    std::vector<std::atomic<int>> cpus_;  // where each thread was last seen
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<unsigned> round_{0};
    bool ended_ = false;
    alignas(64) std::atomic<int> counter_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> generation_{0};
    alignas(64) std::atomic<int> busy_{0};
};
