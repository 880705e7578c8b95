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

constexpr int STRETCH = 256;  // tokens whose scores are made before the best of them is looked for

UNFUSED inline float arrival(uint32_t id, uint32_t first, uint32_t second) {
    uint32_t h = id * 0x9E3779B9u + first;
    h ^= h >> 16;
    h *= 0x21F0AAADu;
    h ^= h >> 15;
    h ^= second;
    h *= 0x735A2D97u;
    h ^= h >> 15;
    h *= 0x846CA68Bu;
    h ^= h >> 16;
    h = (h >> 1) | 1;
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

UNFUSED int64_t race(const float* p, int64_t count, uint32_t first, uint32_t second) {
    int32_t scores[STRETCH], best = -1;  // floats that are not negative are ordered as their bits are
    int64_t winner = 0;
    for (int64_t at = 0; at < count; at += STRETCH) {
        const int here = (int)std::min<int64_t>(STRETCH, count - at);
        int32_t most = 0;
        for (int i = 0; i < here; ++i) {
            const float score = p[at + i] / arrival((uint32_t)(at + i), first, second);
            std::memcpy(&scores[i], &score, sizeof score);
            most = std::max(most, scores[i]);
        }
        if (most <= best) continue;
        best = most;
        winner = at + (std::find(scores, scores + here, most) - scores);
    }
    return winner;
}
