// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "llampi/core/text.hpp"

namespace llampi::test {
namespace {

TEST(Text, LargeNumbersHaveSeparatorsOfThousands) {
  EXPECT_EQ(with_separators(std::int64_t{0}), "0");
  EXPECT_EQ(with_separators(std::int64_t{999}), "999");
  EXPECT_EQ(with_separators(std::int64_t{-1000}), "-1,000");
  EXPECT_EQ(with_separators(std::int64_t{4484352}), "4,484,352");
  EXPECT_EQ(with_separators(999.5), "1,000");
  EXPECT_EQ(with_separators(-123456.4), "-123,456");
}

TEST(Text, RelativePathsAreSeenFromTheCurrentFolder) {
  EXPECT_EQ(seen_from("/a/b"), "");
  EXPECT_EQ(seen_from("a/b"), " (seen from " + std::filesystem::current_path().string() + ")");
}

TEST(Text, BytesAreInTheUnitThatFits) {
  EXPECT_EQ(format_bytes(7), "7 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 30), "3.00 GiB");
}

TEST(Text, DurationsAreInTheUnitThatFits) {
  EXPECT_EQ(format_duration(12.4), "12s");
  EXPECT_EQ(format_duration(200), "3m 20s");
  EXPECT_EQ(format_duration(3720), "1h 02m");
  EXPECT_EQ(format_duration(-1), "0s");
}

TEST(Text, CountsAreSingularForOne) {
  EXPECT_EQ(count(0, "layer"), "0 layers");
  EXPECT_EQ(count(1, "layer"), "1 layer");
  EXPECT_EQ(count(2, "micro-batch", "es"), "2 micro-batches");
  EXPECT_EQ(count(4096, "token"), "4,096 tokens");
}

TEST(Text, LargeNumbersAreInWordsThatAreExact) {
  EXPECT_EQ(in_words(1e11), "100 billion");
  EXPECT_EQ(in_words(15e12), "15 trillion");
  EXPECT_EQ(in_words(14.8e12), "14.8 trillion");
  EXPECT_EQ(in_words(1.5e6), "1.5 million");
  EXPECT_EQ(in_words(4'484'352), "4,484,352");
  EXPECT_EQ(in_words(20'000), "20,000");
}

TEST(Text, HasItsControlCharactersReplaced) {
  EXPECT_EQ(replace_controls("a\x1b[2J\tb\x7f\n", '?'), "a?[2J?b??");
  EXPECT_EQ(replace_controls("a\nb\r", ' ', "\n"), "a\nb ");
  EXPECT_EQ(replace_controls("\xc2\x9b"
                             "2J",
                             '?'),
            "?2J")
      << "U+009B begins a sequence as ESC [ does";
  EXPECT_EQ(replace_controls("caf\xc3\xa9 \xc2\xa0\xe2\x82\xac \xc2", '?'),
            "caf\xc3\xa9 \xc2\xa0\xe2\x82\xac \xc2");
}

TEST(Text, EditDistanceCountsChangedCharacters) {
  EXPECT_EQ(edit_distance("optimiser", "optimizer"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "four"), 4U);
  EXPECT_EQ(edit_distance("four", ""), 4U);
}

TEST(Text, ByteOrderMarkIsLeftOutAtTheBeginningOnly) {
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBF"
                                    "a\xEF\xBB\xBF"),
            "a\xEF\xBB\xBF");
  for (const char* other : {"", "a", "\xEF\xBB"}) EXPECT_EQ(without_byte_order_mark(other), other);
}

TEST(Text, OnlyAWholeTextIsANumber) {
  EXPECT_EQ(parse_number<int>("0"), 0);
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("-1.5e3"), -1500.0);
  EXPECT_EQ(parse_number<int>(std::string_view("123").substr(0, 2)), 12)
      << "what follows the view is not read";
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1x", "1.0", "1e3", "0x1", "one"})
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1.5x", "1,5", "e3"})
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
}

TEST(Text, ANumberThatTheTypeDoesNotHaveIsNone) {
  EXPECT_EQ(parse_number<std::int32_t>("2147483647"), 2147483647);
  EXPECT_EQ(parse_number<std::int32_t>("-2147483648"), std::numeric_limits<std::int32_t>::min());
  for (const char* text : {"2147483648", "-2147483649", "99999999999999999999"})
    EXPECT_EQ(parse_number<std::int32_t>(text), std::nullopt) << text;
  EXPECT_EQ(parse_number<std::int64_t>("2147483648"), 2147483648);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_number<std::uint32_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
  EXPECT_EQ(parse_number<double>("inf"), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace llampi::test
