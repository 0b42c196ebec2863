// SPDX-License-Identifier: Apache-2.0
// Curves for the eye: fewer points. Values that are not a number are gaps.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace llampi::report {

/// Consecutive values put together. A group without a value has none.
struct Thinned {
  std::vector<double> mean, low, high;
};
/// Values in each group so that there are at most `points` groups.
std::size_t group_size(std::size_t values, std::size_t points);
Thinned thin(std::span<const double> values, std::size_t group);
/// The last of each group: where it ends on an axis.
std::vector<double> ends_of_groups(std::span<const double> values, std::size_t group);

/// Least and largest value; {0, 1} where there is none.
struct Bounds {
  double low = 0, high = 1;
};
Bounds bounds_of(std::span<const double> values);

/// Not a number where there is no value. Of an even number of values the mean of the middle two.
double median(std::span<const double> values);

}  // namespace llampi::report
