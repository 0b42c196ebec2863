// SPDX-License-Identifier: Apache-2.0
// Files of choices.
#include "train/tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::HasSubstr;

TEST(Tuning, ChoicesAreReadAsTheyWereWritten) {
  const RememberedChoices choices{"a GPU, \"driver\" 13", {{"a product", "algorithm 1"}, {"b", ""}}, {"run"}};
  const RememberedChoices again = parse_choices(to_json(choices), "file");
  EXPECT_EQ(again.gpu, choices.gpu);
  EXPECT_EQ(again.products, choices.products);
  EXPECT_EQ(again.runs, choices.runs);
}

TEST(Tuning, WhatIsNoSuchFileIsRefusedByName) {
  for (const char* text : {"", "{", "[]", "{\"gpu\": \"a\"}", "{\"gpu\": 1, \"products\": {}, \"runs\": []}",
                           "{\"gpu\": \"a\", \"products\": {\"p\": 3}, \"runs\": []}"}) {
    try {
      parse_choices(text, "some/file");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("some/file is no file of run.tuning: "));
    }
  }
}

TEST(Tuning, TheFirstSourceGoesFirst) {
  RememberedChoices choices{"gpu", {{"a", "1"}}, {"x"}};
  choices.add({"gpu", {{"a", "2"}, {"b", "3"}}, {"y"}});
  EXPECT_EQ(choices.products, (device::Choices{{"a", "1"}, {"b", "3"}}));
  EXPECT_EQ(choices.runs, (std::set<std::string>{"x", "y"}));
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
