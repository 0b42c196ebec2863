// SPDX-License-Identifier: Apache-2.0
#include "llampi/selfcheck/outliers.hpp"

#include <algorithm>
#include <map>

namespace llampi::selfcheck {
namespace {

/// By end, the bandwidth of its fastest link.
std::map<int, double> fastest_of_ends(const std::vector<Link>& links) {
  std::map<int, double> fastest;
  for (const auto& link : links) {
    for (const int end : {link.a, link.b}) fastest[end] = std::max(fastest[end], link.bytes_per_second);
  }
  return fastest;
}

double median_of(const std::vector<Link>& links) {
  std::vector<double> values;
  for (const auto& link : links) values.push_back(link.bytes_per_second);
  return median(values);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<int> slow_ranks(std::span<const double> seconds) {
  const double limit = kSlowRank * median({seconds.begin(), seconds.end()});
  std::vector<int> slow;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    if (seconds[rank] > limit) slow.push_back(static_cast<int>(rank));
  }
  return slow;
}

std::vector<int> deviating(std::span<const std::string> values) {
  std::map<std::string, int> counts;
  for (const auto& value : values) ++counts[value];
  const auto usual = std::max_element(values.begin(), values.end(), [&](const auto& one, const auto& other) {
    return counts[one] < counts[other];  // the first of equal ones
  });
  std::vector<int> indices;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != *usual) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

SlowLinks find_slow_links(const std::vector<Link>& links) {
  SlowLinks slow{.median = median_of(links), .ends = {}, .links = {}};
  const auto fastest = fastest_of_ends(links);
  if (fastest.size() < 3) return slow;
  std::vector<double> of_ends;
  for (const auto& [end, bandwidth] : fastest) of_ends.push_back(bandwidth);
  const double usual = median(of_ends);
  for (const auto& [end, bandwidth] : fastest) {
    if (bandwidth < kSlowLink * usual) slow.ends.push_back(end);
  }
  const auto is_slow_end = [&](int end) { return std::count(slow.ends.begin(), slow.ends.end(), end) > 0; };
  std::vector<Link> others;
  std::copy_if(links.begin(), links.end(), std::back_inserter(others),
               [&](const Link& link) { return !is_slow_end(link.a) && !is_slow_end(link.b); });
  slow.median = median_of(others);
  std::copy_if(others.begin(), others.end(), std::back_inserter(slow.links),
               [&](const Link& link) { return link.bytes_per_second < kSlowLink * slow.median; });
  return slow;
}

std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count) {
  const int seats = count + count % 2;  // of an odd number, one has no partner in each round
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    auto& pairs = rounds.emplace_back();
    const auto at = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1); };
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int one = at(seat), other = at(seats - 1 - seat);
      if (std::max(one, other) < count) pairs.emplace_back(std::min(one, other), std::max(one, other));
    }
  }
  return rounds;
}

}  // namespace llampi::selfcheck
