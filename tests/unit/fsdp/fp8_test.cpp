// SPDX-License-Identifier: Apache-2.0
// Weights in 8 bits: what the list does for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "fsdp/fp8_weights.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "unit/fsdp/lists.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

class Fp8Lists : public ::testing::TestWithParam<ListCase> {
 protected:
  Lists lists_ = make_placed_lists(GetParam());
};

std::vector<ListCase> fp8_cases() {
  std::vector<ListCase> cases;
  std::ranges::copy_if(list_cases(), std::back_inserter(cases),
                       [](const auto& options) { return options.fp8; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Every, Fp8Lists, ::testing::ValuesIn(fp8_cases()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST_P(Fp8Lists, ScalesAreAgreedBeforeCastsAndCastsBeforeGathers) {
  for (const Program* program : {&lists_.step, &lists_.evaluation}) {
    std::vector<Op> first = {Op::fp8_maxima, Op::fp8_scales};
    if (GetParam().shard_count() > 1) first.insert(first.begin() + 1, Op::all_reduce_maxima);
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(program->actions[i].op, first[i]);
      EXPECT_EQ(program->actions[i].ranks,
                first[i] == Op::all_reduce_maxima ? Ranks::shard_group : Ranks::self);
    }
    std::vector<int> cast_at(lists_.units.size(), -1);
    const HappensBefore happens_before(program->actions);
    for (int i = 0; i < program->size(); ++i) {
      const Action& action = program->actions[static_cast<std::size_t>(i)];
      const auto unit = static_cast<std::size_t>(std::max(action.unit, 0));
      if (action.op == Op::fp8_cast) {
        EXPECT_TRUE(lists_.units[unit].fp8);
        EXPECT_EQ(cast_at[unit], -1) << "once a step";
        cast_at[unit] = i;
      }
      if (action.op == Op::unshard && lists_.units[unit].fp8) {
        ASSERT_GE(cast_at[unit], 0);
        EXPECT_TRUE(happens_before(cast_at[unit], i));
      }
    }
    for (std::size_t u = 0; u < lists_.units.size(); ++u)
      EXPECT_EQ(cast_at[u] >= 0, lists_.units[u].fp8) << u;
  }
}

TEST_P(Fp8Lists, AGatherWaitsForTheCastsOfNoLaterUnit) {
  for (const Program* program : {&lists_.step, &lists_.evaluation}) {
    std::size_t casts = 0;
    std::set<int> gathered;
    for (const Action& action : program->actions) {
      if (action.op == Op::fp8_cast) ++casts;
      if (action.op != Op::unshard || !lists_.units[static_cast<std::size_t>(action.unit)].fp8) continue;
      gathered.insert(action.unit);
      EXPECT_EQ(casts, gathered.size());
    }
  }
}

TEST_P(Fp8Lists, WeightsAreGatheredInOneByteEach) {
  for (const Action& action : lists_.step.actions) {
    if (action.op != Op::unshard) continue;
    const Unit& unit = lists_.units[static_cast<std::size_t>(action.unit)];
    const DType dtype = unit.fp8 ? DType::float8_e4m3fn : GetParam().precision().param;
    EXPECT_EQ(action.bytes, unit.flat_elements() * size_of(dtype)) << unit.name;
  }
}

TEST_P(Fp8Lists, TheMatricesOfBlocksAreReadIn8BitsAndNothingElse) {
  for (std::size_t p = 0; p < lists_.model->parameters().size(); ++p) {
    const auto& parameter = lists_.model->parameters()[p];
    const bool matrix_of_block =
        parameter.shape.size() == 2 && parameter.name.find(".layers.") != std::string::npos;
    EXPECT_EQ(lists_.units[static_cast<std::size_t>(lists_.unit_of[p])].fp8, matrix_of_block)
        << parameter.name;
  }
}

TEST_P(Fp8Lists, ABackwardReadsTransposesThatWereMadeOfTheWeightsOfItsLayer) {
  const auto& list = lists_.step;
  std::map<BufferId, Part> made_of;  // transposes: where the weight lies
  std::map<BufferId, int> made_by;
  int backwards = 0;
  for (int i = 0; i < list.size(); ++i) {
    const Action& action = list.actions[static_cast<std::size_t>(i)];
    if (action.op == Op::transpose) {
      const auto half = action.operands.size() / 2;
      for (std::size_t k = 0; k < half; ++k) {
        const Operand &from = action.operands[k], &to = action.operands[half + k];
        EXPECT_EQ(from.part.rows, list[to.buffer].cols);
        EXPECT_EQ(from.part.cols, list[to.buffer].rows);
        made_of[to.buffer] = from.part;
        made_by[to.buffer] = action.layer;
      }
    }
    if (action.op != Op::backward) continue;
    const auto& weights = lists_.specs[static_cast<std::size_t>(action.layer)].fp8_weights;
    std::size_t given = 0;
    for (const Operand& operand : action.operands) {
      if (operand.slot != Slot::transposed) continue;
      ASSERT_EQ(made_by.at(operand.buffer), action.layer);
      std::int64_t elements = 0;
      for (const int p : weights.at(given))
        elements += lists_.model->parameters()[static_cast<std::size_t>(p)].elements();
      EXPECT_EQ(list[operand.buffer].elements(), elements);
      ++given;
    }
    EXPECT_EQ(given, weights.size());
    if (given > 0) ++backwards;
  }
  const bool all_blocks_are_frozen = GetParam().frozen && GetParam().layers == 1;
  EXPECT_EQ(backwards > 0, !all_blocks_are_frozen);
}

std::vector<std::pair<int, model::Fp8Scales>> shards_and_scales() {
  std::vector<std::pair<int, model::Fp8Scales>> all;
  for (const int shards : {1, 2, 3, 5}) {
    for (const auto scales : {model::Fp8Scales::tensor, model::Fp8Scales::block})
      all.emplace_back(shards, scales);
  }
  return all;
}

TEST(Fp8Weights, PiecesOfAllShardsAreEachElementOnce) {
  for (const auto& [shards, scales] : shards_and_scales()) {
    const auto lists = make_lists({.layers = 2, .ranks = shards, .fp8 = true, .fp8_scales = scales});
    const auto weights = find_fp8_weights(lists.specs, lists.units, lists.model->parameters());
    ASSERT_EQ(weights.size(), 8U);  // qkv, o, gate with up, and down, twice
    std::vector<std::int64_t> elements(weights.size(), 0);
    for (int u = 0; u < static_cast<int>(lists.units.size()); ++u) {
      for (int shard = 0; shard < shards; ++shard) {
        std::int64_t end = 0;
        for (const auto& piece : fp8_pieces(weights, lists.units, u, shard)) {
          EXPECT_LE(end, piece.begin);
          end = piece.end;
          EXPECT_EQ(piece.first, elements[static_cast<std::size_t>(piece.weight)]) << "in order";
          elements[static_cast<std::size_t>(piece.weight)] += piece.end - piece.begin;
        }
        EXPECT_LE(end, lists.units[static_cast<std::size_t>(u)].shard_elements);
      }
    }
    for (std::size_t w = 0; w < weights.size(); ++w)
      EXPECT_EQ(elements[w], weights[w].rows * weights[w].cols);
  }
}

/// Each number of the buffers belongs to one weight; rows of blocks' scales begin at addresses that cuBLASLt takes.
TEST(Fp8Weights, ScalesOfAllWeightsFillTheirBuffers) {
  for (const auto scales : {model::Fp8Scales::tensor, model::Fp8Scales::block}) {
    const auto lists = make_lists({.layers = 2, .fp8 = true, .fp8_scales = scales});
    const auto weights = find_fp8_weights(lists.specs, lists.units, lists.model->parameters());
    std::set<std::int64_t> maxima, numbers;
    const auto take = [](const Part& part, std::set<std::int64_t>& taken) {
      for (std::int64_t i = 0; i < part.rows * part.cols; ++i)
        EXPECT_TRUE(taken.insert(part.offset + i).second) << "two weights have one scale";
    };
    for (const auto& weight : weights) {
      take(weight.maxima, maxima);
      take(weight.scales, numbers);
      if (scales == model::Fp8Scales::tensor) {
        EXPECT_EQ(weight.scales, weight.transposed_scales);
        continue;
      }
      take(weight.transposed_scales, numbers);
      EXPECT_EQ(weight.maxima.rows * 128, weight.rows);
      EXPECT_EQ(weight.maxima.cols * 128, weight.cols);
      for (const Part& part : {weight.scales, weight.transposed_scales})
        EXPECT_EQ(part.offset * 4 % 16 + part.cols * 4 % 16, 0);
    }
    const auto& lasting = lists.step.persistent;
    EXPECT_EQ(std::ssize(maxima), lists.step[lasting.fp8_maxima].elements());
    EXPECT_EQ(std::ssize(numbers), lists.step[lasting.fp8_scales].elements());
  }
}

/// A forward pass multiplies weights, a backward pass their transposes, whose scales are turned as they are.
TEST_P(Fp8Lists, LayersReadTheScalesOfWhatTheyMultiply) {
  const auto weights = find_fp8_weights(lists_.specs, lists_.units, lists_.model->parameters());
  for (const Action& action : lists_.step.actions) {
    if (action.layer < 0) continue;
    std::vector<Part> read, expected;
    for (const Operand& operand : action.operands) {
      if (operand.slot == Slot::fp8_scales) read.push_back(operand.part);
    }
    for (const auto& weight : weights) {
      if (weight.layer == action.layer && action.op != Op::transpose)
        expected.push_back(action.op == Op::backward ? weight.transposed_scales : weight.scales);
    }
    const bool computes = action.op == Op::forward || action.op == Op::backward || action.op == Op::recompute;
    EXPECT_EQ(read, computes ? expected : std::vector<Part>()) << to_string(action.op);
  }
}

/// What is kept from the forward to the backward pass: in 8 bits where only products read it.
TEST(Fp8Plan, KeepsLessOfActivations) {
  const auto saved = [](bool fp8) {
    auto lists = make_placed_lists({.layers = 6, .mixed = true, .on_gpus = true, .fp8 = fp8});
    std::int64_t bytes = 0;
    for (const auto& buffer : lists.step.buffers)
      bytes += buffer.purpose == Purpose::saved ? buffer.bytes : 0;
    return bytes;
  };
  EXPECT_LT(saved(true), saved(false));
}

}  // namespace
}  // namespace llampi::test
