#include "threads.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
static inline void relax() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void relax() { asm volatile("yield"); }
#else
static inline void relax() {}
#endif

#if defined(__linux__)
#include <sched.h>

static int this_cpu() { return sched_getcpu(); }

// Has this thread moved to a core that none of `taken` is on, if there is one. It may go anywhere afterwards.
static void move_away(const std::vector<int>& taken) {
    cpu_set_t allowed, free;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    free = allowed;
    for (int cpu : taken)
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &free);
    if (!CPU_COUNT(&free) || sched_setaffinity(0, sizeof free, &free)) return;
    sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
static int this_cpu() { return -1; }
static void move_away(const std::vector<int>&) {}
#endif

// Some tens of microseconds: longer than two threads differ in a phase. Then a thread gives its core away: beside another program that
// is faster than to spin on, or to sleep until it is woken.
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

Team::Team(int threads) : size_(threads < 1 ? 1 : threads), cpus_(size_) {
    for (auto& cpu : cpus_) cpu.store(-1);
    try {
        for (int thread = 1; thread < size_; thread++) threads_.emplace_back([this, thread] { loop(thread); });
    } catch (...) {  // no more of them: those that are there have to end first
        end();
        throw;
    }
}

Team::~Team() { end(); }

void Team::end() {
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
    cpus_[0].store(this_cpu(), std::memory_order_relaxed);
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
        leave_shared_core(thread);
        (*work)(thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

// A thread that is woken may find itself on the core of the one that woke it, and would take turns with it at each barrier.
void Team::leave_shared_core(int thread) {
    int here = this_cpu();
    if (here < 0) return;
    std::vector<int> taken;
    bool shared = false;
    for (int other = 0; other < size_; other++) {
        int there = other == thread ? -1 : cpus_[other].load(std::memory_order_relaxed);
        taken.push_back(there);
        shared |= other < thread && there == here;
    }
    if (shared) {
        move_away(taken);
        here = this_cpu();
    }
    cpus_[thread].store(here, std::memory_order_relaxed);
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
