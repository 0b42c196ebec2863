// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/series.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llampi/core/integers.hpp"

namespace llampi::report {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::size_t group_size(std::size_t values, std::size_t points) {
  return std::max<std::size_t>(1, ceil_div(values, points));
}

Thinned thin(std::span<const double> values, std::size_t group) {
  Thinned thinned;
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    double sum = 0, low = kNone, high = kNone;
    int count = 0;
    for (const double value : values.subspan(begin, std::min(group, values.size() - begin))) {
      if (std::isnan(value)) continue;
      low = std::fmin(low, value);
      high = std::fmax(high, value);
      sum += value;
      ++count;
    }
    thinned.mean.push_back(count == 0 ? kNone : sum / count);
    thinned.low.push_back(low);
    thinned.high.push_back(high);
  }
  return thinned;
}

std::vector<double> ends_of_groups(std::span<const double> values, std::size_t group) {
  std::vector<double> ends;
  for (std::size_t begin = 0; begin < values.size(); begin += group)
    ends.push_back(values[std::min(begin + group, values.size()) - 1]);
  return ends;
}

Bounds bounds_of(std::span<const double> values) {
  Bounds bounds{kNone, kNone};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    bounds = {std::fmin(bounds.low, value), std::fmax(bounds.high, value)};
  }
  if (std::isnan(bounds.low)) return {};
  // What differs by roundings is equal.
  constexpr double kEqual = 1e-9;
  if (bounds.high - bounds.low <= kEqual * std::max(std::abs(bounds.low), std::abs(bounds.high)))
    bounds.low = bounds.high;
  return bounds;
}

double median(std::span<const double> values) {
  std::vector<double> known;
  for (const double value : values) {
    if (!std::isnan(value)) known.push_back(value);
  }
  if (known.empty()) return kNone;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  if (known.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(known.begin(), middle)) / 2;
}

}  // namespace llampi::report
