// SPDX-License-Identifier: Apache-2.0
// The matrix-product library that the program was built with: oneDNN or any CBLAS (LLAMPI_GEMM). Only
// src/device/gemm_library.cpp knows which.
#pragma once

#include <string>

#include "llampi/device/cpu_level.hpp"

namespace llampi::device {

struct GemmLibrary {
  std::string name;  ///< "OpenBLAS 0.3.21"
  std::string core;  ///< the kernels it chose: "SkylakeX", "AVX-512"; empty if it does not tell
  /// The processors that these kernels are made for; the best if it does not tell.
  CpuLevel level = CpuLevel::avx512;
  std::string remedy;  ///< what to do where that is less than this processor
};

/// What the loaded library says about itself.
GemmLibrary inspect_gemm_library();

}  // namespace llampi::device
