#include "threads.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
static inline void relax() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void relax() { asm volatile("yield"); }
#else
static inline void relax() {}
#endif

// Some tens of microseconds: longer than two threads differ in a phase, shorter than a time slice.
static constexpr int SPINS = 4000;

template <typename Condition>
static void wait_until(Condition condition) {
    for (int i = 0; !condition(); i++) {
        if (i < SPINS)
            relax();
        else
            std::this_thread::yield();
    }
}

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int thread = 1; thread < size_; thread++) threads_.emplace_back([this, thread] { loop(thread); });
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
        round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    counter_.store(0, std::memory_order_relaxed);
    if (size_ == 1) return work(0);
    busy_.store(size_ - 1, std::memory_order_relaxed);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work(0);
    wait_until([this] { return busy_.load(std::memory_order_acquire) == 0; });
}

void Team::loop(int thread) {
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && round_.load(std::memory_order_acquire) == seen; i++) relax();
        const std::function<void(int)>* work;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
            seen = round_.load(std::memory_order_relaxed);
            if (ended_) return;
            work = work_;
        }
        (*work)(thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

void Team::barrier() {
    if (size_ == 1) {
        counter_.store(0, std::memory_order_relaxed);
        return;
    }
    unsigned generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        counter_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
        return;
    }
    wait_until([&] { return generation_.load(std::memory_order_acquire) != generation; });
}
