// Which token arrives first: p of each over its time, which is exponential and made of a key and its id alone.
//
// The arithmetic is that of kernels/race.py, operation by operation, so that both find the same bits; nothing may be fused.
#pragma once

#if defined(__clang__)
#pragma clang fp contract(off)
#define UNFUSED
#else
#define UNFUSED __attribute__((optimize("O3", "fp-contract=off")))
#endif

constexpr int STRETCH = 256;  // tokens whose scores are made at once, if at all

// Of 31 bits, odd: the higher, the sooner.
UNFUSED inline uint32_t haste(uint32_t id, uint32_t first, uint32_t second) {
    uint32_t h = id * 0x9E3779B9u + first;
    h ^= h >> 16;
    h *= 0x21F0AAADu;
    h ^= h >> 15;
    h ^= second;
    h *= 0x735A2D97u;
    h ^= h >> 15;
    h *= 0x846CA68Bu;
    h ^= h >> 16;
    return (h >> 1) | 1;
}

UNFUSED inline float arrival(uint32_t h) {
    const float rough = (float)(int32_t)(h & ~(h >> 1));  // a bit is the highest of h where it is the highest of this
    uint32_t bits;
    std::memcpy(&bits, &rough, sizeof bits);
    const uint32_t halvings = 127 + 30 - (bits >> 23);
    const int32_t below = (int32_t)(0x7FFFFFFFu - (h << halvings));  // under one half of the range
    const float x = ((float)below + 0.5f) * 0x1p-31f;
    const float s = x / (2.0f - x), t = s * s;
    float r = t * (float)(1.0 / 11);
    r = (r + (float)(1.0 / 9)) * t;
    r = (r + (float)(1.0 / 7)) * t;
    r = (r + (float)(1.0 / 5)) * t;
    r = (r + (float)(1.0 / 3)) * t;
    r = (r + 1.0f) * s;
    return (float)(int32_t)halvings * 0x1.62e43p-1f + (r + r);
}

// Who arrives first of tokens `ids`, or, without these, of all up to `count`; of those that arrive at once the lowest id.
template <bool ALL> UNFUSED int64_t first_of(const float* p, const uint32_t* ids, int64_t count, uint32_t first, uint32_t second) {
    int32_t scores[STRETCH], best = -1;  // floats that are not negative are ordered as their bits are
    float lead = -1;
    int64_t winner = 0;
    for (int64_t at = 0; at < count; at += STRETCH) {
        const int here = (int)std::min<int64_t>(STRETCH, count - at);
        int32_t hastes[STRETCH], soonest = 1, likeliest = 0, most = 0;
        for (int i = 0; i < here; ++i) {
            hastes[i] = (int32_t)haste(ALL ? (uint32_t)(at + i) : ids[at + i], first, second);
            soonest = std::max(soonest, hastes[i]);
            int32_t chance;
            std::memcpy(&chance, p + at + i, sizeof chance);
            likeliest = std::max(likeliest, chance);
        }
        float limit;
        std::memcpy(&limit, &likeliest, sizeof limit);
        if (limit / arrival((uint32_t)soonest) < lead) continue;  // the likeliest, were it the soonest
        for (int i = 0; i < here; ++i) {
            const float score = p[at + i] / arrival((uint32_t)hastes[i]);
            std::memcpy(&scores[i], &score, sizeof score);
            most = std::max(most, scores[i]);
        }
        if (most < best) continue;
        if (most > best) winner = std::numeric_limits<int64_t>::max();
        best = most;
        std::memcpy(&lead, &best, sizeof lead);
        lead *= 0.9999f;  // more than rounding makes of a time
        for (int i = 0; i < here; ++i)
            if (scores[i] == most) winner = std::min(winner, ALL ? at + i : (int64_t)ids[at + i]);
    }
    return winner;
}

int64_t race(const float* p, const uint32_t* ids, int64_t count, uint32_t first, uint32_t second) {
    return ids ? first_of<false>(p, ids, count, first, second) : first_of<true>(p, nullptr, count, first, second);
}
