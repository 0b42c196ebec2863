// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the processor that the program runs on.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>

namespace llampi::device {

enum class CpuLevel : std::uint8_t { generic, avx2, avx512 };  ///< any; x86-64-v3; x86-64-v4

inline const char* to_string(CpuLevel level) {
  return level == CpuLevel::avx512 ? "AVX-512" : level == CpuLevel::avx2 ? "AVX2" : "generic";
}

inline CpuLevel cpu_level() {
#if defined(__x86_64__)
  // Of x86-64-v3, what clang++ 14 has no words for: MOVBE and F16C, LZCNT. Virtual machines may lack some.
  unsigned a = 0, b = 0, basic = 0, extended = 0, d = 0;
  const bool known =
      __get_cpuid(1, &a, &b, &basic, &d) != 0 && __get_cpuid(0x80000001, &a, &b, &extended, &d) != 0;
  const bool rest =
      known && (basic & bit_MOVBE) != 0 && (basic & bit_F16C) != 0 && (extended & bit_LZCNT) != 0;
  const bool v3 = rest && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
  return v4 ? CpuLevel::avx512 : v3 ? CpuLevel::avx2 : CpuLevel::generic;
#else
  return CpuLevel::generic;
#endif
}

}  // namespace llampi::device
