// SPDX-License-Identifier: Apache-2.0
// What the tests of AdamW have in common, on CPUs and GPUs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "llampi/device/sum_of_squares.hpp"
#include "support/device_session.hpp"

namespace llampi::test {

using Ranges = std::vector<device::UpdateRange>;

inline constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kAdamWEps = 1e-8;

/// However their digits have been added. Of sums that are not finite only what they are.
inline void expect_same_sum(const device::SumOfSquares& a, const device::SumOfSquares& b) {
  EXPECT_EQ(a.nans > 0, b.nans > 0);
  if (a.nans == 0) {
    EXPECT_EQ(a.infinities > 0, b.infinities > 0);
  }
  if (a.nans > 0 || a.infinities > 0) return;
  const device::SumOfSquares of_a = with_carries(a), of_b = with_carries(b);
  for (int j = 0; j < device::SumOfSquares::kDigits; ++j)
    EXPECT_EQ(of_a.digits[j], of_b.digits[j]) << "digit " << j;
}

/// Random bits of finite numbers: each exponent as often as another.
inline Values all_exponents(std::int64_t n, DType dtype) {
  const std::uint32_t kept_bits = dtype == DType::bfloat16 ? 0xFFFF0000U : 0xFFFFFFFFU;
  std::mt19937 random(static_cast<std::uint32_t>(kSeed));
  Values values{1, n, {}};
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(random()) & kept_bits;
    if (!std::isfinite(std::bit_cast<float>(bits))) bits &= 0x3FFFFFFFU;
    values.data.push_back(static_cast<double>(std::bit_cast<float>(bits)));
  }
  return values;
}

/// Dtypes of what AdamW keeps.
struct Types {
  DType master, exp_avg, exp_avg_sq, shard;
};

inline std::vector<Types> all_types() {
  std::vector<Types> result;
  const DType kept[] = {DType::float32, DType::bfloat16};
  for (const DType master : kept) {
    for (const DType exp_avg : kept) {
      for (const DType exp_avg_sq : kept) {
        for (const DType shard : {DType::float32, DType::bfloat16, DType::float16})
          result.push_back({master, exp_avg, exp_avg_sq, shard});
      }
    }
  }
  return result;
}

inline std::string describe(const Types& t) {
  return fmt::format("master {}, exp_avg {}, exp_avg_sq {}, shard {}, seed {}", to_string(t.master),
                     to_string(t.exp_avg), to_string(t.exp_avg_sq), to_string(t.shard), kSeed);
}

/// A step that clips.
inline device::UpdateScalars scalars_of_step(int step, double learning_rate = 1e-2) {
  return {.step = static_cast<double>(step),
          .learning_rate = learning_rate,
          .bias_correction1 = 1 - std::pow(kBeta1, step),
          .bias_correction2 = 1 - std::pow(kBeta2, step),
          .clip_coefficient = 0.75,
          .grad_norm = 1};
}

/// Two parameters with a hole between them; the second one's part begins within the parameter, beyond 2^32.
inline Ranges two_parameters(std::int64_t n) {
  return {{0, 1400, 0.1, 1, 0xABCDEF0123456789, 0}, {1405, n, 0, 0.5, 42, (std::int64_t{1} << 36) + 13}};
}

}  // namespace llampi::test
