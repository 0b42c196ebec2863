// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "llampi/core/error.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/model/sequential.hpp"
#include "unit/fsdp/lists.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

std::vector<model::Parameter> some_parameters() {
  std::vector<model::Parameter> all(4);
  all[0].shape = {7, 3};
  all[1].shape = {5};
  all[2].shape = {5};
  all[2].fused_with_previous = true;
  all[3].shape = {100};
  return all;
}

TEST(Unit, AlignsEachParameterExceptThoseThatJoin) {
  const auto unit = make_unit("u", {0, 1, 2, 3}, some_parameters(), 1);
  EXPECT_EQ(unit.parameters[0].offset, 0);
  EXPECT_EQ(unit.parameters[1].offset, 64);
  EXPECT_EQ(unit.parameters[2].offset, 69);
  EXPECT_EQ(unit.parameters[3].offset, 128);
  EXPECT_EQ(unit.shard_elements, 256);
}

TEST(Unit, PiecesOfAllShardsAreEachElementOnce) {
  for (const int shards : {1, 2, 3, 4, 5, 8, 64}) {
    const auto all = some_parameters();
    const auto unit = make_unit("u", {0, 1, 2, 3}, all, shards);
    EXPECT_EQ(unit.shard_elements % kAlignment, 0);
    std::vector<std::vector<int>> seen(all.size());
    for (std::size_t p = 0; p < all.size(); ++p) seen[p].resize(static_cast<std::size_t>(all[p].elements()));
    for (int s = 0; s < shards; ++s) {
      for (const auto& piece : shard_pieces(unit, s)) {
        EXPECT_GE(piece.shard_offset, 0);
        EXPECT_LE(piece.shard_offset + piece.elements, unit.shard_elements);
        const auto place = unit.parameters[static_cast<std::size_t>(piece.parameter)].offset;
        EXPECT_EQ(s * unit.shard_elements + piece.shard_offset, place + piece.begin);
        for (std::int64_t i = 0; i < piece.elements; ++i) {
          ++seen[static_cast<std::size_t>(piece.parameter)][static_cast<std::size_t>(piece.begin + i)];
        }
      }
    }
    for (const auto& counts : seen) {
      for (const int count : counts) EXPECT_EQ(count, 1) << shards << " shards";
    }
  }
}

/// A layer with one parameter.
class OneParameter final : public model::Layer {
 public:
  model::LayerSpec spec(model::BatchShape, DType, const device::OperationSizes&) const override {
    return {.module = "layer", .parameters = {{0}}};
  }
  void forward(model::LayerContext&) const override {}
  void backward(model::LayerContext&) const override {}
};

TEST(Unit, AParameterWithoutALayerIsNotTrained) {
  model::Sequential model("Model", "Layer", 10);
  model.add("layer", "Layer", {{"used", {4}}, {"forgotten", {4}}}, std::make_unique<OneParameter>());
  EngineOptions options;
  options.parameter_groups = optim::parameter_groups(model.parameters(), {});
  const auto mesh = make_device_mesh(options.strategy, {0}, 0);
  try {
    compile_model(model, options, mesh, *device::make_cpu_sizes(1));
    FAIL() << "its gradient would be what was in memory before";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "no layer of the model uses its parameter layer.forgotten, which is trained; freeze it or remove it");
  }
}

TEST(Unit, MoreRanksThanAUnitCanFillLeavesEmptyShards) {
  const auto unit = make_unit("u", {0, 1, 2, 3}, some_parameters(), 64);
  EXPECT_EQ(unit.shard_elements, 64);
  EXPECT_TRUE(shard_pieces(unit, 63).empty());
}

}  // namespace
}  // namespace llampi::test
