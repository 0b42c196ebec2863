// SPDX-License-Identifier: Apache-2.0
// The library that multiplies matrices, as Gemm asks for it: cuBLASLt (cublaslt.cpp), or on the emulated GPU
// plain loops (emulator/seams/products.cpp).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llampi/core/tensor.hpp"
#include "llampi/device/fp8_scaling.hpp"

namespace llampi::device::cuda {

enum class Transpose : bool { no, yes };

/// How the parts of a sum over k that blocks computed side by side ("split-K") may be put together. Not to
/// split at all is always allowed.
enum class PartialSums : std::uint8_t {
  in_order,  ///< kept in float32 in the workspace and added by a second kernel: the order is fixed
  any,       ///< also each added to the result as it comes
};

/// Stored by columns, of which one begins `stride` elements behind the other.
struct ColumnMatrix {
  DType dtype = DType::float32;
  std::int64_t rows = 0, cols = 0, stride = 0;

  auto operator<=>(const ColumnMatrix&) const = default;
};

/// result = op(first) op(second) (+ added, which is stored like the result), with float32 accumulation: all
/// that the choice of an algorithm depends on. With matrices in 8 bits, each of which has factors: Hopper multiplies
/// op(first) transposed by op(second) as it is, with sides and addresses that 16 divides, and not two of float8_e5m2.
/// Either each has one factor, or both have some for each 128 numbers of a sum, and one or both of them tiles.
struct ColumnProduct {
  ColumnMatrix first, second, result;
  Transpose transpose_first = Transpose::no, transpose_second = Transpose::no;
  /// Of matrices in 8 bits: what their factors are, of the columns as rows of a matrix.
  Fp8Scaling first_scaling = Fp8Scaling::tensor, second_scaling = Fp8Scaling::tensor;
  bool adds = false;
  bool in_place = true;  ///< what is added lies where the result is to be
  bool tf32 = false;     ///< float32 matrices are multiplied in TF32
  /// Of matrices in 8 bits: partial sums may have fewer bits than float32 has.
  bool fast_accumulation = false;
  PartialSums partial_sums = PartialSums::in_order;
  /// Bytes that divide the addresses: of first, of second, of the result and what is added.
  std::array<std::uint32_t, 3> alignment{};
  std::int64_t workspace_bytes = 0;  ///< that there are, aligned to 256
  int multiprocessors = 0;           ///< that the algorithm is to suit, and to use if it can be told; 0: all

  auto operator<=>(const ColumnProduct&) const = default;
};

/// Where the matrices of a product are. `added` is not read unless the product adds.
struct ColumnOperands {
  const void* first;
  const void* second;
  const void* added;
  void* result;
  /// Of matrices in 8 bits: what op(first) and op(second) are multiplied by, in device memory; more than one are aligned
  /// to 16 bytes.
  const float* first_factor = nullptr;
  const float* second_factor = nullptr;
  float scale = 1;  ///< of the product, in float32, before anything is added
};

/// A product as the library sees it, with the algorithms that it has for it.
class LibraryProduct {
 public:
  virtual ~LibraryProduct() = default;

  struct Algorithm {
    bool runs = true;  ///< else it cannot be used here
    std::size_t workspace_bytes = 0;
    std::string name;  ///< the same in other processes with this GPU and version of the library
  };
  /// The fastest first, as the library estimates.
  virtual std::vector<Algorithm> algorithms() const = 0;
  /// Whether the result may be other memory than what is added. `algorithm` is an index into algorithms().
  virtual bool adds_out_of_place(std::size_t algorithm) const = 0;

  struct Way {
    std::size_t algorithm = 0;  ///< an index into algorithms()
    bool copies = false;        ///< what is added to the result first, so that the product itself is in place
  };
  /// The workspace has at least what the algorithm needs. @throws Error
  virtual void run(const Way& way, const ColumnOperands& operands, void* workspace, cudaStream_t stream) = 0;
  /// Seconds that one of `runs` takes on the GPU, one after another, behind one that is not counted; waits for
  /// them. @throws Error
  virtual double time(const Way& way, const ColumnOperands& operands, void* workspace, cudaStream_t stream,
                      int runs) = 0;
};

class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;
  /// @param operands those of the first run; others follow with the same alignment, and with factors if these have some
  /// @throws Error if the library has no such product
  virtual std::unique_ptr<LibraryProduct> product(const ColumnProduct& product,
                                                  const ColumnOperands& operands) = 0;
};

/// What is left to be done after the copy that `way` may begin with: done on `stream` here.
/// @throws Error
ColumnOperands copied(const LibraryProduct::Way& way, const ColumnMatrix& result,
                      const ColumnOperands& operands, cudaStream_t stream);

/// @throws Error if it cannot be used on this machine
std::unique_ptr<ProductLibrary> make_product_library();
std::string product_library_version();  ///< "cuBLASLt 13.1.0"
bool product_library_has_blocks();      ///< scales of tiles and blocks, on a GPU that has them

}  // namespace llampi::device::cuda
