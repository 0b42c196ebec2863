// SPDX-License-Identifier: Apache-2.0
#include "train/run_warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace llampi::test {
namespace {

using namespace train;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> warnings(const Config& config, bool on_gpu, std::vector<std::vector<int>> shards) {
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  warn_of_keys_without_effect(config, on_gpu, fsdp::DeviceMesh{.shards = std::move(shards)}, log);
  return lines;
}

TEST(RunWarnings, NameEachKeyThatHasNoEffect) {
  Config config;
  EXPECT_THAT(warnings(config, false, {{0}}), IsEmpty());
  config.fsdp.product_sms = 100;
  config.fsdp.nccl_split_share = true;
  EXPECT_THAT(warnings(config, true, {{0, 1}}), IsEmpty());
  EXPECT_THAT(warnings(config, false, {{0, 1}}),
              ElementsAre("warning: fsdp.product_sms = 100 has no effect: this run is on CPUs",
                          "warning: fsdp.nccl_split_share = true has no effect: this run is on CPUs"));
  config = {};
  config.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  config.fsdp.all_reduce_stream = true;
  EXPECT_THAT(warnings(config, false, {{0, 1}, {2, 3}}), IsEmpty());
  EXPECT_THAT(
      warnings(config, true, {{0}, {1}}),
      ElementsAre(
          "warning: fsdp.all_reduce_stream = true has no effect: shard groups have one rank, so nothing is "
          "reduced inside them meanwhile"));
  config = {};
  config.data.eval = "held.h5";
  EXPECT_THAT(warnings(config, false, {{0}}),
              ElementsAre("warning: data.eval = held.h5 has no effect: with train.eval_every = 0 nothing is "
                          "evaluated"));
  config.train.eval_every = 10;
  EXPECT_THAT(warnings(config, false, {{0}}), IsEmpty());
  config = {};
  config.run.verify_replicas_every = 5;
  EXPECT_THAT(
      warnings(config, false, {{0, 1}}),
      ElementsAre(
          "warning: run.verify_replicas_every = 5 has no effect: with fsdp.strategy = full_shard there are no "
          "replicas"));
}

}  // namespace
}  // namespace llampi::test
