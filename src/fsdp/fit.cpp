#include "llampi/fsdp/fit.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "llampi/core/text.hpp"
#include "llampi/fsdp/memory_report.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::size_t kNamedItems = 3;
constexpr int kMostTimesRanks = 64;
constexpr std::int64_t kDivisors = 64;           ///< of a micro-batch that are tried, and the last one
constexpr std::int64_t kMostMicroBatches = 256;  ///< of a step that is tried: its list grows with them

/// A change of the options, and what the user would write.
struct Change {
  std::string words;
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
        {fmt::format("{}{}", options.training ? "train.micro_batch = " : "a micro-batch of ", now / divisor),
         [now, divisor](EngineOptions& o) {
           o.batch.sequences = now / divisor;
           if (o.training) o.micro_batches *= static_cast<int>(divisor);
         }});
  }
  return changes;
}

Changes other_changes(const EngineOptions& options) {
  Changes changes;
  if (!options.training) return changes;
  if (options.checkpointing != Checkpointing::full) {
    changes.push_back(
        {"activation.checkpointing = full", [](EngineOptions& o) { o.checkpointing = Checkpointing::full; }});
  }
  if (!options.offload.optimizer)
    changes.push_back(
        {"fsdp.cpu_offload = optimizer", [](EngineOptions& o) { o.offload.optimizer = true; }, true});
  if (!options.offload.params) {
    changes.push_back({"fsdp.cpu_offload = params",
                       [](EngineOptions& o) { o.offload.optimizer = o.offload.params = true; }, true});
  }
  if (options.strategy != Strategy::full_shard)
    changes.push_back(
        {"fsdp.strategy = full_shard", [](EngineOptions& o) { o.strategy = Strategy::full_shard; }});
  return changes;
}

/// The state in bfloat16, one part after another. Combinations that a configuration may not have are left
/// out.
Changes narrower_state(const EngineOptions& options) {
  constexpr DType kNarrow = DType::bfloat16;
  const Precision& now = options.precision;
  Changes changes;
  if (!options.training) return changes;
  if (now.moment != kNarrow) {
    changes.push_back(
        {"optimizer.moment_dtype = bfloat16", [](EngineOptions& o) { o.precision.moment = kNarrow; }});
  }
  if (now.master != kNarrow && now.param == kNarrow) {  // float32 parameters are the master themselves
    changes.push_back(
        {"optimizer.master_dtype = bfloat16", [](EngineOptions& o) { o.precision.master = kNarrow; }});
  }
  if (now.gradient_shard == DType::float32 && now.reduce != DType::float16) {
    changes.push_back({fmt::format("optimizer.gradient_dtype = bfloat16{}",
                                   now.reduce == kNarrow ? "" : " and fsdp.reduce_dtype = bfloat16"),
                       [](EngineOptions& o) { o.precision.gradient_shard = o.precision.reduce = kNarrow; }});
  }
  return changes;
}

/// The groups that `ranks` ranks would have; hybrid strategies keep the size of theirs.
RankGroups groups_for(const FitQuestion& q, const EngineOptions& options, int ranks) {
  return make_groups(options.strategy, std::vector<int>(static_cast<std::size_t>(ranks), 0),
                     is_hybrid(options.strategy) ? q.groups.shard_count() : 0);
}

bool fits_with(const FitQuestion& q, const EngineOptions& options, int ranks) {
  const RankGroups groups = groups_for(q, options, ranks);
  return q.fits(compile_model(q.model, options, groups, q.sizes, q.backend).arena_bytes, groups);
}

/// What several changes are called together: the later of two of one key says all.
std::string together(const Changes& changes) {
  std::vector<std::string> words;
  for (const auto& change : changes) {
    const std::string key = change.words.substr(0, change.words.find(" = "));
    std::erase_if(words, [&](const auto& before) { return before.starts_with(key); });
    words.push_back(change.words);
  }
  return fmt::format("{}", fmt::join(words, " and "));
}

Changes joined(Changes first, const Changes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The words of `base` with the fewest of `more`, in their order, with which `fits` holds; empty if it does
/// with none.
std::string as_many_as_needed(Changes base, const Changes& more,
                              const std::function<bool(const Changes&)>& fits) {
  for (const auto& change : more) {
    base.push_back(change);
    if (fits(base)) return together(base);
  }
  return "";
}

/// The words of the first that fits, in the order that advice_to_fit() promises; empty if none does.
std::string fitting_change(const FitQuestion& q, int ranks) {
  const auto fits = [&](const Changes& changes) {
    EngineOptions options = q.options;
    for (const auto& change : changes) change.apply(options);
    return fits_with(q, options, ranks);
  };
  const Changes batches = smaller_micro_batches(q.options), others = other_changes(q.options),
                narrow = narrower_state(q.options);
  const Changes smallest(batches.end() - std::min<std::ptrdiff_t>(1, std::ssize(batches)), batches.end());
  Changes on_device;  // what helps even where the host's memory is full
  std::copy_if(others.begin(), others.end(), std::back_inserter(on_device),
               [](const Change& change) { return !change.to_host; });
  const Changes most = joined(smallest, others), most_on_device = joined(smallest, on_device);
  // Compiling takes a while: where not even everything helps, with as much in the host's memory as goes
  // there, its parts are not tried.
  bool some_fits = fits(joined(most_on_device, narrow));
  for (const auto& change : others) {
    if (!some_fits && change.to_host) some_fits = fits(joined(joined(most_on_device, {change}), narrow));
  }
  if (!some_fits) return "";

  for (const auto& changes : {batches, others}) {
    for (const auto& change : changes) {
      if (fits({change})) return change.words;
    }
  }
  for (const auto& [base, more] :
       {std::pair(smallest, on_device), std::pair(smallest, others), std::pair(Changes(), narrow),
        std::pair(most_on_device, narrow), std::pair(most, narrow)}) {
    if (const std::string words = as_many_as_needed(base, more, fits); !words.empty()) return words;
  }
  return "";
}

}  // namespace

std::string largest_items(const CompiledModel& compiled, std::optional<Arena> arena) {
  const bool trains = !compiled.step.empty();
  const auto& plan = trains ? compiled.step_plan : compiled.evaluation_plan;
  const auto& actions = trains ? compiled.step : compiled.evaluation;
  auto rows = bytes_alive_at(plan, busiest_action(plan, actions.size()).value_or(0));
  std::erase_if(rows, [&](const RoleBytes& row) { return arena && row.arena != *arena; });
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (rows.size() > kNamedItems) rows.resize(kNamedItems);
  std::vector<std::string> items;
  for (const auto& row : rows)
    items.push_back(fmt::format("{} {}", to_string(row.role), format_bytes(row.bytes)));
  return fmt::format("{}", fmt::join(items, ", "));
}

std::string advice_to_fit(const FitQuestion& q) {
  const int ranks = q.groups.shard_count() * q.groups.replica_count();
  if (const std::string words = fitting_change(q, ranks); !words.empty()) return "it would fit with " + words;
  for (int times = 2; times <= kMostTimesRanks; times *= 2) {
    if (fits_with(q, q.options, times * ranks))
      return fmt::format("it would fit on {} ranks, with no more of them on a node", times * ranks);
  }
  for (int times = 2; times <= kMostTimesRanks; times *= 2) {
    if (const std::string words = fitting_change(q, times * ranks); !words.empty())
      return fmt::format("it would fit on {} ranks, with no more of them on a node, and {}", times * ranks,
                         words);
  }
  return fmt::format(
      "neither {} times as many ranks nor smaller micro-batches, checkpointing of activations, offload or "
      "state in bfloat16 would make it fit; use a smaller model or data.seq_len",
      kMostTimesRanks);
}

}  // namespace llampi::fsdp
