// SPDX-License-Identifier: Apache-2.0
// float32 values on their way between a file and a tensor of 16 or 32 bits, or of blocks of 8 bits, in any memory.
#pragma once

#include <cstdint>
#include <functional>

#include "llampi/core/tensor.hpp"
#include "llampi/device/runtime.hpp"

namespace llampi::checkpoint {

/// 4 MiB of values.
inline constexpr std::int64_t kTransferElements = std::int64_t{1} << 20;

/// A buffer in host memory through which tensors pass in parts, one after another. float32 values in host
/// memory need none: they are given and taken where they lie.
class Staging {
 public:
  /// Waits until the device has done what it was asked to: it may still be at work on the tensors.
  /// @param elements of the buffer; 6 bytes each
  Staging(device::Runtime& device, std::int64_t elements);

  /// Calls work(part, begin) for one part of a tensor after another; `begin` is the first element's index. A
  /// part fits into the buffer.
  void in_parts(const Tensor& tensor, const std::function<void(const Tensor&, std::int64_t)>& work) const;

  /// The values of a part, until the next call.
  const float* fetch(const Tensor& part);
  /// Where the new values of a part go, before store(part).
  float* room_for(const Tensor& part) const;
  /// Puts them into the part, rounded to nearest even if that is of 16 bits, and to DType::int8_blocks as that says.
  void store(const Tensor& part);

 private:
  bool needs_buffer(const Tensor& part) const;
  float* values() const { return reinterpret_cast<float*>(memory_.data()); }
  std::uint16_t* bits() const { return reinterpret_cast<std::uint16_t*>(values() + elements_); }

  device::Runtime& device_;
  std::int64_t elements_;
  device::Memory memory_;  ///< values, then the bits of other formats
};

}  // namespace llampi::checkpoint
