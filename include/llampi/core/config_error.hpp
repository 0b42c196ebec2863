// SPDX-License-Identifier: Apache-2.0
// An invalid option, reported by a part that does not know how the user spells options: a
// library's user sets a member of a structure, a program's user a key of a file. The program reports the error
// with its own names.
#pragma once

#include <functional>
#include <string>
#include <tuple>

#include "llampi/core/error.hpp"

namespace llampi {

class ConfigError : public UserError {
 public:
  struct Parts {
    std::string field =
        {};  ///< as the library spells the option: "wrap.modules"; empty: none is wrong by itself
    std::string value = {};    ///< that it has; empty: not told
    std::string entry = {};    ///< what is wrong of a list, instead of `value`
    std::string problem = {};  ///< "does not divide 6 ranks into several equal groups"
    std::string remedy =
        {};  ///< what to do; other options stand in it as {strategy}. Empty: plain from the problem
    std::string where = {};  ///< "rank 1 on host"; empty: the same on all ranks

    auto members() { return std::tie(field, value, entry, problem, remedy, where); }
  };
  /// The name of a field.
  using Naming = std::function<std::string(const std::string& field)>;

  explicit ConfigError(Parts parts);

  const Parts& parts() const { return parts_; }
  /// One sentence: "fsdp.shard_group_size = 4 does not divide 6 ranks into several equal groups; use ...".
  /// what() has the library's own names.
  std::string sentence(const Naming& name_of) const;

 private:
  Parts parts_;
};

/// what(), with `name_of` where the error is about options. @param name_of empty: the library's own names
std::string sentence_of(const std::exception& error, const ConfigError::Naming& name_of);

}  // namespace llampi
