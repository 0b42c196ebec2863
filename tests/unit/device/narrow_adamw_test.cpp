// SPDX-License-Identifier: Apache-2.0
// AdamW with operands in 16 bits: the float32 update, and the roundings of its definition around it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_device.hpp"
#include "support/adamw.hpp"
#include "support/rounding.hpp"

namespace llampi::test {
namespace {

using Half = std::uint16_t;

std::vector<float> floats_of(const Values& values) { return {values.data.begin(), values.data.end()}; }

/// A vector in one of the dtypes, each element held as its float32 value when it is compared.
class Vector {
 public:
  Vector(DType dtype, const std::vector<float>& values) : dtype_(dtype), wide_(values), half_(values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  Tensor tensor() {
    void* data = dtype_ == DType::float32 ? static_cast<void*>(wide_.data()) : half_.data();
    return {data, dtype_, 1, static_cast<std::int64_t>(wide_.size())};
  }
  float operator[](std::size_t i) const {
    if (dtype_ == DType::float32) return wide_[i];
    return dtype_ == DType::bfloat16 ? from_bfloat16(half_[i]) : from_float16(half_[i]);
  }
  /// To nearest.
  void set(std::size_t i, float value) {
    wide_[i] = value;
    half_[i] = dtype_ == DType::float16 ? to_float16(value) : to_bfloat16(value);
  }
  /// As the optimizer keeps it.
  void keep(std::size_t i, float value, const device::RoundingKey& key, std::uint64_t element) {
    wide_[i] = value;
    half_[i] = round_bfloat16(value, key, element);
  }
  std::vector<float> floats() const {
    std::vector<float> result;
    for (std::size_t i = 0; i < wide_.size(); ++i) result.push_back((*this)[i]);
    return result;
  }
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> result;
    for (std::size_t i = 0; i < wide_.size(); ++i) result.push_back(std::bit_cast<std::uint32_t>((*this)[i]));
    return result;
  }

 private:
  DType dtype_;
  std::vector<float> wide_;
  std::vector<Half> half_;
};

struct State {
  State(const Types& types, const std::vector<float>& parameters)
      : master(types.master, parameters),
        exp_avg(types.exp_avg, std::vector<float>(parameters.size())),
        exp_avg_sq(types.exp_avg_sq, std::vector<float>(parameters.size())),
        shard(types.shard, std::vector<float>(parameters.size(), 77.0F)) {}
  void update(device::Device& device, Tensor gradient, const Ranges& ranges,
              const device::UpdateScalars& scalars) {
    device.run(device::op::AdamW{.gradient = gradient,
                                 .ranges = ranges,
                                 .beta1 = kBeta1,
                                 .beta2 = kBeta2,
                                 .eps = kAdamWEps,
                                 .scalars = &scalars,
                                 .master = master.tensor(),
                                 .exp_avg = exp_avg.tensor(),
                                 .exp_avg_sq = exp_avg_sq.tensor(),
                                 .shard = shard.tensor()});
  }
  void update(device::Device& device, std::vector<float> gradient, const Ranges& ranges,
              const device::UpdateScalars& scalars) {
    update(device, tensor(gradient.data(), 1, static_cast<std::int64_t>(gradient.size())), ranges, scalars);
  }
  bool operator==(const State& other) const {
    return master.bits() == other.master.bits() && exp_avg.bits() == other.exp_avg.bits() &&
           exp_avg_sq.bits() == other.exp_avg_sq.bits() && shard.bits() == other.shard.bits();
  }
  Vector master, exp_avg, exp_avg_sq, shard;
};

/// The definition: widen, update in float32, round.
void update_by_definition(device::Device& device, State& state, const std::vector<float>& gradient,
                          const Ranges& ranges, const device::UpdateScalars& scalars) {
  constexpr DType kWide = DType::float32;
  State wide({kWide, kWide, kWide, kWide}, state.master.floats());
  wide.exp_avg = Vector(kWide, state.exp_avg.floats());
  wide.exp_avg_sq = Vector(kWide, state.exp_avg_sq.floats());
  wide.update(device, gradient, ranges, scalars);
  for (const device::UpdateRange& range : ranges) {
    for (std::int64_t at = range.begin; at < range.end; ++at) {
      const auto i = static_cast<std::size_t>(at);
      const auto element = static_cast<std::uint64_t>(range.first_element + at - range.begin);
      const auto key = [&](std::uint32_t operand) {
        return device::RoundingKey{range.rounding_key, static_cast<std::uint32_t>(scalars.step), operand, 0};
      };
      state.master.keep(i, wide.master[i], key(0), element);
      state.exp_avg.keep(i, wide.exp_avg[i], key(1), element);
      state.exp_avg_sq.keep(i, wide.exp_avg_sq[i], key(2), element);
      state.shard.set(i, state.master[i]);
    }
  }
}

std::vector<float> gradient_of_step(int step, std::int64_t n) {
  return floats_of(normal(1, n, fmt::format("gradient {}", step)));
}

TEST(NarrowAdamW, EqualsItsDefinitionBitByBit) {
  constexpr std::int64_t kElements = 4003;
  const std::vector<float> parameters = floats_of(normal(1, kElements, "parameters"));
  const Ranges ranges = two_parameters(kElements);
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const Types& types : all_types()) {
      SCOPED_TRACE(fmt::format("{}: {}", kernels->name, describe(types)));
      State expected(types, parameters), one = expected, three = expected;
      device::CpuDevice one_thread(1, *kernels), three_threads(3, *kernels);
      for (int step = 1; step <= 3; ++step) {
        const std::vector<float> gradient = gradient_of_step(step, kElements);
        update_by_definition(one_thread, expected, gradient, ranges, scalars_of_step(step));
        one.update(one_thread, gradient, ranges, scalars_of_step(step));
        three.update(three_threads, gradient, ranges, scalars_of_step(step));
      }
      EXPECT_TRUE(one == expected);
      EXPECT_TRUE(three == expected);
      EXPECT_EQ(one.shard[1402], 77.0F);  // the hole
    }
  }
}

// However a parameter is cut over ranges and shards, its elements have the same bits.
TEST(NarrowAdamW, PositionDoesNotMatter) {
  constexpr std::int64_t kElements = 2500, kShift = 3;
  const Types types{DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::float16};
  const std::vector<float> parameters = floats_of(normal(1, kElements, "parameters"));
  std::vector<float> moved(kShift, 0.0F);
  moved.insert(moved.end(), parameters.begin(), parameters.end());
  for (const device::Kernels* kernels : device::available_kernels()) {
    device::CpuDevice device(2, *kernels);
    State whole(types, parameters), cut(types, parameters), shifted(types, moved);
    for (int step = 1; step <= 3; ++step) {
      const std::vector<float> gradient = gradient_of_step(step, kElements);
      whole.update(device, gradient, {{0, kElements, 0.1, 1, 9, 0}}, scalars_of_step(step));
      Ranges pieces;
      for (std::int64_t begin = 0, length = 1; begin < kElements; begin += length, length = 2 * length + 1) {
        length = std::min(length, kElements - begin);
        pieces.push_back({begin, begin + length, 0.1, 1, 9, begin});
      }
      cut.update(device, gradient, pieces, scalars_of_step(step));
      std::vector<float> moved_gradient(kShift, 0.0F);
      moved_gradient.insert(moved_gradient.end(), gradient.begin(), gradient.end());
      shifted.update(device, moved_gradient, {{kShift, kShift + kElements, 0.1, 1, 9, 0}},
                     scalars_of_step(step));
    }
    EXPECT_TRUE(whole == cut) << kernels->name;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      ASSERT_EQ(whole.master[i], shifted.master[i + kShift]) << kernels->name << i;
      ASSERT_EQ(whole.exp_avg_sq[i], shifted.exp_avg_sq[i + kShift]) << kernels->name << i;
    }
  }
}

TEST(NarrowAdamW, GradientInBfloat16CountsAsWidened) {
  constexpr std::int64_t kElements = 4003;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> parameters = floats_of(normal(1, kElements, "parameters"));
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const int threads : {1, 2, 3}) {
      device::CpuDevice device(threads, *kernels);
      for (const Types& types : all_types()) {
        SCOPED_TRACE(fmt::format("{}, {} threads: {}", kernels->name, threads, describe(types)));
        State expected(types, parameters), actual = expected;
        for (int step = 1; step <= 2; ++step) {
          Vector gradient(DType::bfloat16, gradient_of_step(step, kElements));
          if (step == 2) {  // as if the norm had been finite: what arrives at the kernel is the same
            gradient.set(17, std::nanf(""));
            gradient.set(1500, kInfinity);
            gradient.set(kElements - 1, -kInfinity);
          }
          expected.update(device, gradient.floats(), two_parameters(kElements), scalars_of_step(step));
          actual.update(device, gradient.tensor(), two_parameters(kElements), scalars_of_step(step));
        }
        EXPECT_TRUE(actual == expected);
        EXPECT_TRUE(std::isnan(actual.master[17]));
        EXPECT_TRUE(std::isfinite(actual.master[18]));
        EXPECT_EQ(actual.shard[1402], 77.0F);  // the hole
      }
    }
  }
}

TEST(NarrowAdamW, ShardMayBeTheMaster) {
  constexpr std::int64_t kElements = 3000;
  const Types types{DType::bfloat16, DType::float32, DType::float32, DType::bfloat16};
  const auto device = device::make_cpu_device(2);
  State apart(types, floats_of(normal(1, kElements, "parameters"))), same = apart;
  std::vector<float> gradient = gradient_of_step(1, kElements);
  const Ranges ranges{{0, kElements, 0.1, 1, 5, 11}};
  const device::UpdateScalars scalars = scalars_of_step(1);
  apart.update(*device, gradient, ranges, scalars);
  device->run(device::op::AdamW{.gradient = tensor(gradient.data(), 1, kElements),
                                .ranges = ranges,
                                .beta1 = kBeta1,
                                .beta2 = kBeta2,
                                .eps = kAdamWEps,
                                .scalars = &scalars,
                                .master = same.master.tensor(),
                                .exp_avg = same.exp_avg.tensor(),
                                .exp_avg_sq = same.exp_avg_sq.tensor(),
                                .shard = same.master.tensor()});
  EXPECT_EQ(apart.shard.floats(), same.master.floats());
}

// Steps far below the distance of neighbours: rounded to nearest, nothing would ever move.
TEST(NarrowAdamW, SmallStepsAddUp) {
  constexpr std::int64_t kElements = 4096;
  constexpr int kSteps = 20;
  const auto device = device::make_cpu_device(2);
  State state({DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::bfloat16},
              std::vector<float>(kElements, 1.0F));
  for (int step = 1; step <= kSteps; ++step) {
    device::UpdateScalars scalars = scalars_of_step(step);
    scalars.learning_rate = 1e-4;
    state.update(*device, std::vector<float>(kElements, 1.0F), {{0, kElements, 0, 1, 3, 0}}, scalars);
  }
  double mean = 0;
  for (const float v : state.master.floats()) mean += static_cast<double>(v) / kElements;
  // With a constant gradient each step is the learning rate: 1 - 20 * 1e-4 = 0.998. A rounding between
  // neighbours 2^-8 apart has a standard deviation of 2^-9 at most: sqrt(20 / 4096) 2^-9 = 1.4e-4 for the
  // mean. The moments' noise, 2^-8 of themselves and kept over some 20 steps, is small beside it.
  EXPECT_NEAR(mean, 0.998, 5 * 1.4e-4);
}

TEST(NarrowAdamW, NotFiniteMeansNoUpdate) {
  constexpr std::int64_t kElements = 100;
  const auto device = device::make_cpu_device(1);
  State state({DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::bfloat16},
              floats_of(normal(1, kElements, "parameters")));
  const State before = state;
  device::UpdateScalars scalars = scalars_of_step(1);
  scalars.grad_norm = std::nan("");
  state.update(*device, gradient_of_step(1, kElements), {{0, kElements, 0.1, 1, 5, 0}}, scalars);
  EXPECT_TRUE(state == before);
}

TEST(NarrowAdamW, RefusesOtherTypes) {
  constexpr DType kBrain = DType::bfloat16, kShort = DType::float16;
  const auto device = device::make_cpu_device(1);
  const auto refuses = [&](const Types& types, DType gradient) {
    State state(types, std::vector<float>(8));
    Vector g(gradient, std::vector<float>(8));
    EXPECT_THROW(state.update(*device, g.tensor(), {{0, 8}}, scalars_of_step(1)), Error) << describe(types);
  };
  refuses({kShort, kBrain, kBrain, kBrain}, DType::float32);
  refuses({kBrain, kShort, kBrain, kBrain}, DType::float32);
  refuses({kBrain, kBrain, kShort, kBrain}, DType::float32);
  refuses({kBrain, kBrain, kBrain, kBrain}, kShort);
  refuses({kBrain, kBrain, kBrain, kBrain}, DType::float64);
}

}  // namespace
}  // namespace llampi::test
