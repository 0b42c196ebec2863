// SPDX-License-Identifier: Apache-2.0
// What the devices that compute in the caller's thread have in common: streams are the order of the calls,
// memory is the host's, and the end of the gradient norm is a handful of scalars.
#pragma once

#include <functional>

#include "llampi/device/device.hpp"
#include "llampi/device/sum_of_squares.hpp"

namespace llampi::device {

class HostDevice : public Device {
 public:
  Memory allocate(std::int64_t bytes) override;
  Memory allocate_host(std::int64_t bytes) override;
  std::int64_t available_bytes(int local_ranks) const override;
  void upload(Tensor destination, const void* source, Stream stream) override;
  void download(void* destination, Tensor source, Stream stream) override;
  bool is_host_memory(const void* memory) const override;
  Event record(Stream stream) override;
  Event record_timed(Stream stream) override;
  double seconds_between(const Event& begin, const Event& end) const override;
  void wait(Stream stream, const Event& event) override;
  void wait_in_any_thread(const Event& event) const override;
  void synchronize(Stream stream) override;
  void set_progress(std::function<void()> progress) override;
  void execute(const op::FinishNorm& o);

 protected:
  /// To be called after each operation.
  void progress() const {
    if (progress_) progress_();
  }

 private:
  std::function<void()> progress_;
};

/// The tensor's elements, after a check of its type and shape.
/// @throws Error naming the operand if it is not a [rows, cols] matrix of T
template <class T>
T* elements_of(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  if (tensor.dtype != dtype_of<T>) {
    throw Error(fmt::format("this device has no kernels for {} ({}): it needs {}", to_string(tensor.dtype),
                            name, to_string(dtype_of<T>)));
  }
  if (tensor.rows != rows || tensor.cols != cols) {
    throw Error(fmt::format("internal error: {} is [{}, {}], not [{}, {}]", name, tensor.rows, tensor.cols,
                            rows, cols));
  }
  return static_cast<T*>(tensor.data);
}

/// The gradient of a weight, checked alike; nullptr if it is empty: the weight is frozen.
template <class T>
T* weight_gradient_of(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  return tensor ? elements_of<T>(tensor, rows, cols, name) : nullptr;
}

/// @throws Error unless it is int64 [1, kSumOfSquaresNumbers]
SumOfSquares& sum_of_squares(const Tensor& sum);

/// @throws Error if the ranges leave [0, elements) or run backwards
void check_ranges(std::span<const UpdateRange> ranges, std::int64_t elements);

}  // namespace llampi::device
