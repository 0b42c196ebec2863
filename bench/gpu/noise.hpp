// SPDX-License-Identifier: Apache-2.0
// Random numbers on a device, fast: billions of weights would take the host minutes.
#pragma once

#include "llampi/device/device.hpp"
#include "llampi/fsdp/engine.hpp"

namespace llampi::bench {

/// A block of normal numbers on the device, from which tensors are filled. Zeros would not do: a GPU
/// multiplies them with less power, so faster.
class Noise {
 public:
  Noise(device::Device& device, DType dtype);

  /// The block again and again, on Stream::compute. The block is no multiple of any row, so that rows differ.
  void fill(Tensor tensor) const;

 private:
  device::Device& device_;
  device::Memory memory_;
  Tensor block_;
};

/// Values as a training run starts with them: matrices of noise, ones where the model begins with ones.
void fill_parameters(fsdp::Engine& engine, device::Device& device);

}  // namespace llampi::bench
