// Which parameters are treated how by the optimizer.
#pragma once

#include <string>
#include <vector>

#include "llampi/model/model.hpp"

namespace llampi {

struct ParameterGroup {
  double weight_decay = 0;
  double learning_rate_factor = 1;
};

/// One entry per parameter: no decay where `no_decay` (a regular expression, ECMAScript, searched in the
/// name) matches; if it is empty, for every 1-D parameter. Embeddings decay.
/// @throws UserError for a malformed expression
std::vector<ParameterGroup> parameter_groups(const std::vector<Parameter>& parameters, double weight_decay,
                                             const std::string& no_decay);

}  // namespace llampi
