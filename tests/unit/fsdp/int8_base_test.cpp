// SPDX-License-Identifier: Apache-2.0
// Lists of models of which frozen matrices are kept in 8 bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/fsdp/lists.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

class Int8Lists : public ::testing::TestWithParam<ListCase> {
 protected:
  const Unit& unit(int u) const { return lists_.units[static_cast<std::size_t>(u)]; }

  Lists lists_ = make_placed_lists(GetParam());
};

TEST_P(Int8Lists, FrozenMatricesOfBlocksAreKeptIn8BitsAndNothingElse) {
  int kept = 0;
  for (std::size_t p = 0; p < lists_.model->parameters().size(); ++p) {
    const auto& parameter = lists_.model->parameters()[p];
    const auto& of = unit(lists_.unit_of[p]);
    const bool matrix_of_block =
        parameter.shape.size() == 2 && parameter.name.find(".layers.") != std::string::npos;
    EXPECT_EQ(of.int8, of.frozen && matrix_of_block) << parameter.name;
    kept += of.int8 ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
}

TEST_P(Int8Lists, NoBlockBelongsToTwoMatricesOrShards) {
  for (const Unit& unit : lists_.units) {
    if (!unit.int8) continue;
    EXPECT_EQ(unit.shard_elements % kInt8BlockElements, 0);
    EXPECT_EQ(bytes_of(DType::int8_blocks, unit.shard_elements) % 16, 0);
    for (int shard = 0; shard < unit.shards; ++shard) {
      for (const auto& piece : shard_pieces(unit, shard)) {
        EXPECT_EQ(piece.begin % kInt8BlockElements, 0);
        EXPECT_EQ(piece.elements % kInt8BlockElements, 0);
        EXPECT_EQ(piece.shard_offset % kInt8BlockElements, 0);
      }
    }
  }
}

// A byte and a 32nd of each element, in the shard and on its way; and whoever reads it casts it.
TEST_P(Int8Lists, BlocksAreKeptAndGatheredAndOnlyCastsReadThem) {
  for (const Program* program : {&lists_.step, &lists_.evaluation}) {
    int casts = 0;
    for (int u = 0; u < static_cast<int>(lists_.units.size()); ++u) {
      const auto& shard = (*program)[program->persistent.units[static_cast<std::size_t>(u)].shard];
      EXPECT_EQ(shard.purpose == Purpose::int8_shard, unit(u).int8);
      if (unit(u).int8) {
        EXPECT_EQ(shard.bytes, unit(u).shard_elements / 128 * 132);
      }
    }
    for (const Action& action : program->actions) {
      if (action.op == Op::unshard && unit(action.unit).int8) {
        EXPECT_EQ(action.bytes, unit(action.unit).flat_elements() / 128 * 132);
      }
      const bool moves = action.op == Op::unshard || action.op == Op::h2d;
      for (const Operand& operand : action.operands) {
        if (operand.buffer == BufferId::none || (*program)[operand.buffer].dtype != DType::int8_blocks)
          continue;
        EXPECT_TRUE(moves || action.op == Op::cast_params) << to_string(action.op);
        EXPECT_TRUE(operand.part.rows == 0) << "parts begin with blocks";
      }
      if (action.op != Op::cast_params || !unit(action.unit).int8) continue;
      ++casts;
      EXPECT_EQ((*program)[action.find(Slot::output)->buffer].dtype, GetParam().precision().compute);
    }
    EXPECT_GT(casts, 0);
  }
}

std::vector<ListCase> int8_cases() {
  auto cases = list_cases();
  std::erase_if(cases, [](const ListCase& c) { return !c.int8_base; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Every, Int8Lists, ::testing::ValuesIn(int8_cases()),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace llampi::test
