// SPDX-License-Identifier: Apache-2.0
// The choice of the variant of the kernels.
#include "device/cpu/kernels.hpp"

#include "llampi/device/cpu_level.hpp"

namespace llampi::device {

// Each variant is the kernels_*.cpp, compiled for one instruction set
// (src/device/CMakeLists.txt).
namespace simd_generic {
void add_row_kernels(Kernels& kernels);
void add_update_kernels(Kernels& kernels);
void add_cast_kernels(Kernels& kernels);
void add_random_kernels(Kernels& kernels);
}  // namespace simd_generic
namespace simd_v3 {
void add_row_kernels(Kernels& kernels);
void add_update_kernels(Kernels& kernels);
void add_cast_kernels(Kernels& kernels);
void add_random_kernels(Kernels& kernels);
}  // namespace simd_v3
namespace simd_v4 {
void add_row_kernels(Kernels& kernels);
void add_update_kernels(Kernels& kernels);
void add_cast_kernels(Kernels& kernels);
void add_random_kernels(Kernels& kernels);
}  // namespace simd_v4

namespace {

/// `adds`: the functions that set the pointers of a variant.
Kernels make(const char* name, std::initializer_list<void (*)(Kernels&)> adds) {
  Kernels kernels{};
  kernels.name = name;
  for (const auto add : adds) add(kernels);
  return kernels;
}

}  // namespace

std::vector<const Kernels*> available_kernels() {
  // Each only where the processor has its instructions: add_..._kernels() is compiled with them as well.
  std::vector<const Kernels*> result;
#ifdef LLAMPI_X86_VARIANTS
  if (cpu_level() >= CpuLevel::avx512) {
    static const Kernels v4 =
        make("AVX-512 (x86-64-v4)", {simd_v4::add_row_kernels, simd_v4::add_update_kernels,
                                     simd_v4::add_cast_kernels, simd_v4::add_random_kernels});
    result.push_back(&v4);
  }
  if (cpu_level() >= CpuLevel::avx2) {
    static const Kernels v3 =
        make("AVX2 (x86-64-v3)", {simd_v3::add_row_kernels, simd_v3::add_update_kernels,
                                  simd_v3::add_cast_kernels, simd_v3::add_random_kernels});
    result.push_back(&v3);
  }
#endif
  static const Kernels generic =
      make("generic", {simd_generic::add_row_kernels, simd_generic::add_update_kernels,
                       simd_generic::add_cast_kernels, simd_generic::add_random_kernels});
  result.push_back(&generic);
  return result;
}

}  // namespace llampi::device
