// SPDX-License-Identifier: Apache-2.0
// Wrap policies: which parameters become one FSDP unit.
//
// As in PyTorch, a policy chooses modules to wrap; a parameter belongs to the innermost wrapped module around
// it, and what no wrapped module holds belongs to the root. So units may nest: if attention and MLP are
// wrapped inside a wrapped block, the block's unit keeps the norms. Three rules hold for every policy:
// - Parameters that join (q, k, v; gate, up) are one matrix and stay together: all of them go to the unit of
//   the first of them, whatever the policy chose for the others.
// - A parameter that several layers use (a tied head) is in one unit, that of the module that holds it.
// - Units that end up without parameters vanish.
// Frozen parameters of a unit with trained ones become a Unit of their own that follows it; one that joins a
// trained one (k between trained q and v) stays with it. So do those that layers read in 8 bits, and frozen matrices of
// blocks that are kept in 8 bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/core/words.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

enum class WrapPolicy : std::uint8_t {
  /// One unit per block (Model::block_type()), and one each for the parts of the root that precede and follow the
  /// blocks in the order of the layers. A parameter used on both sides merges the two into one unit.
  transformer,
  /// PyTorch's size_based_auto_wrap_policy: from the leaves to the root, a module is wrapped if what is not
  /// yet wrapped in it has `min_params` elements or more. Lists of modules are never wrapped, modules smaller
  /// than that and MultiheadAttention are not entered. The root takes the rest.
  size,
  /// Every module that `modules` names; nested ones give nested units.
  modules,
  /// One unit with all parameters.
  none,
};
constexpr auto word_table(WrapPolicy) {
  return std::to_array<Word<WrapPolicy>>({{WrapPolicy::transformer, "transformer"},
                                          {WrapPolicy::size, "size"},
                                          {WrapPolicy::modules, "modules"},
                                          {WrapPolicy::none, "none"}});
}
inline const char* to_string(WrapPolicy policy) { return word_of(policy); }

struct WrapOptions {
  WrapPolicy policy = WrapPolicy::transformer;
  std::int64_t min_params = 100'000'000;  ///< elements; policy `size`. The default is PyTorch's
  /// Policy `modules`: class names ("LlamaMLP") or regular expressions (ECMAScript), searched in the modules'
  /// names. "mlp" finds everything inside an MLP as well; "\.mlp$" finds the MLP alone.
  std::vector<std::string> modules = {};
};

/// How parameters are kept, whatever the policy.
struct Keeping {
  std::vector<bool> frozen = {};  ///< per parameter; empty: none is
  bool int8_base = false;         ///< Precision::int8_base
  int state_parts = 1;            ///< Unit::state_parts of those that are trained
};

/// Units in the order of first use by the layers, each with its parameters in ascending order. A unit is
/// named after the wrapped module, the root's is "root", those of the root's two sides are named after the
/// module of their first parameter.
/// @param specs those of the layers, in order; only `parameters` and `fp8_weights` are read
/// @param shards ranks among which each unit is divided
/// @throws UserError if an entry of `modules` is malformed or finds nothing, if there is none, or if
/// `min_params` is negative
std::vector<Unit> wrap(const model::Model& model, const std::vector<model::LayerSpec>& specs,
                       const WrapOptions& options, int shards, const Keeping& keeping = {});

/// Which parameters are kept in 8 bits if the base is: frozen matrices of blocks, unless they join a trained one.
/// @param frozen per parameter
std::vector<bool> kept_in_int8(const model::Model& model, const std::vector<bool>& frozen);

/// A table for people: per unit its parameters, elements, bytes in float32, elements per shard, and the
/// elements of padding in all shards together. Ends with a line of totals.
std::string format_units(const model::Model& model, const std::vector<Unit>& units);

}  // namespace llampi::fsdp
