// SPDX-License-Identifier: Apache-2.0
// Sums as text, to compare orders of addition: "((0+1)+2)".
#pragma once

#include <string>
#include <vector>

#include "llampi/comm/sum_tree.hpp"

namespace llampi::test {

inline std::string joined(const std::string& left, const std::string& right) {
  return "(" + left + "+" + right + ")";
}

/// In the order of comm::tree_left().
inline std::string tree_of(const std::vector<std::string>& terms) {
  if (terms.size() == 1) return terms.front();
  const auto left = terms.begin() + comm::tree_left(std::ssize(terms));
  return joined(tree_of({terms.begin(), left}), tree_of({left, terms.end()}));
}

/// "first", "first + 1", ...
inline std::vector<std::string> numbers(int count, int first = 0) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back(std::to_string(first + i));
  return result;
}

}  // namespace llampi::test
