// SPDX-License-Identifier: Apache-2.0
// The norm of the gradient and AdamW on the GPU. Both are defined to the last bit: the norm by sums of
// integers, the update by the CPU device's order of roundings, which its own tests compare with the formula.
#include <cmath>
#include <limits>

#include "gpu/gpu_fixture.hpp"
#include "support/adamw.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kElements = 40007;  ///< more than the blocks of a launch take at once
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GpuUpdate : public GpuTest {};

// ---- the norm ----

/// What is left of a gradient in device memory.
struct Norm {
  device::SumOfSquares sum{};
  std::int32_t maximum = 0;
  device::UpdateScalars scalars;
};

/// The ranges of `rest` come in a second call.
Norm norm_of(Session& s, Tensor gradient, const Ranges& ranges, const Ranges& rest = {}, double max_norm = 0,
             double loss_scale = 1) {
  Norm norm;
  const Tensor maximum = s.integers({0});
  const Tensor sum = s.raw(norm.sum.digits, 1, device::kSumOfSquaresNumbers, DType::int64);
  const OnDevice<double> scale(s, loss_scale);
  const OnDevice<device::UpdateScalars> scalars(s, {});
  for (const Ranges& some : {ranges, rest})
    s.device().run(
        device::op::SumSquares{.gradient = gradient, .ranges = some, .sum = sum, .maximum = maximum});
  s.device().run(device::op::FinishNorm{
      .sum = sum, .max_norm = max_norm, .loss_scale = scale.get(), .scalars = scalars.get()});
  s.download(maximum, &norm.maximum);
  s.download(sum, &norm.sum);
  norm.scalars = scalars.read();
  return norm;
}

void expect_same(const Norm& actual, const Norm& expected) {
  EXPECT_EQ(actual.maximum, expected.maximum);
  expect_same_sum(actual.sum, expected.sum);
  if (std::isnan(expected.scalars.grad_norm)) {
    EXPECT_TRUE(std::isnan(actual.scalars.grad_norm));
  } else {
    EXPECT_DOUBLE_EQ(actual.scalars.grad_norm, expected.scalars.grad_norm);
    EXPECT_DOUBLE_EQ(actual.scalars.clip_coefficient, expected.scalars.clip_coefficient);
  }
}

/// Normal ones, small and subnormal ones, zeros of both signs.
Values many_magnitudes() {
  Values values = normal(1, kElements, "gradient");
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    if (i % 3 == 0) values.data[i] *= 1e-6;
    if (i % 101 == 0) values.data[i] *= 1e-39;
    if (i % 103 == 0) values.data[i] *= 0;
  }
  return rounded(values, DType::float32);
}

/// `count` ranges one behind the other, with holes and of lengths that differ, all over [0, kElements).
Ranges many_ranges(std::int64_t count) {
  Ranges ranges;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * kElements / count, end = (i + 1) * kElements / count;
    ranges.push_back({begin + i % 3, end - i % 2});
  }
  return ranges;
}

TEST_F(GpuUpdate, NormIsTheReferencesToTheLastBit) {
  const std::vector<Ranges> cases = {{},
                                     {{0, kElements}},
                                     {{0, 1}},
                                     {{kElements - 1, kElements}},
                                     {{3, 3}, {5, 6}},
                                     {{1, 1026}, {1027, 4003}, {4004, 4021}, {5001, kElements - 2}},
                                     {{2047, 18431}},
                                     many_ranges(200)};
  const auto reference = device::make_reference_device();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      Session r(*reference, DType::float64, Weights::trained, dtype);
      const Norm expected = norm_of(r, r.upload(many_magnitudes()), cases[i], {}, 1, 1024);
      for (const WorkOrder& order : compared_orders()) {
        SCOPED_TRACE(fmt::format("{}, case {}, {}, seed {}", to_string(dtype), i, order.name, kSeed));
        order.set();
        Session s(device(), dtype);
        const Tensor gradient = s.upload(many_magnitudes());
        expect_same(norm_of(s, gradient, cases[i], {}, 1, 1024), expected);
        expect_same(norm_of(s, gradient, {}, cases[i], 1, 1024), expected);
      }
    }
  }
}

/// Blocks that rise or fall by up to 2^60 within, rows of zeros, all exponents there are, and what is mostly not far from the largest,
/// as gradients are.
std::vector<std::pair<std::string, Values>> many_distributions(DType dtype) {
  const Values usual = normal(1, kElements, "gradient");
  Values rising = usual, falling = usual, rows = usual, seldom = usual;
  for (std::size_t i = 0; i < usual.data.size(); ++i) {
    const double place = static_cast<double>(i % 8192) / 8192;
    rising.data[i] *= std::exp2(60 * place - 80);
    falling.data[i] *= std::exp2(-60 * place);
    if (i / 4096 % 3 != 1) rows.data[i] = 0;
    if (i % 1000 == 77) seldom.data[i] *= 1e-15;
    if (i % 1000 == 777) seldom.data[i] *= 1e15;
  }
  return {{"usual", rounded(usual, dtype)},
          {"rising", rounded(rising, dtype)},
          {"falling", rounded(falling, dtype)},
          {"rows", rounded(rows, dtype)},
          {"seldom", rounded(seldom, dtype)},
          {"all exponents", all_exponents(kElements, dtype)},
          {"largest",
           {1, kElements,
            std::vector<double>(kElements, dtype == DType::bfloat16 ? 0x1.FEp127 : 0x1.FFFFFEp127)}}};
}

TEST_F(GpuUpdate, NormIsExactForAllDistributions) {
  const auto reference = device::make_reference_device();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const auto& [name, values] : many_distributions(dtype)) {
      SCOPED_TRACE(fmt::format("{}, {}, seed {}", to_string(dtype), name, kSeed));
      Session r(*reference, DType::float64, Weights::trained, dtype), s(device(), dtype);
      const Ranges ranges{{0, 30001}, {30003, kElements}};
      expect_same(norm_of(s, s.upload(values), ranges), norm_of(r, r.upload(values), ranges));
    }
  }
}

TEST_F(GpuUpdate, NormOfSeveralCallsIsThatOfOne) {
  Session s(device(), DType::float32);
  const Tensor gradient = s.upload(many_magnitudes());
  expect_same(norm_of(s, gradient, {{20001, kElements}}, {{0, 20001}}),
              norm_of(s, gradient, {{0, kElements}}));
}

// The start of a gradient may be any element of a buffer.
TEST_F(GpuUpdate, NormDoesNotDependOnAlignment) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Session s(device(), dtype);
    const Tensor whole = s.upload(many_magnitudes());
    for (std::int64_t shift = 1; shift < 9; ++shift) {
      expect_same(norm_of(s, whole.slice(shift, kElements), {{0, kElements - shift}}),
                  norm_of(s, whole, {{shift, kElements}}));
    }
  }
}

TEST_F(GpuUpdate, NormOfHugeAndTinyNumbers) {
  const auto reference = device::make_reference_device();
  for (const double value : {3e38, 1e30, 1.0, 1e-30, 1e-44, 0x1p-149, 0.0}) {
    SCOPED_TRACE(value);
    const Values values{1, 300, std::vector<double>(300, value)};
    Session r(*reference, DType::float64, Weights::trained, DType::float32), s(device(), DType::float32);
    expect_same(norm_of(s, s.upload(values), {{0, 300}}, {}, 1),
                norm_of(r, r.upload(values), {{0, 300}}, {}, 1));
  }
}

TEST_F(GpuUpdate, NormOfWhatIsNotFinite) {
  const double nan = std::nan("");
  const std::vector<std::pair<double, double>> pairs = {
      {kInfinity, kInfinity}, {-kInfinity, kInfinity}, {nan, nan}, {kInfinity, nan}};
  const auto reference = device::make_reference_device();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const auto& [first, second] : pairs) {
      for (const bool all : {false, true}) {
        SCOPED_TRACE(fmt::format("{} and {}, {}, {}", first, second, all ? "all" : "two", to_string(dtype)));
        Values values = normal(1, kElements, "gradient");
        for (std::size_t i = 0; all && i < values.data.size(); ++i)
          values.data[i] = i % 2 == 0 ? first : second;
        values.data[131] = first;
        values.data[20000] = second;
        Session r(*reference, DType::float64, Weights::trained, dtype), s(device(), dtype);
        const Norm actual = norm_of(s, s.upload(values), {{0, kElements}}, {}, 1);
        const Norm expected = norm_of(r, r.upload(values), {{0, kElements}}, {}, 1);
        expect_same_sum(actual.sum, expected.sum);
        EXPECT_EQ(actual.maximum, expected.maximum);
        EXPECT_EQ(std::isnan(actual.scalars.grad_norm), std::isnan(expected.scalars.grad_norm));
        EXPECT_FALSE(std::isfinite(actual.scalars.grad_norm));
        if (all) continue;
        const Ranges others{{0, 131}, {132, 20000}, {20001, kElements}};
        expect_same(norm_of(s, s.upload(values), others), norm_of(r, r.upload(values), others));
      }
    }
  }
}

TEST_F(GpuUpdate, ClipCoefficientAndLossScale) {
  Session s(device(), DType::float32);
  const auto of = [&](double max_norm, double loss_scale) {
    return norm_of(s, s.upload({1, 2, {3 * loss_scale, 4 * loss_scale}}), {{0, 2}}, {}, max_norm, loss_scale)
        .scalars;
  };
  for (const double scale : {1.0, 1024.0, 0.5}) {
    EXPECT_DOUBLE_EQ(of(0, scale).grad_norm, 5);
    EXPECT_EQ(of(0, scale).clip_coefficient, 1 / scale);
    EXPECT_EQ(of(6, scale).clip_coefficient, 1 / scale);
    EXPECT_DOUBLE_EQ(of(1, scale).clip_coefficient, 1 / (5 + 1e-6) / scale);
  }
}

// ---- AdamW ----

Values zeros(std::int64_t n) { return {1, n, std::vector<double>(static_cast<std::size_t>(n), 0.0)}; }

/// What AdamW keeps of parameters, in device memory.
struct State {
  State(Session& session, const Types& types, const Values& parameters)
      : s(session),
        master(s.upload(parameters, types.master)),
        exp_avg(s.upload(zeros(parameters.cols), types.exp_avg)),
        exp_avg_sq(s.upload(zeros(parameters.cols), types.exp_avg_sq)),
        shard(s.output(1, parameters.cols, types.shard)) {}

  void update(Tensor gradient, const Ranges& ranges, const device::UpdateScalars& values) {
    const OnDevice<device::UpdateScalars> scalars(s, values);
    s.device().run(device::op::AdamW{.gradient = gradient,
                                     .ranges = ranges,
                                     .beta1 = kBeta1,
                                     .beta2 = kBeta2,
                                     .eps = kAdamWEps,
                                     .scalars = scalars.get(),
                                     .master = master,
                                     .exp_avg = exp_avg,
                                     .exp_avg_sq = exp_avg_sq,
                                     .shard = shard});
  }
  std::vector<Values> download() const {
    return {s.download(master), s.download(exp_avg), s.download(exp_avg_sq), s.download(shard)};
  }

  Session& s;
  Tensor master, exp_avg, exp_avg_sq, shard;
};

Values gradient_of_step(int step, std::int64_t n) { return normal(1, n, fmt::format("gradient {}", step)); }

void expect_same_numbers(const std::vector<Values>& actual, const std::vector<Values>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t part = 0; part < actual.size(); ++part) {
    ASSERT_EQ(actual[part].data.size(), expected[part].data.size());
    for (std::size_t i = 0; i < actual[part].data.size(); ++i) {
      const double a = actual[part].data[i], e = expected[part].data[i];
      ASSERT_TRUE(a == e || (std::isnan(a) && std::isnan(e)))
          << a << " not " << e << ", operand " << part << ", " << i;
    }
  }
}

std::vector<Values> three_steps(device::Device& device, const Types& types, DType gradients, std::int64_t n) {
  Session s(device, DType::float32);
  State state(s, types, normal(1, n, "parameters"));
  for (int step = 1; step <= 3; ++step) {
    Values gradient = gradient_of_step(step, n);
    if (step == 3) {  // as if the norm had been finite: what arrives at the kernel is the same
      gradient.data[17] = std::nan("");
      gradient.data[1500] = kInfinity;
    }
    state.update(s.upload(gradient, gradients), two_parameters(n), scalars_of_step(step));
  }
  return state.download();
}

TEST_F(GpuUpdate, AdamWIsTheCpusToTheLastBit) {
  const auto cpu = device::make_cpu_device(1);
  for (const Types& types : all_types()) {
    for (const DType gradients : {DType::float32, DType::bfloat16}) {
      const std::vector<Values> expected = three_steps(*cpu, types, gradients, 3003);
      EXPECT_TRUE(std::isnan(expected[3].data[1402]));  // the hole
      for (const WorkOrder& order : compared_orders()) {
        SCOPED_TRACE(fmt::format("{}, gradient {}, {}", describe(types), to_string(gradients), order.name));
        order.set();
        expect_same_numbers(three_steps(device(), types, gradients, 3003), expected);
      }
    }
  }
  const Types narrow{DType::bfloat16, DType::bfloat16, DType::bfloat16, DType::float16};
  expect_same_numbers(three_steps(device(), narrow, DType::float32, kElements),
                      three_steps(*cpu, narrow, DType::float32, kElements));
}

// However a parameter is cut over ranges and shards, and wherever it begins, its elements have the same bits.
TEST_F(GpuUpdate, PositionDoesNotMatter) {
  constexpr std::int64_t kCut = 2500;
  for (const DType kept : {DType::float32, DType::bfloat16}) {
    Session s(device(), DType::float32);
    const Types types{kept, kept, kept, DType::bfloat16};
    const Values parameters = normal(1, kCut, "parameters");
    State whole(s, types, parameters), pieces(s, types, parameters);
    for (int step = 1; step <= 3; ++step) {
      const Tensor gradient = s.upload(gradient_of_step(step, kCut));
      whole.update(gradient, {{0, kCut, 0.1, 1, 9, 77}}, scalars_of_step(step));
      Ranges ranges;
      for (std::int64_t begin = 0, length = 1; begin < kCut; begin += length, length = length % 40 + step)
        ranges.push_back({begin, std::min(begin + length, kCut), 0.1, 1, 9, 77 + begin});
      pieces.update(gradient, ranges, scalars_of_step(step));
    }
    expect_same_numbers(pieces.download(), whole.download());
    for (std::int64_t shift = 1; shift < 9; ++shift) {
      Values moved = zeros(shift), moved_gradient = zeros(shift);
      moved.cols = moved_gradient.cols = kCut + shift;
      const Values gradient = gradient_of_step(1, kCut);
      moved.data.insert(moved.data.end(), parameters.data.begin(), parameters.data.end());
      moved_gradient.data.insert(moved_gradient.data.end(), gradient.data.begin(), gradient.data.end());
      State shifted(s, types, moved), straight(s, types, parameters);
      for (Tensor* part : {&shifted.master, &shifted.exp_avg, &shifted.exp_avg_sq, &shifted.shard})
        *part = part->slice(shift, kCut + shift);
      shifted.update(s.upload(moved_gradient).slice(shift, kCut + shift), {{0, kCut, 0.1, 1, 9, 77}},
                     scalars_of_step(1));
      straight.update(s.upload(gradient), {{0, kCut, 0.1, 1, 9, 77}}, scalars_of_step(1));
      expect_same_numbers(shifted.download(), straight.download());
    }
  }
}

TEST_F(GpuUpdate, ShardMayBeTheMaster) {
  for (const DType kept : {DType::float32, DType::bfloat16}) {
    Session s(device(), DType::float32);
    const Types types{kept, DType::float32, DType::float32, kept};
    State apart(s, types, normal(1, 3000, "parameters")), same(s, types, normal(1, 3000, "parameters"));
    same.shard = same.master;
    const Tensor gradient = s.upload(gradient_of_step(1, 3000));
    for (State* state : {&apart, &same})
      state->update(gradient, {{0, 3000, 0.1, 1, 5, 11}}, scalars_of_step(1));
    EXPECT_TRUE(same_bits(s.download(apart.shard), s.download(same.shard)));
  }
}

TEST_F(GpuUpdate, NotFiniteMeansNoUpdate) {
  for (const double norm : {std::nan(""), kInfinity}) {
    for (const DType kept : {DType::float32, DType::bfloat16}) {
      Session s(device(), DType::float32);
      State state(s, {kept, kept, kept, DType::float16}, normal(1, 100, "parameters"));
      const std::vector<Values> before = state.download();
      device::UpdateScalars scalars = scalars_of_step(1);
      scalars.grad_norm = norm;
      state.update(s.upload(gradient_of_step(1, 100)), {{0, 100, 0.1}}, scalars);
      expect_same_numbers(state.download(), before);
    }
  }
}

TEST_F(GpuUpdate, RefusesOtherTypes) {
  constexpr DType kBrain = DType::bfloat16, kShort = DType::float16;
  Session s(device(), DType::float32);
  const auto refuses = [&](const Types& types, DType gradient) {
    State state(s, types, zeros(8));
    EXPECT_THROW(state.update(s.upload(zeros(8), gradient), {{0, 8}}, scalars_of_step(1)), Error)
        << describe(types);
  };
  refuses({kShort, kBrain, kBrain, kBrain}, DType::float32);
  refuses({kBrain, kShort, kBrain, kBrain}, DType::float32);
  refuses({kBrain, kBrain, kShort, kBrain}, DType::float32);
  refuses({kBrain, kBrain, kBrain, kBrain}, kShort);
  refuses({kBrain, kBrain, kBrain, kBrain}, DType::float64);
  EXPECT_THROW(norm_of(s, s.upload(zeros(8), kShort), {{0, 8}}), Error);
  EXPECT_THROW(norm_of(s, s.upload(zeros(8)), {{0, 9}}), Error);
}

}  // namespace
}  // namespace llampi::test
