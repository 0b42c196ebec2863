// SPDX-License-Identifier: Apache-2.0
// Which ranks and which links of a job differ from the others: decisions on measured figures, without measuring.
#pragma once

#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace llampi::selfcheck {

/// A rank is slow if it takes so many times what the median rank takes.
inline constexpr double kSlowRank = 1.25;
/// A link is slow if it has less than this share of the median bandwidth.
inline constexpr double kSlowLink = 0.5;

/// The middle one; of an even number, the lower of the two in the middle. Of none, 0.
double median(std::vector<double> values);

/// Indices of values that are larger than kSlowRank times the median: of two ranks, the slower one.
std::vector<int> slow_ranks(std::span<const double> seconds);

/// Indices of texts that differ from the most frequent one; of several that are equally frequent, from the one
/// whose first index is the lowest.
std::vector<int> deviating(std::span<const std::string> values);

/// A measured link. What `a` and `b` number, nodes or ranks, is up to the caller; a < b.
struct Link {
  int a = 0, b = 0;
  double bytes_per_second = 0;  ///< in each direction, both at once

  auto members() { return std::tie(a, b, bytes_per_second); }
};
struct SlowLinks {
  double median = 0;        ///< bytes per second, over the links between ends that are not slow
  std::vector<int> ends;    ///< ends whose fastest link is slow: all their links are
  std::vector<Link> links;  ///< slow ones between other ends
};
/// An end (a node) is slow if its fastest link has less than kSlowLink of the median of all ends' fastest links: with three nodes, one
/// slow node makes most of the links slow, but not most of the nodes. Of the links between other ends, those are slow that
/// have less than kSlowLink of these links' median. Fewer than three ends have nothing to compare.
SlowLinks find_slow_links(const std::vector<Link>& links);

/// Rounds in which each of `count` meets each other once, and is in at most one pair of a round (circle method): count - 1
/// rounds, or count if that is odd. In each pair the first number is the lower one.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count);

}  // namespace llampi::selfcheck
