// SPDX-License-Identifier: Apache-2.0
// The CPU device: float32, matrix products from a library, everything else from kernels.hpp, over OpenMP
// threads.
#pragma once

#include <functional>

#include "device/cpu/gemm.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/sizes.hpp"
#include "device/host_device.hpp"

namespace llampi::device {

class CpuDevice : public HostDevice {  // not final: tests have one with little memory
 public:
  /// @param kernels one of available_kernels(): make_cpu_device() takes the fastest, tests all of them
  CpuDevice(int threads, const Kernels& kernels);
  std::string describe() const override;

  const OperationSizes& sizes() const override { return sizes_; }

  // rows.cpp
  void execute(const op::Embedding& o);
  void execute(const op::EmbeddingBackward& o);
  void execute(const op::RmsNorm& o);
  void execute(const op::RmsNormBackward& o);
  void execute(const op::Add& o);
  void execute(const op::Copy& o);
  void execute(const op::Zero& o);
  void execute(const op::RandomNormal& o);

  // products.cpp
  void execute(const op::QkvRope& o);
  void execute(const op::ProjectionResidual& o);
  void execute(const op::InputGradient& o);
  void execute(const op::WeightGradient& o);
  void execute(const op::GateUpSwiglu& o);
  void execute(const op::Swiglu& o);
  void execute(const op::SwigluBackward& o);
  void execute(const op::Linear& o);

  // low_rank.cpp
  void execute(const op::LowRankDown& o);

  // fp8.cpp
  void execute(const op::Fp8Maximum& o);
  void execute(const op::Fp8Scales& o);
  void execute(const op::Fp8Cast& o);
  void execute(const op::RmsNormCast& o);
  void execute(const op::SwigluBackwardCast& o);
  void execute(const op::Fp8BlockMaximum& o);
  void execute(const op::Fp8BlockScales& o);
  void execute(const op::Fp8BlockCast& o);
  void execute(const op::Fp8TileCast& o);
  void execute(const op::Fp8Transpose& o);
  void execute(const op::Fp8Product& o);

  // rope.cpp
  void execute(const op::Rope& o);
  void execute(const op::RopeBackwardCast& o);

  // attention.cpp
  void execute(const op::Attention& o);
  void execute(const op::AttentionBackward& o);
  void execute(const op::CachedAttention& o);

  // head.cpp
  void execute(const op::LinearCrossEntropy& o);
  void execute(const op::LinearCrossEntropyBackward& o);

  // update.cpp, host_device.cpp, adamw.cpp
  void execute(const op::SumSquares& o);
  using HostDevice::execute;
  void execute(const op::AdamW& o);

  // cast.cpp
  void execute(const op::Cast& o);

 protected:
  void issue(const Operation& operation) override;

 private:
  /// op::Fp8Maximum of what an operation has written, if it is to be measured.
  void measure(const Tensor& written, const Tensor& maximum) {
    if (maximum) execute(op::Fp8Maximum{.source = written, .maximum = maximum});
  }
  /// A matrix that is not kept, but computed row by row, by several threads.
  struct Rows {
    std::int64_t rows, cols;
    std::function<void(std::int64_t row, float* to)> compute;
  };
  /// op::Fp8Maximum and op::Fp8Cast of it.
  void measure_rows(const Rows& rows, const Tensor& maximum) const;
  void cast_rows(const Rows& rows, op::Fp8Cast cast) const;
  /// What op::SwigluBackward writes over gate_up.
  Rows swiglu_gradient_rows(const Tensor& dactivated, const Tensor& gate_up) const;
  void zero_in_parallel(float* data, std::int64_t elements) const;
  // low_rank.cpp
  void add_adapters(std::span<const LowRank> adapters, const Tensor& x, const Tensor& y);
  void adapter_input_gradients(const op::InputGradient& o);
  void adapter_weight_gradients(const op::WeightGradient& o);
  enum class Dropped : std::uint8_t { written, added };
  /// destination = drop(source), or += it
  void drop(const Dropout& dropout, const Tensor& source, const Tensor& destination, Dropped how) const;

  int threads_;
  const Kernels& kernels_;
  CpuSizes sizes_;
  Gemm gemm_;
};

/// The operand's elements, which must be float32 and [rows, cols].
inline float* floats(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  return elements_of<float>(tensor, rows, cols, name);
}
/// The same of the gradient of a weight; nullptr if the weight is frozen.
inline float* gradient_floats(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  return weight_gradient_of<float>(tensor, rows, cols, name);
}
/// A 16-bit format, as bits. The shape has been checked.
inline std::uint16_t* halves(const Tensor& tensor) { return static_cast<std::uint16_t*>(tensor.data); }
/// int32 [1, cols]
inline const std::int32_t* integers(const Tensor& tensor, std::int64_t cols, const char* name) {
  return elements_of<std::int32_t>(tensor, 1, cols, name);
}
/// The workspace, which must have at least so many bytes.
void* workspace_of(const Tensor& workspace, std::int64_t bytes);

inline float beta(Accumulate accumulate) { return accumulate == Accumulate::yes ? 1.0F : 0.0F; }

}  // namespace llampi::device
