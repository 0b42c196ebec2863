// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/gemm_environment.hpp"

#include <cstdlib>

#include "device/cpu/start_again.hpp"
#include "llampi/device/cpu_level.hpp"
#include "llampi/device/gemm_library.hpp"

namespace llampi::device {

void prepare_gemm_environment(char** argv) {
#if defined(LLAMPI_GEMM_CBLAS)
  constexpr const char* kVariable = "OPENBLAS_CORETYPE";
  // A value that is there is the user's, or ours from before: never start again twice.
  if (std::getenv(kVariable) != nullptr || inspect_gemm_library().level >= cpu_level()) return;
  setenv(kVariable, cpu_level() == CpuLevel::avx512 ? "SKYLAKEX" : "HASWELL", 0);
  start_again(argv);
  unsetenv(kVariable);  // it could not be started: make_cpu_device() says what to do
#else
  static_cast<void>(argv);
#endif
}

}  // namespace llampi::device
