// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace llampi::plan {
namespace {

using Gives = FigureKind::Gives;

constexpr int kRounds = 20000;

/// The least that one of each term can cost.
Terms least_costs(const std::vector<TimedWork>& rows) {
  Terms least;
  for (const FigureKind& kind : figures_of_machines()) {
    if (kind.gives != Gives::rate) continue;
    double best = std::numeric_limits<double>::infinity();
    for (const auto& row : rows) {
      if (row.amounts[kind.term] > 0) best = std::min(best, row.seconds / row.amounts[kind.term]);
    }
    least[kind.term] = std::isfinite(best) ? best / 2 : 0;
  }
  return least;
}

}  // namespace

Terms fit_costs(const std::vector<TimedWork>& rows) {
  Terms costs = least_costs(rows);
  const Terms least = costs;
  std::vector<double> missing;  // of each row: 1 - predicted / measured
  for (const auto& row : rows) missing.push_back(1 - seconds_of(row.amounts, costs) / row.seconds);
  // One cost after another is set to its best value: a convex problem, with bounds.
  for (int round = 0; round < kRounds; ++round) {
    for (int t = 0; t < kTerms; ++t) {
      const auto term = static_cast<Term>(t);
      double gradient = 0, curvature = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double amount = rows[i].amounts[term] / rows[i].seconds;
        gradient += rows[i].weight * amount * missing[i];
        curvature += rows[i].weight * amount * amount;
      }
      if (curvature == 0) continue;
      const double cost = std::max(least[term], costs[term] + gradient / curvature);
      for (std::size_t i = 0; i < rows.size(); ++i)
        missing[i] -= rows[i].amounts[term] / rows[i].seconds * (cost - costs[term]);
      costs[term] = cost;
    }
  }
  return costs;
}

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 3);
  return std::round(value / unit) * unit;
}

void set_costs(MachineSpeed& machine, const Terms& costs, double share, const Figure& source) {
  double rate_cost = 0;  // of the rate that an edge follows
  for (const FigureKind& kind : figures_of_machines()) {
    if (kind.gives == Gives::nothing) continue;
    Figure figure = source;
    const double cost = costs[kind.term];
    if (kind.gives == Gives::rate) {
      rate_cost = cost;
      if (cost == 0) continue;
      figure.value = kind.unit / cost / share;
    } else if (kind.gives == Gives::edge) {
      if (rate_cost == 0) continue;
      figure.value = cost / rate_cost;
    } else {
      figure.value = cost / kind.unit;
    }
    figure.value = rounded(figure.value);
    machine.set(kind.key, std::move(figure));
  }
}

}  // namespace llampi::plan
