#include "check.h"

#include <cstring>

namespace forerun {
namespace {

constexpr uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u;
constexpr uint64_t P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

uint64_t turn(uint64_t x, int by) { return x << by | x >> (64 - by); }
uint64_t step(uint64_t lane, uint64_t word) { return turn(lane + word * P2, 31) * P1; }

template <class Word>
Word take(const uint8_t*& at) {
    Word word;
    std::memcpy(&word, at, sizeof word);
    at += sizeof word;
    return word;
}

}  // namespace

uint64_t xxh64(const uint8_t* data, int64_t size) {
    const uint8_t *at = data, *end = data + size;
    uint64_t hash = P5;
    if (size >= 32) {
        uint64_t lanes[4] = {P1 + P2, P2, 0, 0 - P1};
        while (end - at >= 32)
            for (uint64_t& lane : lanes) lane = step(lane, take<uint64_t>(at));
        hash = turn(lanes[0], 1) + turn(lanes[1], 7) + turn(lanes[2], 12) + turn(lanes[3], 18);
        for (const uint64_t lane : lanes) hash = (hash ^ step(0, lane)) * P1 + P4;
    }
    hash += (uint64_t)size;
    while (end - at >= 8) hash = turn(hash ^ step(0, take<uint64_t>(at)), 27) * P1 + P4;
    if (end - at >= 4) hash = turn(hash ^ take<uint32_t>(at) * P1, 23) * P2 + P3;
    while (at < end) hash = turn(hash ^ *at++ * P5, 11) * P1;
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

}  // namespace forerun
