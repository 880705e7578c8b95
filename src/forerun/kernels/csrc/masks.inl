// What a constraint's mask leaves of a row of logits.
#pragma once

constexpr int AT_ONCE = 64;  // tokens: a word of bits

// The largest logit of up to 64 whose bit is set.
INLINE float largest_of(const float* row, uint64_t word, int64_t count) {
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < count; ++j)
        if (word >> j & 1) most = std::max(most, row[j]);
    return most;
}

// The first of the likeliest tokens that a mask allows, a bit for each of [vocab], the lowest of a byte first; -1 where
// no token is left.
int64_t likeliest(const float* row, const uint8_t* bits, int64_t vocab) {
    constexpr float never = -std::numeric_limits<float>::infinity();
    const wi bit = repeat_whole(1) << lanes();
    const auto word_at = [bits, vocab](int64_t at) {
        uint64_t word = 0;
        if (at + AT_ONCE <= vocab) std::memcpy(&word, bits + at / 8, sizeof word);
        else std::memcpy(&word, bits + at / 8, (vocab - at + 7) / 8);
        return word;
    };
    float most = never;
    int64_t begin = vocab;  // of the patch that has it
    const auto note = [&](int64_t at, float best) { if (best > most) most = best, begin = at; };
    int64_t b = 0;
    for (; b + PATCH <= vocab; b += PATCH) {
        uint64_t words[PATCH / AT_ONCE], any = 0;
        std::memcpy(words, bits + b / 8, sizeof words);
        for (const uint64_t word : words) any |= word;
        if (!any) continue;  // nothing of the row is read
        wf found[AT_ONCE / FLOATS];
        for (wf& f : found) f = repeat(never);
        for (int w = 0; w < PATCH / AT_ONCE; ++w)
            unroll<AT_ONCE / FLOATS>([&](auto k) {
                const float* at = row + b + w * AT_ONCE + k.value * FLOATS;
                const wi allowed = (repeat_whole((int32_t)(words[w] >> k.value * FLOATS)) & bit) != 0;
                found[k.value] = larger(select(allowed, load_some(at), repeat(never)), found[k.value]);
            });
        unroll<AT_ONCE / FLOATS - 1>([&](auto k) { found[0] = larger(found[0], found[k.value + 1]); });
        note(b, together(found[0], [](wf x, wf y) { return larger(x, y); }));
    }
    for (int64_t j = b; j < vocab; j += AT_ONCE) note(b, largest_of(row + j, word_at(j), std::min<int64_t>(vocab - j, AT_ONCE)));
    for (int64_t j = begin; j < vocab; ++j)
        if ((bits[j / 8] >> j % 8 & 1) && row[j] == most) return j;
    return -1;
}
