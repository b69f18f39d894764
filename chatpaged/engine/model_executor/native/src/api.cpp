#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/mman.h>
#endif

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "model.h"
#include "packing.h"
#include "sampling.h"

static std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#if defined(CP_HAVE_AVX512)
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        found.push_back(kernels_avx512());
#endif
#if defined(CP_HAVE_AVX2_VNNI)
    unsigned a = 7, b = 0, c = 1, d = 0;  // the compiler's list of features lacks this one
    asm volatile("cpuid" : "+a"(a), "+b"(b), "+c"(c), "+d"(d));
    if (avx2 && (a & 16)) found.push_back(kernels_avx2_vnni());
#endif
#if defined(CP_HAVE_AVX2)
    if (avx2) found.push_back(kernels_avx2());
#endif
    (void)avx2;
#elif defined(CP_HAVE_NEON) || defined(CP_HAVE_NEON_DOT)
#if defined(CP_HAVE_NEON_DOT) && defined(__linux__)
    if (getauxval(AT_HWCAP) & (1UL << 20)) found.push_back(kernels_neon_dot());  // HWCAP_ASIMDDP
#elif defined(CP_HAVE_NEON_DOT) && defined(__APPLE__)
    found.push_back(kernels_neon_dot());  // all of Apple's have them
#endif
#endif
#if defined(CP_HAVE_NEON)
    found.push_back(kernels_neon());
#endif
    found.push_back(kernels_plain());
    return found;
}

extern "C" {

int32_t cp_version(void) { return CP_VERSION; }

const char* cp_instruction_sets(void) {
    static const std::string names = [] {
        std::string all;
        for (const Kernels* kernels : available()) all += (all.empty() ? "" : " ") + std::string(kernels->name);
        return all;
    }();
    return names.c_str();
}

cp_team* cp_team_create(int32_t threads, const char* instruction_set) {
    for (const Kernels* kernels : available())
        if (!instruction_set || !strcmp(instruction_set, kernels->name)) {
            try {
                return new cp_team(threads, kernels);
            } catch (const std::exception&) {  // no more threads
                return nullptr;
            }
        }
    return nullptr;
}

void cp_team_destroy(cp_team* team) { delete team; }
const char* cp_team_instruction_set(const cp_team* team) { return team->kernels->name; }

static bool right_kv(int heads, int kv_heads, int head_dim, int block_size, int format) {
    return heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && head_dim > 0 && head_dim <= 256 && block_size > 0 &&
           !(block_size & (block_size - 1)) && format >= F32 && format <= I8;
}

cp_model* cp_model_create(cp_team* team, const cp_model_config* config) {
    if (!right_kv(config->heads, config->kv_heads, config->head_dim, config->block_size, config->kv_format)) return nullptr;
    if (config->rotary_dim < 0 || config->rotary_dim > config->head_dim || config->rotary_dim % 2) return nullptr;
    try {
        return new cp_model(team, *config);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void cp_model_destroy(cp_model* model) { delete model; }
int64_t cp_model_block_bytes(const cp_model* model) { return model->block_bytes(); }

int32_t cp_model_reserve(cp_model* model, int32_t tokens) {
    try {
        model->reserve(tokens);
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int32_t cp_model_step(cp_model* model, const cp_step* step) {
    try {
        model->step(*step);
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int32_t cp_attention(cp_team* team, const cp_attention_config* config, int32_t layer, const cp_step* step, const float* query, const float* key,
                     const float* value, float* out) {
    if (!right_kv(config->heads, config->kv_heads, config->head_dim, config->block_size, config->kv_format)) return -2;
    const Kernels& kernels = *team->kernels;
    KVShape shape = kv_shape(config->heads, config->kv_heads, config->head_dim, config->block_size, config->kv_format);
    int64_t query_stride = (int64_t)config->heads * config->head_dim, kv_stride = (int64_t)config->kv_heads * config->head_dim;
    int64_t room_floats = AttentionPlan::thread_floats(shape);
    try {
        Buffer<float>&scaled = team->scaled, &rooms = team->rooms;
        scaled.reserve(step->num_tokens * query_stride);
        rooms.reserve(room_floats * team->team.size());
        AttentionPlan& plan = team->plan;
        plan.build(*step, shape, config->window);
        AttentionInputs inputs = {scaled.get(), query_stride, out, query_stride, step->pool + 2 * shape.part_bytes * layer,
                                  2 * shape.part_bytes * config->num_layers, config->softcap, config->sinks};
        std::vector<TokenPlace> places;
        find_places(*step, config->block_size, &places);
        team->team.run([&](int thread) {
            Team& threads = team->team;
            float* room = rooms.get() + thread * room_floats;
            for (int token; (token = threads.next(1)) < step->num_tokens;) {
                memcpy(scaled.get() + token * query_stride, query + token * query_stride, sizeof(float) * query_stride);
                kernels.scale(scaled.get() + token * query_stride, config->scale, (int)query_stride);
                uint8_t* keys = (uint8_t*)inputs.layer + places[token].block * inputs.block_bytes;
                for (int head = 0; head < config->kv_heads; head++) {
                    int64_t place = token * kv_stride + (int64_t)head * config->head_dim;
                    kernels.write_kv(shape, keys, keys + shape.part_bytes, head, places[token].position % config->block_size, key + place, value + place);
                }
            }
            threads.barrier();
            for (int item; (item = threads.next(1)) < plan.num_items();) plan.run_item(kernels, inputs, item, room);
            threads.barrier();
            for (int token; (token = threads.next(1)) < step->num_tokens;) plan.finish(kernels, inputs, token);
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int32_t cp_linear_apply(cp_team* team, const cp_linear* layer, int32_t rows, const float* x, float* y) {
    int32_t stride = (layer->k + GROUP - 1) / GROUP * GROUP, panels = (layer->n + PANEL - 1) / PANEL;
    try {
        ActivationRoom act;
        act.reserve(rows, stride);
        Linear weights = {layer->format, layer->n, layer->k, (const uint8_t*)layer->data, layer->bias};
        Target target = {STORE, y, panels * PANEL, 1.0f};
        team->team.run([&](int) {
            Team& threads = team->team;
            for (int row; (row = threads.next(1)) < rows;) act.set(*team->kernels, layer->format, layer->k, row, x + (int64_t)row * layer->k);
            threads.barrier();
            for (int panel; (panel = threads.next(1)) < panels;) team->kernels->linear(weights, act.view(), rows, panel, panel + 1, target);
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

int32_t cp_sample(cp_team* team, int32_t count, const cp_draw* draws, int32_t vocab, int32_t* tokens) {
    try {
        std::vector<DrawRoom> rooms(team->team.size());
        for (auto& room : rooms) {  // before the threads start: they cannot report that there is no memory
            room.weights.reserve(vocab + 64);
            room.sorted.reserve(vocab);
            room.places.reserve(vocab);
            room.sums.reserve(vocab / STRETCH + 1);
        }
        team->team.run([&](int thread) {
            for (int i; (i = team->team.next(1)) < count;) tokens[i] = draw_token(*team->kernels, draws[i], vocab, &rooms[thread]);
        });
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

void cp_use_large_pages(void* data, int64_t bytes) {
#if defined(__linux__)
    constexpr uintptr_t PAGE = 1 << 21;
    uintptr_t begin = ((uintptr_t)data + PAGE - 1) & ~(PAGE - 1), end = ((uintptr_t)data + (uintptr_t)bytes) & ~(PAGE - 1);
    if (begin < end) madvise((void*)begin, end - begin, MADV_HUGEPAGE);  // no harm if it is refused
#else
    (void)data, (void)bytes;
#endif
}

void cp_pack(cp_team* team, const float* weight, int32_t n, int32_t k, int32_t format, uint8_t* out) {
    int panels = (n + PANEL - 1) / PANEL, groups = (k + GROUP - 1) / GROUP;
    int64_t size = (int64_t)groups * PANEL * (format == I8 ? 2 + GROUP : 4 + GROUP / 2);
    team->team.run([&](int) {
        for (int panel; (panel = team->team.next(1)) < panels;) pack_panel(weight, n, k, format, panel, out + panel * size);
    });
}

double cp_read_bandwidth(cp_team* team, const float* data, int64_t bytes, float* sum) {
    int threads = team->team.size();
    std::vector<float> sums(threads * 16);
    int64_t share = bytes / 4 / threads / 64 * 64;
    auto begin = std::chrono::steady_clock::now();
    team->team.run([&](int thread) { sums[thread * 16] = team->kernels->read(data + thread * share, share); });
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    *sum = 0;
    for (int thread = 0; thread < threads; thread++) *sum += sums[thread * 16];
    return (double)(share * 4 * threads) / seconds;
}

}  // extern "C"
