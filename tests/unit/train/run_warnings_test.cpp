// SPDX-License-Identifier: Apache-2.0
#include "train/run_warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/temporary_folder.hpp"

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

TEST(RunWarnings, SayHowManyPackedSequencesFillNoSample) {
  const TemporaryFolder folder;
  data::TokenFileWriter writer(folder / "a.h5", 256, "bytes");
  writer.append_document(std::vector<std::int32_t>(5 * 8 + 1, 7));
  writer.close({.row_tokens = 8});
  const auto said = [&](std::int64_t seq_len) {
    std::vector<std::string> lines;
    warn_of_rows_left_out(data::TokenFile(folder / "a.h5"), seq_len,
                          Log([&](const std::string& line) { lines.push_back(line); }));
    return lines;
  };
  EXPECT_THAT(said(8), IsEmpty());
  EXPECT_THAT(said(40), IsEmpty());
  EXPECT_THAT(said(16), ElementsAre(::testing::EndsWith(
                            "a.h5: 1 of 5 packed sequences, at the end of the file, fill no sample of "
                            "data.seq_len = 16 and are never trained on; data.seq_len = 8 takes all")));
}

}  // namespace
}  // namespace llampi::test
