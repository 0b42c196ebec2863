// SPDX-License-Identifier: Apache-2.0
// One option: what its type and its values accept.
#include "cli/option.hpp"

#include <gtest/gtest.h>

#include "cli/command_line.hpp"
#include "unit/cli/expect_user_error.hpp"

namespace llampi::test {
namespace {

using namespace cli;

TEST(Option, TakesTheWholeRangeOfItsType) {
  std::uint64_t seed = 0;
  assign({"seed", &seed, ""}, {"seed", "18446744073709551615", ""});
  EXPECT_EQ(seed, std::numeric_limits<std::uint64_t>::max());
  std::int64_t steps = 0;
  assign({"steps", &steps, ""}, {"steps", "-9223372036854775808", ""});
  EXPECT_EQ(steps, std::numeric_limits<std::int64_t>::min());
}

TEST(Option, RefusesWhatIsNotANumber) {
  std::int64_t n = 7;
  const Option option{"n", &n, ""};
  for (const char* text : {"", "x", "1x", "1.5", "1.0", "15e-1", "1e", "1e16", "1e999", " 1", "+1", "0x10"}) {
    expect_user_error(
        [&] {
          assign(option, {"n", text, "f.ini"});
        },
        fmt::format("n = {} (f.ini) is not a whole number", text));
  }
  expect_user_error(
      [&] {
        assign(option, {"n", "9223372036854775808", "f.ini"});
      },
      "n = 9223372036854775808 (f.ini) is too large or too small a number");
  double x = 7;
  for (const char* text : {"", "x", "1,5", "nan", "inf", "1 2"}) {
    expect_user_error(
        [&] {
          assign({"x", &x, ""}, {"x", text, "f.ini"});
        },
        fmt::format("x = {} (f.ini) is not a number", text));
  }
  expect_user_error(
      [&] {
        assign({"x", &x, ""}, {"x", "1e999", "f.ini"});
      },
      "x = 1e999 (f.ini) is too large or too small a number");
  EXPECT_EQ(n, 7);
  EXPECT_EQ(x, 7);
}

TEST(Option, WholeNumbersMayHaveAnExponent) {
  std::int64_t n = 0;
  const auto read = [&](const char* text) {
    assign({"n", &n, ""}, {"n", text, ""});
    return n;
  };
  EXPECT_EQ(read("1e9"), 1'000'000'000);
  EXPECT_EQ(read("2.5E6"), 2'500'000);
  EXPECT_EQ(read("-3e0"), -3);
  EXPECT_EQ(read("9007199254740992e0"), std::int64_t{1} << 53);
  int threads = 0;
  expect_user_error(
      [&] {
        assign({"threads", &threads, ""}, {"threads", "3e9", ""});
      },
      "threads = 3e9 is not a whole number");
  expect_user_error(
      [&] {
        assign({"n", &n, "", {.range = {.low = 1, .high = 100}}}, {"n", "1e3", ""});
      },
      "n = 1e3 is out of range; it must be at least 1 and at most 100");
}

TEST(Option, UnsignedNumbersDoNotWrapAround) {
  std::uint64_t seed = 0;
  for (const char* text : {"-1", "-1e3", "x", "1.5"}) {
    expect_user_error(
        [&] {
          assign({"seed", &seed, ""}, {"seed", text, ""});
        },
        fmt::format("seed = {} must be a whole number from 0", text));
  }
}

TEST(Option, RangesIncludeTheirBoundsOrNot) {
  double x = 0;
  const Option half_open{"x", &x, "", {.range = {.low = 0, .high = 1, .includes_high = false}}};
  assign(half_open, {"x", "0", ""});
  EXPECT_EQ(x, 0);
  expect_user_error(
      [&] {
        assign(half_open, {"x", "1", ""});
      },
      "x = 1 is out of range; it must be at least 0 and below 1");
  const Option positive{"x", &x, "", {.range = kPositive}};
  expect_user_error([&] { assign(positive, {"x", "0", ""}); }, "x = 0 is out of range; it must be above 0");
  assign(positive, {"x", "1e-300", ""});
  EXPECT_EQ(x, 1e-300);
}

TEST(Option, NamesAreTakenInAnyCase) {
  std::string word;
  const Option option{"word", &word, "", {.one_of = {"one", "two", "three"}}};
  assign(option, {"word", "TWO", ""});
  EXPECT_EQ(word, "two");
  expect_user_error(
      [&] {
        assign(option, {"word", "four", "X"});
      },
      "word = four (X) is not known; use one, two or three");
}

TEST(Option, TruthIsSpelledOut) {
  bool yes = true;
  assign({"b", &yes, ""}, {"b", "false", ""});
  EXPECT_FALSE(yes);
  assign({"b", &yes, ""}, {"b", "True", ""});  // as Python writes it
  EXPECT_TRUE(yes);
  for (const char* text : {"", "1", "yes", "T"}) {
    expect_user_error(
        [&] {
          assign({"b", &yes, ""}, {"b", text, "X"});
        },
        fmt::format("b = {} (X) is neither true nor false", text));
  }
}

TEST(Option, NumbersSurviveTheirText) {
  for (const double value : {0.1, 1.0 / 3, 3e-4, 1e-8, 123456789.123456789, 5e-324, 1.7976931348623157e308}) {
    double written = value, read = 0;
    assign({"x", &read, ""}, {"x", value_text({"x", &written, ""}), ""});
    EXPECT_EQ(read, value);
  }
}

class CommandLineTest : public ::testing::Test {
 protected:
  std::vector<std::string> assign_all(const Arguments& arguments) {
    return assign_command_line(
               arguments, {{"text", &text_, ""}, {"number", &number_, ""}, {"quick", &quick_, "", {}, true}},
               2, Log([this](const std::string& line) { log_ += line + "\n"; }))
        .positional;
  }
  std::string text_ = "default";
  std::int64_t number_ = 0;
  bool quick_ = false;
  std::string log_;
};

TEST_F(CommandLineTest, TakesBothSpellingsFlagsAndArguments) {
  EXPECT_EQ(assign_all({"a", "--text=x=y", "--quick", "--number", "-5", "b"}),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(text_, "x=y");
  EXPECT_EQ(number_, -5);
  EXPECT_TRUE(quick_);
}

TEST_F(CommandLineTest, TakesEmptyValues) {
  assign_all({"--text="});
  EXPECT_EQ(text_, "");
  text_ = "default";
  assign_all({"--text", "", "--quick"});
  EXPECT_EQ(text_, "");
  EXPECT_TRUE(quick_);
}

TEST_F(CommandLineTest, TheLastOfTwoCountsAndBothAreLogged) {
  assign_all({"--number=1", "--text=a", "--number=2", "--text", "a", "--quick", "--quick"});
  EXPECT_EQ(number_, 2);
  EXPECT_EQ(text_, "a");
  EXPECT_EQ(log_, "--number is given twice on the command line: 2 counts, not 1\n");
}

TEST_F(CommandLineTest, ValuesThatLookLikeOptionsNeedAnEqualsSign) {
  assign_all({"--text=--quick"});
  EXPECT_EQ(text_, "--quick");
  EXPECT_FALSE(quick_);
}

TEST_F(CommandLineTest, RefusesWhatItDoesNotKnow) {
  expect_user_error([&] { assign_all({"--nunber=5"}); },
                    "unknown option --nunber on the command line; did you mean --number?");
  expect_user_error(
      [&] {
        assign_all({"--nunber", "5"});
      },
      "unknown option --nunber on the command line; did you mean --number?");
  expect_user_error([&] { assign_all({"--num=5"}); },  // no guessing by the beginning
                    "unknown option --num on the command line; did you mean --number?");
  expect_user_error([&] { assign_all({"--number"}); }, "the option --number needs a value");
  expect_user_error([&] { assign_all({"--number", "--quick"}); }, "the option --number needs a value");
  expect_user_error([&] { assign_all({"--quick=true"}); }, "the option --quick takes no value");
  expect_user_error(
      [&] {
        assign_all({"a", "b", "c"});
      },
      "unexpected argument \"c\" after \"b\": at most 2 can be given; options are written --name=value");
  expect_user_error(
      [&] {
        assign_all({"a", "b", "-n"});
      },
      "unexpected argument \"-n\" after \"b\": at most 2 can be given; options are written --name=value");
}

}  // namespace
}  // namespace llampi::test
