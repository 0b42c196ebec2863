// SPDX-License-Identifier: Apache-2.0
// Which linear maps of a model have an adapter.
#pragma once

#include <optional>
#include <regex>
#include <set>
#include <string>

#include "llampi/model/llama_config.hpp"
#include "llampi/model/lora.hpp"

namespace llampi::model {

class LoraTargets {
 public:
  /// @throws ConfigError for an expression that is none, and for a rank or a dropout that cannot be
  LoraTargets(const LlamaConfig& model, const LoraConfig& config);

  /// Asks for a linear map of a block, by its name.
  bool use(const std::string& module);
  /// After the last one. @throws ConfigError if there is no such map, or if the targets name another module
  void require_all_used() const;

 private:
  std::string targets_;
  std::optional<std::regex> expression_;  ///< none: the names
  std::set<std::string> unused_;
  std::string example_;  ///< name of a map
  bool any_used_ = false;
};

}  // namespace llampi::model
