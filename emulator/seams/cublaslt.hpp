// SPDX-License-Identifier: Apache-2.0
// What tests can ask of the emulated cuBLASLt: which algorithms it offers, and what it was asked for.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <vector>

namespace llampi::emulator {

/// An algorithm as cublasLtMatmulAlgoGetHeuristic() returns it.
struct Algorithm {
  bool runs = true;          ///< else its state says that it is not supported
  bool out_of_place = true;  ///< D may be other memory than C
  /// Of the parts of a sum over k; offered where the caller allows it.
  cublasLtReductionScheme_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::uint64_t workspace_bytes = 0;  ///< offered where the caller has so much
  std::uint32_t alignment = 1;        ///< of all pointers, in bytes; offered where the caller promises it
};

/// What is offered from now on, the best first.
void set_algorithms(std::vector<Algorithm> algorithms);
/// Two that take everything, the better one with a workspace.
void set_usual_algorithms();

/// A call of cublasLtMatmul().
struct Product {
  Algorithm algorithm;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  float beta = 0;
  bool in_place = true;
  std::uint32_t reductions = 0;  ///< the mask that the caller allowed
};
/// Since the last call of this function.
std::vector<Product> take_products();
/// How often an algorithm was asked for, since the last call of this function.
int take_searches();

}  // namespace llampi::emulator
