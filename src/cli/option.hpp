// SPDX-License-Identifier: Apache-2.0
// A setting with a name, a type, the values it may take and a help text: what command lines, configuration
// files and help texts are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "llampi/core/words.hpp"

namespace llampi::cli {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool includes_low = true;
  bool includes_high = true;
  const char* advice = "";  ///< "; checkpoint.keep_every = 1 keeps all": ends the refusal
};

inline constexpr Range kPositive{.low = 0, .includes_low = false};
inline constexpr Range kAtLeastZero{.low = 0};
inline constexpr Range kAtLeastOne{.low = 1};

/// A target that is written in words of its own. Its object must outlive this.
struct Spelled {
  std::vector<std::string> words = {};  ///< all that may be given, in any case; empty: read() alone decides
  std::function<std::string()> write = {};  ///< the value, as read() takes it
  std::function<bool(const std::string&)> read =
      {};                   ///< false, with nothing set, for what is none of its values
  std::string advice = {};  ///< "use node or a number of ranks"; of words it follows
};

/// A target that is one of these values of an enumeration. @param allowed empty: every value that has a word
template <HasWords E>
Spelled one_of(E& target, const std::vector<E>& allowed = {}) {
  Spelled spelled;
  for (const auto& entry : word_table(E{})) {
    if (allowed.empty()) spelled.words.emplace_back(entry.word);
  }
  for (const E value : allowed) spelled.words.emplace_back(word_of(value));
  spelled.write = [&target] { return std::string(word_of(target)); };
  spelled.read = [&target](const std::string& text) {
    const auto value = from_word<E>(text);
    if (value) target = *value;
    return value.has_value();
  };
  return spelled;
}

/// Likewise, or nothing, for which `nothing` stands: "auto".
template <HasWords E>
Spelled one_of(std::optional<E>& target, const std::string& nothing, const std::vector<E>& allowed) {
  Spelled spelled{.words = {nothing}};
  for (const E value : allowed) spelled.words.emplace_back(word_of(value));
  spelled.write = [&target, nothing] { return target ? std::string(word_of(*target)) : nothing; };
  spelled.read = [&target, nothing](const std::string& text) {
    const auto value = text == nothing ? std::nullopt : from_word<E>(text);
    if (!value && text != nothing) return false;
    target = value;
    return true;
  };
  return spelled;
}

/// The values that an option may take, beyond what its type says.
struct Values {
  std::vector<std::string> one_of = {};  ///< of a text; given in any case, kept in lower case
  Range range = {};                      ///< of a number
  std::string name = {};                 ///< of the value in help texts: "FILE"
};

struct Option {
  using Target = std::variant<std::string*, bool*, double*, int*, std::int64_t*, std::uint64_t*, Spelled>;

  std::string key;   ///< "train.steps", "max-tokens"
  Target target;     ///< what is set; holds the default until then. Not owned
  std::string help;  ///< a few words
  Values values = {};
  bool flag = false;  ///< given without a value, which means true
};

inline constexpr char kCommandLine[] = "command line";

/// An option as it was given.
struct Setting {
  std::string key;
  std::string value;
  std::string where;  ///< kCommandLine, "small.ini", "LLAMPI_TRAIN_STEPS"; may be empty
};

/// Sets the option's target. @throws UserError with key, value, where it came from and what is allowed
void assign(const Option& option, const Setting& setting);

/// The target's value, as assign() reads it back to the identical value.
std::string value_text(const Option& option);

/// All words that may be given for the value; empty where it is not words.
const std::vector<std::string>& words_of(const Option& option);

/// What stands for the value in help texts: "true|false", "N", "FILE".
std::string value_name(const Option& option);

std::vector<std::string> keys_of(const std::vector<Option>& options);
const Option* find_option(const std::vector<Option>& options, const std::string& key);

}  // namespace llampi::cli
