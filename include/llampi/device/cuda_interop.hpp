// SPDX-License-Identifier: Apache-2.0
// What others need of a CUDA device to put work of their own on its streams, as `comm` does with NCCL: without CUDA's headers.
#pragma once

#include "llampi/device/device.hpp"

namespace llampi::device {

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
};

}  // namespace llampi::device
