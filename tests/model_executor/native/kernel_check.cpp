// Drives the native interface over random shapes with memory of exactly the size that the interface names, for sanitizers to watch.
// Each result is computed twice, in different company, and has to be the same to the last bit.
//
//   kernel_check SEED ROUNDS [INSTRUCTION SETS]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "chatpaged.h"

namespace {

std::mt19937 generator;

int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); }
bool sometimes() { return between(0, 1) == 1; }
template <typename T>
T one_of(std::initializer_list<T> choices) { return *(choices.begin() + between(0, (int)choices.size() - 1)); }
int padded(int n, int unit) { return (n + unit - 1) / unit * unit; }

void require(bool truth, const char* what) {
    if (truth) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// Memory of exactly this size: a byte more is somebody else's.
template <typename T>
class Exact {
   public:
    explicit Exact(size_t count = 0) : count_(count), data_((T*)malloc(count * sizeof(T))) {}
    Exact(Exact&& other) noexcept : count_(other.count_), data_(other.data_) { other.data_ = nullptr; }
    Exact& operator=(Exact&& other) noexcept {
        std::swap(count_, other.count_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~Exact() { free(data_); }
    T* get() const { return data_; }
    size_t size() const { return count_; }
    T& operator[](size_t i) const { return data_[i]; }

   private:
    size_t count_;
    T* data_;
};

template <typename T>
Exact<T> copied(const std::vector<T>& from) {
    Exact<T> to(from.size());
    std::copy(from.begin(), from.end(), to.get());
    return to;
}

Exact<float> numbers(size_t count, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    Exact<float> made(count);
    for (size_t i = 0; i < count; i++) made[i] = normal(generator);
    return made;
}

Exact<uint16_t> halves(size_t count) {  // of magnitudes from 2^-6 to 1
    Exact<uint16_t> made(count);
    for (size_t i = 0; i < count; i++) made[i] = (uint16_t)(between(0, 1) << 15 | between(9, 14) << 10 | between(0, 1023));
    return made;
}

struct Team {
    cp_team* team;
    explicit Team(const char* name) : team(cp_team_create(between(1, 3), name)) { require(team != nullptr, "no team"); }
    ~Team() { cp_team_destroy(team); }
};

// A packed matrix, and whatever belongs to it.
struct Weights {
    Exact<uint8_t> data;
    Exact<float> bias;
    cp_linear linear;

    Weights(cp_team* team, int format, int n, int k, bool biased) : bias(biased ? padded(n, 32) : 0) {
        size_t panels = padded(n, 32) / 32, groups = padded(k, 32) / 32;
        if (format >= 2) {
            data = Exact<uint8_t>(panels * groups * 32 * (format == 2 ? 34 : 20));
            Exact<float> plain = numbers((size_t)n * k, 1 / sqrtf((float)k));
            cp_pack(team, plain.get(), n, k, format, data.get());
        } else {
            size_t count = panels * 32 * k;
            data = Exact<uint8_t>(count * (format == 1 ? 2 : 4));
            if (format == 1) memcpy(data.get(), halves(count).get(), data.size());
            else memcpy(data.get(), numbers(count, 1 / sqrtf((float)k)).get(), data.size());
        }
        for (size_t i = 0; i < bias.size(); i++) bias[i] = (float)(i % 7) / 7;
        linear = {format, n, k, data.get(), biased ? bias.get() : nullptr};
    }
};

void check_linear(const char* name) {
    Team team(name);
    int format = between(0, 3), n = between(1, 100), k = between(1, 150), rows = between(1, 30), width = padded(n, 32);
    Weights weights(team.team, format, n, k, sometimes());
    Exact<float> x = numbers((size_t)rows * k), y((size_t)rows * width), alone(width);
    require(cp_linear_apply(team.team, &weights.linear, rows, x.get(), y.get()) == 0, "no product");
    int row = between(0, rows - 1);
    Exact<float> one(k);
    memcpy(one.get(), x.get() + (size_t)row * k, sizeof(float) * k);
    require(cp_linear_apply(team.team, &weights.linear, 1, one.get(), alone.get()) == 0, "no product of a row");
    require(!memcmp(alone.get(), y.get() + (size_t)row * width, sizeof(float) * width), "a row's product depends on others");
}

// Sequences that grow step by step, in blocks in no order.
struct Sequences {
    int block_size;
    std::vector<int> lengths, done;
    std::vector<std::vector<int32_t>> tables;
    int num_blocks = 0;

    Sequences(int block_size, int count, int longest) : block_size(block_size) {
        for (int i = 0; i < count; i++) lengths.push_back(between(1, longest));
        done.assign(count, 0);
        for (int length : lengths) num_blocks += padded(length, block_size) / block_size;
        std::vector<int32_t> free(num_blocks);
        for (int i = 0; i < num_blocks; i++) free[i] = i;
        std::shuffle(free.begin(), free.end(), generator);
        for (int length : lengths) {
            size_t blocks = padded(length, block_size) / block_size;
            tables.emplace_back(free.end() - (ptrdiff_t)blocks, free.end());
            free.resize(free.size() - blocks);
        }
    }
};

// The arrays of one step, each of its exact size.
struct Arrays {
    Exact<int32_t> ids, row_tokens, row_starts, row_blocks, tables, logits_tokens, best;
    Exact<float> logits, best_logit;
    std::vector<int> rows;  // which sequences
    cp_step step{};

    // Each of the sequences of `which` goes on by a number of tokens.
    Arrays(const Sequences& sequences, const std::vector<int>& which, const std::vector<int>& counts, int vocab) : rows(which) {
        std::vector<int32_t> id_list, starts, blocks, table, wanted;
        for (size_t i = 0; i < which.size(); i++) {
            int sequence = which[i], start = sequences.done[sequence], used = padded(start + counts[i], sequences.block_size) / sequences.block_size;
            for (int j = 0; j < counts[i]; j++) {
                if (vocab && between(0, 2) == 0) wanted.push_back((int32_t)id_list.size());
                id_list.push_back(vocab ? (sequence * 31 + (start + j) * 7) % vocab : 0);
            }
            starts.push_back(start);
            blocks.push_back(used);
            table.insert(table.end(), sequences.tables[sequence].begin(), sequences.tables[sequence].begin() + used);
        }
        ids = copied(id_list), row_starts = copied(starts), row_blocks = copied(blocks), tables = copied(table), logits_tokens = copied(wanted);
        row_tokens = copied(std::vector<int32_t>(counts.begin(), counts.end()));
        logits = Exact<float>(wanted.size() * padded(vocab, 32)), best = Exact<int32_t>(wanted.size()), best_logit = Exact<float>(wanted.size());
        step.num_tokens = (int32_t)ids.size(), step.num_rows = (int32_t)which.size(), step.num_logits = (int32_t)wanted.size();
        step.token_ids = ids.get(), step.row_tokens = row_tokens.get(), step.row_starts = row_starts.get(), step.row_blocks = row_blocks.get();
        step.tables = tables.get(), step.logits_tokens = logits_tokens.get();
        step.logits = logits.get(), step.best = best.get(), step.best_logit = best_logit.get();
    }
};

// Some of the sequences that are not complete go on; false if there are none.
bool choose(const Sequences& sequences, std::vector<int>* which, std::vector<int>* counts) {
    which->clear();
    counts->clear();
    bool unfinished = false;
    for (size_t i = 0; i < sequences.lengths.size(); i++) {
        int left = sequences.lengths[i] - sequences.done[i];
        unfinished |= left > 0;
        if (!left || between(0, 3) == 0) continue;
        which->push_back((int)i);
        counts->push_back(std::min(left, one_of({1, 1, 2, 16, 17, between(1, 200)})));
    }
    return unfinished;
}

void check_attention(const char* name) {
    Team team(name);
    cp_attention_config config{};
    bool many = between(0, 3) == 0;  // heads; few are wide instead
    config.kv_heads = between(1, 3), config.heads = config.kv_heads * (many ? between(49, 60) : one_of({1, 2, 5}));
    config.head_dim = many ? between(1, 8) : one_of({1, 8, 20, 64, between(1, 256)});
    config.block_size = 1 << between(0, 9), config.kv_format = between(0, 2), config.num_layers = between(1, 2);
    config.window = one_of({0, 0, 1, 30, 150}), config.scale = 1 / sqrtf((float)config.head_dim), config.softcap = one_of({0.0f, 2.0f});
    Exact<float> sinks = numbers(config.heads);
    config.sinks = sometimes() ? sinks.get() : nullptr;
    Sequences sequences(config.block_size, between(1, 4), 300);
    int pad = padded(config.head_dim, 16), element = config.kv_format == 0 ? 4 : config.kv_format == 1 ? 2 : 1;
    size_t part = (size_t)config.kv_heads * config.block_size * (pad * element + (config.kv_format == 2 ? 4 : 0));
    Exact<uint8_t> pool(sequences.num_blocks * part * 2 * config.num_layers);
    memset(pool.get(), 255, pool.size());
    size_t wide = (size_t)config.heads * config.head_dim, narrow = (size_t)config.kv_heads * config.head_dim;
    int layer = between(0, config.num_layers - 1);
    std::vector<int> which, counts;
    while (choose(sequences, &which, &counts)) {
        Arrays arrays(sequences, which, counts, 0);
        arrays.step.pool = pool.get();
        size_t tokens = arrays.ids.size();
        Exact<float> query = numbers(tokens * wide), key = numbers(tokens * narrow), value = numbers(tokens * narrow), out(tokens * wide);
        require(cp_attention(team.team, &config, layer, &arrays.step, query.get(), key.get(), value.get(), out.get()) == 0, "no attention");
        for (size_t i = 0; i < out.size(); i++) require(isfinite(out[i]), "attention read what was never written");
        if (!which.empty()) {  // the last row once more, alone
            std::vector<int> last(1, which.back()), count(1, counts.back());
            Arrays single(sequences, last, count, 0);
            single.step.pool = pool.get();
            size_t n = count[0], first = tokens - n;
            Exact<float> q(n * wide), k(n * narrow), v(n * narrow), again(n * wide);
            memcpy(q.get(), query.get() + first * wide, n * wide * sizeof(float));
            memcpy(k.get(), key.get() + first * narrow, n * narrow * sizeof(float));
            memcpy(v.get(), value.get() + first * narrow, n * narrow * sizeof(float));
            require(cp_attention(team.team, &config, layer, &single.step, q.get(), k.get(), v.get(), again.get()) == 0, "no attention of a row");
            require(!memcmp(again.get(), out.get() + first * wide, n * wide * sizeof(float)), "a row's attention depends on others");
        }
        for (size_t i = 0; i < which.size(); i++) sequences.done[which[i]] += counts[i];
    }
}

// A model whose every part has its exact size.
struct Model {
    Team team;
    cp_model_config config{};
    std::vector<cp_layer> layers;
    std::vector<Weights> weights;
    std::vector<Exact<float>> vectors;
    Exact<uint16_t> half_embedding;
    cp_model* model;

    const float* vector(size_t count) {
        vectors.push_back(numbers(count));
        return vectors.back().get();
    }
    const float* maybe(size_t count) { return sometimes() ? vector(count) : nullptr; }

    cp_linear matrix(int format, int n, int k, bool biased) {
        weights.emplace_back(team.team, format, n, k, biased);
        return weights.back().linear;
    }

    explicit Model(const char* name) : team(name) {
        int format = between(0, 3), longest = 300;
        config.num_layers = between(1, 2), config.hidden = between(1, 80), config.intermediate = between(1, 100);
        config.kv_heads = between(1, 2), config.heads = config.kv_heads * between(1, 3), config.head_dim = between(1, 40);
        config.vocab = between(1, 2100), config.rotary_dim = between(0, config.head_dim / 2) * 2, config.activation = between(0, 1);
        config.qk_norm = between(0, 2), config.norm_eps = 1e-6f, config.embedding_scale = one_of({1.0f, 3.0f});
        config.residual_scale = one_of({1.0f, 0.3f}), config.logits_scale = one_of({1.0f, 0.5f}), config.attention_scale = 0.3f;
        config.attention_softcap = one_of({0.0f, 3.0f}), config.final_softcap = one_of({0.0f, 2.0f});
        config.embedding_format = one_of({0, 1, 4}), config.kv_format = between(0, 2), config.block_size = 1 << between(0, 8);
        size_t rows = (size_t)config.vocab * config.hidden;
        half_embedding = halves(rows);
        if (config.embedding_format == 4)
            for (size_t i = 0; i < rows; i++) half_embedding[i] = (uint16_t)(0x3f80 | (half_embedding[i] & 0x807f));
        config.embedding = config.embedding_format ? (const void*)half_embedding.get() : vector(rows);
        config.final_norm = vector(config.hidden);
        config.lm_head = matrix(format, config.vocab, config.hidden, false);
        int query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
        for (int i = 0; i < config.num_layers; i++) {
            cp_layer layer{};
            layer.input_norm = maybe(config.hidden), layer.post_attention_norm = maybe(config.hidden);
            layer.pre_mlp_norm = maybe(config.hidden), layer.post_mlp_norm = maybe(config.hidden);
            bool full = config.qk_norm == 2;
            layer.q_norm = vector(full ? query : config.head_dim), layer.k_norm = vector(full ? key : config.head_dim);
            if (config.rotary_dim && sometimes()) {
                layer.cosine = vector((size_t)longest * config.rotary_dim / 2);
                layer.sine = vector((size_t)longest * config.rotary_dim / 2);
            }
            layer.sinks = maybe(config.heads);
            layer.qkv = matrix(format, query + 2 * key, config.hidden, sometimes());
            layer.o = matrix(format, config.hidden, query, sometimes());
            layer.gate_up = matrix(format, 2 * padded(config.intermediate, 16), config.hidden, sometimes());
            layer.down = matrix(format, config.hidden, config.intermediate, sometimes());
            layer.window = one_of({0, 0, 20, 140});
            layers.push_back(layer);
        }
        config.layers = layers.data();
        model = cp_model_create(team.team, &config);
        require(model != nullptr, "no model");
    }
    Model(const Model&) = delete;
    ~Model() { cp_model_destroy(model); }
};

void check_model(const char* name) {
    Model model(name);
    int vocab = model.config.vocab, stride = padded(vocab, 32);
    Sequences sequences(model.config.block_size, between(1, 4), 200);
    Exact<uint8_t> pool(sequences.num_blocks * (size_t)cp_model_block_bytes(model.model));
    memset(pool.get(), 255, pool.size());
    std::vector<int> which, counts;
    while (choose(sequences, &which, &counts)) {
        Arrays arrays(sequences, which, counts, vocab);
        arrays.step.pool = pool.get();
        require(cp_model_step(model.model, &arrays.step) == 0, "no step");
        for (int row = 0; row < arrays.step.num_logits; row++)
            for (int i = 0; i < vocab; i++) {
                require(isfinite(arrays.logits[(size_t)row * stride + i]), "logits are not numbers");
                require(arrays.logits[(size_t)row * stride + i] <= arrays.best_logit[row], "the best is not the best");
            }
        if (!which.empty()) {  // the first row once more, alone
            std::vector<int> first(1, which[0]), count(1, counts[0]);
            Arrays single(sequences, first, count, vocab);
            single.step.pool = pool.get();
            require(cp_model_step(model.model, &single.step) == 0, "no step of a row");
            for (int i = 0; i < single.step.num_logits; i++)
                for (int j = 0; j < arrays.step.num_logits; j++)
                    if (single.logits_tokens[i] == arrays.logits_tokens[j])
                        require(!memcmp(&single.logits[(size_t)i * stride], &arrays.logits[(size_t)j * stride], sizeof(float) * vocab),
                                "a row's logits depend on others");
        }
        for (size_t i = 0; i < which.size(); i++) sequences.done[which[i]] += counts[i];
    }
}

void check_draws(const char* name) {
    Team team(name);
    int vocab = one_of({1, 5, 1024, 1025, between(1, 3000)}), count = between(1, 6);
    std::vector<Exact<float>> logits;
    std::vector<cp_draw> draws;
    for (int i = 0; i < count; i++) {
        logits.push_back(numbers(vocab, one_of({0.01f, 3.0f})));
        if (between(0, 5) == 0) logits.back()[between(0, vocab - 1)] = one_of({-INFINITY, NAN});
        cp_draw draw{};
        draw.logits = logits.back().get(), draw.temperature = one_of({0.0f, 1e-30f, 0.7f, 100.0f}), draw.top_p = one_of({1.0f, 0.9f, 0.01f});
        draw.min_p = one_of({0.0f, 0.1f, 1.0f}), draw.top_k = one_of({0, -1, 1, 40, vocab, vocab + 1});
        draw.uniform = one_of({0.0, 0.999999999999, between(0, 999) / 1000.0});
        draws.push_back(draw);
    }
    Exact<int32_t> tokens(count), again(1);
    require(cp_sample(team.team, count, draws.data(), vocab, tokens.get()) == 0, "no draws");
    for (int i = 0; i < count; i++) {
        require(tokens[i] >= -1 && tokens[i] < vocab, "no token");
        require(cp_sample(team.team, 1, &draws[i], vocab, again.get()) == 0 && again[0] == tokens[i], "a draw depends on others");
    }
    Exact<float> memory = numbers(between(0, 2000));
    float sum;
    cp_read_bandwidth(team.team, memory.get(), (int64_t)memory.size() * 4, &sum);
}

}  // namespace

int main(int count, char** arguments) {
    generator.seed((unsigned)atoi(arguments[1]));
    std::string names = count > 3 ? arguments[3] : cp_instruction_sets();
    std::vector<std::string> sets;
    for (size_t at = 0, end; at < names.size(); at = end + 1) {
        end = std::min(names.find(' ', at), names.size());
        sets.push_back(names.substr(at, end - at));
    }
    for (int round = 0; round < atoi(arguments[2]); round++)
        for (const std::string& set : sets) {
            check_linear(set.c_str());
            check_attention(set.c_str());
            check_model(set.c_str());
            check_draws(set.c_str());
        }
    printf("checked %s\n", names.c_str());
    return 0;
}
