// SPDX-License-Identifier: Apache-2.0
#include "support/device_session.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kAround = 256;  ///< bytes before and behind each buffer
constexpr std::byte kNaN{0xFF};

}  // namespace

Values normal(std::int64_t rows, std::int64_t cols, const std::string& purpose, double scale) {
  const RandomStream stream(kSeed, purpose);
  Values values{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    values.data[i] = static_cast<double>(static_cast<float>(scale * stream.normal(i)));
  }
  return values;
}

Values rounded(Values values, DType dtype) {
  if (dtype == DType::float64) return values;
  for (double& v : values.data) {
    const auto single = static_cast<float>(v);
    v = static_cast<double>(dtype == DType::bfloat16  ? from_bfloat16(to_bfloat16(single))
                            : dtype == DType::float16 ? from_float16(to_float16(single))
                                                      : single);
  }
  return values;
}

std::int64_t Layout::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}
std::int64_t Layout::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

bool Layout::has_label(std::int64_t token) const {
  return label_every == 0 ? token % 5 != 3 : token % label_every == label_every - 1;
}
std::int64_t Layout::valid_labels() const {
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < tokens(); ++t) count += has_label(t) ? 1 : 0;
  return count;
}

Layout one_document(std::int32_t tokens) { return {"one document", {tokens}}; }

Layout single_tokens(std::int32_t tokens) {
  return {"documents of one token", std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 1)};
}

Layout mixed_documents(std::int32_t tokens) {
  Layout layout{"mixed documents", {}};
  std::int32_t next = 1;  // 1, 4, 13, 40, 121, ...
  while (tokens > 0) {
    layout.lengths.push_back(std::min(tokens, next));
    tokens -= layout.lengths.back();
    next = 3 * next + 1;
  }
  return layout;
}

Session::~Session() {
  std::vector<std::byte> around(2 * kAround * buffers_.size());
  std::byte* to = around.data();
  const auto download = [&](const Buffer& buffer, std::int64_t offset) {
    device_.download(to, {buffer.memory.data() + offset, DType::int32, 1, kAround / 4}, kCopyOut);
    to += kAround;
  };
  device_.wait(kCopyOut, device_.record(device::Stream::compute));
  for (const Buffer& buffer : buffers_) {
    download(buffer, 0);
    download(buffer, kAround + buffer.bytes);
  }
  device_.synchronize(kCopyOut);
  const auto changed = std::count_if(around.begin(), around.end(), [](std::byte b) { return b != kNaN; });
  EXPECT_EQ(changed, 0) << "bytes around buffers were overwritten";
}

Tensor Session::raw(const void* elements, std::int64_t rows, std::int64_t cols, DType dtype) {
  Tensor tensor{nullptr, dtype, rows, cols};
  if (tensor.bytes() == 0) return tensor;
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes() + 2 * kAround), kNaN);
  std::memcpy(bytes.data() + kAround, elements, static_cast<std::size_t>(tensor.bytes()));
  uploaded_.push_back(std::move(bytes));
  const auto whole = static_cast<std::int64_t>(uploaded_.back().size());
  buffers_.push_back({device_.allocate(whole), tensor.bytes()});
  std::byte* data = buffers_.back().memory.data();
  device_.upload({data, DType::float8_e4m3fn, 1, whole}, uploaded_.back().data(), kCopy);
  device_.wait(device::Stream::compute, device_.record(kCopy));
  tensor.data = data + kAround;
  return tensor;
}

Tensor Session::upload(const Values& values, DType dtype) {
  if (dtype == DType::float64) return raw(values.data.data(), values.rows, values.cols, dtype);
  const std::vector<float> wide(values.data.begin(), values.data.end());
  if (dtype == DType::float32) return raw(wide.data(), values.rows, values.cols, dtype);
  std::vector<std::uint16_t> half(wide.size());
  std::transform(wide.begin(), wide.end(), half.begin(), dtype == DType::bfloat16 ? to_bfloat16 : to_float16);
  return raw(half.data(), values.rows, values.cols, dtype);
}

Tensor Session::output(std::int64_t rows, std::int64_t cols, DType dtype) {
  return upload({rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), std::nan(""))},
                dtype);
}

Tensor Session::gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate, DType dtype) {
  if (accumulate == Accumulate::no) return output(rows, cols, dtype);
  return upload({rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), kStart)}, dtype);
}

Tensor Session::weight_gradient(std::int64_t rows, std::int64_t cols, Accumulate accumulate) {
  if (weights_ == Weights::frozen) return {};
  return gradient(rows, cols, accumulate, weights_ == Weights::narrow ? dtype_ : wide_dtype());
}

Tensor Session::workspace(std::int64_t bytes) {
  return integers(std::vector<std::int32_t>(static_cast<std::size_t>((bytes + 3) / 4), -1));
}

Tensor Session::integers(const std::vector<std::int32_t>& values) {
  return raw(values.data(), 1, static_cast<std::int64_t>(values.size()), DType::int32);
}

device::Batch Session::batch(const Layout& layout) {
  const RandomStream stream(kSeed, "tokens");
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(stream.bits(static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint64_t>(layout.vocabulary));
  };
  const std::int64_t count = layout.tokens();
  std::vector<std::int32_t> tokens, labels, positions, offsets{0};
  for (std::int64_t t = 0; t < count; ++t) {
    tokens.push_back(token(t));
    labels.push_back(layout.has_label(t) ? token(count + t) : -1);
  }
  for (const std::int32_t length : layout.lengths) {
    for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
    offsets.push_back(offsets.back() + length);
  }
  offsets.resize(static_cast<std::size_t>(count + 1), -1);  // what is behind the last document does not count
  device::LengthClasses lengths;
  for (const auto length : layout.lengths) ++lengths.documents.at(device::LengthClasses::of(length));
  return {.tokens = integers(tokens),
          .labels = integers(labels),
          .positions = integers(positions),
          .cu_seqlens = integers(offsets),
          .documents = static_cast<std::int64_t>(layout.lengths.size()),
          .lengths = lengths};
}

void Session::download(Tensor tensor, void* elements) {
  device_.wait(kCopyOut, device_.record(device::Stream::compute));
  device_.download(elements, tensor, kCopyOut);
  device_.synchronize(kCopyOut);
}

Values Session::download(Tensor tensor) {
  Values values{tensor.rows, tensor.cols, std::vector<double>(static_cast<std::size_t>(tensor.elements()))};
  if (tensor.dtype == DType::float64) {
    download(tensor, values.data.data());
  } else if (tensor.dtype == DType::float32) {
    std::vector<float> single(values.data.size());
    download(tensor, single.data());
    std::copy(single.begin(), single.end(), values.data.begin());
  } else {
    std::vector<std::uint16_t> half(values.data.size());
    download(tensor, half.data());
    std::transform(half.begin(), half.end(), values.data.begin(), [&](std::uint16_t bits) {
      return static_cast<double>(tensor.dtype == DType::bfloat16 ? from_bfloat16(bits) : from_float16(bits));
    });
  }
  return values;
}

device::Documents documents_of(const device::Batch& batch, std::int64_t max_seqlen) {
  return {.cu_seqlens = batch.cu_seqlens,
          .positions = batch.positions,
          .count = batch.documents,
          .max_seqlen = max_seqlen,
          .lengths = batch.lengths};
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

void expect_all_close(const std::vector<Values>& actual, const std::vector<Values>& expected,
                      double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << "result " << i;
}

void expect_all_same(const std::vector<Values>& a, const std::vector<Values>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "result " << i;
}

}  // namespace llampi::test
