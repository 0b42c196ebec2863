// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/fit_advice.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <iterator>
#include <utility>
#include <vector>

#include "llampi/core/config_error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/memory_report.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::size_t kNamedBuffers = 3;
constexpr std::int64_t kDivisors = 64;           ///< of a micro-batch that are tried, and the last one
constexpr std::int64_t kMostMicroBatches = 256;  ///< of a step that is tried: its list grows with them

/// A change of the options.
struct Change {
  std::vector<OptionValue> values;
  std::function<void(EngineOptions&)> apply;
  bool to_host = false;  ///< fills the host's memory instead, which may be too small for it
};
using Changes = std::vector<Change>;

/// Smaller micro-batches, the largest first; the samples of a step stay the same.
Changes smaller_micro_batches(const EngineOptions& options) {
  Changes changes;
  const std::int64_t now = options.batch.sequences;
  for (std::int64_t divisor = 2; divisor <= now;
       divisor = divisor < kDivisors ? divisor + 1 : std::max(now, divisor + 1)) {
    const bool too_long = options.training && divisor * options.micro_batches > kMostMicroBatches;
    if (now % divisor != 0 || too_long) continue;
    changes.push_back(
        {{{"batch.sequences", std::to_string(now / divisor)}}, [now, divisor](EngineOptions& o) {
           o.batch.sequences = now / divisor;
           if (o.training) o.micro_batches *= static_cast<int>(divisor);
         }});
  }
  return changes;
}

/// Turns off options that the others exclude. Returns those it turned off.
std::vector<OptionValue> switch_off_what_does_not_fit(EngineOptions& o) {
  std::vector<OptionValue> values;
  const auto switch_off = [&values](bool& option, const char* name) {
    if (std::exchange(option, false)) values.push_back({name, "false"});
  };
  if (o.offload.params || !has_replicas(o.strategy))
    switch_off(o.shard_optimizer_over_replicas, "shard_optimizer_over_replicas");
  if (is_hybrid(o.strategy)) return values;
  switch_off(o.all_reduce_stream, "all_reduce_stream");
  if (std::exchange(o.shard_group_size, 0) != 0) values.push_back({"shard_group_size", "node"});
  return values;
}

/// A change together with what it makes impossible.
Change without_what_does_not_go_with(EngineOptions options, OptionValue value,
                                     const std::function<void(EngineOptions&)>& apply) {
  Change change{{std::move(value)}, [apply](EngineOptions& o) {
                  apply(o);
                  switch_off_what_does_not_fit(o);
                }};
  apply(options);
  std::ranges::move(switch_off_what_does_not_fit(options), std::back_inserter(change.values));
  return change;
}

/// Recomputation is of whole blocks in the search, which needs least memory; with_least_recomputation() follows it.
/// @param in_fp8 products are: shards in host memory cannot be cast then
Changes other_changes(const EngineOptions& options, bool in_fp8) {
  Changes changes;
  if (!options.training) return changes;
  if (options.checkpointing != Checkpointing::full) {
    changes.push_back(
        {{{"checkpointing", ""}}, [](EngineOptions& o) { o.checkpointing = Checkpointing::full; }});
  }
  if (!options.offload.optimizer) {
    changes.push_back(
        {{{"offload", "optimizer"}}, [](EngineOptions& o) { o.offload.optimizer = true; }, true});
  }
  if (!options.offload.params && !in_fp8) {
    changes.push_back(without_what_does_not_go_with(options, {"offload", "params"}, [](EngineOptions& o) {
      o.offload.optimizer = o.offload.params = true;
    }));
    changes.back().to_host = true;
  }
  if (!options.offload.residuals) {
    changes.push_back(
        {{{"offload.residuals", "residuals"}}, [](EngineOptions& o) { o.offload.residuals = true; }, true});
  }
  if (options.strategy != Strategy::full_shard) {
    changes.push_back(
        without_what_does_not_go_with(options, {"strategy", word_of(Strategy::full_shard)},
                                      [](EngineOptions& o) { o.strategy = Strategy::full_shard; }));
  }
  return changes;
}

/// What WrapPolicy::modules takes so that attention and feed-forward of a block are units of their own, and so are the matrices
/// outside of blocks. The blocks themselves are named for what is left of them, their norms.
std::vector<std::string> parts_of_blocks(const model::Model& model) {
  const auto& modules = model.modules();
  std::vector<std::string> entries = {model.block_type()};
  const auto add = [&entries](const std::string& entry) {
    if (!entry.empty() && std::ranges::find(entries, entry) == entries.end()) entries.push_back(entry);
  };
  for (const auto& parameter : model.parameters()) {
    if (parameter.shape.size() != 2) continue;
    int part = parameter.module, block = part;  // the child of a block that holds it, and the block
    while (block >= 0 && modules[block].type != model.block_type())
      part = std::exchange(block, modules[block].parent);
    const auto& own = modules[parameter.module].name;
    add(block >= 0 ? modules[part].type : own.substr(own.rfind('.') + 1));
  }
  return entries;
}

/// Fewer and smaller units that are unsharded at the same time: no bit changes, but communication overlaps less. The
/// cheapest first.
Changes smaller_units(const model::Model& model, const EngineOptions& options) {
  Changes changes;
  if (!options.training) return changes;
  if (options.limit_all_gathers > 1)
    changes.push_back({{{"limit_all_gathers", "1"}}, [](EngineOptions& o) { o.limit_all_gathers = 1; }});
  if (options.wrap.policy == WrapPolicy::modules || model.block_type().empty()) return changes;
  if (options.wrap.policy != WrapPolicy::transformer) {
    changes.push_back({{{"wrap.policy", word_of(WrapPolicy::transformer)}},
                       [](EngineOptions& o) { o.wrap.policy = WrapPolicy::transformer; }});
  }
  const auto parts = parts_of_blocks(model);
  // Entries are regular expressions: only names that mean themselves.
  const auto is_word = [](const std::string& entry) {
    return !entry.empty() && std::isdigit(static_cast<unsigned char>(entry[0])) == 0 &&
           std::ranges::all_of(entry, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  };
  if (!std::ranges::all_of(parts, is_word)) return changes;
  changes.push_back({{{"wrap.policy", word_of(WrapPolicy::modules)},
                      {"wrap.modules", fmt::format("{}", fmt::join(parts, " "))}},
                     [parts](EngineOptions& o) {
                       o.wrap.policy = WrapPolicy::modules;
                       o.wrap.modules = parts;
                     }});
  return changes;
}

/// Costs no bit and about no time; by itself, and with what needs neither another strategy nor the host's memory.
Changes state_over_replicas(const EngineOptions& options, int replicas) {
  if (!options.training || replicas == 1 || options.shard_optimizer_over_replicas || options.offload.params)
    return {};
  return {{{{"shard_optimizer_over_replicas", "true"}},
           [](EngineOptions& o) { o.shard_optimizer_over_replicas = true; }}};
}

/// A frozen base in 8 bits; then the state in bfloat16, one part after another. Combinations that a configuration may not have
/// are left out.
Changes narrower_state(const model::Model& model, const EngineOptions& options) {
  constexpr DType kNarrow = DType::bfloat16;
  const std::string narrow = to_string(kNarrow);
  const Precision& now = options.precision;
  Changes changes;
  if (!options.training) return changes;
  if (now.frozen && !now.int8_base && !options.saves_frozen &&
      parameter_without_whole_blocks(model, options) < 0) {
    changes.push_back({{{"precision.frozen", to_string(DType::int8_blocks)}}, [](EngineOptions& o) {
                         o.precision.frozen = DType::bfloat16;
                         o.precision.int8_base = true;
                       }});
  }
  if (now.moment != kNarrow) {
    changes.push_back(
        {{{"precision.moment", narrow}}, [](EngineOptions& o) { o.precision.moment = kNarrow; }});
  }
  if (now.master != kNarrow && now.param == kNarrow) {  // float32 parameters are the master themselves
    changes.push_back(
        {{{"precision.master", narrow}}, [](EngineOptions& o) { o.precision.master = kNarrow; }});
  }
  if (now.gradient_shard == DType::float32 && now.reduce != DType::float16) {
    std::vector<OptionValue> values = {{"precision.gradient_shard", narrow}};
    if (now.reduce != kNarrow) values.push_back({"precision.reduce", narrow});
    changes.push_back(
        {values, [](EngineOptions& o) { o.precision.gradient_shard = o.precision.reduce = kNarrow; }});
  }
  return changes;
}

/// The mesh of `ranks` ranks, no more of them on a node; hybrid strategies keep the size of their shard groups.
DeviceMesh mesh_for(const FitQuestion& q, const EngineOptions& options, int ranks) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < ranks; ++rank) node_of_rank.push_back(rank / q.mesh.ranks_on_node);
  return make_device_mesh(options.strategy, node_of_rank,
                          is_hybrid(options.strategy) ? q.mesh.shard_count() : 0);
}

/// What several changes are together: the later of two of one option says all.
std::vector<OptionValue> together(const Changes& changes) {
  std::vector<OptionValue> values;
  for (const auto& change : changes) {
    for (const auto& value : change.values) {
      std::erase_if(values, [&](const OptionValue& before) { return before.field == value.field; });
      values.push_back(value);
    }
  }
  return values;
}

int ranks_of(const DeviceMesh& mesh) { return mesh.shard_count() * mesh.replica_count(); }

/// A power of 2: how many times as many ranks are tried.
int most_times_ranks(const FitQuestion& q) {
  constexpr unsigned kMostTimes = 64;
  return static_cast<int>(
      std::bit_floor(std::clamp(static_cast<unsigned>(kMostRanks / ranks_of(q.mesh)), 1U, kMostTimes)));
}

/// The global batch, in sequences.
std::int64_t batch_of(const FitQuestion& q) {
  return ranks_of(q.mesh) * q.options.micro_batches * q.options.batch.sequences;
}

EngineOptions with_changes(EngineOptions options, const Changes& changes) {
  for (const auto& change : changes) change.apply(options);
  return options;
}

/// Whether a run may have these options, however much memory there is.
bool are_allowed(const FitQuestion& q, const EngineOptions& options, const DeviceMesh& mesh) {
  return options.batch.tokens() % q.multiple_of_tokens() == 0 &&
         !sum_order_problem(step_shape(options, mesh), options.precision, q.backend, options.reduction);
}

/// Without those that a run with these options may not have: together with them, others would not help either.
Changes allowed(const FitQuestion& q, Changes changes, int ranks) {
  const auto is_allowed = [&](const Changes& some) {
    const EngineOptions options = with_changes(q.options, some);
    return are_allowed(q, options, mesh_for(q, options, ranks));
  };
  if (is_allowed({}))  // otherwise one that makes it so may be among them
    std::erase_if(changes, [&](const Change& change) { return !is_allowed({change}); });
  return changes;
}

/// With these changes on so many ranks, if it fits then. Other numbers of ranks have other numbers of micro-batches.
std::optional<FittingRun> fit_with(const FitQuestion& q, const Changes& changes, int ranks) {
  EngineOptions options = with_changes(q.options, changes);
  if (options.training && ranks != ranks_of(q.mesh)) {
    const std::int64_t pass = ranks * options.batch.sequences;
    options.micro_batches = static_cast<int>(ceil_div(batch_of(q), pass));
  }

  const DeviceMesh mesh = mesh_for(q, options, ranks);
  if (!are_allowed(q, options, mesh)) return std::nullopt;
  const auto arena_bytes = compile_model(q.model, options, mesh, q.sizes, q.backend).arena_bytes;
  if (!q.fits(arena_bytes, mesh, options)) return std::nullopt;
  return FittingRun{together(changes), ranks, std::move(options), arena_bytes};
}

/// `fit` with as little recomputation as its other changes leave room for, if it has more than is configured.
FittingRun with_least_recomputation(const FitQuestion& q, FittingRun fit) {
  const auto changed = std::ranges::find(fit.changes, "checkpointing", &OptionValue::field);
  if (changed == fit.changes.end()) return fit;
  const DeviceMesh mesh = mesh_for(q, fit.options, fit.ranks);
  const FitQuestion question{q.model, fit.options, mesh, q.sizes, q.backend, q.fits};
  fit.options.checkpointing = fitting_checkpointing(question);
  fit.arena_bytes = question.compile(fit.options).arena_bytes;
  changed->value = to_string(fit.options.checkpointing);
  return fit;
}

Changes joined(Changes first, const Changes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// `changes` fit, but not without the last one. Removes every other change that is not needed, trying later ones first.
FittingRun without_needless(const FitQuestion& q, FittingRun fit, Changes changes, int ranks) {
  if (changes.empty()) return fit;
  for (std::size_t i = changes.size() - 1; i-- > 0;) {
    Changes fewer = changes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (auto with_fewer = fit_with(q, fewer, ranks)) {
      fit = *std::move(with_fewer);
      changes = std::move(fewer);
    }
  }
  return fit;
}

/// `base` with the fewest of `more`, in their order, with which it fits.
std::optional<FittingRun> as_many_as_needed(const FitQuestion& q, Changes base, const Changes& more,
                                            int ranks) {
  for (const auto& change : more) {
    base.push_back(change);
    if (auto fit = fit_with(q, base, ranks)) return without_needless(q, *std::move(fit), base, ranks);
  }
  return std::nullopt;
}

/// The first that fits, in the order that find_fit() promises.
std::optional<FittingRun> fitting_change(const FitQuestion& q, int ranks) {
  const auto of = [&](Changes changes) { return allowed(q, std::move(changes), ranks); };
  const Changes batches = of(smaller_micro_batches(q.options)),
                others = of(other_changes(q.options, q.multiple_of_tokens() > 1)),
                narrow = of(narrower_state(q.model, q.options)),
                units = of(smaller_units(q.model, q.options)),
                parts = of(state_over_replicas(q.options, q.mesh.replica_count()));
  const Changes smallest(batches.end() - std::min<std::ptrdiff_t>(1, std::ssize(batches)), batches.end());
  Changes on_device;  // what helps even where the host's memory is full
  std::copy_if(others.begin(), others.end(), std::back_inserter(on_device),
               [](const Change& change) { return !change.to_host; });
  const Changes most = joined(smallest, others), most_on_device = joined(smallest, on_device);
  Changes of_this_strategy;  // what a state that is divided among replicas goes with
  std::ranges::copy_if(on_device, std::back_inserter(of_this_strategy),
                       [](const Change& change) { return change.values.front().field != "strategy"; });
  const auto with_units = [&units](const Changes& changes) { return joined(changes, units); };
  // Compiling takes a while: where not even everything helps, with as much in the host's memory as goes
  // there, its parts are not tried.
  bool some_fits = fit_with(q, joined(most_on_device, narrow), ranks).has_value() ||
                   fit_with(q, joined(with_units(most_on_device), narrow), ranks).has_value();
  for (const auto& change : others) {
    if (some_fits || !change.to_host) continue;
    some_fits = fit_with(q, joined(joined(most_on_device, {change}), narrow), ranks).has_value() ||
                fit_with(q, joined(joined(with_units(most_on_device), {change}), narrow), ranks).has_value();
  }
  if (!some_fits) {
    if (parts.empty()) return std::nullopt;
    return fit_with(q, parts, ranks);
  }

  for (const auto& changes : {batches, parts, units, others}) {
    for (const auto& change : changes) {
      if (auto fit = fit_with(q, {change}, ranks)) return fit;
    }
  }
  for (const auto& [base, more] :
       {std::pair(smallest, of_this_strategy), std::pair(joined(smallest, of_this_strategy), parts),
        std::pair(smallest, on_device), std::pair(Changes(), units), std::pair(most_on_device, units),
        std::pair(smallest, others), std::pair(most, units), std::pair(Changes(), narrow),
        std::pair(most_on_device, narrow), std::pair(most, narrow),
        std::pair(with_units(most_on_device), narrow), std::pair(with_units(most), narrow)}) {
    if (auto fit = as_many_as_needed(q, base, more, ranks)) return fit;
  }
  return std::nullopt;
}

/// What to do, with options as ConfigError::Parts::remedy has them.
std::string advice(const std::optional<FittingRun>& fit, const FitQuestion& q) {
  if (!fit) {
    const int times = most_times_ranks(q);
    return fmt::format(
        "{} smaller micro-batches, smaller FSDP units, activation checkpointing, offload or state in bfloat16 would make it "
        "fit; use a smaller model or {{batch.seq_len}}",
        times > 1 ? fmt::format("neither {} times as many ranks nor", times) : "no");
  }
  std::vector<std::string> words;
  for (const auto& [field, value] : fit->changes) {
    const bool of_evaluation = !q.options.training && field == "batch.sequences";
    words.push_back(of_evaluation ? "a micro-batch of " + value : fmt::format("{{{}}} = {}", field, value));
  }
  const std::string changes = fmt::format("{}", fmt::join(words, " and "));
  const bool offloads = fit->options.offload != q.options.offload;
  const std::string host =
      offloads ? fmt::format(" (at least {} of host memory per rank)", format_bytes(fit->arena_bytes[1]))
               : "";
  if (fit->ranks == ranks_of(q.mesh)) return "it would fit with " + changes + host;
  const std::int64_t batch = fit->ranks * fit->options.micro_batches * fit->options.batch.sequences;
  const std::string other_batch = q.options.training && batch != batch_of(q)
                                      ? fmt::format(" and a global batch of {} sequences", batch)
                                      : "";
  return fmt::format("it would fit on {} ranks with at most {} per node{}{}{}{}", fit->ranks,
                     q.mesh.ranks_on_node, other_batch, changes.empty() ? "" : ", and ", changes, host);
}

/// The largest buffers of an arena, or of both, at the peak: "saved activation 1.50 MiB, ...".
std::string largest_buffers(const CompiledModel& compiled, std::optional<Arena> arena) {
  const Program& program = compiled.step.empty() ? compiled.evaluation : compiled.step;
  auto rows = bytes_alive_at(program, peak_action(program).value_or(0));
  std::erase_if(rows, [&](const PurposeBytes& row) { return arena && row.arena != *arena; });
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (rows.size() > kNamedBuffers) rows.erase(rows.begin() + kNamedBuffers, rows.end());
  std::vector<std::string> buffers;
  for (const auto& row : rows)
    buffers.push_back(fmt::format("{} {}", to_string(row.purpose), format_bytes(row.bytes)));
  return fmt::format("{}", fmt::join(buffers, ", "));
}

}  // namespace

std::optional<FittingRun> find_fit(const FitQuestion& q) {
  const int ranks = ranks_of(q.mesh), most_times = most_times_ranks(q);
  if (auto fit = fitting_change(q, ranks)) return with_least_recomputation(q, *std::move(fit));
  for (int times = 2; times <= most_times; times *= 2) {
    if (auto fit = fit_with(q, {}, times * ranks)) return fit;
  }
  for (int times = 2; times <= most_times; times *= 2) {
    if (auto fit = fitting_change(q, times * ranks)) return with_least_recomputation(q, *std::move(fit));
  }
  return std::nullopt;
}

ConfigError does_not_fit(const std::string& lack, const CompiledModel& compiled, std::optional<Arena> arena,
                         const FitQuestion& question) {
  return ConfigError(
      {.problem = fmt::format("{}; largest buffers: {}", lack, largest_buffers(compiled, arena)),
       .remedy = advice(find_fit(question), question)});
}

}  // namespace llampi::fsdp
