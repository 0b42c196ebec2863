// SPDX-License-Identifier: Apache-2.0
// What others need of a CUDA device to put work of their own on its streams, as `comm` does with NCCL: without CUDA's headers.
#pragma once

#include "llampi/device/device.hpp"

namespace llampi::device {

/// The parts of one sum, one per rank: this rank's in its original place, those of the others contiguous in memory.
struct RankParts {
  Tensor own;  ///< [1, n]
  int rank = 0, ranks = 1;
  const void* others = nullptr;  ///< in the order of the ranks, of own's dtype
  std::int64_t stride = 0;       ///< from one to the next, in elements
  /// Several sums of the same shape. own_step: elements from one sum's own part (and its destination) to the next sum's;
  /// others_step: the same for the other ranks' parts.
  int sums = 1;
  std::int64_t own_step = 0, others_step = 0;
};

class CudaInterop {
 public:
  virtual ~CudaInterop() = default;
  /// CUDA's number of the GPU.
  virtual int gpu() const = 0;
  /// A cudaStream_t, the device's. Stream::host has none.
  virtual void* native_stream(Stream stream) const = 0;
  /// Whether an event of this device is reached; does not wait.
  virtual bool is_reached(const Event& event) const = 0;
  /// Casts and adds in one pass: destination (+)= source, equal numbers of elements.
  virtual void add_cast(Tensor source, Tensor destination, Accumulate accumulate, Stream stream) = 0;
  /// sum (+)= the parts of all ranks, which are added in float32 in the order of comm::tree_left(); rounded once if `sum` is
  /// narrow. float32, bfloat16 or float16; sum [1, n] is float32 or of the parts' dtype, and may be where the own part is. Of
  /// several sums the first; all are formed by one kernel.
  virtual void sum_parts(const RankParts& parts, Tensor sum, Accumulate accumulate, Stream stream) = 0;
};

}  // namespace llampi::device
