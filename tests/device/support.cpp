#include "device/support.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "llampi/core/philox.hpp"

namespace llampi::test {

Values normal(std::int64_t rows, std::int64_t cols, const std::string& purpose, double scale) {
  const RandomStream stream(kSeed, purpose);
  Values values{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    values.data[i] = static_cast<double>(static_cast<float>(scale * stream.normal(i)));
  }
  return values;
}

std::int64_t Layout::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}
std::int64_t Layout::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

Layout one_segment(std::int32_t tokens) { return {"one segment", {tokens}}; }

Layout single_tokens(std::int32_t tokens) {
  return {"segments of one token", std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 1)};
}

Layout mixed_segments(std::int32_t tokens) {
  Layout layout{"mixed segments", {}};
  std::int32_t next = 1;  // 1, 4, 13, 40, 121, ...
  while (tokens > 0) {
    layout.lengths.push_back(std::min(tokens, next));
    tokens -= layout.lengths.back();
    next = 3 * next + 1;
  }
  return layout;
}

Tensor Session::make(std::int64_t rows, std::int64_t cols, DType dtype) {
  Tensor tensor{nullptr, dtype, rows, cols};
  memory_.push_back(device_.allocate(tensor.bytes()));
  tensor.data = memory_.back().data();
  return tensor;
}

Tensor Session::upload(const Values& values) {
  const Tensor tensor = make(values.rows, values.cols, dtype_);
  if (dtype_ == DType::float64) {
    device_.upload(tensor, values.data.data(), Stream::copy);
  } else {
    const std::vector<float> rounded(values.data.begin(), values.data.end());
    device_.upload(tensor, rounded.data(), Stream::copy);
  }
  device_.synchronize(Stream::copy);
  return tensor;
}

Tensor Session::output(std::int64_t rows, std::int64_t cols) {
  return upload({rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), std::nan(""))});
}

Tensor Session::gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate) {
  if (accumulate == Accumulate::no) return output(rows, cols);
  return upload({rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), kStart)});
}

Tensor Session::weight_gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate) {
  return weights_ == Weights::frozen ? Tensor{} : gradient(rows, cols, accumulate);
}

Tensor Session::workspace(std::int64_t bytes) {
  const Tensor tensor = make(1, (bytes + 3) / 4, DType::int32);
  if (bytes > 0) std::memset(tensor.data, 0xFF, static_cast<std::size_t>(tensor.bytes()));
  return tensor;
}

Tensor Session::integers(const std::vector<std::int32_t>& values) {
  const Tensor tensor = make(1, static_cast<std::int64_t>(values.size()), DType::int32);
  device_.upload(tensor, values.data(), Stream::copy);
  return tensor;
}

Batch Session::batch(const Layout& layout) {
  const RandomStream stream(kSeed, "tokens");
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(stream.bits(static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint64_t>(layout.vocabulary));
  };
  const std::int64_t count = layout.tokens();
  std::vector<std::int32_t> tokens, labels, positions, offsets{0};
  for (std::int64_t t = 0; t < count; ++t) {
    tokens.push_back(token(t));
    labels.push_back(t % 5 == 3 ? -1 : token(count + t));
  }
  for (const std::int32_t length : layout.lengths) {
    for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
    offsets.push_back(offsets.back() + length);
  }
  offsets.resize(static_cast<std::size_t>(count + 1), -1);  // what is behind the last segment does not count
  return {integers(tokens), integers(labels), integers(positions), integers(offsets),
          static_cast<std::int64_t>(layout.lengths.size())};
}

Values Session::download(Tensor tensor) {
  Values values{tensor.rows, tensor.cols, std::vector<double>(static_cast<std::size_t>(tensor.elements()))};
  if (tensor.dtype == DType::float64) {
    device_.download(values.data.data(), tensor, Stream::copy);
  } else {
    std::vector<float> raw(values.data.size());
    device_.download(raw.data(), tensor, Stream::copy);
    std::copy(raw.begin(), raw.end(), values.data.begin());
  }
  return values;
}

double largest_magnitude(const Values& values) {
  double largest = 0;
  for (const double v : values.data) largest = std::max(largest, std::abs(v));
  return largest;
}

double largest_difference(const Values& a, const Values& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    const double difference = std::abs(a.data[i] - b.data[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

bool same_bits(const Values& a, const Values& b) {
  return a.data.size() == b.data.size() &&
         std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(double)) == 0;
}

::testing::AssertionResult close(const Values& actual, const Values& expected, double tolerance) {
  if (actual.rows != expected.rows || actual.cols != expected.cols)
    return ::testing::AssertionFailure() << "shapes differ";
  const double difference = largest_difference(actual, expected), scale = largest_magnitude(expected);
  if (difference <= tolerance * scale) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "differs by " << difference << " where the largest element is " << scale << ": relative "
         << difference / scale << ", allowed " << tolerance;
}

}  // namespace llampi::test
