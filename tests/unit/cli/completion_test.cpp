// SPDX-License-Identifier: Apache-2.0
// Completion and the manual page leave out no command, no option and no word of a value.
#include "cli/completion.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>

namespace llampi::test {
namespace {

using namespace cli;

using ::testing::Contains;
using ::testing::HasSubstr;

/// What stands between `begin` and the next `end`; fails where there is none.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const auto first = text.find(begin);
  if (first == std::string::npos) {
    ADD_FAILURE() << "there is no " << begin;
    return "";
  }
  const auto after = first + begin.size();
  return text.substr(after, text.find(end, after) - after);
}

/// That may be given for the value of an option.
std::vector<std::string> words_to_offer(const Option& option) {
  if (option.flag) return {};
  if (std::holds_alternative<bool*>(option.target)) return {"true", "false"};
  return words_of(option);
}

/// Calls `check(command, option)` for every option of every command.
template <class Check>
void for_each_option(const Check& check) {
  int options = 0;
  for (const auto& command : commands()) {
    SCOPED_TRACE(command.name);
    const Manual manual = command.manual();
    for (const auto& option : manual.options) {
      SCOPED_TRACE(option.key);
      check(command, option);
      ++options;
    }
  }
  EXPECT_GT(options, 150);
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace

TEST(Completion, OfBashHasEveryOptionAndWord) {
  const std::string text = bash_completion(commands());
  for_each_option([&](const Command& command, const Option& option) {
    const std::string section = between(text, "\n        " + command.name + ")\n", "\n            ;;");
    const auto options = split(between(section, "options='", "'"));
    EXPECT_THAT(options, Contains("--" + option.key + (option.flag ? "" : "=")));
    const auto words = words_to_offer(option);
    if (words.empty()) return;
    const auto offered = split(between(section, "--" + option.key + ") values='", "'"));
    for (const auto& word : words) EXPECT_THAT(offered, Contains(word));
  });
}

TEST(Completion, OfZshHasEveryOptionAndWord) {
  const std::string text = zsh_completion(commands());
  for_each_option([&](const Command& command, const Option& option) {
    const std::string section = between(text, "\n        " + command.name + ")\n", "\n            ;;");
    const std::string line = between(section, "'--" + option.key + (option.flag ? "[" : "=["), "\n");
    const auto words = words_to_offer(option);
    if (words.empty()) return;
    const auto offered = split(line.substr(line.rfind('(') + 1, line.rfind(')') - line.rfind('(') - 1));
    for (const auto& word : words) EXPECT_THAT(offered, Contains(word));
  });
}

TEST(Completion, OfFishHasEveryOptionAndWord) {
  const std::string text = fish_completion(commands());
  for_each_option([&](const Command& command, const Option& option) {
    const std::string line =
        between(text, fmt::format("\ncomplete -c llampi -n ${} -l {} -d ", command.name, option.key), "\n");
    const auto words = words_to_offer(option);
    if (words.empty()) return;
    const auto offered = split(between(line, " -a '", "'"));
    for (const auto& word : words) EXPECT_THAT(offered, Contains(word));
  });
}

TEST(Completion, NamesAllCommands) {
  for (const auto& text :
       {bash_completion(commands()), zsh_completion(commands()), fish_completion(commands())}) {
    for (const auto& command : commands())
      EXPECT_NE(text.find(command.name), std::string::npos) << command.name;
  }
}

TEST(Completion, OffersFilesAndWordsWhereBothMayBeGiven) {
  std::string text;
  const Option either{"weights", &text, "", {.name = "random|FOLDER|FILE"}},
      number{"n", &text, "", {.name = "skip N|X"}};
  EXPECT_TRUE(hint_of(either).files);
  EXPECT_THAT(hint_of(either).words, testing::ElementsAre("random"));
  EXPECT_FALSE(hint_of(number).files);
  EXPECT_THAT(hint_of(number).words, testing::IsEmpty());
}

TEST(ManPage, HasEveryCommandOptionAndWord) {
  const std::string page = man_page(commands());
  const auto roff = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('-', at)) != std::string::npos; at += 2) text.insert(at, "\\");
    return text;
  };
  for_each_option([&](const Command& command, const Option& option) {
    const std::string section = between(page, "\n.SS llampi " + command.name + "\n", "\n.S");
    const std::string& place = is_key(option) ? page.substr(page.find("\n.SH KEYS\n")) : section;
    const std::string about = between(place, fmt::format("\n\\fB\\-\\-{}\\fR", roff(option.key)), "\n.TP");
    for (const auto& word : words_to_offer(option)) EXPECT_THAT(about, HasSubstr(roff(word)));
  });
}

}  // namespace llampi::test
