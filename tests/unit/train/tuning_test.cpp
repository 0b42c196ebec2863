// SPDX-License-Identifier: Apache-2.0
// Files of choices.
#include "train/tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Tuning, ChoicesAreReadAsTheyWereWritten) {
  const TuningCache choices{{"a GPU, \"driver\" 13", {{"run", {{"a product", "algorithm 1"}, {"b", ""}}}}},
                            {"another", {}}};
  EXPECT_EQ(parse_choices(to_json(choices), "file"), choices);
}

TEST(Tuning, WhatIsNoSuchFileIsRefusedByName) {
  for (const char* text : {"", "{", "[]", "{\"gpu\": 1}", "{\"gpu\": {\"run\": {\"p\": 3}}}"}) {
    try {
      parse_choices(text, "some/file");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("some/file is not a tuning file (run.tuning): "));
    }
  }
}

TEST(Tuning, ARunThatContinuesTakesNothingFromElsewhere) {
  const ChoicesByRun own{{"run", {{"a", "1"}}}}, cache{{"run", {{"a", "2"}, {"b", "2"}}}};
  const KnownChoices known = known_choices({own, cache}, "run");
  EXPECT_TRUE(known.complete);
  EXPECT_EQ(known.products, (device::AlgorithmChoices{{"a", "1"}}));
}

TEST(Tuning, AChangedRunKeepsWhatItHadBefore) {
  const ChoicesByRun before{{"other", {{"a", "1"}, {"c", "1"}}}}, given{{"third", {{"b", "2"}, {"a", "2"}}}},
      cache{{"run", {{"a", "3"}, {"b", "3"}, {"d", "3"}}}, {"fourth", {{"e", "3"}}}};
  const KnownChoices complete = known_choices({before, given, cache}, "run");
  EXPECT_TRUE(complete.complete);
  EXPECT_EQ(complete.products, (device::AlgorithmChoices{{"a", "1"}, {"b", "2"}, {"d", "3"}}));
  const KnownChoices part = known_choices({before, given, {}}, "run");
  EXPECT_FALSE(part.complete);
  EXPECT_EQ(part.products, (device::AlgorithmChoices{{"a", "1"}, {"b", "2"}, {"c", "1"}}));
}

// As where a checkpoint was written to checkpoint.fallback_dir.
TEST(Tuning, ARunThatContinuesLooksBesideItsCheckpointsToo) {
  Config config;
  config.run.dir = "run";
  EXPECT_THAT(choice_sources(config, "").files, IsEmpty());
  EXPECT_THAT(choice_sources(config, "fallback/job/step-00000001.h5").files,
              ElementsAre("fallback/job/tuning.json", "run/checkpoints/tuning.json"));
}

TEST(Tuning, WhatAFileHasOfOtherRunsStays) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "tuning.json";
  const Log log;
  keep_choices(file, {"gpu", "run", {{"a", "1"}}}, log);
  keep_choices(file, {"gpu", "other", {{"a", "2"}}}, log);
  keep_choices(file, {"gpu 2", "run", {{"a", "3"}}}, log);
  keep_choices(file, {"gpu", "run", {{"b", "4"}}}, log);
  EXPECT_EQ(parse_choices(io::read_whole(file), "file"),
            (TuningCache{{"gpu", {{"other", {{"a", "2"}}}, {"run", {{"b", "4"}}}}},
                         {"gpu 2", {{"run", {{"a", "3"}}}}}}));
}

TEST(Tuning, TheCacheIsWhereUsersHaveIt) {
  const auto with = [](const char* cache, const char* home) {
    cache == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", cache, 1);
    home == nullptr ? unsetenv("HOME") : setenv("HOME", home, 1);
    return choices_in_cache("NVIDIA H100 80GB HBM3, driver 13.0").string();
  };
  EXPECT_EQ(with("/cache", "/home/u"), "/cache/llampi/tuning-NVIDIA-H100-80GB-HBM3-driver-13-0.json");
  EXPECT_EQ(with(nullptr, "/home/u"), "/home/u/.cache/llampi/tuning-NVIDIA-H100-80GB-HBM3-driver-13-0.json");
  EXPECT_EQ(with(nullptr, nullptr), "");
}

}  // namespace
}  // namespace llampi::test
