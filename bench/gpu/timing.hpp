// SPDX-License-Identifier: Apache-2.0
// Calls of a device, timed among many of their kind.
#pragma once

#include <algorithm>
#include <array>

#include "gpu/clock.hpp"
#include "gpu/noise.hpp"

namespace llampi::bench {

/// Seconds of a call among many: the median of some measurements. work(number of the call)
template <class Work>
double time_call(device::Device& device, const Work& work) {
  constexpr double kSeconds = 0.05;  // of a measurement, at least
  constexpr int kMeasurements = 3;
  const auto time_calls = [&](int calls) {
    device.synchronize(device::Stream::compute);
    const double begin = now();
    for (int call = 0; call < calls; ++call) work(call);
    device.synchronize(device::Stream::compute);
    return (now() - begin) / calls;
  };
  time_calls(2);
  const int calls = std::clamp(static_cast<int>(kSeconds / time_calls(2)), 2, 1000);
  std::array<double, kMeasurements> seconds{};
  for (double& s : seconds) s = time_calls(calls);
  std::sort(seconds.begin(), seconds.end());
  return seconds[kMeasurements / 2];
}

/// A matrix in memory of its own; of noise, if there is some.
struct Matrix {
  Matrix(device::Device& device, const Noise* noise, DType dtype, std::int64_t rows, std::int64_t cols)
      : memory(device.allocate(rows * cols * size_of(dtype))), view{memory.data(), dtype, rows, cols} {
    if (noise != nullptr) noise->fill(view);
  }
  device::Memory memory;
  Tensor view;
};

}  // namespace llampi::bench
