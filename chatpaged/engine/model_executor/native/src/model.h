// A decoder whose whole step is one call: no Python between its layers.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "chatpaged.h"
#include "kernels.h"
#include "threads.h"

KVShape kv_shape(int heads, int kv_heads, int head_dim, int block_size, int format);

// Memory for intermediate results, on a boundary of a cache line. Grows, never shrinks.
template <typename T>
class Buffer {
   public:
    void reserve(int64_t count) {
        if (count <= count_) return;
        memory_.reset(new uint8_t[count * sizeof(T) + 64]);
        uintptr_t address = ((uintptr_t)memory_.get() + 63) & ~(uintptr_t)63;
        data_ = (T*)address;
        count_ = count;
        for (int64_t i = 0; i < count; i++) data_[i] = T();
    }
    T* get() const { return data_; }

   private:
    std::unique_ptr<uint8_t[]> memory_;
    T* data_ = nullptr;
    int64_t count_ = 0;
};

// Activations of some rows, in the form that the weights they meet ask for.
class ActivationRoom {
   public:
    // stride: inputs of the widest layer, padded.
    void reserve(int64_t rows, int64_t stride);
    const Activations& view() const { return view_; }
    void set(const Kernels& kernels, int32_t format, int k, int64_t row, const float* x);

   private:
    Buffer<float> values_, scales_;
    Buffer<int8_t> high_, low_;
    Buffer<int32_t> sums_;
    Activations view_{};
};

// Where a token of a step goes: its place in the sequence, and the block of it.
struct TokenPlace {
    int position;
    int64_t block;
};
void find_places(const cp_step& step, int block_size, std::vector<TokenPlace>* places);

struct cp_team {
    cp_team(int threads, const Kernels* kernels) : team(threads), kernels(kernels) {}
    Team team;
    const Kernels* kernels;
    // For attention of single layers: fresh memory for each would cost more than the attention.
    Buffer<float> scaled, rooms;
    AttentionPlan plan;
};

struct cp_model {
    cp_model(cp_team* team, const cp_model_config& config);
    void step(const cp_step& step);
    void reserve(int64_t tokens);
    int64_t block_bytes() const { return 2 * kv.part_bytes * config.num_layers; }

    cp_team* team;
    cp_model_config config;
    std::vector<cp_layer> layers;
    KVShape kv;

   private:
    void prepare(const cp_step& step);
    void work(const cp_step& step, int thread);
    void embed(const cp_step& step, int token);
    void set_activations(const cp_linear& consumer, int row, const float* x);
    void norm(const cp_linear& consumer, int row, int token, const float* weight, float* room);
    void store_keys(const cp_step& step, const cp_layer& layer, int index, int token);
    void product(const cp_linear& layer, int rows, Store store, float* out, int64_t stride);
    void residual(const cp_linear& layer, int rows, const float* post_norm, float* room);
    void attention(const cp_step& step, const cp_layer& layer, int index, float* room);
    void logits(const cp_step& step, float* room);
    template <typename Function>
    void each(int count, int at_a_time, Function function);

    int64_t hidden_stride_, act_stride_, qkv_stride_, attended_stride_, glu_stride_, room_floats_;
    ActivationRoom act_;
    Buffer<float> x_, qkv_, attended_, glu_, temporary_, rooms_;
    std::vector<TokenPlace> places_;
    std::map<int, AttentionPlan> plans_;
};
