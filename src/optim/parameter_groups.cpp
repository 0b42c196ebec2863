#include "llampi/optim/parameter_groups.hpp"

#include <regex>

namespace llampi {

std::vector<ParameterGroup> parameter_groups(const std::vector<Parameter>& parameters, double weight_decay,
                                             const std::string& no_decay) {
  std::regex expression;
  try {
    expression.assign(no_decay);
  } catch (const std::regex_error& error) {
    throw_user_error("optimizer.no_decay = '{}' is not a regular expression: {}", no_decay, error.what());
  }
  std::vector<ParameterGroup> groups;
  for (const auto& parameter : parameters) {
    const bool exempt =
        no_decay.empty() ? parameter.shape.size() == 1 : std::regex_search(parameter.name, expression);
    groups.push_back({.weight_decay = exempt ? 0.0 : weight_decay});
  }
  return groups;
}

}  // namespace llampi
