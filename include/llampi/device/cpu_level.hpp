// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the processor that the program runs on.
#pragma once

#include <cstdint>

namespace llampi::device {

enum class CpuLevel : std::uint8_t { generic, avx2, avx512 };  ///< any; x86-64-v3; x86-64-v4

inline const char* to_string(CpuLevel level) {
  return level == CpuLevel::avx512 ? "AVX-512" : level == CpuLevel::avx2 ? "AVX2" : "generic";
}

inline CpuLevel cpu_level() {
#if defined(__x86_64__)
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
  return v4 ? CpuLevel::avx512 : v3 ? CpuLevel::avx2 : CpuLevel::generic;
#else
  return CpuLevel::generic;
#endif
}

}  // namespace llampi::device
