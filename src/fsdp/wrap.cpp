// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/wrap.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "llampi/core/config_error.hpp"
#include "llampi/core/regex.hpp"
#include "llampi/core/text.hpp"

namespace llampi::fsdp {
namespace {

using Modules = std::vector<model::Module>;
using Flags = std::vector<bool>;  // per module: it is wrapped

Flags select_modules(const Modules& modules, const std::function<bool(const model::Module&)>& chosen) {
  Flags wrapped;
  for (const auto& module : modules) wrapped.push_back(chosen(module));
  return wrapped;
}

/// PyTorch's recursion as three passes over the tree, whose parents stand before their children.
Flags select_by_size(const model::Model& model, std::int64_t min_params) {
  if (min_params < 0) {
    throw ConfigError(
        {.field = "wrap.min_params", .value = std::to_string(min_params), .problem = "is negative"});
  }
  const auto& modules = model.modules();
  std::vector<std::int64_t> elements(modules.size(), 0), wrapped_inside(modules.size(), 0);
  for (const auto& parameter : model.parameters()) {
    for (int m = parameter.module; m >= 0; m = modules[m].parent) elements[m] += parameter.elements();
  }

  Flags entered, wrapped(modules.size(), false);
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const bool reached = modules[m].parent < 0 || entered[modules[m].parent];
    entered.push_back(reached && elements[m] >= min_params && modules[m].type != "MultiheadAttention");
  }

  for (std::size_t m = modules.size(); m-- > 0;) {
    const auto& [name, type, parent] = modules[m];
    if (parent < 0) continue;
    const bool is_list = type == "ModuleList" || type == "ModuleDict";
    wrapped[m] = entered[m] && !is_list && elements[m] - wrapped_inside[m] >= min_params;
    wrapped_inside[parent] += wrapped[m] ? elements[m] : wrapped_inside[m];
  }
  return wrapped;
}

std::string known_types(const Modules& modules) {
  std::set<std::string> seen;
  std::string text;
  for (const auto& module : modules) {
    if (seen.insert(module.type).second) text += (text.empty() ? "" : ", ") + module.type;
  }
  return text;
}

Flags select_by_entry(const Modules& modules, const std::string& entry) {
  if (entry.empty()) throw ConfigError({.field = "wrap.modules", .problem = "has an empty entry"});
  const std::regex expression = parse_regex(entry, "wrap.modules");
  const auto chosen = select_modules(modules, [&](const model::Module& module) {
    return module.type == entry || std::regex_search(module.name, expression);
  });
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) {
    throw ConfigError({.field = "wrap.modules",
                       .entry = entry,
                       .problem = "is neither the class nor a pattern in the name of any module",
                       .remedy = "the classes are " + known_types(modules)});
  }
  return chosen;
}

Flags select_by_entries(const Modules& modules, const std::vector<std::string>& entries) {
  if (entries.empty()) {
    throw ConfigError({.field = "wrap.policy",
                       .value = word_of(WrapPolicy::modules),
                       .problem = "needs class names or patterns of module names",
                       .remedy = "give some as {wrap.modules}; the classes are " + known_types(modules)});
  }
  Flags wrapped(modules.size(), false);
  for (const auto& entry : entries) {
    const auto chosen = select_by_entry(modules, entry);
    std::transform(wrapped.begin(), wrapped.end(), chosen.begin(), wrapped.begin(), std::logical_or<>());
  }
  return wrapped;
}

Flags select(const model::Model& model, const WrapOptions& options) {
  const auto& modules = model.modules();
  switch (options.policy) {
    case WrapPolicy::transformer:
      return select_modules(modules, [&](const auto& module) { return module.type == model.block_type(); });
    case WrapPolicy::size:
      return select_by_size(model, options.min_params);
    case WrapPolicy::modules:
      return select_by_entries(modules, options.modules);
    case WrapPolicy::none:
      return Flags(modules.size(), false);
  }
  throw Error("internal error: a wrap policy that wrap() does not know");
}

/// A unit under construction is known by its key: the wrapped module, kRoot, or kBehind.
constexpr int kRoot = -1;    // no module around the parameter is wrapped
constexpr int kBehind = -2;  // the part of the root that stands behind the blocks

std::vector<int> keys_of_parameters(const model::Model& model, const Flags& wrapped) {
  std::vector<int> keys;
  for (const auto& parameter : model.parameters()) {
    int m = parameter.module;
    while (m >= 0 && !wrapped[m]) m = model.modules()[m].parent;
    keys.push_back(m);
  }
  return keys;
}

/// Gives what the layers use of the root only behind the first block a key of its own, unless a parameter of
/// the root is used on both sides.
void split_root(const std::vector<model::LayerSpec>& specs, std::vector<int>& keys) {
  std::array<Flags, 2> used = {Flags(keys.size(), false), Flags(keys.size(), false)};  // before, behind
  bool after_blocks = false;
  for (const auto& spec : specs) {
    for (const auto& use : spec.parameters) {
      if (keys[use.parameter] == kRoot) {
        used[after_blocks ? 1 : 0][use.parameter] = true;
      } else {
        after_blocks = true;
      }
    }
  }
  for (std::size_t p = 0; p < keys.size(); ++p) {
    if (used[0][p] && used[1][p]) return;
  }
  for (std::size_t p = 0; p < keys.size(); ++p) {
    if (used[1][p]) keys[p] = kBehind;
  }
}

/// Which of a unit's parameters can go without gradients: those of matrices (parameters that join) of which
/// none is trained.
std::vector<bool> separable(const std::vector<model::Parameter>& parameters,
                            const std::vector<bool>& frozen) {
  std::vector<bool> result(parameters.size(), false);
  for (std::size_t p = 0; p < frozen.size();) {
    std::size_t end = p + 1;
    while (end < parameters.size() && parameters[end].fused_with_previous) ++end;
    const bool all = std::all_of(frozen.begin() + p, frozen.begin() + end, [](bool f) { return f; });
    std::fill(result.begin() + p, result.begin() + end, all);
    p = end;
  }
  return result;
}

/// Per parameter: it is read in 8 bits.
std::vector<bool> read_in_fp8(const std::vector<model::LayerSpec>& specs, std::size_t parameters) {
  std::vector<bool> result(parameters, false);
  for (const auto& spec : specs) {
    for (const auto& weight : spec.fp8_weights) {
      for (const int p : weight) result[p] = true;
    }
  }
  return result;
}

/// What a Unit's parameters have in common, besides that they are frozen.
enum class Kind : std::uint8_t { plain, fp8, int8 };
constexpr std::array kKinds = {Kind::plain, Kind::fp8, Kind::int8};

std::vector<Kind> kinds_of(const model::Model& model, const std::vector<model::LayerSpec>& specs,
                           const Keeping& keeping) {
  const std::size_t parameters = model.parameters().size();
  const auto fp8 = read_in_fp8(specs, parameters);
  std::vector<bool> int8(parameters, false);
  if (keeping.int8_base) int8 = kept_in_int8(model, keeping.frozen);
  std::vector<Kind> kinds;
  for (std::size_t p = 0; p < parameters; ++p) {
    require(!fp8[p] || !int8[p], "what is multiplied in 8 bits is not kept in blocks of them");
    kinds.push_back(fp8[p] ? Kind::fp8 : int8[p] ? Kind::int8 : Kind::plain);
  }
  return kinds;
}

/// " (frozen, fp8)"; of what is as usual none.
std::string suffix_of(bool frozen, Kind kind) {
  const char* const bits = kind == Kind::fp8 ? "fp8" : kind == Kind::int8 ? "int8" : "";
  if (!frozen) return kind == Kind::plain ? "" : fmt::format(" ({})", bits);
  return kind == Kind::plain ? " (frozen)" : fmt::format(" (frozen, {})", bits);
}

/// Per parameter: when the layers use it first. One that no layer uses comes last.
std::vector<int> first_uses(const std::vector<model::LayerSpec>& specs, std::size_t parameters) {
  std::vector<int> first(parameters, std::numeric_limits<int>::max());
  int time = 0;
  for (const auto& spec : specs) {
    for (const auto& use : spec.parameters) first[use.parameter] = std::min(first[use.parameter], time++);
  }
  return first;
}

}  // namespace

std::vector<bool> kept_in_int8(const model::Model& model, const std::vector<bool>& frozen) {
  const auto& modules = model.modules();
  auto result = separable(model.parameters(), frozen);
  for (std::size_t p = 0; p < result.size(); ++p) {
    const auto& parameter = model.parameters()[p];
    int m = parameter.module;
    while (m >= 0 && modules[m].type != model.block_type()) m = modules[m].parent;
    result[p] = result[p] && m >= 0 && parameter.shape.size() == 2;
  }
  return result;
}

std::vector<Unit> wrap(const model::Model& model, const std::vector<model::LayerSpec>& specs,
                       const WrapOptions& options, int shards, const Keeping& keeping) {
  const auto& parameters = model.parameters();
  const auto& frozen = keeping.frozen;
  require(frozen.empty() || frozen.size() == parameters.size(), "which parameters are frozen");
  auto keys = keys_of_parameters(model, select(model, options));
  if (options.policy == WrapPolicy::transformer) split_root(specs, keys);
  for (std::size_t p = 1; p < keys.size(); ++p) {
    if (parameters[p].fused_with_previous) keys[p] = keys[p - 1];
  }

  struct Members {
    int first_use = std::numeric_limits<int>::max();
    std::vector<int> parameters;
  };
  std::map<int, Members> members;
  const auto first = first_uses(specs, parameters.size());
  for (std::size_t p = 0; p < keys.size(); ++p) {
    auto& unit = members[keys[p]];
    unit.first_use = std::min(unit.first_use, first[p]);
    unit.parameters.push_back(static_cast<int>(p));
  }
  std::vector<int> order;
  for (const auto& [key, unit] : members) order.push_back(key);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return members.at(a).first_use < members.at(b).first_use; });

  std::vector<Unit> units;
  const auto without_gradient = separable(parameters, frozen);
  const auto kinds = kinds_of(model, specs, keeping);
  for (const int key : order) {
    const auto& list = members.at(key).parameters;
    const bool side_of_root = key < 0 && options.policy == WrapPolicy::transformer;
    const int named_after = side_of_root ? parameters[list.front()].module : key;
    std::string name = named_after >= 0 ? model.modules()[named_after].name : "";
    if (name.empty()) name = "root";
    bool follows = false;
    for (const bool is_frozen : {false, true}) {
      for (const Kind kind : kKinds) {
        std::vector<int> part;
        std::ranges::copy_if(list, std::back_inserter(part),
                             [&](int p) { return without_gradient[p] == is_frozen && kinds[p] == kind; });
        if (part.empty()) continue;
        units.push_back(make_unit(name + suffix_of(is_frozen, kind), part, parameters, shards,
                                  is_frozen ? 1 : keeping.state_parts,
                                  kind == Kind::int8 ? kInt8Alignment : kAlignment));
        units.back().frozen = is_frozen;
        units.back().fp8 = kind == Kind::fp8;
        units.back().int8 = kind == Kind::int8;
        units.back().follows = std::exchange(follows, true);
      }
    }
  }
  return units;
}

std::string format_units(const model::Model& model, const std::vector<Unit>& units) {
  const std::string total = fmt::format("{}, shards each: {}", count(std::ssize(units), "unit"),
                                        units.empty() ? 0 : units[0].shards);
  std::size_t width = total.size();
  for (const auto& unit : units) width = std::max(width, unit.name.size());
  std::string text = fmt::format("{:<{}}  {:>10}  {:>15}  {:>10}  {:>15}  {:>10}\n", "unit", width, "tensors",
                                 "parameters", "float32", "shard elements", "padding");
  const auto add_line = [&](const std::string& name, std::size_t parameters, std::int64_t elements,
                            std::int64_t shard_elements, std::int64_t padding) {
    text += fmt::format("{:<{}}  {:>10}  {:>15}  {:>10}  {:>15}  {:>10}\n", name, width, parameters, elements,
                        format_bytes(elements * static_cast<std::int64_t>(sizeof(float))), shard_elements,
                        padding);
  };
  std::size_t parameters = 0;
  std::int64_t elements = 0, shard_elements = 0, padding = 0;
  for (const auto& unit : units) {
    std::int64_t own = 0;
    for (const auto& p : unit.parameters) own += model.parameters()[p.parameter].elements();
    add_line(unit.name, unit.parameters.size(), own, unit.shard_elements, unit.flat_elements() - own);
    parameters += unit.parameters.size();
    elements += own;
    shard_elements += unit.shard_elements;
    padding += unit.flat_elements() - own;
  }
  add_line(total, parameters, elements, shard_elements, padding);
  return text;
}

}  // namespace llampi::fsdp
