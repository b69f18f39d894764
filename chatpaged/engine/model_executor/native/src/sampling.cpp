// Drawing a token from logits. The rules are those of sampler.py, which is the reference that tests hold this against.
#include "sampling.h"

#include <math.h>

#include <algorithm>
#include <functional>

namespace {

constexpr double ROUNDING = 1e-6;  // of sums that are compared with top_p

// Places, in order, of weights that are at least `least`.
void collect(const std::vector<float>& weights, int32_t vocab, float least, std::vector<int32_t>* places) {
    places->resize(vocab);
    int32_t count = 0, *place = places->data();
    for (int32_t i = 0; i < vocab; i++) {  // without a branch: which tokens are likely cannot be foreseen
        place[count] = i;
        count += weights[i] >= least;
    }
    places->resize(count);
}

double sum_of(const DrawRoom& room, float least) {
    double sum = 0;
    for (int32_t place : room.places)
        if (room.weights[place] >= least) sum += room.weights[place];
    return sum;
}

// The least weight that is kept, for limits by number and by sum. What ties with the last one stays.
float least_kept(const cp_draw& draw, int32_t vocab, double total, DrawRoom* room) {
    bool by_number = draw.top_k > 0 && draw.top_k < vocab;
    // Few tokens have most of the weight: only those are sorted, unless they do not suffice.
    for (float cut = 1.0f / 1024;; cut /= 64) {
        bool all = cut < 1e-30f;
        collect(room->weights, vocab, all ? 0.0f : cut, &room->places);
        if (!all && by_number && (int64_t)room->places.size() < draw.top_k) continue;
        if (!all && !by_number && sum_of(*room, 0) < draw.top_p * total) continue;
        break;
    }
    room->sorted.clear();
    for (int32_t place : room->places) room->sorted.push_back(room->weights[place]);
    std::sort(room->sorted.begin(), room->sorted.end(), std::greater<float>());
    float least = by_number ? room->sorted[draw.top_k - 1] : 0.0f;
    if (draw.top_p >= 1) return least;
    if (by_number) total = sum_of(*room, least);
    double sum = 0, wanted = (draw.top_p - ROUNDING) * total;
    for (float weight : room->sorted) {
        sum += weight;
        if (sum >= wanted) return std::max(weight, least);
    }
    return least;
}

// A draw without limits: stretch by stretch up to the one that the token is in.
int32_t draw_from_all(const cp_draw& draw, int32_t vocab, double total, int32_t best, const DrawRoom& room) {
    double target = draw.uniform * total, before = 0;
    int32_t stretch = 0, last = best;
    while ((stretch + 1) * STRETCH < vocab && before + room.sums[stretch] <= target) before += room.sums[stretch++];
    for (int32_t i = stretch * STRETCH; i < std::min(vocab, (stretch + 1) * STRETCH); i++) {
        if (room.weights[i] == 0) continue;
        before += room.weights[i];
        last = i;
        if (before > target) break;
    }
    return last;
}

}  // namespace

int32_t draw_token(const Kernels& kernels, const cp_draw& draw, int32_t vocab, DrawRoom* room) {
    float largest;
    int32_t best = kernels.argmax(draw.logits, vocab, &largest);
    if (!isfinite(largest)) return -1;
    if (draw.temperature <= 0) return best;
    room->weights.resize(vocab + 64);
    room->sums.resize(vocab / STRETCH + 1);
    float factor = 1.0f / std::max(draw.temperature, 1.17549435e-38f);
    double total = kernels.exponentials(draw.logits, vocab, largest, factor, room->weights.data(), room->sums.data());
    float least = draw.min_p;  // the largest weight is 1
    if ((draw.top_k > 0 && draw.top_k < vocab) || draw.top_p < 1)
        least = std::max(least, least_kept(draw, vocab, total, room));
    else if (least > 0)
        collect(room->weights, vocab, least, &room->places);
    else
        return draw_from_all(draw, vocab, total, best, *room);
    // The first token at which the sum exceeds uniform x total.
    double target = draw.uniform * sum_of(*room, least), sum = 0;
    int32_t last = best;
    for (int32_t place : room->places) {
        if (room->weights[place] < least) continue;
        sum += room->weights[place];
        last = place;
        if (sum > target) return place;
    }
    return last;
}
