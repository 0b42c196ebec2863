// SPDX-License-Identifier: Apache-2.0
// Which parameters are treated how by the optimizer.
#pragma once

#include <string>
#include <vector>

#include "llampi/model/model.hpp"

namespace llampi::optim {

struct ParameterGroup {
  double weight_decay = 0;
  double learning_rate_factor = 1;
  bool frozen = false;  ///< no gradient, no moments, no update
};

/// What the user says. Expressions are ECMAScript, searched in the parameters' names. The lists hold entries
/// "EXPRESSION=NUMBER" separated by spaces; the first that matches a name counts. An expression may
/// contain "=": the last one separates it from the number.
struct GroupRules {
  double weight_decay = 0;
  std::string no_decay = {};       ///< these do not decay; empty: every 1-D parameter. Embeddings decay.
  std::string weight_decays = {};  ///< list; before weight_decay and no_decay
  std::string lr_factors = {};     ///< list; 1 for all others; at least 0
  std::string frozen = {};         ///< empty: none
};

/// One entry per parameter. Where there are adapters, all others are frozen.
/// @throws UserError for a malformed expression or list, one of lr_factors, weight_decays and frozen that
/// matches no parameter, a negative number, frozen together with adapters, and if every parameter is frozen
std::vector<ParameterGroup> parameter_groups(const std::vector<model::Parameter>& parameters,
                                             const GroupRules& rules);

}  // namespace llampi::optim
