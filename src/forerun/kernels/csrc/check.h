// A checksum of bytes: XXH64 with seed 0, which xxhsum -H1 prints too.
#pragma once

#include <cstdint>

namespace forerun {

uint64_t xxh64(const uint8_t* data, int64_t size);

}  // namespace forerun
