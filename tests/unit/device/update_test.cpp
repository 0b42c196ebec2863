// SPDX-License-Identifier: Apache-2.0
// Gradient norm and AdamW.
#include <bit>
#include <cmath>
#include <limits>

#include <boost/multiprecision/cpp_int.hpp>

#include "device/cpu/cpu_device.hpp"
#include "support/adamw.hpp"

namespace llampi::test {
namespace {

/// What is left of the ranges of a gradient, as one rank would have it.
struct NormState {
  device::SumOfSquares sum{};
  std::int32_t maximum = 0;

  Tensor sum_tensor() { return tensor(sum.digits, 1, device::kSumOfSquaresNumbers); }
};

void add_squares(device::Device& device, Tensor gradient, const Ranges& ranges, NormState& state) {
  device.run(device::op::SumSquares{.gradient = gradient,
                                    .ranges = ranges,
                                    .sum = state.sum_tensor(),
                                    .maximum = tensor(&state.maximum, 1, 1)});
}

device::UpdateScalars finish(device::Device& device, NormState& state, double max_norm,
                             double loss_scale = 1) {
  device::UpdateScalars scalars;
  device.run(device::op::FinishNorm{
      .sum = state.sum_tensor(), .max_norm = max_norm, .loss_scale = &loss_scale, .scalars = &scalars});
  return scalars;
}

NormState state_of(device::Device& device, Tensor gradient, const Ranges& ranges) {
  NormState state;
  add_squares(device, gradient, ranges, state);
  return state;
}

double norm_over(device::Device& device, Tensor gradient, const Ranges& ranges) {
  NormState state = state_of(device, gradient, ranges);
  return finish(device, state, 0).grad_norm;
}

void expect_same(const NormState& a, const NormState& b) {
  EXPECT_EQ(a.maximum, b.maximum);
  expect_same_sum(a.sum, b.sum);
}

/// A fixed-point number that counts SumOfSquares's lowest digit's unit, by a library.
using BigInteger = boost::multiprecision::cpp_int;

BigInteger squares_of(const Values& values) {
  BigInteger sum = 0;
  for (const double v : values.data) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v)) & 0x7FFFFFFFU;
    const std::uint32_t exponent = bits >> 23, fraction = bits & 0x7FFFFFU;
    const std::uint64_t significand = exponent == 0 ? fraction : fraction | 0x800000U;
    const int unit = static_cast<int>(exponent == 0 ? 1 : exponent) - 150;
    sum += BigInteger(significand * significand) << (2 * unit - device::SumOfSquares::kLowest);
  }
  return sum;
}

BigInteger integer_of(const device::SumOfSquares& sum) {
  BigInteger value = 0;
  for (int j = 0; j < device::SumOfSquares::kDigits; ++j) value += BigInteger(sum.digits[j]) << (32 * j);
  return value;
}

double plain_norm(const Values& values) {
  long double sum = 0;
  for (const double v : values.data) sum += static_cast<long double>(v) * static_cast<long double>(v);
  return static_cast<double>(std::sqrt(sum));
}

constexpr std::int64_t kUpdatedElements = 10007;

TEST(GradientNorm, DoesNotDependOnSplitOrderThreadsOrKernels) {
  Values values = normal(1, kUpdatedElements, "gradient");
  for (std::size_t i = 0; i < values.data.size(); i += 3)
    values.data[i] = static_cast<double>(static_cast<float>(values.data[i] * 1e-6));
  const Ranges whole{{0, kUpdatedElements}};
  const Ranges split{{5000, kUpdatedElements}, {0, 1}, {1, 17}, {17, 5000}};
  const auto reference = device::make_reference_device();
  Session r(*reference, DType::float64);
  NormState expected = state_of(*reference, r.upload(values), whole);
  EXPECT_NEAR(finish(*reference, expected, 0).grad_norm, plain_norm(values), 1e-14 * plain_norm(values));
  expect_same(state_of(*reference, r.upload(values), split), expected);
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const int threads : {1, 2, 3}) {
      device::CpuDevice device(threads, *kernels);
      Session s(device, DType::float32);
      const Tensor gradient = s.upload(values);
      SCOPED_TRACE(kernels->name);
      expect_same(state_of(device, gradient, whole), expected);
      expect_same(state_of(device, gradient, split), expected);
    }
  }
}

TEST(GradientNorm, IsOfTheExactSum) {
  constexpr std::int64_t kMany = 3 * 1024 + 5;
  const auto reference = device::make_reference_device();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Values values = all_exponents(kMany, dtype);
    const BigInteger expected = squares_of(values);
    Session r(*reference, DType::float64);
    EXPECT_EQ(integer_of(state_of(*reference, r.upload(values), {{0, kMany}}).sum), expected);
    for (const device::Kernels* kernels : device::available_kernels()) {
      device::CpuDevice device(2, *kernels);
      Session s(device, DType::float32);
      const Tensor gradient = s.upload(values, dtype);
      EXPECT_EQ(integer_of(state_of(device, gradient, {{0, kMany}}).sum), expected) << kernels->name;
    }
  }
}

// As many ranks as there are may hold the largest numbers that there are.
TEST(GradientNorm, HasRoomForSumsOfManyRanks) {
  const auto device = device::make_cpu_device(1);
  Session s(*device, DType::float32);
  const double largest = static_cast<double>(std::numeric_limits<float>::max());
  NormState state = state_of(*device, s.upload({1, 1024, std::vector<double>(1024, largest)}), {{0, 1024}});
  for (int doubling = 0; doubling < 30; ++doubling) state.sum += device::SumOfSquares(state.sum);
  EXPECT_DOUBLE_EQ(finish(*device, state, 0).grad_norm, largest * 0x1p20);
}

// Two ranks with half of the elements each: their sums are added.
TEST(GradientNorm, DoesNotDependOnRanks) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  const Tensor gradient = s.upload(normal(1, kUpdatedElements, "gradient"));
  NormState first, second;
  const Ranges low{{0, 4321}}, high{{4321, kUpdatedElements}};
  add_squares(*device, gradient, low, first);
  add_squares(*device, gradient, high, second);
  first.sum += second.sum;
  EXPECT_EQ(finish(*device, first, 0).grad_norm, norm_over(*device, gradient, {{0, kUpdatedElements}}));
}

TEST(GradientNorm, OfHugeAndTinyMagnitudesIsExact) {
  const auto device = device::make_cpu_device(2);
  for (const float magnitude : {std::numeric_limits<float>::max(), 1e30F, 1.0F, 1e-30F, 1e-44F,
                                std::numeric_limits<float>::denorm_min()}) {
    Session s(*device, DType::float32);
    const Values values{1, 100, std::vector<double>(100, static_cast<double>(magnitude))};
    EXPECT_NEAR(norm_over(*device, s.upload(values), {{0, 100}}), 10 * static_cast<double>(magnitude),
                1e-14 * 10 * static_cast<double>(magnitude));
  }
  Session s(*device, DType::float32);
  EXPECT_EQ(norm_over(*device, s.upload({1, 100, std::vector<double>(100, 0.0)}), {{0, 100}}), 0);
  EXPECT_EQ(norm_over(*device, s.upload({1, 100, std::vector<double>(100, 5.0)}), {}), 0);
}

TEST(GradientNorm, LeavesPaddingOut) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  Values values = normal(1, 100, "gradient");
  values.data[40] = 1e20;
  Values real = values;
  real.data[40] = 0;
  EXPECT_EQ(norm_over(*device, s.upload(values), {{0, 40}, {41, 100}}),
            norm_over(*device, s.upload(real), {{0, 100}}));
}

TEST(GradientNorm, AboveTheLimitIsClipped) {
  const auto device = device::make_cpu_device(1);
  Session s(*device, DType::float32);
  const Tensor gradient = s.upload({1, 2, {3, 4}});
  NormState state;
  add_squares(*device, gradient, {{0, 2}}, state);
  EXPECT_DOUBLE_EQ(finish(*device, state, 0).grad_norm, 5);
  EXPECT_EQ(finish(*device, state, 0).clip_coefficient, 1);
  EXPECT_EQ(finish(*device, state, 6).clip_coefficient, 1);
  EXPECT_DOUBLE_EQ(finish(*device, state, 1).clip_coefficient, 1 / (5 + 1e-6));
}

// The norm is that of the gradient without its scale, and clipping takes the scale out.
TEST(GradientNorm, IsWithoutTheLossScale) {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const auto device =
        dtype == DType::float32 ? device::make_cpu_device(1) : device::make_reference_device();
    Session s(*device, dtype);
    NormState state = state_of(*device, s.upload({1, 2, {3 * 1024, 4 * 1024}}), {{0, 2}});
    EXPECT_DOUBLE_EQ(finish(*device, state, 0, 1024).grad_norm, 5);
    EXPECT_EQ(finish(*device, state, 0, 1024).clip_coefficient, 1.0 / 1024);
    EXPECT_EQ(finish(*device, state, 6, 1024).clip_coefficient, 1.0 / 1024);
    EXPECT_DOUBLE_EQ(finish(*device, state, 1, 1024).clip_coefficient, 1 / (5 + 1e-6) / 1024);
    EXPECT_DOUBLE_EQ(finish(*device, state, 1, 0.5).grad_norm, 5 * 2048);
    NormState broken = state_of(*device, s.upload({1, 2, {3, std::nan("")}}), {{0, 2}});
    EXPECT_TRUE(std::isnan(finish(*device, broken, 1, 1024).grad_norm));
    NormState overflow = state_of(*device, s.upload({1, 2, {3, -INFINITY}}), {{0, 2}});
    EXPECT_TRUE(std::isinf(finish(*device, overflow, 1, 1024).grad_norm));
  }
}

// The maximum that the reference finds for float64 is never below the largest magnitude.
TEST(GradientNorm, ReferenceRoundsTheMaximumUp) {
  const auto device = device::make_reference_device();
  for (double x : {1.0 + 1e-12, 0.1, -1.0 / 3, 1e-60}) {
    NormState state;
    add_squares(*device, tensor(&x, 1, 1), {{0, 1}}, state);
    EXPECT_GE(static_cast<double>(std::bit_cast<float>(state.maximum)), std::abs(x));
    EXPECT_LE(static_cast<double>(std::bit_cast<float>(state.maximum)),
              std::abs(x) * (1 + 2 * kEpsilon) + 2e-45);
  }
}

/// A shard of AdamW: master, moments and what is gathered.
struct Shard {
  Shard(Session& s, const Values& parameters)
      : master(s.upload(parameters)),
        exp_avg(zeros(s, parameters)),
        exp_avg_sq(zeros(s, parameters)),
        shard(s.output(1, parameters.cols)) {}
  static Tensor zeros(Session& s, const Values& like) {
    return s.upload({1, like.cols, std::vector<double>(like.data.size(), 0.0)});
  }
  void update(device::Device& device, Tensor gradient, const Ranges& ranges,
              const device::UpdateScalars& scalars) {
    device.run(device::op::AdamW{.gradient = gradient,
                                 .ranges = ranges,
                                 .beta1 = kBeta1,
                                 .beta2 = kBeta2,
                                 .eps = kAdamWEps,
                                 .scalars = &scalars,
                                 .master = master,
                                 .exp_avg = exp_avg,
                                 .exp_avg_sq = exp_avg_sq,
                                 .shard = shard});
  }
  Tensor master, exp_avg, exp_avg_sq, shard;
};

TEST(Gradients, NotFiniteMeansNoUpdate) {
  for (const double bad :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      const auto device =
          dtype == DType::float32 ? device::make_cpu_device(2) : device::make_reference_device();
      Session s(*device, dtype);
      Values values = normal(1, 5000, "gradient");
      values.data[4321] = bad;
      const Tensor gradient = s.upload(values);
      NormState state;
      add_squares(*device, gradient, {{0, 5000}}, state);
      const device::UpdateScalars scalars = finish(*device, state, 1);
      EXPECT_FALSE(std::isfinite(scalars.grad_norm));
      const Values parameters = normal(1, 5000, "parameters");
      Shard shard(s, parameters);
      device::UpdateScalars step = scalars_of_step(1, 1e-3);
      step.grad_norm = scalars.grad_norm;
      step.clip_coefficient = scalars.clip_coefficient;
      shard.update(*device, gradient, {{0, 5000, 0.1}}, step);
      EXPECT_TRUE(same_bits(s.download(shard.master), parameters));
      EXPECT_EQ(largest_magnitude(s.download(shard.exp_avg)), 0);
    }
  }
}

/// Every other gradient is so small that eps counts.
Values update_gradient(int step, std::int64_t n) {
  Values gradient = normal(1, n, fmt::format("gradient {}", step));
  for (std::size_t i = 0; i < gradient.data.size(); i += 2) {
    gradient.data[i] = static_cast<double>(static_cast<float>(gradient.data[i] * 1e-8));
  }
  return gradient;
}

/// Ten steps of the formula in float64, by hand.
Values adamw_by_hand(const Values& parameters, double weight_decay, double lr_factor) {
  Values result = parameters;
  for (std::size_t i = 0; i < result.data.size(); ++i) {
    double p = parameters.data[i], m = 0, v = 0;
    for (int step = 1; step <= 10; ++step) {
      const device::UpdateScalars scalars = scalars_of_step(step, 1e-3);
      const double g = scalars.clip_coefficient * update_gradient(step, parameters.cols).data[i];
      const double lr = scalars.learning_rate * lr_factor;
      p -= lr * weight_decay * p;
      m = kBeta1 * m + (1 - kBeta1) * g;
      v = kBeta2 * v + (1 - kBeta2) * g * g;
      p -= lr * (m / scalars.bias_correction1) / (std::sqrt(v / scalars.bias_correction2) + kAdamWEps);
    }
    result.data[i] = p;
  }
  return result;
}

TEST(AdamW, TenStepsAsTheFormulaSays) {
  const std::int64_t n = 100;
  const Values parameters = normal(1, n, "parameters");
  const Values decayed = adamw_by_hand(parameters, 0.1, 1), slow = adamw_by_hand(parameters, 0, 0.5);
  for (const DType dtype : {DType::float32, DType::float64}) {
    const auto device =
        dtype == DType::float32 ? device::make_cpu_device(2) : device::make_reference_device();
    Session s(*device, dtype);
    Shard shard(s, parameters);
    for (int step = 1; step <= 10; ++step) {
      const Tensor gradient = s.upload(update_gradient(step, n));
      shard.update(*device, gradient, {{0, 40, 0.1, 1}, {45, n, 0, 0.5}}, scalars_of_step(step, 1e-3));
    }
    const Values master = s.download(shard.master), gathered = s.download(shard.shard);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i >= 40 && i < 45) {  // padding is left alone
        EXPECT_EQ(master.data[at], parameters.data[at]);
        continue;
      }
      // Per step the parameter is rounded twice, relative to itself, and the update (of up to 3 lr) some ten
      // times.
      const double expected = (i < 40 ? decayed : slow).data[at];
      const double eps = dtype == DType::float32 ? kEpsilon : 0x1p-53;
      EXPECT_NEAR(master.data[at], expected, 10 * eps * (2 * std::abs(expected) + 10 * 3e-3)) << i;
      EXPECT_EQ(gathered.data[at], master.data[at]);
    }
  }
}

// An element's bits do not depend on where it stands in a range: else sharding would change them.
TEST(AdamW, PositionDoesNotMatter) {
  const std::int64_t n = 67;
  const Values parameters = normal(1, n, "parameters"), gradients = normal(1, n, "gradient");
  for (const device::Kernels* kernels : device::available_kernels()) {
    device::CpuDevice device(1, *kernels);
    Session s(device, DType::float32);
    Shard whole(s, parameters), split(s, parameters);
    const Tensor gradient = s.upload(gradients);
    for (int step = 1; step <= 3; ++step) {
      whole.update(device, gradient, {{0, n, 0.1}}, scalars_of_step(step, 1e-3));
      // Cuts that put elements into bodies and tails, at other alignments.
      const std::int64_t cut = 7 * step + 1;
      split.update(device, gradient, {{0, 1, 0.1}, {1, cut, 0.1}, {cut, n, 0.1}},
                   scalars_of_step(step, 1e-3));
    }
    EXPECT_TRUE(same_bits(s.download(whole.master), s.download(split.master))) << kernels->name;
    EXPECT_TRUE(same_bits(s.download(whole.exp_avg_sq), s.download(split.exp_avg_sq))) << kernels->name;
  }
}

// A power of two changes no bit of the gradient but its exponent.
TEST(AdamW, LossScaleLeavesNoTrace) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  const Values parameters = normal(1, 3000, "parameters"), gradients = normal(1, 3000, "gradient");
  Values scaled = gradients;
  for (double& g : scaled.data) g *= 65536;
  Shard plain(s, parameters), with_scale(s, parameters);
  const auto update = [&](Shard& shard, const Values& values, double scale) {
    const Tensor gradient = s.upload(values);
    NormState state = state_of(*device, gradient, {{0, 3000}});
    const device::UpdateScalars norm = finish(*device, state, 1, scale);
    device::UpdateScalars scalars = scalars_of_step(1, 1e-3);
    scalars.clip_coefficient = norm.clip_coefficient;
    shard.update(*device, gradient, {{0, 3000, 0.1}}, scalars);
    return norm.grad_norm;
  };
  EXPECT_EQ(update(plain, gradients, 1), update(with_scale, scaled, 65536));
  EXPECT_TRUE(same_bits(s.download(plain.master), s.download(with_scale.master)));
  EXPECT_TRUE(same_bits(s.download(plain.exp_avg_sq), s.download(with_scale.exp_avg_sq)));
}

TEST(AdamW, ShardMayBeTheMaster) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  const Values parameters = normal(1, 3000, "parameters");
  const Tensor gradient = s.upload(normal(1, 3000, "gradient"));
  Shard apart(s, parameters), same(s, parameters);
  same.shard = same.master;
  apart.update(*device, gradient, {{0, 3000, 0.1}}, scalars_of_step(1, 1e-3));
  same.update(*device, gradient, {{0, 3000, 0.1}}, scalars_of_step(1, 1e-3));
  EXPECT_TRUE(same_bits(s.download(apart.shard), s.download(same.shard)));
}

}  // namespace
}  // namespace llampi::test
