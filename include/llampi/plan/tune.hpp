// SPDX-License-Identifier: Apache-2.0
// Which options make a step fastest, of those that fit: the search of `llampi plan --tune`.
//
// A candidate is a value for everything that is searched but recomputation: of the levels of activation checkpointing, it has the least
// that fits. Each is compiled and timed, but for those that cannot be better:
// - a step takes at least the time of what it computes (Bound), which is the same for all strategies and with all offloading, so levels
//   with which that alone takes longer than the best step are left out, and with them what needs more memory than the others give;
// - offloading adds copies, so it is left out where less of it fits with as little recomputation.
// Both hold for the model of time of this part (step_time.hpp), so the result is that of trying everything.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/storage.hpp"
#include "llampi/plan/step_time.hpp"

namespace llampi::plan {

struct Sharding {
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  int group_size = 0;  ///< of hybrid strategies: ranks of a shard group; 0: those of a node
  bool optimizer_over_replicas = false;

  bool operator==(const Sharding&) const = default;
};

/// Not with what a run refuses whatever else it has.
inline bool go_together(const Sharding& sharding, const fsdp::Offload& offloading) {
  return !sharding.optimizer_over_replicas || !offloading.params;
}
inline bool offloads_anything(const fsdp::Offload& o) { return o.optimizer || o.params || o.residuals; }
/// Whether `more` offloads what `less` does and possibly other things, and updates in the same place: its steps copy as much, or
/// more.
inline bool is_part_of(const fsdp::Offload& less, const fsdp::Offload& more) {
  const bool same_place = !less.optimizer || less.host_step == more.host_step;
  return same_place && less.optimizer <= more.optimizer && less.params <= more.params &&
         less.residuals <= more.residuals;
}

/// What changes the numbers of a run.
struct Numbers {
  DType param = DType::float32;  ///< dtype of gathered parameters
  bool fp8 = false;              ///< matrix products of the blocks

  bool operator==(const Numbers&) const = default;
};

struct Choice {
  Sharding sharding;
  Numbers numbers;
  std::int64_t micro_batch = 1;       ///< sequences
  bool accumulate_unsharded = false;  ///< with several micro-batches in a step
  fsdp::Offload offloading;
  fsdp::BlockCheckpointing checkpointing;

  bool operator==(const Choice&) const = default;
};

/// The values to try of each. What has only one is left as it is.
struct TuneSpace {
  std::vector<Sharding> shardings;
  std::vector<Numbers> numbers;
  std::vector<std::int64_t> micro_batches;
  std::vector<bool> accumulate_unsharded;
  std::vector<fsdp::Offload> offloadings;               ///< no offloading first, if it may be chosen
  std::vector<fsdp::BlockCheckpointing> checkpointing;  ///< each needs no more memory than those before it
  std::int64_t sequences = 1;  ///< of a rank in a step: a micro-batch of as many is the only one

  std::int64_t candidates() const;
};

struct TimedChoice {
  Choice choice;
  StepTime time;
  std::int64_t needed_bytes = 0;       ///< of a device
  std::int64_t host_needed_bytes = 0;  ///< of a node with GPUs
  bool fits = true;
  bool accumulates = false;  ///< a step has several micro-batches
};

/// What a choice would need, and, on request, take.
struct Trial {
  bool fits_on_device = true, fits_on_host = true;
  std::int64_t needed_bytes = 0;       ///< of a device
  std::int64_t host_needed_bytes = 0;  ///< of a node with GPUs
  /// Seconds that a step takes at least, if there were all the memory that it could use.
  std::function<double()> at_least;
  std::function<TimedChoice()> time;  ///< of a choice that fits. Both throw as Try does

  bool fits() const { return fits_on_device && fits_on_host; }
};
/// @throws UserError for what a run would refuse, or a machine file cannot predict
using Try = std::function<Trial(const Choice&)>;
/// Seconds of what a step of the choice computes, whatever its sharding and its offloading; the more the more is recomputed. Asked often:
/// answers must be quick.
using Bound = std::function<double(const Choice&)>;

enum class Rejection : std::uint8_t { impossible, device_memory, host_memory, offload_not_needed, slower };
const char* to_string(Rejection rejection);

struct Tuning {
  std::vector<TimedChoice> timed;  ///< all that fit and were timed, the fastest first
  /// Of each strategy, candidates that were not timed.
  std::map<Rejection, std::map<fsdp::Strategy, std::int64_t>> rejected;
  std::map<fsdp::Strategy, std::set<std::string>> impossible;  ///< some reasons of each
  std::int64_t candidates = 0;
  std::int64_t tries = 0;  ///< plans that were made: candidates with one level of recomputation each
  std::int64_t least_needed_bytes = 0;  ///< of a device, over all candidates that do not fit there
  std::int64_t least_host_needed_bytes =
      0;  ///< of a node, over all that fit on the device, but not on the host

  std::int64_t left_out() const;  ///< sum of `rejected`
  /// The fastest of each sharding that was timed, `most` at most.
  std::vector<TimedChoice> best(std::size_t most) const;
};

/// Of those that are within a thousandth of the fastest, the first is the one that needs least memory.
Tuning tune(const TuneSpace& space, const Bound& computing, const Try& try_choice);

/// "hybrid_shard of 4, ZeRO-1".
std::string to_string(const Sharding& sharding);
/// "none", "optimizer, step on the host, residuals".
std::string to_string(const fsdp::Offload& offloading);

/// A table of the best few and, where it is another, of the configured; then how many candidates ("combinations") were left out,
/// and why.
/// @param tokens of a step, over all ranks
/// @param memory_bytes of a device; 0: not known
std::string format_tuning(const Tuning& tuning, const std::optional<TimedChoice>& configured, double tokens,
                          std::int64_t memory_bytes);

/// A key of the configuration with the value that was found, and the one it had.
struct TunedKey {
  std::string key, value, before;
};
/// One line of JSON without its end:
///   candidates, timed        numbers of them
///   plans                    that were made to find out what fits
///   rejected [{reason, strategy, count}], impossible [{strategy, reason}]
///   best [{strategy, shard_group_size (0: the ranks of a node), shard_optimizer_over_replicas, micro_batch, accumulate_unsharded,
///          checkpointing, offloaded, param_dtype, fp8, step_seconds, exposed_seconds, tokens_per_second, needed_bytes,
///          host_needed_bytes, fits}], the first of each sharding
///   configured               as a row of best; null if it cannot be had
///   keys {key: value}        to set
///   changed {key: value}     what they were
///   notes                    sentences
/// @param tokens of a step, over all ranks
std::string to_json(const Tuning& tuning, const std::optional<TimedChoice>& configured, double tokens,
                    const std::vector<TunedKey>& keys, const std::vector<std::string>& notes);

}  // namespace llampi::plan
