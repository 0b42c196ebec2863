// SPDX-License-Identifier: Apache-2.0
// Gradients in bfloat16: the norm is that of the float32 values that they widen to, to the last bit. (AdamW's
// are in narrow_adamw_test.cpp, the reference device's here.)
#include <cmath>
#include <limits>

#include "device/cpu/cpu_device.hpp"
#include "llampi/core/half.hpp"
#include "support/adamw.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kElements = 10007;

/// The same numbers in bfloat16 and widened.
struct Gradient {
  std::vector<std::uint16_t> half;
  std::vector<float> single;
  std::vector<double> wide;

  explicit Gradient(const Values& values) {
    for (const double v : values.data) {
      half.push_back(to_bfloat16(static_cast<float>(v)));
      single.push_back(from_bfloat16(half.back()));
      wide.push_back(static_cast<double>(single.back()));
    }
  }
  std::int64_t elements() const { return static_cast<std::int64_t>(half.size()); }
  Tensor bfloat16() { return {half.data(), DType::bfloat16, 1, elements()}; }
  Tensor float32() { return tensor(single.data(), 1, elements()); }
  Tensor float64() { return tensor(wide.data(), 1, elements()); }
};

/// Normal ones, small and subnormal ones, zeros of both signs.
Gradient many_magnitudes() {
  Values values = normal(1, kElements, "gradient");
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    if (i % 3 == 0) values.data[i] *= 1e-6;
    if (i % 101 == 0) values.data[i] *= 1e-39;
    if (i % 103 == 0) values.data[i] *= 0;
  }
  return Gradient(values);
}

struct Norm {
  device::SumOfSquares sum{};
  std::int32_t maximum = 0;
  double value = 0;
};

Norm norm_of(device::Device& device, Tensor gradient, const Ranges& ranges) {
  Norm norm;
  const Tensor maximum = tensor(&norm.maximum, 1, 1),
               sum = tensor(norm.sum.digits, 1, device::kSumOfSquaresNumbers);
  device.run(device::op::SumSquares{.gradient = gradient, .ranges = ranges, .sum = sum, .maximum = maximum});
  const double one = 1;
  device::UpdateScalars scalars;
  device.run(device::op::FinishNorm{.sum = sum, .max_norm = 1, .loss_scale = &one, .scalars = &scalars});
  norm.value = scalars.grad_norm;
  return norm;
}

void expect_same(const Norm& a, const Norm& b) {
  EXPECT_EQ(a.maximum, b.maximum);
  expect_same_sum(a.sum, b.sum);
  EXPECT_TRUE(a.value == b.value || (std::isnan(a.value) && std::isnan(b.value)));
}

std::vector<Ranges> odd_ranges() {
  return {{{0, kElements}},
          {{0, 1}},
          {{kElements - 1, kElements}},
          {{3, 3}, {5, 6}},
          {{1, 1026}, {1027, 4003}, {4004, 4021}, {5001, kElements - 2}},
          {{2047, 6145}}};
}

/// body(device, description) for every kernel variant and several numbers of threads.
template <class Body>
void for_each_cpu_device(const Body& body) {
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const int threads : {1, 2, 3, 7}) {
      SCOPED_TRACE(fmt::format("{}, {} threads", kernels->name, threads));
      device::CpuDevice device(threads, *kernels);
      body(device);
    }
  }
}

TEST(NarrowGradient, NormIsThatOfTheWidenedValues) {
  Gradient gradient = many_magnitudes();
  const auto reference = device::make_reference_device();
  for (const Ranges& ranges : odd_ranges()) {
    const Norm expected = norm_of(*reference, gradient.float64(), ranges);
    expect_same(norm_of(*reference, gradient.float32(), ranges), expected);
    expect_same(norm_of(*reference, gradient.bfloat16(), ranges), expected);
    for_each_cpu_device([&](device::Device& device) {
      expect_same(norm_of(device, gradient.float32(), ranges), expected);
      expect_same(norm_of(device, gradient.bfloat16(), ranges), expected);
    });
  }
}

TEST(NarrowGradient, NotFiniteIsSeen) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Ranges all{{0, kElements}}, without{{0, 4321}, {4322, kElements}};
  for (const double bad : {std::nan(""), -std::nan(""), kInfinity, -kInfinity}) {
    Values values = normal(1, kElements, "gradient");
    values.data[4321] = bad;
    Gradient gradient(values);
    for_each_cpu_device([&](device::Device& device) {
      const Norm narrow = norm_of(device, gradient.bfloat16(), all);
      expect_same(narrow, norm_of(device, gradient.float32(), all));
      EXPECT_EQ(std::isnan(narrow.value), std::isnan(bad));
      EXPECT_FALSE(std::isfinite(narrow.value));
      EXPECT_TRUE(std::isfinite(norm_of(device, gradient.bfloat16(), without).value));
    });
    const auto reference = device::make_reference_device();
    expect_same(norm_of(*reference, gradient.bfloat16(), all), norm_of(*reference, gradient.float64(), all));
    EXPECT_FALSE(std::isfinite(norm_of(*reference, gradient.bfloat16(), all).value));
  }
}

TEST(NarrowGradient, ReferenceAdamWTakesItToo) {
  Gradient gradient = many_magnitudes();
  const auto device = device::make_reference_device();
  const auto parameters_after = [&](Tensor g) {
    std::vector<double> master = normal(1, kElements, "parameters").data, shard(master.size());
    std::vector<double> exp_avg(master.size()), exp_avg_sq(master.size());
    device::UpdateScalars scalars;
    scalars.learning_rate = 1e-2;
    const auto row = [](std::vector<double>& v) { return tensor(v.data(), 1, kElements); };
    device->run(device::op::AdamW{.gradient = g,
                                  .ranges = Ranges{{1, kElements - 1, 0.1}},
                                  .beta1 = kBeta1,
                                  .beta2 = kBeta2,
                                  .eps = kAdamWEps,
                                  .scalars = &scalars,
                                  .master = row(master),
                                  .exp_avg = row(exp_avg),
                                  .exp_avg_sq = row(exp_avg_sq),
                                  .shard = row(shard)});
    return shard;
  };
  const std::vector<double> expected = parameters_after(gradient.float64());
  EXPECT_EQ(parameters_after(gradient.bfloat16()), expected);
  EXPECT_EQ(parameters_after(gradient.float32()), expected);
}

void expect_refused(device::Device& device, Tensor gradient) {
  Norm norm;
  const Ranges ranges{{0, 4}};
  const Tensor maximum = tensor(&norm.maximum, 1, 1),
               sum = tensor(norm.sum.digits, 1, device::kSumOfSquaresNumbers);
  const auto expect_sentence = [&](const auto& call) {
    try {
      call();
      FAIL() << "accepted";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("gradient in float16"), std::string::npos) << text;
      EXPECT_NE(text.find("float32 or bfloat16"), std::string::npos) << text;
    }
  };
  expect_sentence([&] {
    device.run(
        device::op::SumSquares{.gradient = gradient, .ranges = ranges, .sum = sum, .maximum = maximum});
  });
  std::vector<double> state(4);  // refused as well, but later
  const Tensor other = tensor(state.data(), 1, 4);
  const device::UpdateScalars scalars;
  expect_sentence([&] {
    device.run(device::op::AdamW{.gradient = gradient,
                                 .ranges = ranges,
                                 .beta1 = kBeta1,
                                 .beta2 = kBeta2,
                                 .eps = kAdamWEps,
                                 .scalars = &scalars,
                                 .master = other,
                                 .exp_avg = other,
                                 .exp_avg_sq = other,
                                 .shard = other});
  });
}

TEST(NarrowGradient, Float16IsRefused) {
  std::vector<std::uint16_t> half(4);
  const Tensor gradient{half.data(), DType::float16, 1, 4};
  expect_refused(*device::make_cpu_device(2), gradient);
  expect_refused(*device::make_reference_device(), gradient);
}

}  // namespace
}  // namespace llampi::test
