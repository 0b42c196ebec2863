// SPDX-License-Identifier: Apache-2.0
// The result of tuning for programs.
#include <limits>
#include <nlohmann/json.hpp>

#include "llampi/core/json_text.hpp"
#include "llampi/plan/tune.hpp"

namespace llampi::plan {
namespace {

using TuneJson = nlohmann::ordered_json;

TuneJson row_json(const TimedChoice& row, double tokens) {
  const Choice& c = row.choice;
  return {{"strategy", fsdp::to_string(c.sharding.strategy)},
          {"shard_group_size", c.sharding.group_size},
          {"shard_optimizer_over_replicas", c.sharding.optimizer_over_replicas},
          {"micro_batch", c.micro_batch},
          {"accumulate_unsharded", c.accumulate_unsharded},
          {"checkpointing", fsdp::to_string(c.checkpointing)},
          {"offloaded", to_string(c.offloading)},
          {"param_dtype", to_string(c.numbers.param)},
          {"fp8", c.numbers.fp8},
          {"step_seconds", row.time.seconds},
          {"exposed_seconds", row.time.waiting_seconds()},
          {"tokens_per_second", tokens / row.time.seconds},
          {"needed_bytes", row.needed_bytes},
          {"host_needed_bytes", row.host_needed_bytes},
          {"fits", row.fits}};
}

}  // namespace

std::string to_json(const Tuning& tuning, const std::optional<TimedChoice>& configured, double tokens,
                    const std::vector<TunedKey>& keys, const std::vector<std::string>& notes) {
  TuneJson json = {{"candidates", tuning.candidates},
                   {"timed", tuning.candidates - tuning.left_out()},
                   {"plans", tuning.tries}};
  json["rejected"] = TuneJson::array();
  for (const auto& [why, of_strategy] : tuning.rejected) {
    for (const auto& [strategy, count] : of_strategy)
      json["rejected"].push_back(
          {{"reason", to_string(why)}, {"strategy", fsdp::to_string(strategy)}, {"count", count}});
  }
  json["impossible"] = TuneJson::array();
  for (const auto& [strategy, reasons] : tuning.impossible) {
    for (const auto& reason : reasons)
      json["impossible"].push_back({{"strategy", fsdp::to_string(strategy)}, {"reason", reason}});
  }
  json["best"] = TuneJson::array();
  for (const auto& row : tuning.best(std::numeric_limits<std::size_t>::max()))
    json["best"].push_back(row_json(row, tokens));
  json["configured"] = configured ? row_json(*configured, tokens) : TuneJson();
  json["keys"] = json["changed"] = TuneJson::object();
  for (const auto& [key, value, before] : keys) {
    json["keys"][key] = value;
    json["changed"][key] = before;
  }
  json["notes"] = notes;
  return json_text(json);
}

}  // namespace llampi::plan
