#include "model.h"

#include <math.h>
#include <string.h>

#include <algorithm>

static int64_t padded(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

void ActivationRoom::reserve(int64_t rows, int64_t stride) {
    values_.reserve(rows * stride);
    high_.reserve(2 * rows * stride);
    low_.reserve(rows * stride);
    scales_.reserve(rows * stride / GROUP);
    sums_.reserve(rows * stride / GROUP);
    view_ = {values_.get(), high_.get(), low_.get(), scales_.get(), sums_.get(), (int32_t)stride};
}

void ActivationRoom::set(const Kernels& kernels, int32_t format, int k, int64_t row, const float* x) {
    int64_t place = row * view_.stride, group = place / GROUP;
    if (format == I8 || format == I4)
        kernels.quantize(x, k, format, place, high_.get(), low_.get(), scales_.get() + group, sums_.get() + group);
    else
        memcpy(values_.get() + place, x, sizeof(float) * k);
}

void find_places(const cp_step& step, int block_size, std::vector<TokenPlace>* places) {
    places->clear();
    const int32_t* table = step.tables;
    for (int row = 0; row < step.num_rows; row++) {
        for (int i = 0; i < step.row_tokens[row]; i++) {
            int position = step.row_starts[row] + i;
            places->push_back({position, table[position / block_size]});
        }
        table += step.row_blocks[row];
    }
}

KVShape kv_shape(int heads, int kv_heads, int head_dim, int block_size, int format) {
    KVShape shape{format, heads, kv_heads, head_dim, block_size, (int32_t)padded(head_dim, KEY_TILE), 0};
    int64_t elements = (int64_t)kv_heads * block_size * shape.head_pad;
    shape.part_bytes = elements * (format == F32 ? 4 : format == F16 ? 2 : 1);
    if (format == I8) shape.part_bytes += (int64_t)kv_heads * block_size * 4;
    return shape;
}

cp_model::cp_model(cp_team* team, const cp_model_config& given)
    : team(team), config(given), layers(given.layers, given.layers + given.num_layers),
      kv(kv_shape(given.heads, given.kv_heads, given.head_dim, given.block_size, given.kv_format)) {
    config.layers = layers.data();
    hidden_stride_ = padded(config.hidden, PANEL);
    glu_stride_ = padded(config.intermediate, PANEL);
    attended_stride_ = padded((int64_t)config.heads * config.head_dim, PANEL);
    qkv_stride_ = padded((int64_t)(config.heads + 2 * config.kv_heads) * config.head_dim, PANEL);
    act_stride_ = std::max({hidden_stride_, glu_stride_, attended_stride_});
    room_floats_ = padded(std::max(AttentionPlan::thread_floats(kv), act_stride_), 16);
    rooms_.reserve(room_floats_ * team->team.size());
}

// Memory for the intermediate results of so many tokens.
void cp_model::reserve(int64_t tokens) {
    int64_t rows = padded(tokens, 16);
    x_.reserve(rows * hidden_stride_);
    qkv_.reserve(rows * qkv_stride_);
    attended_.reserve(rows * attended_stride_);
    glu_.reserve(rows * glu_stride_);
    temporary_.reserve(rows * hidden_stride_);
    act_.reserve(rows, act_stride_);
}

void cp_model::prepare(const cp_step& step) {
    reserve(std::max(step.num_tokens, step.num_logits));
    find_places(step, kv.block_size, &places_);
    for (const auto& layer : layers)
        if (plans_.find(layer.window) == plans_.end()) plans_[layer.window];
    for (auto& plan : plans_) plan.second.build(step, kv, plan.first);
}

void cp_model::step(const cp_step& step) {
    prepare(step);
    team->team.run([&](int thread) { work(step, thread); });
}

// All threads together: function(i) for each i below count, then a barrier.
template <typename Function>
void cp_model::each(int count, int at_a_time, Function function) {
    for (int first; (first = team->team.next(at_a_time)) < count;)
        for (int i = first; i < std::min(count, first + at_a_time); i++) function(i);
    team->team.barrier();
}

void cp_model::work(const cp_step& step, int thread) {
    float* room = rooms_.get() + thread * room_floats_;
    int rows = step.num_tokens;
    each(rows, 4, [&](int token) { embed(step, token); });
    for (int index = 0; index < config.num_layers; index++) {
        const cp_layer& layer = layers[index];
        each(rows, 4, [&](int token) { norm(layer.qkv, token, token, layer.input_norm, room); });
        product(layer.qkv, rows, STORE, qkv_.get(), qkv_stride_);
        each(rows, 4, [&](int token) { store_keys(step, layer, index, token); });
        attention(step, layer, index, room);
        residual(layer.o, rows, layer.post_attention_norm, room);
        each(rows, 4, [&](int token) { norm(layer.gate_up, token, token, layer.pre_mlp_norm, room); });
        product(layer.gate_up, rows, config.activation ? GLU_GELU_TANH : GLU_SILU, glu_.get(), glu_stride_);
        each(rows, 4, [&](int token) { set_activations(layer.down, token, glu_.get() + token * glu_stride_); });
        residual(layer.down, rows, layer.post_mlp_norm, room);
    }
    logits(step, room);
}

void cp_model::embed(const cp_step& step, int token) {
    float* x = x_.get() + token * hidden_stride_;
    int64_t first = (int64_t)step.token_ids[token] * config.hidden;
    for (int i = 0; i < config.hidden; i++) {
        float value;
        if (config.embedding_format == F32) {
            value = ((const float*)config.embedding)[first + i];
        } else {
            uint16_t half = ((const uint16_t*)config.embedding)[first + i];
            uint32_t bits = (uint32_t)half << 16;
            if (config.embedding_format == F16) {  // exact: shift the mantissa into place, then correct the exponent
                uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
                float scaled;
                memcpy(&scaled, &magnitude, 4);
                scaled *= 5.192296858534828e+33f;  // 2^112
                if ((half & 0x7c00) == 0x7c00) scaled = half & 0x3ff ? NAN : INFINITY;
                value = half & 0x8000 ? -scaled : scaled;
            } else {
                memcpy(&value, &bits, 4);
            }
        }
        x[i] = value * config.embedding_scale;
    }
}

void cp_model::set_activations(const cp_linear& consumer, int row, const float* x) {
    act_.set(*team->kernels, consumer.format, consumer.k, row, x);
}

void cp_model::norm(const cp_linear& consumer, int row, int token, const float* weight, float* room) {
    const float* x = x_.get() + token * hidden_stride_;
    if (weight) {
        team->kernels->rms_norm(x, weight, config.hidden, config.norm_eps, room);
        x = room;
    }
    set_activations(consumer, row, x);
}

void cp_model::product(const cp_linear& layer, int rows, Store store, float* out, int64_t stride) {
    Linear weights = {layer.format, layer.n, layer.k, (const uint8_t*)layer.data, layer.bias};
    Target target = {store, out, (int32_t)stride, config.residual_scale};
    int panels = (int)(padded(layer.n, PANEL) / PANEL);
    int at_a_time = std::max(1, panels / (team->team.size() * (rows < 8 ? 2 : 6)));
    for (int first; (first = team->team.next(at_a_time)) < panels;)
        team->kernels->linear(weights, act_.view(), rows, first, std::min(panels, first + at_a_time), target);
    team->team.barrier();
}

// The layer's result is added to x, after a norm of its own if it has one.
void cp_model::residual(const cp_linear& layer, int rows, const float* post_norm, float* room) {
    if (!post_norm) return product(layer, rows, ADD, x_.get(), hidden_stride_);
    product(layer, rows, STORE, temporary_.get(), hidden_stride_);
    each(rows, 4, [&](int token) {
        team->kernels->rms_norm(temporary_.get() + token * hidden_stride_, post_norm, config.hidden, config.norm_eps, room);
        team->kernels->add_scaled(x_.get() + token * hidden_stride_, room, config.residual_scale, config.hidden);
    });
}

void cp_model::store_keys(const cp_step& step, const cp_layer& layer, int index, int token) {
    const Kernels& kernels = *team->kernels;
    int dim = config.head_dim, position = places_[token].position, half = config.rotary_dim / 2;
    float* query = qkv_.get() + token * qkv_stride_;
    float* key = query + (int64_t)config.heads * dim;
    float* value = key + (int64_t)config.kv_heads * dim;
    if (config.qk_norm == 2) {
        if (layer.q_norm) kernels.rms_norm(query, layer.q_norm, config.heads * dim, config.norm_eps, query);
        if (layer.k_norm) kernels.rms_norm(key, layer.k_norm, config.kv_heads * dim, config.norm_eps, key);
    }
    for (int head = 0; head < config.heads + config.kv_heads; head++) {
        float* x = query + (int64_t)head * dim;
        const float* weight = head < config.heads ? layer.q_norm : layer.k_norm;
        if (config.qk_norm == 1 && weight) kernels.rms_norm(x, weight, dim, config.norm_eps, x);
        if (layer.cosine) kernels.rotate(x, layer.cosine + (int64_t)position * half, layer.sine + (int64_t)position * half, config.rotary_dim);
    }
    kernels.scale(query, config.attention_scale, config.heads * dim);
    uint8_t* keys = step.pool + places_[token].block * block_bytes() + 2 * kv.part_bytes * index;
    for (int head = 0; head < config.kv_heads; head++)
        kernels.write_kv(kv, keys, keys + kv.part_bytes, head, position % kv.block_size, key + (int64_t)head * dim, value + (int64_t)head * dim);
}

void cp_model::attention(const cp_step& step, const cp_layer& layer, int index, float* room) {
    AttentionPlan& plan = plans_.at(layer.window);
    AttentionInputs inputs = {qkv_.get(), qkv_stride_, attended_.get(), attended_stride_, step.pool + 2 * kv.part_bytes * index, block_bytes(),
                              config.attention_softcap, layer.sinks};
    each(plan.num_items(), 1, [&](int item) { plan.run_item(*team->kernels, inputs, item, room); });
    each(step.num_tokens, 4, [&](int token) {
        plan.finish(*team->kernels, inputs, token);
        set_activations(layer.o, token, attended_.get() + token * attended_stride_);
    });
}

void cp_model::logits(const cp_step& step, float* room) {
    const Kernels& kernels = *team->kernels;
    int64_t stride = padded(config.vocab, PANEL);
    each(step.num_logits, 1, [&](int row) { norm(config.lm_head, row, step.logits_tokens[row], config.final_norm, room); });
    product(config.lm_head, step.num_logits, STORE, step.logits, stride);
    each(step.num_logits, 1, [&](int row) {
        float* out = step.logits + row * stride;
        if (config.logits_scale != 1.0f) kernels.scale(out, config.logits_scale, config.vocab);
        if (config.final_softcap > 0) kernels.softcap(out, config.final_softcap, config.vocab);
        step.best[row] = kernels.argmax(out, config.vocab, step.best_logit + row);
    });
}
