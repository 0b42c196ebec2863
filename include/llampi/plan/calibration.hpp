// SPDX-License-Identifier: Apache-2.0
// The figures of a machine from measured times: of operations, or of whole steps.
#pragma once

#include <vector>

#include "llampi/plan/machine.hpp"

namespace llampi::plan {

struct TimedWork {
  Terms amounts;
  double seconds = 0;
  double weight = 1;
};

/// The costs, none negative, with which the sum of weight x (predicted / measured - 1)^2 is least. A rate is at most twice the
/// best that any row shows by itself. Terms that no row has cost nothing.
Terms fit_costs(const std::vector<TimedWork>& rows);

/// To four digits.
double rounded(double value);

/// Writes the figures whose terms `costs` has.
/// @param share as in costs_of()
void set_costs(MachineSpeed& machine, const Terms& costs, double share, const Figure& source);

}  // namespace llampi::plan
