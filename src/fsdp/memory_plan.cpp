#include "llampi/fsdp/memory_plan.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "llampi/device/host_batch.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::int64_t kBufferAlignment = 256;

/// Reads lifetimes off the list.
class Lifetimes {
 public:
  Lifetimes(const std::vector<Action>& actions, const PlanInput& input) : actions_(actions), input_(input) {}

  MemoryPlan run() {
    add_persistent();
    unit_of_ = unit_of_parameter(input_.units, parameter_count());
    for (int i = 0; i < static_cast<int>(actions_.size()); ++i) visit(i);
    return std::move(plan_);
  }

 private:
  std::size_t parameter_count() const {
    std::size_t count = 0;
    for (const auto& unit : input_.units) {
      for (const auto& p : unit.parameters) count = std::max<std::size_t>(count, p.parameter + 1U);
    }
    return count;
  }

  void add_persistent() {
    const auto& precision = input_.precision;
    const auto host_or = [](bool host, Arena arena) { return host ? Arena::host : arena; };
    for (int u = 0; u < static_cast<int>(input_.units.size()); ++u) {
      const std::int64_t n = input_.units[u].shard_elements;
      add(Role::parameter_shard, u, 0, host_or(placement_.host_shard, Arena::device),
          n * size_of(precision.param));
      if (input_.units[u].frozen) continue;
      if (placement_.own_master)
        add(Role::master, u, 0, host_or(placement_.host_master, Arena::device),
            n * size_of(precision.master));
      if (!input_.optimizer_state) continue;
      const Arena moments = host_or(placement_.host_moments, Arena::device);
      add(Role::exp_avg, u, 0, moments, n * size_of(precision.moment));
      add(Role::exp_avg_sq, u, 0, moments, n * size_of(precision.moment));
    }
    for (int c = 0; c < static_cast<int>(input_.constants.size()); ++c) {
      add(Role::constant, c, 0, Arena::device, input_.constants[c].bytes());
    }
    for (int s = 0; s < static_cast<int>(input_.specs.size()); ++s) {
      for (int k = 0; k < static_cast<int>(input_.specs[s].kept.size()); ++k)
        add(Role::kept, s, k, Arena::device, input_.specs[s].kept[k].bytes());
    }
    add(Role::step_scalars, 0, 0, Arena::device, sizeof(device::StepScalars));
    add(Role::norm_scalars, 0, 0, Arena::device, kNormScalarBytes + 4 * std::ssize(input_.units));
    if (input_.shared_workspace > 0)
      add(Role::shared_workspace, 0, 0, Arena::device, input_.shared_workspace);
    const std::int64_t input_bytes = 4 * device::HostBatch::elements(input_.batch.tokens());
    for (int m = 0; m < input_.micro_batches; ++m) add(Role::inputs, m, 0, Arena::device, input_bytes);
    add(Role::logits, 0, 0, Arena::device, input_.vocabulary * size_of(precision.compute));
    if (input_.offload.host_step) add(Role::host_scalars, 0, 0, Arena::host, sizeof(device::StepScalars));
    if (input_.snapshot) add_snapshot();
    if (!input_.stages_inputs) return;
    for (int m = 0; m < input_.micro_batches; ++m) add(Role::host_inputs, m, 0, Arena::host, input_bytes);
  }

  /// What this rank saves: of what replicas hold alike, its part.
  void add_snapshot() {
    const auto& precision = input_.precision;
    for (int u = 0; u < static_cast<int>(input_.units.size()); ++u) {
      const std::int64_t n = (input_.units[u].shard_elements + input_.replicas - 1) / input_.replicas;
      const auto item = [&](Role what, DType dtype) {
        add(Role::snapshot, u, static_cast<int>(what), Arena::host, n * size_of(dtype));
      };
      const bool own_master = placement_.own_master && !input_.units[u].frozen;
      item(Role::master, own_master ? precision.master : precision.param);
      if (input_.units[u].frozen || !input_.optimizer_state) continue;
      item(Role::exp_avg, precision.moment);
      item(Role::exp_avg_sq, precision.moment);
    }
  }

  int add(Role role, int owner, int item, Arena arena, std::int64_t bytes) {
    const int number = static_cast<int>(buffers_.size());
    buffers_.push_back({.role = role, .owner = owner, .item = item, .arena = arena, .bytes = bytes});
    plan_.index[{role, owner, item}] = number;
    return number;
  }

  int transient(Role role, int owner, int item, Arena arena, std::int64_t bytes) {
    const auto known = plan_.index.find({role, owner, item});
    return known != plan_.index.end() ? known->second : add(role, owner, item, arena, bytes);
  }

  void open(int buffer, int action) { buffers_[buffer].lives.push_back({action, action, action}); }
  void extend(int buffer, int action) {
    buffers_[buffer].lives.back().last = buffers_[buffer].lives.back().user = action;
  }

  void visit(int i) {
    const Action& action = actions_[i];
    follow_travelling(action, i);
    switch (action.op) {
      case Op::unshard:
        if (placement_.host_shard) {
          extend(gathered(action), i);
        } else {
          open(gathered(action), i);
        }
        break;
      case Op::widen:
        if (input_.units[action.unit].shards > 1 || placement_.host_shard) extend(gathered(action), i);
        open(widened(action), i);
        break;
      case Op::reshard:
        extend(input_.precision.widens() ? widened(action) : gathered(action), i);
        break;
      case Op::forward:
      case Op::recompute:
        visit_forward(action, i);
        break;
      case Op::backward:
        visit_backward(action, i);
        break;
      case Op::narrow:
        visit_narrow(action.unit, i);
        break;
      case Op::reduce:
      case Op::replica_reduce:
        visit_reduce(action, i);
        break;
      case Op::norm:
        need_workspace(comm::all_reduce_workspace(input_.backend, 2, input_.shards, DType::int64), i);
        break;
      case Op::update:
        visit_update(action, i);
        break;
      case Op::copy_in:
      case Op::copy_out:
        visit_copy(action, i);
        break;
    }
  }

  void visit_update(const Action& action, int i) {
    if (action.stream == device::Stream::host) {
      extend(host_gradient(action.unit), i);
      if (placement_.host_shard || !shard_differs()) return;
      // The shard before it may still be going in; the update after this one waits for that.
      if (host_shard_ >= 0) buffers_[host_shard_].lives.back().last = i;
      open(host_shard_ = host_shard(action.unit), i);
      return;
    }
    extend(sharded_gradient(action.unit), i);
    if (!input_.offload.optimizer) return;
    for_each_staged(action.unit, [&](int buffer) { extend(buffer, i); });
  }

  void visit_copy(const Action& action, int i) {
    switch (action.cargo) {
      case Cargo::shard:
        open(gathered(action), i);
        break;
      case Cargo::new_shard:
        if (shard_differs()) extend(host_shard(action.unit), i);
        break;
      case Cargo::state:
        for_each_staged(action.unit, [&](int buffer) {
          if (action.op == Op::copy_in) open(buffer, i);
          extend(buffer, i);
        });
        break;
      case Cargo::gradient:
        extend(sharded_gradient(action.unit), i);
        open(host_gradient(action.unit), i);
        break;
      case Cargo::none:
      case Cargo::inputs:
      case Cargo::scalars:
        break;
    }
  }

  bool shard_differs() const { return input_.precision.master != input_.precision.param; }
  int host_gradient(int unit) {
    return transient(Role::host_gradient, unit, 0, Arena::host,
                     input_.units[unit].shard_elements * size_of(input_.precision.gradient_shard));
  }
  int host_shard(int unit) {
    return transient(Role::host_shard, unit, 0, Arena::host,
                     input_.units[unit].shard_elements * size_of(input_.precision.param));
  }

  /// What of a unit's state passes through the device; the new shard, which is made there and only goes out,
  /// has its room from the beginning.
  template <class Visit>
  void for_each_staged(int unit, const Visit& visit) {
    const auto& precision = input_.precision;
    const auto staged = [&](Staged item, DType dtype) {
      visit(transient(Role::staged, unit, static_cast<int>(item), Arena::device,
                      input_.units[unit].shard_elements * size_of(dtype)));
    };
    if (placement_.host_master)
      staged(Staged::master, placement_.own_master ? precision.master : precision.param);
    staged(Staged::exp_avg, precision.moment);
    staged(Staged::exp_avg_sq, precision.moment);
    if (placement_.host_shard && placement_.own_master) staged(Staged::shard, precision.param);
  }

  int gathered(const Action& action) {
    return transient(Role::gathered, action.unit, static_cast<int>(action.pass), Arena::device,
                     input_.units[action.unit].flat_elements() * size_of(input_.precision.param));
  }
  int widened(const Action& action) {
    return transient(Role::widened, action.unit, static_cast<int>(action.pass), Arena::device,
                     input_.units[action.unit].flat_elements() * size_of(input_.precision.compute));
  }
  int whole_gradient(int unit) {
    return transient(Role::whole_gradient, unit, 0, Arena::device,
                     input_.units[unit].flat_elements() * size_of(input_.precision.gradient()));
  }
  int sharded_gradient(int unit) {
    return transient(Role::sharded_gradient, unit, 0, Arena::device,
                     input_.units[unit].shard_elements * size_of(input_.precision.gradient_shard));
  }

  /// A recomputation begins new lives of what it makes: all saved tensors and inner outputs of a block, or
  /// (selective, which the earlier life of a dear tensor shows) the cheap ones.
  void visit_forward(const Action& action, int i) {
    const int s = action.stage;
    const auto& spec = input_.specs[s];
    if (spec.output.rows > 0 && action.writes_output) {
      open(transient(Role::activation, s, 0, Arena::device, spec.output.bytes()), i);
    }
    if (s > 0) extend(transient(Role::activation, s - 1, 0, Arena::device, 0), i);
    const bool selective = action.op == Op::recompute && input_.checkpointing == Checkpointing::selective;
    for (int k = 0; k < static_cast<int>(spec.saved.size()); ++k) {
      const int buffer = transient(Role::saved, s, k, Arena::device, spec.saved[k].bytes());
      if (selective && !spec.saved[k].cheap) {
        extend(buffer, i);
      } else {
        open(buffer, i);
      }
    }
    if (!selective) open_items(Role::forward_scratch, s, spec.forward_scratch, i);
  }

  void visit_backward(const Action& action, int i) {
    const int s = action.stage;
    const auto& spec = input_.specs[s];
    const bool is_loss = s + 1 == static_cast<int>(input_.specs.size());
    const auto& stream = input_.specs.front().output;  // the residual stream
    const int gradient = transient(Role::residual_gradient, 0, 0, Arena::device, stream.bytes());
    if (is_loss) {
      open(gradient, i);
    } else {
      extend(gradient, i);
      for (int k = 0; k < static_cast<int>(spec.saved.size()); ++k)
        extend(transient(Role::saved, s, k, Arena::device, 0), i);
    }
    if (s > 0 && (is_loss || spec.keeps_input))
      extend(transient(Role::activation, s - 1, 0, Arena::device, 0), i);
    open_items(Role::backward_scratch, s, spec.backward_scratch, i);
    for (const auto& use : spec.parameters) {
      if (!input_.units[unit_of_[use.parameter]].frozen) visit_gradient(unit_of_[use.parameter], i);
    }
  }

  void open_items(Role role, int stage, const std::vector<model::BufferSpec>& items, int i) {
    for (int k = 0; k < static_cast<int>(items.size()); ++k) {
      open(transient(role, stage, k, Arena::device, items[k].bytes()), i);
    }
  }

  void visit_gradient(int unit, int i) {
    // Written where it is kept?
    if (input_.shards * input_.replicas == 1 && !input_.precision.shortens_gradient()) {
      const int buffer = sharded_gradient(unit);
      if (buffers_[buffer].lives.empty()) open(buffer, i);
      extend(buffer, i);
      return;
    }
    const int buffer = whole_gradient(unit);
    if (writing_.insert(unit).second) {
      open(buffer, i);
    } else {
      extend(buffer, i);
    }
  }

  void visit_narrow(int unit, int i) {
    extend(whole_gradient(unit), i);
    open(transient(Role::travelling_gradient, unit, 0, Arena::device,
                   input_.units[unit].flat_elements() * size_of(input_.precision.reduce)),
         i);
  }

  void visit_reduce(const Action& action, int i) {
    const int shard = sharded_gradient(action.unit);
    const bool moves_whole = action.op == Op::reduce || input_.units[action.unit].shards == 1;
    if (buffers_[shard].lives.empty()) open(shard, i);
    extend(shard, i);
    if (moves_whole) {
      writing_.erase(action.unit);
      const int travelling = input_.precision.narrows()
                                 ? plan_.index.at({Role::travelling_gradient, action.unit, 0})
                                 : whole_gradient(action.unit);
      extend(travelling, i);
      travelling_.push_back({travelling, i});
    }
    need_workspace(action.op == Op::reduce
                       ? comm::reduce_scatter_workspace(input_.backend, action.elements, input_.shards,
                                                        input_.precision.reduce)
                       : comm::all_reduce_workspace(
                             input_.backend, action.elements, input_.replicas,
                             moves_whole ? input_.precision.reduce : input_.precision.gradient_shard),
                   i);
  }

  void need_workspace(std::int64_t bytes, int i) {
    const bool first = workspace_ < 0;
    workspace_ = transient(Role::collective_workspace, 0, 0, Arena::device, bytes);
    if (first) open(workspace_, i);
    buffers_[workspace_].bytes = std::max(buffers_[workspace_].bytes, bytes);
    extend(workspace_, i);
  }

  /// A whole gradient whose reduction is under way is free when an action of the compute stream has waited
  /// for it.
  void follow_travelling(const Action& action, int i) {
    int known = -1;
    for (const int w : action.waits) {
      if (action.stream == device::Stream::compute && actions_[w].stream == device::Stream::reduce)
        known = std::max(known, w);
    }
    std::erase_if(travelling_, [&](const auto& gradient) { return gradient.reduce <= known; });
    for (const auto& gradient : travelling_) buffers_[gradient.buffer].lives.back().last = i;
  }

  struct TravellingGradient {
    int buffer, reduce;
  };
  const std::vector<Action>& actions_;
  const PlanInput& input_;
  StatePlacement placement_ = state_placement(input_.precision, input_.offload);
  MemoryPlan plan_;
  std::vector<Buffer>& buffers_ = plan_.buffers;
  std::vector<int> unit_of_;
  std::set<int> writing_;  // units whose whole gradient is open
  std::vector<TravellingGradient> travelling_;
  int workspace_ = -1;
  int host_shard_ = -1;  // the latest
};

bool alive_together(const Buffer& a, const Buffer& b) {
  if (a.persistent() || b.persistent()) return true;
  std::size_t i = 0, j = 0;
  while (i < a.lives.size() && j < b.lives.size()) {
    if (a.lives[i].last < b.lives[j].first) {
      ++i;
    } else if (b.lives[j].last < a.lives[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

/// The lowest offset at which `buffer` meets none of `placed`.
std::int64_t lowest_free(const Buffer& buffer, const std::vector<const Buffer*>& placed) {
  std::vector<const Buffer*> others;
  for (const auto* other : placed) {
    if (other->arena == buffer.arena && alive_together(*other, buffer)) others.push_back(other);
  }
  std::sort(others.begin(), others.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  std::int64_t offset = 0;
  for (const auto* other : others) {
    if (offset + buffer.bytes <= other->offset) break;
    offset = std::max(offset, other->offset + in_arena(other->bytes));
  }
  return offset;
}

}  // namespace

std::int64_t in_arena(std::int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

const char* to_string(Role role) {
  constexpr std::array kNames = {"parameter shard",
                                 "master parameters",
                                 "exp_avg",
                                 "exp_avg_sq",
                                 "constant table",
                                 "keys and values",
                                 "step scalars",
                                 "norm scalars",
                                 "shared workspace",
                                 "inputs",
                                 "logits",
                                 "gathered parameters",
                                 "widened parameters",
                                 "travelling gradient",
                                 "whole gradient",
                                 "sharded gradient",
                                 "activation",
                                 "residual gradient",
                                 "saved activation",
                                 "forward scratch",
                                 "backward scratch",
                                 "collective workspace",
                                 "state on its way",
                                 "gradient on the host",
                                 "new shard on the host",
                                 "scalars on the host",
                                 "inputs on the host",
                                 "state being saved"};
  return kNames.at(static_cast<std::size_t>(role));
}

const char* to_string(Arena arena) {
  constexpr std::array kNames = {"device", "host"};
  return kNames.at(static_cast<std::size_t>(arena));
}

bool MemoryPlan::has(Role role, int owner, int item) const { return index.count({role, owner, item}) > 0; }

const Buffer& MemoryPlan::find(Role role, int owner, int item) const {
  const auto known = index.find({role, owner, item});
  if (known != index.end()) return buffers[known->second];
  throw Error(
      fmt::format("internal error: no buffer '{}' {} {} in the memory plan", to_string(role), owner, item));
}

namespace {

/// How long a buffer is needed, in actions.
std::int64_t life_length(const Buffer& buffer) {
  std::int64_t length = 0;
  for (const auto& life : buffer.lives) length += life.last - life.first + 1;
  return length;
}

void place_in_order(MemoryPlan& plan, const std::vector<std::size_t>& order) {
  std::fill(std::begin(plan.arena_bytes), std::end(plan.arena_bytes), 0);
  std::vector<const Buffer*> placed;
  for (const auto index : order) {
    auto& buffer = plan.buffers[index];
    auto& end = plan.arena_bytes[static_cast<std::size_t>(buffer.arena)];
    buffer.offset = buffer.persistent() ? end : lowest_free(buffer, placed);
    end = std::max(end, buffer.offset + in_arena(buffer.bytes));
    placed.push_back(&buffer);
  }
}

}  // namespace

MemoryPlan place(const std::vector<Action>& actions, const PlanInput& input) {
  MemoryPlan by_size = Lifetimes(actions, input).run();
  MemoryPlan by_area = by_size;
  const auto place_by = [](MemoryPlan& plan, auto weight) {
    std::vector<std::size_t> order(plan.buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto &x = plan.buffers[a], &y = plan.buffers[b];
      if (x.persistent() != y.persistent()) return x.persistent();
      return !x.persistent() && weight(x) > weight(y);
    });
    place_in_order(plan, order);
  };
  place_by(by_size, [](const Buffer& b) { return static_cast<double>(b.bytes); });
  place_by(by_area, [](const Buffer& b) {
    return static_cast<double>(b.bytes) * static_cast<double>(life_length(b));
  });
  return by_area.total_bytes() < by_size.total_bytes() ? by_area : by_size;
}

}  // namespace llampi::fsdp
