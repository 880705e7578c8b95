// Which compiled instruction sets the processor at hand runs; module.cpp asks, and CMakeLists.txt where a build stays here.

#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace forerun {

// Each answer of __builtin_cpu_supports also means that the operating system saves the registers.
inline bool has_avx2() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // f16c by hand: clang 14 has no name for it
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

inline bool has_avxvnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // by hand: older compilers have no name for it
    constexpr unsigned vnni = 1u << 4;
    return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & vnni) != 0;
}

inline bool has_avx512vnni() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

inline bool has_avx512() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // by hand: older compilers have no name for it
    constexpr unsigned bf16 = 1u << 5;
    return has_avx512vnni() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & bf16) != 0;
}

// Tile registers are large, so Linux wants to be asked; threads made later inherit the leave.
inline bool has_amx() {
#if defined(__linux__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned half = 1u << 22, tile = 1u << 24, whole = 1u << 25;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (~edx & (half | tile | whole))) return false;
    constexpr long ask = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
    return false;
#endif
}

}  // namespace forerun
#endif
