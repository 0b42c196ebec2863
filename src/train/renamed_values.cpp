// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/renamed_values.hpp"

#include <algorithm>
#include <cctype>

namespace llampi::train {
namespace {

struct Renamed {
  const char *key, *then, *now;
};
// The version after the one whose changelog announces it refuses the old name on the command line and in files. It stays here for
// checkpoints, which keep it.
constexpr Renamed kRenamed[] = {{"run.attention", "own", "native"}};

bool same_letters(const std::string& one, const std::string& other) {
  return std::ranges::equal(
      one, other, [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

}  // namespace

std::string current_value(const std::string& key, const std::string& value) {
  for (const auto& renamed : kRenamed) {
    if (key == renamed.key && same_letters(value, renamed.then)) return renamed.now;
  }
  return value;
}

}  // namespace llampi::train
