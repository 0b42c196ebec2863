// SPDX-License-Identifier: Apache-2.0
// The same data on devices of different precision, and comparisons between them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"

namespace llampi::test {

inline constexpr std::uint64_t kSeed = 20240607;
inline constexpr double kEpsilon = 0x1p-24;  ///< rounding of float32: relative, at most

/// A matrix in float64.
struct Values {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> data;
};

/// Standard normal times `scale`, representable in float32, so that every device has the same inputs.
Values normal(std::int64_t rows, std::int64_t cols, const std::string& purpose, double scale = 1);

/// How the tokens of a batch are laid out: lengths of its documents. Tokens and labels are random; every fifth
/// label is none.
struct Layout {
  std::string name;
  std::vector<std::int32_t> lengths;
  std::int64_t vocabulary = 331;
  std::int64_t seq_len = 0;      ///< tokens that a document can have; 0: as many as the longest has
  std::int64_t label_every = 0;  ///< each so many tokens have a label; 0: four of five have one

  bool has_label(std::int64_t token) const;
  std::int64_t valid_labels() const;
  std::int64_t tokens() const;
  std::int64_t longest() const;
};
/// T tokens: as one document, as documents of one token, as documents of many lengths.
Layout one_document(std::int32_t tokens);
Layout single_tokens(std::int32_t tokens);
Layout mixed_documents(std::int32_t tokens);

/// Whether gradients of weights are asked for.
enum class Weights : std::uint8_t { trained, frozen, narrow };

/// Each number as `dtype` has it, rounded to nearest even; +-infinity beyond its largest.
Values rounded(Values values, DType dtype);

/// A device with buffers, in the precision that it computes in. Host and streams are tied together by events
/// only, as little as is right: a device that needs more is found out. Around each buffer there are bytes
/// that are not a number whatever they are read as; it is a failure if they are something else in the end.
class Session {
 public:
  /// What is uploaded is rounded to `inputs` first: a more precise device then has the same inputs as another
  /// one.
  Session(device::Device& device, DType dtype, Weights weights = Weights::trained)
      : Session(device, dtype, weights, dtype) {}
  Session(device::Device& device, DType dtype, Weights weights, DType inputs)
      : device_(device), dtype_(dtype), inputs_(inputs), weights_(weights) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();
  device::Device& device() { return device_; }
  DType dtype() const { return dtype_; }
  /// Of statistics, RoPE's table and gradients of weights (unless these are narrow).
  DType wide_dtype() const { return dtype_ == DType::float64 ? DType::float64 : DType::float32; }

  Tensor upload(const Values& values) { return upload(rounded(values, inputs_), dtype_); }
  Tensor upload_wide(const Values& values) { return upload(values, wide_dtype()); }
  Tensor upload(const Values& values, DType dtype);
  /// NaN everywhere, for an operation to overwrite.
  Tensor output(std::int64_t rows, std::int64_t cols) { return output(rows, cols, dtype_); }
  Tensor wide_output(std::int64_t rows, std::int64_t cols) { return output(rows, cols, wide_dtype()); }
  Tensor output(std::int64_t rows, std::int64_t cols, DType dtype);
  /// NaN with Accumulate::no; with yes, kStart everywhere.
  Tensor gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate) {
    return gradient(rows, cols, accumulate, dtype_);
  }
  /// The same in the wide dtype, but empty where weights are frozen, and in dtype() where they are narrow.
  Tensor weight_gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate);
  /// Not a number whatever it is read as.
  Tensor workspace(std::int64_t bytes);
  Tensor integers(const std::vector<std::int32_t>& values);
  /// Any elements, as they are.
  Tensor raw(const void* elements, std::int64_t rows, std::int64_t cols, DType dtype);
  device::Batch batch(const Layout& layout);
  Values download(Tensor tensor);
  void download(Tensor tensor, void* elements);

  static constexpr double kStart = 0.25;

 private:
  struct Buffer {
    device::Memory memory;
    std::int64_t bytes = 0;  ///< without what is around it
  };
  Tensor gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate, DType dtype);

  device::Device& device_;
  DType dtype_, inputs_;
  Weights weights_;
  std::vector<std::vector<std::byte>> uploaded_;  ///< host memory that a copy may still read
  std::vector<Buffer> buffers_;                   ///< freed first: that waits for the device
};

/// Numbers that an operation takes by their address, in a device's memory. T is doubles alone.
template <class T>
class OnDevice {
 public:
  OnDevice(Session& session, const T& value)
      : session_(session), tensor_(session.raw(&value, 1, sizeof(T) / sizeof(double), DType::float64)) {}
  T* get() const { return static_cast<T*>(tensor_.data); }
  T read() const {
    T value;
    session_.download(tensor_, &value);
    return value;
  }

 private:
  Session& session_;
  Tensor tensor_;
};

/// None is longer than max_seqlen.
device::Documents documents_of(const device::Batch& batch, std::int64_t max_seqlen);

double largest_magnitude(const Values& values);
/// Largest |a - b|; NaN if there is any.
double largest_difference(const Values& a, const Values& b);
/// The same numbers, bit by bit.
bool same_bits(const Values& a, const Values& b);

/// |actual - expected| <= tolerance * max|expected| for all elements.
::testing::AssertionResult close(const Values& actual, const Values& expected, double tolerance);

/// Every result is close(), or has the same bits.
void expect_all_close(const std::vector<Values>& actual, const std::vector<Values>& expected,
                      double tolerance);
void expect_all_same(const std::vector<Values>& a, const std::vector<Values>& b);

}  // namespace llampi::test
