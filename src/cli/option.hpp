// A setting with a name, a type, the values it may take and a help text: what command lines, configuration
// files and help texts are made of.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace llampi::cli {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool includes_low = true;
  bool includes_high = true;
};

inline constexpr Range kPositive{.low = 0, .includes_low = false};
inline constexpr Range kAtLeastZero{.low = 0};
inline constexpr Range kAtLeastOne{.low = 1};

/// The values that an option may take, beyond what its type says.
struct Values {
  std::vector<std::string> one_of = {};  ///< of a text; given in any case, kept in lower case
  std::vector<std::string> built = {};   ///< if not empty: all others are not built yet
  Range range = {};                      ///< of a number
  std::string name = {};                 ///< of the value in help texts: "FILE"
};

struct Option {
  using Target = std::variant<std::string*, bool*, double*, int*, std::int64_t*, std::uint64_t*>;

  std::string key;   ///< "train.steps", "max-tokens"
  Target target;     ///< what is set; holds the default until then. Not owned
  std::string help;  ///< a few words
  Values values = {};
  bool flag = false;  ///< given without a value, which means true
};

/// An option as it was given.
struct Setting {
  std::string key;
  std::string value;
  std::string where;  ///< "command line", "small.ini", "LLAMPI_TRAIN_STEPS"; may be empty
};

/// Sets the option's target. @throws UserError with key, value, where it came from and what is allowed
void assign(const Option& option, const Setting& setting);

/// False if the target's value asks for what is not built yet.
bool is_built(const Option& option);

/// The target's value, as assign() reads it back to the identical value.
std::string value_text(const Option& option);

/// What stands for the value in help texts: "true|false", "N", "FILE".
std::string value_name(const Option& option);

/// The help text with what is not built yet.
std::string full_help(const Option& option);

std::vector<std::string> keys_of(const std::vector<Option>& options);
const Option* find_option(const std::vector<Option>& options, const std::string& key);

}  // namespace llampi::cli
