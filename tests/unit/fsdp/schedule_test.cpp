// SPDX-License-Identifier: Apache-2.0
// Properties of the list of actions, for every combination of list_cases(), without running it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "llampi/fsdp/streams.hpp"
#include "unit/fsdp/lists.hpp"
#include "unit/fsdp/sum_text.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

using Key = std::pair<int, Pass>;  // unit and unsharded copy

class EveryList : public ::testing::TestWithParam<ListCase> {
 protected:
  EveryList() : lists_(make_lists(GetParam())), happens_before_(lists_.step.actions) {
    for (const auto& action : step()) {
      if (!action.pass || action.op == Op::reshard) continue;
      const Key key{action.unit, *action.pass};
      EXPECT_EQ(copies_.emplace(action.find(Slot::output)->buffer, key).first->second, key);
    }
  }

  const std::vector<Action>& step() const { return lists_.step.actions; }
  int size() const { return static_cast<int>(step().size()); }
  const Action& at(int i) const { return step()[static_cast<std::size_t>(i)]; }
  const Unit& unit(int u) const { return lists_.units[static_cast<std::size_t>(u)]; }
  bool sharded(int u) const { return unit(u).shards > 1; }
  bool gathered_at_all(int u) const {
    const Precision precision = GetParam().precision();
    const bool cast = gathered_dtype(unit(u), precision) != precision.compute && !unit(u).fp8;
    return sharded(u) || cast || GetParam().offload.params;
  }
  /// The action puts a unit's parameters where kernels read them, or the widening does.
  bool gathers(const Action& action) const {
    return action.op == Op::unshard || (action.payload == CopyPayload::shard && !sharded(action.unit));
  }
  /// The unit that another one is gathered with.
  int leader(int u) const {
    while (unit(u).follows) --u;
    return u;
  }
  int first_trained_layer() const {
    for (int s = 0;; ++s) {
      for (const auto& use : lists_.specs.at(static_cast<std::size_t>(s)).parameters) {
        if (lists_.trained(use.parameter)) return s;
      }
    }
  }

  bool reads(const Action& action, std::size_t use) const {
    const auto& u = lists_.specs[static_cast<std::size_t>(action.layer)].parameters[use];
    if (action.op != Op::backward) return u.forward;
    return u.backward || lists_.last_layer(action.layer);
  }
  bool uses_unit(const Action& action, int unit) const {
    if (action.op != Op::forward && action.op != Op::recompute && action.op != Op::backward) return false;
    for (const auto& use : lists_.specs[static_cast<std::size_t>(action.layer)].parameters) {
      if (lists_.unit_of[static_cast<std::size_t>(use.parameter)] == unit) return true;
    }
    return false;
  }

  int unit_of(int parameter) const { return lists_.unit_of[static_cast<std::size_t>(parameter)]; }
  /// The operand of this slot for a parameter of the layer.
  const Operand& operand(const Action& action, Slot slot, std::size_t use) const {
    const auto first = action.find(slot) - action.operands.data();
    const Operand& found = action.operands.at(static_cast<std::size_t>(first) + use);
    EXPECT_EQ(found.slot, slot);
    return found;
  }
  /// Which unsharded copy a layer reads a parameter from: the one that is made in the same buffer.
  Key copy_of(const Action& action, std::size_t use) const {
    const BufferId buffer = operand(action, Slot::parameter, use).buffer;
    const auto made = copies_.find(buffer);
    return made == copies_.end() ? Key{-1, Pass::forward} : made->second;
  }

  /// Of the unit or of what follows it.
  bool reads_copy(const Action& action, int unit, Pass pass) const {
    if (action.op != Op::forward && action.op != Op::recompute && action.op != Op::backward) return false;
    const auto& uses = lists_.specs[static_cast<std::size_t>(action.layer)].parameters;
    for (std::size_t u = 0; u < uses.size(); ++u) {
      const bool same = leader(lists_.unit_of[static_cast<std::size_t>(uses[u].parameter)]) == unit;
      if (same && reads(action, u) && copy_of(action, u) == Key{unit_of(uses[u].parameter), pass})
        return true;
    }
    return false;
  }

  // What holds of each list:
  void layers_run_in_order() const;
  void parameters_are_gathered_before_use_and_not_twice() const;
  void a_unit_is_gathered_as_often_as_the_strategy_says() const;
  void gathered_units_stay_below_the_limit() const;
  void in_the_order_of_a_tree_gradients_are_added_so() const;
  void gradients_are_reduced_once_after_their_last_write() const;
  void reductions_inside_a_group_do_not_wait_for_replicas_that_have_a_stream() const;
  void the_first_write_of_a_gradient_overwrites_and_later_ones_add() const;
  void norm_follows_all_reductions_and_updates_follow_the_norm() const;
  void where_replicas_divide_the_state_updated_parts_are_gathered() const;
  void squares_of_each_unit_are_summed_once_its_gradient_is_complete() const;
  void squares_wait_for_the_reduction_of_their_unit_only() const;
  void state_that_is_kept_in_host_memory_passes_through_the_device_two_units_at_a_time() const;
  void residuals_in_host_memory_are_back_before_they_are_read() const;
  void saved_tensors_in_host_memory_are_back_before_they_are_read() const;
  void the_host_updates_with_gradients_that_have_arrived_and_sends_the_shard_back() const;
  void shards_in_host_memory_are_copied_before_they_are_gathered() const;
  void frozen_units_have_neither_reductions_nor_updates() const;
  void prefetch_stands_where_its_mode_says() const;
  void recomputation_stands_before_the_backward_that_reads_it() const;
  void evaluation_only_gathers_computes_and_frees() const;

  Lists lists_;
  HappensBefore happens_before_;
  std::map<BufferId, Key> copies_;  // what is in the buffers of unsharded parameters
};

void EveryList::layers_run_in_order() const {
  std::vector<std::pair<Op, int>> expected, actual;
  const int layers = static_cast<int>(lists_.specs.size());
  for (int m = 0; m < GetParam().micro_batches; ++m) {
    for (int s = 0; s + 1 < layers; ++s) expected.emplace_back(Op::forward, s);
    for (int s = layers - 1; s >= first_trained_layer(); --s) expected.emplace_back(Op::backward, s);
  }
  for (const auto& action : step()) {
    if (action.op == Op::forward || action.op == Op::backward) actual.emplace_back(action.op, action.layer);
  }
  EXPECT_EQ(actual, expected);
}

void EveryList::parameters_are_gathered_before_use_and_not_twice() const {
  std::map<Key, int> gathered;  // to the action that gathered it
  for (int i = 0; i < size(); ++i) {
    const auto& action = at(i);
    const Key key{action.unit, action.pass.value_or(Pass::forward)};
    if (gathers(action)) {
      EXPECT_TRUE(gathered.emplace(key, i).second)
          << "gathered twice: " << to_string(action, lists_.specs, lists_.units);
    }
    if (action.op == Op::cast_params) {
      if (sharded(action.unit) || GetParam().offload.params) {
        ASSERT_TRUE(gathered.count(key));
        EXPECT_TRUE(happens_before_(gathered[key], i));
      }
      gathered[key] = i;  // layers read the widened copy
    }
    if (action.op == Op::reshard) {
      EXPECT_EQ(gathered.erase(key), 1U);
    }
    if (action.op != Op::forward && action.op != Op::recompute && action.op != Op::backward) continue;
    const auto& uses = lists_.specs[static_cast<std::size_t>(action.layer)].parameters;
    for (std::size_t u = 0; u < uses.size(); ++u) {
      const int unit = lists_.unit_of[static_cast<std::size_t>(uses[u].parameter)];
      if (!gathered_at_all(unit) || !reads(action, u)) continue;
      const auto source = gathered.find(copy_of(action, u));
      ASSERT_NE(source, gathered.end()) << to_string(action, lists_.specs, lists_.units);
      EXPECT_TRUE(happens_before_(source->second, i));
    }
  }
  EXPECT_TRUE(gathered.empty()) << "left gathered at the end of the step";
}

void EveryList::a_unit_is_gathered_as_often_as_the_strategy_says() const {
  if (GetParam().wrap.policy != WrapPolicy::transformer || GetParam().frozen) return;
  std::map<int, int> count;
  for (const auto& action : step()) count[action.unit] += gathers(action) ? 1 : 0;
  const int units = static_cast<int>(lists_.units.size());
  for (int u = 0; u < units; ++u) {
    // Blocks once per pass; the embedding is not read in the backward pass, the head's passes are one.
    const bool block = lists_.units[static_cast<std::size_t>(u)].name.find(".layers.") != std::string::npos;
    const bool kept = !sharded(u) && !GetParam().offload.params;
    const int per_micro_batch = kept ? 0 : (block && GetParam().reshard_after_forward ? 2 : 1);
    EXPECT_EQ(count[u], per_micro_batch * GetParam().micro_batches)
        << lists_.units[static_cast<std::size_t>(u)].name;
  }
}

void EveryList::gathered_units_stay_below_the_limit() const {
  if (!GetParam().reshard_after_forward) return;  // the strategy keeps everything
  struct Gathered {
    int unit;
    Pass pass;
    int issued, first_use, given_up;
  };
  std::vector<Gathered> all;
  for (int i = size() - 1; i >= 0; --i) {  // backwards: the first use of a gather is the last one seen
    if (at(i).op == Op::reshard && !unit(at(i).unit).follows)
      all.push_back({at(i).unit, *at(i).pass, -1, -1, i});
    for (auto& g : all) {
      if (g.issued >= 0) continue;
      if (reads_copy(at(i), g.unit, g.pass)) g.first_use = i;
      if (gathers(at(i)) && at(i).unit == g.unit && at(i).pass == g.pass) g.issued = i;
    }
  }
  int at_once = 1;  // units that one layer needs
  for (int i = 0; i < size(); ++i) {
    at_once = std::max(at_once, static_cast<int>(std::count_if(all.begin(), all.end(), [&](const auto& g) {
                         return g.first_use == i;
                       })));
  }
  // Units that others begin inside of are extra, as the header says.
  const auto every = all;
  std::erase_if(all, [&](const Gathered& g) {
    return std::any_of(every.begin(), every.end(), [&](const auto& other) {
      return g.first_use < other.first_use && other.first_use < g.given_up;
    });
  });
  for (int i = 0; i < size(); ++i) {
    const auto live = std::count_if(all.begin(), all.end(), [&](const auto& g) {
      return g.issued >= 0 && g.issued <= i && i < g.given_up;
    });
    ASSERT_LE(live, std::max(GetParam().limit, at_once)) << "at action " << i;
  }
}

/// SumOrder::tree: what the sharded gradient of a unit is to be, by the numbers of this rank's micro-batches; "all"
/// stands for the sum over groups.
std::string sum_in_tree(int micro_batches, bool joins) {
  const int together = micro_batches_of_subtree(micro_batches);
  std::vector<std::string> subtrees;
  for (int m = 0; m < micro_batches; m += together) {
    subtrees.push_back((joins ? "all" : "") + tree_of(numbers(together, m)));
  }
  return tree_of(subtrees);
}

bool over_replicas(const Action& action) {
  return action.op == Op::all_reduce || action.op == Op::reduce_scatter;
}

/// The list carried out with words for numbers.
void EveryList::in_the_order_of_a_tree_gradients_are_added_so() const {
  if (!GetParam().in_tree()) return;
  std::map<BufferId, std::string> sums;
  std::size_t units = 0;
  for (const auto& action : step()) {
    const auto buffer = [&](Slot slot) { return action.find(slot)->buffer; };
    if (action.op == Op::backward) {
      for (const auto& operand : action.operands) {
        if (operand.slot != Slot::parameter_gradient || operand.buffer == BufferId::none) continue;
        const std::string own = std::to_string(action.micro_batch);
        if (operand.access == Access::both) {
          EXPECT_EQ(sums.at(operand.buffer), own) << "added in a product";
        }
        sums[operand.buffer] = own;
      }
    } else if (action.op == Op::add) {
      sums.at(buffer(Slot::output)) = joined(sums.at(buffer(Slot::output)), sums.at(buffer(Slot::input)));
    } else if (over_replicas(action) && sharded(action.unit)) {
      sums[buffer(Slot::output)] = "all" + sums.at(buffer(Slot::input));
    } else if (action.op == Op::reduce || over_replicas(action)) {
      const bool adds = action.find(Slot::output)->access == Access::both;
      std::string& shard = sums[buffer(Slot::output)];
      shard = adds ? joined(shard, sums.at(buffer(Slot::input))) : sums.at(buffer(Slot::input));
    } else if (action.op == Op::sum_squares) {
      const bool joins = GetParam().shard_count() > 1 && GetParam().ranks > GetParam().shard_count();
      for (const auto& operand : action.operands) {
        if (operand.slot != Slot::gradient) continue;
        ++units;
        EXPECT_EQ(sums.at(operand.buffer), sum_in_tree(GetParam().micro_batches, joins));
      }
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(units),
            std::ranges::count_if(lists_.units, [](const Unit& unit) { return !unit.frozen; }));
}

void EveryList::gradients_are_reduced_once_after_their_last_write() const {
  if (GetParam().in_tree()) return;  // see above
  const bool reduced = GetParam().reduces();
  for (int u = 0; u < static_cast<int>(lists_.units.size()); ++u) {
    if (unit(u).frozen) continue;
    for (int m = 0; m < GetParam().micro_batches; ++m) {
      int last_write = -1;
      std::vector<int> reductions;
      for (int i = 0; i < size(); ++i) {
        if (at(i).micro_batch != m) continue;
        if (at(i).op == Op::backward && uses_unit(at(i), u)) last_write = i;
        if ((at(i).op == Op::reduce || over_replicas(at(i))) && at(i).unit == u) reductions.push_back(i);
      }
      ASSERT_GE(last_write, 0);
      const bool last = m + 1 == GetParam().micro_batches;
      const bool now = reduced && (!GetParam().unsharded || last);
      const bool hybrid = sharded(u) && GetParam().ranks > GetParam().shard_count();
      ASSERT_EQ(reductions.size(), !now ? 0U : (hybrid && last ? 2U : 1U));
      if (!now) continue;
      const auto& reduction = at(reductions.front());
      EXPECT_TRUE(happens_before_(last_write, reductions.front()));
      const bool in_parts = unit(u).state_parts > 1;
      const Op join_op = in_parts ? Op::reduce_scatter : Op::all_reduce;
      EXPECT_EQ(reduction.op, sharded(u) ? Op::reduce : join_op);
      const bool adds = m > 0 && !GetParam().unsharded;
      EXPECT_EQ(reduction.find(Slot::output)->access, adds ? Access::both : Access::write);
      if (!hybrid || !last) continue;
      const auto& join = at(reductions.back());  // of the shards, behind the group's own reduction
      EXPECT_EQ(join.op, join_op);
      EXPECT_EQ(join.find(Slot::input)->buffer == join.find(Slot::output)->buffer, !in_parts) << "in place";
      EXPECT_EQ(lists_.step[join.find(Slot::output)->buffer].elements(), unit(u).part_elements());
      EXPECT_EQ(join.find(Slot::output)->access, Access::write);
      EXPECT_TRUE(happens_before_(reductions.front(), reductions.back()));
      EXPECT_EQ(join.stream, GetParam().all_reduce_stream ? kAllReduceStream : kReduceStream);
    }
  }
}

// But for sums of a tree, which are added when the next of their unit is there.
void EveryList::reductions_inside_a_group_do_not_wait_for_replicas_that_have_a_stream() const {
  if (!GetParam().all_reduce_stream) return;
  int joins = 0;
  std::set<BufferId> workspaces;
  for (int i = 0; i < size(); ++i) {
    if (at(i).op != Op::all_reduce) continue;
    ++joins;
    EXPECT_EQ(at(i).stream, kAllReduceStream);
    workspaces.insert(at(i).find(Slot::workspace)->buffer);
    for (int r = 0; r < size(); ++r) {
      if (at(r).op == Op::norm) {
        EXPECT_TRUE(happens_before_(i, r));
      }
      if (at(r).op != Op::reduce) continue;
      if (at(r).unit == at(i).unit && r < i) {
        EXPECT_TRUE(happens_before_(r, i));
      }
      if (r > i && (!GetParam().in_tree() || at(r).micro_batch == at(i).micro_batch)) {
        EXPECT_FALSE(happens_before_(i, r)) << "the reduction of unit " << at(r).unit;
      }
    }
  }
  EXPECT_GE(joins, std::ssize(lists_.units));
  ASSERT_EQ(workspaces.size(), 1U);
  for (const auto& action : step()) {
    if (action.op == Op::all_reduce || action.find(Slot::workspace) == nullptr) continue;
    EXPECT_NE(action.find(Slot::workspace)->buffer, *workspaces.begin());
  }
}

void EveryList::the_first_write_of_a_gradient_overwrites_and_later_ones_add() const {
  std::set<std::pair<int, int>> written;
  for (const auto& action : step()) {
    if (action.op != Op::backward) continue;
    const auto& uses = lists_.specs[static_cast<std::size_t>(action.layer)].parameters;
    for (std::size_t u = 0; u < uses.size(); ++u) {
      if (!lists_.trained(uses[u].parameter)) continue;
      // Gradients that are not reduced in each micro-batch add up over the step.
      const bool reduced = GetParam().reduces();
      const bool apart = reduced && (!GetParam().unsharded || GetParam().in_tree());
      const int epoch = apart ? action.micro_batch : 0;
      const bool first = written.emplace(uses[u].parameter, epoch).second;
      EXPECT_EQ(operand(action, Slot::parameter_gradient, u).access, first ? Access::write : Access::both);
    }
  }
}

void EveryList::norm_follows_all_reductions_and_updates_follow_the_norm() const {
  const auto norm =
      std::find_if(step().begin(), step().end(), [](const auto& a) { return a.op == Op::norm; });
  ASSERT_NE(norm, step().end());
  const int n = static_cast<int>(norm - step().begin());
  std::set<int> updated;
  for (int i = 0; i < size(); ++i) {
    if (at(i).op == Op::update) {
      EXPECT_TRUE(updated.insert(at(i).unit).second);
      EXPECT_FALSE(unit(at(i).unit).frozen);
    }
    if (i > n) {
      EXPECT_TRUE(happens_before_(n, i)) << to_string(at(i), lists_.specs, lists_.units);
    } else if (i < n && at(i).op != Op::reshard && at(i).payload != CopyPayload::state) {
      EXPECT_TRUE(happens_before_(i, n)) << to_string(at(i), lists_.specs, lists_.units);
    }
  }
  EXPECT_EQ(updated.size(), static_cast<std::size_t>(std::count_if(lists_.units.begin(), lists_.units.end(),
                                                                   [](const auto& u) { return !u.frozen; })));
}

void EveryList::where_replicas_divide_the_state_updated_parts_are_gathered() const {
  std::map<int, int> updated, gathered;  // the shard is on the device: by the update, or a copy
  for (int i = 0; i < size(); ++i) {
    if (at(i).op == Op::update || at(i).payload == CopyPayload::new_shard) updated[at(i).unit] = i;
    if (at(i).op != Op::all_gather) continue;
    EXPECT_TRUE(gathered.emplace(at(i).unit, i).second);
    EXPECT_EQ(at(i).ranks, Ranks::replicate_group);
    const Operand input = operand(at(i), Slot::input, 0), output = operand(at(i), Slot::output, 0);
    EXPECT_EQ(input.part.own, Own::replica_part);
    EXPECT_TRUE(output.part.whole());
    EXPECT_EQ(input.buffer, output.buffer);
    EXPECT_EQ(output.buffer, lists_.step.persistent.units[static_cast<std::size_t>(at(i).unit)].shard);
  }
  for (const auto& [u, update] : updated) {
    const UnitState& state = lists_.step.persistent.units[static_cast<std::size_t>(u)];
    EXPECT_EQ(lists_.step[state.exp_avg].elements() * GetParam().state_parts(), unit(u).shard_elements);
    EXPECT_EQ(lists_.step[state.shard].elements(), unit(u).shard_elements);
    ASSERT_EQ(gathered.contains(u), GetParam().state_parts() > 1);
    if (GetParam().state_parts() > 1) {
      EXPECT_TRUE(happens_before_(update, gathered.at(u)));
    }
  }
}

void EveryList::squares_of_each_unit_are_summed_once_its_gradient_is_complete() const {
  std::map<int, int> found;
  for (int i = 0; i < size(); ++i) {
    if (at(i).op != Op::sum_squares) continue;
    EXPECT_EQ(at(i).find(Slot::norm_scalars)->access, found.empty() ? Access::write : Access::both)
        << "the first begins the sum";
    EXPECT_TRUE(found.emplace(at(i).unit, i).second);
  }
  const auto trained =
      std::count_if(lists_.units.begin(), lists_.units.end(), [](const auto& u) { return !u.frozen; });
  EXPECT_EQ(std::ssize(found), trained);
  for (const auto& [u, summed] : found) {
    const BufferId gradient = operand(at(summed), Slot::gradient, 0).buffer;
    for (int i = 0; i < size(); ++i) {
      for (const auto& o : at(i).operands) {
        if (o.buffer != gradient || o.access == Access::read || at(i).op == Op::update) continue;
        EXPECT_TRUE(happens_before_(i, summed)) << to_string(at(i), lists_.specs, lists_.units);
      }
    }
  }
}

/// The first squares are summed while the last gradient is still being reduced.
void EveryList::squares_wait_for_the_reduction_of_their_unit_only() const {
  if (GetParam().ranks == 1) return;
  std::vector<int> squares, reductions;
  for (int i = 0; i < size(); ++i) {
    if (at(i).op == Op::sum_squares) squares.push_back(i);
    if (at(i).op == Op::reduce || over_replicas(at(i))) reductions.push_back(i);
  }
  if (squares.size() < 2 || GetParam().in_tree()) return;
  ASSERT_FALSE(reductions.empty());
  EXPECT_FALSE(happens_before_(reductions.back(), squares.front()));
}

void EveryList::state_that_is_kept_in_host_memory_passes_through_the_device_two_units_at_a_time() const {
  const auto& offload = GetParam().offload;
  if (!offload.optimizer || offload.host_step) return;
  std::map<int, int> in, updated;
  std::set<int> on_device;
  std::size_t out = 0;
  for (int i = 0; i < size(); ++i) {
    const int u = at(i).unit;
    if (at(i).op == Op::update) {
      ASSERT_TRUE(in.count(u));
      EXPECT_TRUE(happens_before_(in[u], i));
      updated[u] = i;
    }
    if (at(i).payload != CopyPayload::state) continue;
    if (at(i).op == Op::h2d) {
      in[u] = i;
      on_device.insert(u);
      EXPECT_LE(on_device.size(), 2U);
    } else {
      ++out;
      ASSERT_TRUE(updated.count(u));
      EXPECT_TRUE(happens_before_(updated[u], i));
      on_device.erase(u);
    }
  }
  EXPECT_EQ(out, updated.size());
}

void EveryList::residuals_in_host_memory_are_back_before_they_are_read() const {
  const int last = static_cast<int>(lists_.specs.size()) - 1;
  std::map<int, int> out, back;  // per layer: the copies of this micro-batch
  int reads = 0;
  for (int i = 0; i < size(); ++i) {
    const Action& action = at(i);
    const int s = action.layer;
    if (action.op == Op::forward && s == 0) out.clear(), back.clear();
    if (action.payload == CopyPayload::residual && action.op == Op::d2h) {
      EXPECT_LT(s + 1, last - 2) << "the last block's would come back at once";
      EXPECT_TRUE(out.emplace(s, i).second);
    } else if (action.payload == CopyPayload::residual) {
      ASSERT_TRUE(out.contains(s));
      EXPECT_TRUE(happens_before_(out[s], i));
      EXPECT_EQ(action.find(Slot::input)->buffer, at(out[s]).find(Slot::output)->buffer);
      EXPECT_TRUE(back.emplace(s, i).second);
    }
    if ((action.op != Op::backward && action.op != Op::recompute) || !out.contains(s - 1)) continue;
    const Operand* const input = action.find(Slot::input);
    if (input == nullptr) continue;
    ++reads;
    ASSERT_TRUE(back.contains(s - 1)) << "action " << i;
    EXPECT_TRUE(happens_before_(back[s - 1], i));
    EXPECT_EQ(input->buffer, at(back[s - 1]).find(Slot::output)->buffer);
  }
  EXPECT_EQ(reads > 0, GetParam().offload.residuals && std::max(1, first_trained_layer()) + 2 < last);
  EXPECT_EQ(out.size(), back.size());
}

void EveryList::saved_tensors_in_host_memory_are_back_before_they_are_read() const {
  std::map<int, int> forward, out, back;  // per layer: actions of this micro-batch
  std::set<int> offloaded;
  for (int i = 0; i < size(); ++i) {
    const Action& action = at(i);
    const int s = action.layer;
    if (action.op == Op::forward && s == 0) out.clear(), back.clear();
    if (action.op == Op::forward) forward[s] = i;
    if (action.payload == CopyPayload::saved && action.op == Op::d2h) {
      EXPECT_TRUE(happens_before_(forward[s], i));
      EXPECT_TRUE(out.emplace(s, i).second);
    } else if (action.payload == CopyPayload::saved) {
      ASSERT_TRUE(out.contains(s));
      EXPECT_TRUE(happens_before_(out[s], i));
      EXPECT_TRUE(back.emplace(s, i).second);
    }
    if (action.op != Op::backward || !out.contains(s)) continue;
    ASSERT_TRUE(back.contains(s)) << "action " << i;
    EXPECT_TRUE(happens_before_(back[s], i));
    offloaded.insert(s);
    const auto operands_of = [&](int of, Slot slot) {
      std::vector<BufferId> buffers;
      for (const Operand& o : at(of).operands)
        if (o.slot == slot) buffers.push_back(o.buffer);
      return buffers;
    };
    // Each tensor that is not recomputed leaves from where the forward pass wrote it, and is read where it came back to.
    const auto written = operands_of(forward[s], Slot::saved), read = operands_of(i, Slot::saved);
    const auto left = operands_of(out[s], Slot::input), returned = operands_of(back[s], Slot::output);
    EXPECT_EQ(operands_of(out[s], Slot::output), operands_of(back[s], Slot::input));
    std::size_t copied = 0;
    for (std::size_t k = 0; k < read.size(); ++k) {
      if (lists_.specs[s].saved[k].recomputed) continue;
      ASSERT_LT(copied, left.size());
      EXPECT_EQ(left[copied], written[k]);
      EXPECT_EQ(returned[copied++], read[k]);
    }
    EXPECT_EQ(copied, left.size());
  }
  std::set<int> asked;
  const int last = static_cast<int>(lists_.specs.size()) - 1, per_block = GetParam().layers_of_block;
  const auto of_blocks =
      GetParam().checkpointing.of_blocks(static_cast<std::size_t>((last - 2) / per_block + 1));
  for (int s = std::max(1, first_trained_layer()); s + 1 < last; ++s) {
    const int block = (s - 1) / per_block;
    const bool ends_block = s % per_block == 0 || lists_.last_layer(s + 1);
    if (ends_block && of_blocks[static_cast<std::size_t>(block)] == Checkpointing::offload) asked.insert(s);
  }
  EXPECT_EQ(offloaded, asked);
}

void EveryList::the_host_updates_with_gradients_that_have_arrived_and_sends_the_shard_back() const {
  const auto& offload = GetParam().offload;
  if (!offload.host_step) return;
  std::map<int, int> gradient, updated, back;
  int scalars = -1;
  for (int i = 0; i < size(); ++i) {
    if (at(i).payload == CopyPayload::scalars) scalars = i;
    if (at(i).payload == CopyPayload::gradient) gradient[at(i).unit] = i;
    if (at(i).payload == CopyPayload::new_shard) back[at(i).unit] = i;
    if (at(i).op == Op::update) updated[at(i).unit] = i;
  }
  ASSERT_GE(scalars, 0);
  EXPECT_EQ(gradient.size(), updated.size());
  EXPECT_EQ(back.size(), offload.params ? 0U : updated.size());
  for (const auto& [u, i] : updated) {
    EXPECT_EQ(at(i).stream, device::Stream::host);
    EXPECT_TRUE(happens_before_(scalars, i));
    EXPECT_TRUE(happens_before_(gradient.at(u), i));
    if (!offload.params) {
      EXPECT_TRUE(happens_before_(i, back.at(u)));
    }
  }
}

void EveryList::shards_in_host_memory_are_copied_before_they_are_gathered() const {
  std::map<Key, int> copied;
  for (int i = 0; i < size(); ++i) {
    const Key key{at(i).unit, at(i).pass.value_or(Pass::forward)};
    if (at(i).payload == CopyPayload::shard) copied[key] = i;
    if (at(i).op != Op::unshard || !GetParam().offload.params) continue;
    ASSERT_TRUE(copied.count(key)) << "a copy for each gather";
    EXPECT_TRUE(happens_before_(copied[key], i));
    copied.erase(key);
  }
  if (!GetParam().offload.params) {
    EXPECT_TRUE(copied.empty());
  }
}

void EveryList::frozen_units_have_neither_reductions_nor_updates() const {
  for (const auto& action : step()) {
    if (action.unit < 0 || !unit(action.unit).frozen) continue;
    const std::set<Op> allowed = {Op::h2d, Op::unshard, Op::cast_params, Op::reshard, Op::fp8_cast};
    EXPECT_TRUE(allowed.count(action.op)) << to_string(action.op);
    EXPECT_NE(action.payload, CopyPayload::state);
  }
}

void EveryList::prefetch_stands_where_its_mode_says() const {
  const auto& options = GetParam();
  if (options.wrap.policy != WrapPolicy::transformer || options.limit != 2 || options.tied ||
      !options.reshard_after_forward || options.frozen)
    return;
  for (int i = 0; i < size(); ++i) {
    const auto& action = at(i);
    if (action.op != Op::unshard || action.pass != Pass::backward) continue;
    int use = i;
    while (!uses_unit(at(use), action.unit)) ++use;
    int before = use - 1;  // the compute action before its first use
    while (at(before).layer < 0) --before;
    if (options.backward_prefetch == Prefetch::none) {
      EXPECT_GT(i, before) << "gathered only when it is needed";
    } else if (options.backward_prefetch == Prefetch::post) {
      EXPECT_GT(i, before) << "after the gradients of the unit before it";
      for (int r = before; r < i; ++r) EXPECT_NE(at(r).op, Op::reduce) << "but before their reduction";
    } else {
      EXPECT_LT(i, before) << "before the gradients of the unit before it";
    }
  }
}

void EveryList::recomputation_stands_before_the_backward_that_reads_it() const {
  const auto of_blocks = GetParam().checkpointing.of_blocks(static_cast<std::size_t>(GetParam().layers));
  std::map<int, int> recomputed;  // per layer: times not yet consumed by its backward
  for (const auto& action : step()) {
    if (action.op == Op::recompute) ++recomputed[action.layer];
    EXPECT_TRUE(!action.recomputes || action.op == Op::backward);
    if (action.op != Op::backward) continue;
    if (action.recomputes) ++recomputed[action.layer];
    const bool block = action.layer > 0 && !lists_.last_layer(action.layer);
    // An embedding, then two layers for each block.
    const auto number = static_cast<std::size_t>(std::max(0, (action.layer - 1) / 2));
    EXPECT_EQ(recomputed[action.layer], block && of_blocks[number] != Checkpointing::none ? 1 : 0)
        << action.layer;
    recomputed[action.layer] = 0;
  }
}

void EveryList::evaluation_only_gathers_computes_and_frees() const {
  std::set<Op> allowed = {Op::h2d, Op::unshard, Op::cast_params, Op::forward, Op::reshard};
  if (GetParam().fp8) allowed.insert({Op::fp8_maxima, Op::all_reduce_maxima, Op::fp8_scales, Op::fp8_cast});
  for (const auto& action : lists_.evaluation.actions)
    EXPECT_TRUE(allowed.count(action.op)) << to_string(action.op);
  const auto forwards = std::count_if(lists_.evaluation.actions.begin(), lists_.evaluation.actions.end(),
                                      [](const auto& a) { return a.op == Op::forward; });
  EXPECT_EQ(static_cast<std::size_t>(forwards), lists_.specs.size());
}

// All of it in one test: making the list takes longest.
TEST_P(EveryList, IsSound) {
  layers_run_in_order();
  parameters_are_gathered_before_use_and_not_twice();
  a_unit_is_gathered_as_often_as_the_strategy_says();
  gathered_units_stay_below_the_limit();
  in_the_order_of_a_tree_gradients_are_added_so();
  gradients_are_reduced_once_after_their_last_write();
  reductions_inside_a_group_do_not_wait_for_replicas_that_have_a_stream();
  the_first_write_of_a_gradient_overwrites_and_later_ones_add();
  norm_follows_all_reductions_and_updates_follow_the_norm();
  where_replicas_divide_the_state_updated_parts_are_gathered();
  squares_of_each_unit_are_summed_once_its_gradient_is_complete();
  squares_wait_for_the_reduction_of_their_unit_only();
  state_that_is_kept_in_host_memory_passes_through_the_device_two_units_at_a_time();
  residuals_in_host_memory_are_back_before_they_are_read();
  saved_tensors_in_host_memory_are_back_before_they_are_read();
  the_host_updates_with_gradients_that_have_arrived_and_sends_the_shard_back();
  shards_in_host_memory_are_copied_before_they_are_gathered();
  frozen_units_have_neither_reductions_nor_updates();
  prefetch_stands_where_its_mode_says();
  recomputation_stands_before_the_backward_that_reads_it();
  evaluation_only_gathers_computes_and_frees();
}

INSTANTIATE_TEST_SUITE_P(Schedule, EveryList, ::testing::ValuesIn(list_cases()));

TEST(Schedule, ReadsLikeTheFigureOfThePaper) {
  const auto lists = make_lists({.layers = 2});
  std::vector<std::string> lines;
  for (const auto& a : lists.step.actions) {
    std::string line = to_string(a.op);
    if (a.layer >= 0) line += fmt::format(" s{}", a.layer);
    if (a.unit >= 0) line += fmt::format(" u{}", a.unit);
    lines.push_back(line);
  }
  // Layers: 0 embedding, 1 and 2 block 0, 3 and 4 block 1, 5 norm, head and loss. Units: 0 embedding, 1, 2
  // blocks, 3 head.
  // clang-format off
  const std::vector<std::string> expected = {
      "h2d",         "unshard u0",  "unshard u1",
      "forward s0",  "reshard u0",  "unshard u2",
      "forward s1",  "forward s2",  "reshard u1", "unshard u3",
      "forward s3",  "forward s4",  "reshard u2", "unshard u2",
      "backward s5", "reshard u3",  "unshard u1", "reduce u3",
      "backward s4", "backward s3", "reshard u2", "reduce u2",
      "backward s2", "backward s1", "reshard u1", "reduce u1",
      "backward s0", "reduce u0",
      "sum_squares u3", "sum_squares u2", "sum_squares u1", "sum_squares u0",
      "all_reduce_squares", "norm",
      "update u0",   "update u1",   "update u2",  "update u3"};
  // clang-format on
  EXPECT_EQ(lines, expected);
}

/// dtype of the gradients that layers write, and whether they are rounded afterwards.
std::pair<DType, bool> written_gradients(const ListCase& options) {
  const auto lists = make_lists(options, [&](ProgramSpec& spec) {
    if (options.on_gpus) spec.options.precision.compute = DType::bfloat16;
  });
  std::set<DType> dtypes;
  bool rounded = false;
  for (const auto& action : lists.step.actions) {
    rounded = rounded || action.op == Op::cast_grads || (options.ranks == 1 && action.op == Op::all_reduce);
    for (const auto& o : action.operands) {
      if (o.slot == Slot::parameter_gradient) dtypes.insert(lists.step[o.buffer].dtype);
    }
  }
  EXPECT_EQ(dtypes.size(), 1U);
  return {*dtypes.begin(), rounded};
}

/// Units that stay until their backward pass leave no room for those of the next micro-batch before that.
TEST(Schedule, NoUnitIsUnshardedAMicroBatchTooEarly) {
  for (const int limit : {1, 2, 3}) {
    SCOPED_TRACE(limit);
    const auto lists =
        make_lists({.layers = 6, .micro_batches = 2, .limit = limit, .reshard_after_forward = false});
    int unsharded = 0;
    for (const auto& action : lists.step.actions) {
      if (action.op == Op::reshard) --unsharded;
      if (action.op != Op::unshard) continue;
      if (action.micro_batch == 1 && unsharded >= limit) {
        EXPECT_EQ(action.unit, -1) << "unsharded beside " << unsharded << " others";
        break;
      }
      ++unsharded;
      if (action.micro_batch == 1) break;
    }
  }
}

TEST(Schedule, GpusRoundGradientsThatAreKeptInBfloat16AsTheyWriteThem) {
  for (const int ranks : {1, 2}) {
    ListCase options{
        .ranks = ranks, .micro_batches = 3, .mixed = true, .short_gradient = true, .on_gpus = true};
    EXPECT_EQ(written_gradients(options), std::pair(DType::bfloat16, false));
    options.unsharded = true;
    EXPECT_EQ(written_gradients(options), std::pair(DType::float32, true))
        << "micro-batches add up in float32";
    options.micro_batches = 1;
    EXPECT_EQ(written_gradients(options), std::pair(DType::bfloat16, false));
    options.on_gpus = false;
    EXPECT_EQ(written_gradients(options), std::pair(DType::float32, true));
  }
}

TEST(Streams, StandAtTheirNumbersAndHaveDifferentNames) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kAllStreams.size(); ++i) {
    EXPECT_EQ(kAllStreams[i].index(), i);
    names.insert(kAllStreams[i].name());
  }
  EXPECT_EQ(names.size(), kAllStreams.size());
}

TEST(Streams, OnlyThoseOfCollectivesAreUrgent) {
  for (const device::Stream stream : kAllStreams)
    EXPECT_EQ(stream.is_urgent(),
              stream == kUnshardStream || stream == kReduceStream || stream == kAllReduceStream)
        << stream.name();
}

}  // namespace
}  // namespace llampi::test
