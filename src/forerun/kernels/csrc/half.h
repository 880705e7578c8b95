// float16 and bfloat16 as bits.
#pragma once
#include <cstdint>
#include <cstring>

namespace forerun {

inline float from_bits(uint32_t bits) { float f; std::memcpy(&f, &bits, 4); return f; }
inline uint32_t to_bits(float f) { uint32_t bits; std::memcpy(&bits, &f, 4); return bits; }

inline float widen_half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = (float)fraction * 5.9604644775390625e-8f;  // fraction * 2^-24
    return sign ? -tiny : tiny;
}

inline uint16_t narrow_value(float f) {  // to bfloat16, to the nearest, ties to even; a NaN stays one
    const uint32_t bits = to_bits(f);
    return f != f ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float widen_bfloat(uint16_t b) { return from_bits((uint32_t)b << 16); }

}  // namespace forerun
