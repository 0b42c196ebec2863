// The same data on devices of different precision, and comparisons between them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"

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

/// How the tokens of a batch are laid out: lengths of its segments. Tokens and labels are random; every fifth
/// label is none.
struct Layout {
  std::string name;
  std::vector<std::int32_t> lengths;
  std::int64_t vocabulary = 331;

  std::int64_t tokens() const;
  std::int64_t longest() const;
};
/// T tokens: as one segment, as segments of one token, as segments of many lengths.
Layout one_segment(std::int32_t tokens);
Layout single_tokens(std::int32_t tokens);
Layout mixed_segments(std::int32_t tokens);

/// Whether gradients of weights are asked for.
enum class Weights : bool { trained, frozen };

/// A device with buffers, in the precision that it computes in.
class Session {
 public:
  Session(Device& device, DType dtype, Weights weights = Weights::trained)
      : device_(device), dtype_(dtype), weights_(weights) {}
  Device& device() { return device_; }
  DType dtype() const { return dtype_; }

  Tensor upload(const Values& values);
  /// NaN everywhere, for an operation to overwrite.
  Tensor output(std::int64_t rows, std::int64_t cols);
  /// NaN with Accumulate::no; with yes, kStart everywhere.
  Tensor gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate);
  /// The same, but empty where weights are frozen.
  Tensor weight_gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate);
  /// Not a number whatever it is read as.
  Tensor workspace(std::int64_t bytes);
  Tensor integers(const std::vector<std::int32_t>& values);
  Batch batch(const Layout& layout);
  Values download(Tensor tensor);

  static constexpr double kStart = 0.25;

 private:
  Tensor make(std::int64_t rows, std::int64_t cols, DType dtype);

  Device& device_;
  DType dtype_;
  Weights weights_;
  std::vector<Memory> memory_;
};

double largest_magnitude(const Values& values);
/// Largest |a - b|; NaN if there is any.
double largest_difference(const Values& a, const Values& b);
/// The same numbers, bit by bit.
bool same_bits(const Values& a, const Values& b);

/// |actual - expected| <= tolerance * max|expected| for all elements.
::testing::AssertionResult close(const Values& actual, const Values& expected, double tolerance);

}  // namespace llampi::test
