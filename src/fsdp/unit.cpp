#include "llampi/fsdp/unit.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace llampi {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Index of the block that a module is or belongs to; -1 outside all blocks.
int enclosing_block(const std::vector<Module>& modules, int module, const std::string& block_type) {
  for (int m = module; m >= 0; m = modules[m].parent) {
    if (modules[m].type == block_type) return m;
  }
  return -1;
}

}  // namespace

Unit make_unit(std::string name, const std::vector<int>& parameters, const std::vector<Parameter>& all,
               int shards) {
  Unit unit;
  unit.name = std::move(name);
  unit.shards = shards;
  std::int64_t end = 0;
  for (const int p : parameters) {
    if (!all[p].joins_previous) end = round_up(end, kAlignment);
    unit.parameters.push_back({p, end, all[p].elements()});
    end += all[p].elements();
  }
  unit.shard_elements = round_up((end + shards - 1) / shards, kAlignment);
  return unit;
}

std::vector<ShardPiece> shard_pieces(const Unit& unit, int shard) {
  const std::int64_t shard_begin = shard * unit.shard_elements;
  const std::int64_t shard_end = shard_begin + unit.shard_elements;
  std::vector<ShardPiece> pieces;
  for (const auto& p : unit.parameters) {
    const std::int64_t begin = std::max(p.offset, shard_begin);
    const std::int64_t end = std::min(p.offset + p.elements, shard_end);
    if (begin < end) pieces.push_back({p.parameter, begin - p.offset, end - begin, begin - shard_begin});
  }
  return pieces;
}

std::vector<Unit> wrap_transformer(const Model& model, const std::vector<StageSpec>& specs, int shards) {
  const auto& modules = model.modules();
  const auto& parameters = model.parameters();

  // A key per parameter: its block, or the side of the blocks on which its first stage stands. The sides are
  // numbered such that the keys' order is that of the stages.
  constexpr int kBefore = -1;
  const int behind = static_cast<int>(modules.size());
  std::vector<int> key(parameters.size(), kBefore);
  std::vector<std::pair<int, int>> same;  // keys that a shared parameter draws together
  std::vector<bool> seen(parameters.size(), false);
  bool after_blocks = false;
  for (const auto& spec : specs) {
    for (const auto& use : spec.parameters) {
      const int block = enclosing_block(modules, parameters[use.parameter].module, model.block_type());
      const int here = block >= 0 ? block : (after_blocks ? behind : kBefore);
      after_blocks = after_blocks || block >= 0;
      if (seen[use.parameter] && key[use.parameter] != here) same.emplace_back(key[use.parameter], here);
      if (!seen[use.parameter]) key[use.parameter] = here;
      seen[use.parameter] = true;
    }
  }
  for (const auto& [kept, dropped] : same) std::replace(key.begin(), key.end(), dropped, kept);

  std::map<int, std::vector<int>> members;
  for (std::size_t p = 0; p < parameters.size(); ++p) members[key[p]].push_back(static_cast<int>(p));
  std::vector<Unit> units;
  for (const auto& [k, list] : members) {
    const bool is_block = k != kBefore && k != behind;
    units.push_back(make_unit(is_block ? modules[k].name : modules[parameters[list.front()].module].name,
                              list, parameters, shards));
  }
  return units;
}

}  // namespace llampi
