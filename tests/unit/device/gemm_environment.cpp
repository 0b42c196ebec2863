// SPDX-License-Identifier: Apache-2.0
// With OpenBLAS the environment must be right before the library is loaded: what the program's main() does,
// before the tests' main().
#include "device/cpu/gemm_environment.hpp"

namespace {
// glibc gives constructors the arguments of main().
[[gnu::constructor]] void prepare(int, char** argv, char**) {
  llampi::device::prepare_gemm_environment(argv);
}
}  // namespace
