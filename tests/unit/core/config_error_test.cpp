// SPDX-License-Identifier: Apache-2.0
// Words of enumerations, and errors about options in the names of whoever reads them.
#include <gtest/gtest.h>

#include "llampi/core/config_error.hpp"
#include "llampi/core/dtype_words.hpp"

namespace llampi::test {
namespace {

std::string upper(const std::string& field) { return "[" + field + "]"; }

TEST(Words, GiveThemselvesBack) {
  for (const auto& [value, word] : word_table(DType{})) {
    EXPECT_EQ(from_word<DType>(word), value);
    EXPECT_STREQ(word_of(value), word);
    EXPECT_STREQ(to_string(value), word);
  }
  EXPECT_EQ(from_word<DType>("flaot16"), std::nullopt);
  EXPECT_EQ(from_word<DType>(""), std::nullopt);
  EXPECT_THROW(word_of(static_cast<DType>(99)), Error);
}

TEST(ConfigError, SaysWhatIsWrongWithAValue) {
  const ConfigError error({.field = "shard_group_size",
                           .value = "4",
                           .problem = "does not divide 6 ranks",
                           .remedy = "use a divisor, or {strategy} = full_shard"});
  EXPECT_STREQ(error.what(),
               "shard_group_size = 4 does not divide 6 ranks; use a divisor, or strategy = full_shard");
  EXPECT_EQ(error.sentence(upper),
            "[shard_group_size] = 4 does not divide 6 ranks; use a divisor, or [strategy] = full_shard");
}

TEST(ConfigError, SaysWhatIsWrongWithAnEntry) {
  const ConfigError error({.field = "wrap.modules", .entry = "a{2}", .problem = "matches nothing"});
  EXPECT_EQ(error.sentence(upper), "'a{2}' of [wrap.modules] matches nothing");
}

TEST(ConfigError, NamesFieldsWithDigits) {
  const ConfigError error({.problem = "16 is no multiple of {8}", .remedy = "use {fp8_scales} = tensor"});
  EXPECT_EQ(error.sentence(upper), "16 is no multiple of {8}; use [fp8_scales] = tensor");
}

TEST(ConfigError, MayBeAboutNoOptionOfItsOwn) {
  const ConfigError error({.problem = "{folder} of a file's name is full",
                           .remedy = "set {folder} to another place {2} {",
                           .where = "rank 1 on host"});
  EXPECT_EQ(error.sentence(upper),
            "rank 1 on host: {folder} of a file's name is full; set [folder] to another place {2} {");
}

TEST(ConfigError, AnyErrorHasASentence) {
  EXPECT_EQ(sentence_of(Error("broken"), upper), "broken");
  const ConfigError error({.field = "frozen", .problem = "is empty"});
  EXPECT_EQ(sentence_of(error, upper), "[frozen] is empty");
  EXPECT_EQ(sentence_of(error, {}), "frozen is empty");
}

}  // namespace
}  // namespace llampi::test
