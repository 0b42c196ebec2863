// SPDX-License-Identifier: Apache-2.0
#include "cli/config_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

constexpr std::int64_t kMostMebibytes = std::int64_t{1} << 40;
constexpr std::int64_t kMostSequences = 1000000000;  // as of a global batch

/// A positive whole number and nothing else.
template <class Number>
std::optional<Number> positive(std::string_view text) {
  const auto number = parse_number<Number>(text);
  return number && *number > 0 ? number : std::nullopt;
}

/// Within these; "auto" for none.
Spelled number_or_auto(std::optional<std::int64_t>& target, std::int64_t least, std::int64_t most,
                       const char* advice) {
  static constexpr const char* kAutomatic = "auto";
  return {.write = [&target] { return target ? std::to_string(*target) : kAutomatic; },
          .read =
              [&target, least, most](const std::string& text) {
                const auto number =
                    text == "0" ? std::optional<std::int64_t>(0) : positive<std::int64_t>(text);
                if (!number && text != kAutomatic) return false;
                if (number && (*number < least || *number > most)) return false;
                target = number;
                return true;
              },
          .advice = advice};
}

/// A target that is one of two words, or the name of a file.
template <class Target, class Mode>
Spelled word_or_file(Target& target, Mode one, const char* one_word, Mode other, const char* other_word) {
  return {.write =
              [=, &target] {
                return target.mode == one ? one_word : (target.mode == other ? other_word : target.file);
              },
          .read =
              [=, &target](const std::string& text) {
                const Mode mode = text == one_word ? one : (text == other_word ? other : Mode::file);
                target = {mode, mode == Mode::file ? text : ""};
                return true;
              }};
}

}  // namespace

Spelled spelled_resume(train::ResumeFrom& target) {
  using Mode = train::ResumeFrom::Mode;
  return word_or_file(target, Mode::automatic, "auto", Mode::never, "never");
}

Spelled spelled_tuning(train::TuningMode& target) {
  using Mode = train::TuningMode::Mode;
  Spelled spelled = word_or_file(target, Mode::automatic, "auto", Mode::off, "off");
  spelled.advice = "use auto, off or a file";
  spelled.read = [read = std::move(spelled.read)](const std::string& text) {
    return !text.empty() && read(text);
  };
  return spelled;
}

Spelled spelled_weights(std::optional<std::string>& target) {
  static constexpr const char* kRandom = "random";
  return {.write = [&target] { return target.value_or(kRandom); },
          .read =
              [&target](const std::string& text) {
                target = text == kRandom ? std::nullopt : std::optional(text);
                return true;
              }};
}

Spelled spelled_not_finite(train::NotFinitePolicy& target) {
  static constexpr std::string_view kStop = "stop", kSkip = "skip ";
  return {.write =
              [&target] {
                return target.skip == 0 ? std::string(kStop) : fmt::format("{}{}", kSkip, target.skip);
              },
          .read =
              [&target](const std::string& text) {
                const auto skip = text.starts_with(kSkip)
                                      ? positive<std::int64_t>(std::string_view(text).substr(kSkip.size()))
                                      : std::nullopt;
                if (!skip && text != kStop) return false;
                target = {skip.value_or(0)};
                return true;
              },
          .advice = "use stop, or skip and a number of steps, as in skip 3"};
}

Spelled spelled_list(std::vector<std::string>& target) {
  return {.write = [&target] { return fmt::format("{}", fmt::join(target, " ")); },
          .read =
              [&target](const std::string& text) {
                target.clear();
                std::istringstream words(text);
                for (std::string word; words >> word;) target.push_back(word);
                return true;
              }};
}

Spelled spelled_group_size(std::optional<int>& target) {
  static constexpr const char* kNode = "node";
  return {.write = [&target] { return target ? std::to_string(*target) : kNode; },
          .read =
              [&target](const std::string& text) {
                const auto size = positive<int>(text);
                if (!size && text != kNode && !text.empty()) return false;
                target = size;
                return true;
              },
          .advice = "use node or a number of ranks"};
}

Spelled spelled_checkpointing(std::optional<fsdp::BlockCheckpointing>& target) {
  static constexpr const char* kAutomatic = "auto";
  return {
      .write = [&target] { return target ? fsdp::to_string(*target) : kAutomatic; },
      .read =
          [&target](const std::string& text) {
            const auto given = fsdp::parse_checkpointing(text);
            if (!given && text != kAutomatic) return false;
            target = given;
            return true;
          },
      .advice =
          "use none, selective, offload, feed_forward, full or auto, or numbers of blocks as in full 4, selective"};
}

Spelled spelled_mebibytes(std::optional<std::int64_t>& target) {
  return number_or_auto(target, 0, kMostMebibytes, "use auto or a number of MiB");
}

Spelled spelled_micro_batch(std::optional<std::int64_t>& target) {
  return number_or_auto(target, 1, kMostSequences, "use auto or a number of sequences");
}

Spelled spelled_steps(std::optional<train::StepRange>& target) {
  return {.write =
              [&target] {
                if (!target) return std::string();
                return target->first == target->last ? std::to_string(target->first)
                                                     : fmt::format("{}-{}", target->first, target->last);
              },
          .read =
              [&target](const std::string& text) {
                if (text.empty() || text == "0") {
                  target.reset();
                  return true;
                }
                const std::string_view view = text;
                const auto dash = view.find('-');
                const auto first = positive<std::int64_t>(view.substr(0, dash));
                const auto last = dash == view.npos ? first : positive<std::int64_t>(view.substr(dash + 1));
                if (!first || !last || *last < *first) return false;
                target = {*first, *last};
                return true;
              },
          .advice = "use a step or a range of steps such as 3-5"};
}

Spelled spelled_tokens(double& target) {
  return {.write = [&target] { return fmt::format("{}", target); },
          .read =
              [&target](const std::string& text) {
                double value = 0;
                const char* const end = text.data() + text.size();
                const auto [unit, error] = std::from_chars(text.data(), end, value);
                double factor = 1;
                if (unit != end) {
                  constexpr std::string_view kUnits = "KMBT";
                  const auto place =
                      kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*unit))));
                  if (place == kUnits.npos || unit + 1 != end) return false;
                  for (std::size_t i = 0; i <= place; ++i) factor *= 1e3;
                }
                constexpr double kMost = 1e18;
                if (error != std::errc() || !(value >= 0) || !(value * factor <= kMost)) return false;
                if (value > 0 && value * factor < 1) return false;
                target = value * factor;
                return true;
              },
          .advice = "use a number of tokens such as 15T, 300B or 1e11"};
}

}  // namespace llampi::cli
