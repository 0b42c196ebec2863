// SPDX-License-Identifier: Apache-2.0
#include "train/trace.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <system_error>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/fsdp/streams.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::train {
namespace {

nlohmann::json arguments_of(const fsdp::Action& action, const fsdp::Engine& engine, int rank) {
  const auto& compiled = engine.compiled();
  nlohmann::json arguments = nlohmann::json::object();
  if (action.micro_batch >= 0) arguments["micro_batch"] = action.micro_batch;
  if (action.layer >= 0) {
    arguments["layer"] = action.layer;
    arguments["layer_name"] = fsdp::name_of(compiled.specs[static_cast<std::size_t>(action.layer)]);
  }
  if (action.unit >= 0) {
    arguments["unit"] = action.unit;
    arguments["unit_name"] = compiled.units[static_cast<std::size_t>(action.unit)].name;
  }
  if (action.pass) arguments["pass"] = *action.pass == fsdp::Pass::forward ? "forward" : "backward";
  if (action.payload != fsdp::CopyPayload::none) arguments["payload"] = fsdp::to_string(action.payload);
  if (action.bytes > 0) arguments["bytes"] = action.bytes;
  if (action.ranks == fsdp::Ranks::shard_group) arguments["ranks"] = engine.mesh().shards_of(rank);
  if (action.ranks == fsdp::Ranks::replicate_group) arguments["ranks"] = engine.mesh().replicas_of(rank);
  return arguments;
}

}  // namespace

std::filesystem::path trace_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("rank-{:05}.json", rank);
}

/// They are numbered from 0 on, so there is none after the first gap.
void remove_traces_of_more_ranks(const std::filesystem::path& folder, int ranks) {
  std::error_code ignored;
  while (std::filesystem::remove(trace_file(folder, ranks), ignored)) ++ranks;
}

fsdp::Observer Trace::observer(std::int64_t step) {
  return [this, step](const fsdp::Action& action, int index, fsdp::Moment moment, double seconds) {
    if (moment == fsdp::Moment::begin) {
      open_.resize(std::max(open_.size(), static_cast<std::size_t>(index) + 1));
      open_[static_cast<std::size_t>(index)] = records_.size();
      records_.push_back({step, &action, seconds, seconds, seconds});
      return;
    }
    Record& record = records_[open_[static_cast<std::size_t>(index)]];
    (moment == fsdp::Moment::began_on_device ? record.begin : record.end) = seconds;
  };
}

void Trace::write(const std::filesystem::path& file) {
  auto events = nlohmann::json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", rank_},
                    {"args", {{"name", fmt::format("rank {}", rank_)}}}});
  for (const device::Stream stream : fsdp::kAllStreams) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", rank_},
                      {"tid", stream.number()},
                      {"args", {{"name", stream.name()}}}});
  }
  std::array<double, device::kStreams>
      free{};  // per stream: the end of the event before; rows must not overlap
  for (const auto& r : records_) {
    auto arguments = arguments_of(*r.action, engine_, rank_);
    arguments["step"] = r.step;
    arguments["issued"] = r.issued * 1e6;
    auto& last_end = free.at(r.action->stream.index());
    const double begin = std::max(r.begin, last_end);
    last_end = std::max(r.end, begin);
    std::string name = fsdp::to_string(r.action->op);
    for (const auto* key : {"payload", "layer_name", "unit_name"}) {
      if (arguments.contains(key)) name += " " + arguments[key].get<std::string>();
    }
    events.push_back({{"name", name},
                      {"cat", fsdp::to_string(r.action->op)},
                      {"ph", "X"},
                      {"pid", rank_},
                      {"tid", r.action->stream.number()},
                      {"ts", begin * 1e6},
                      {"dur", (last_end - begin) * 1e6},
                      {"args", arguments}});
  }
  io::clear_leftovers(file, {});
  io::write_whole(file, nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n",
                  false);
  records_.clear();
}

fsdp::Observer StepTraces::observer(const fsdp::Engine& engine, std::int64_t step) {
  const bool wanted = config_.log.trace && config_.log.trace->contains(step);
  if (!wanted) {
    write();
    return {};
  }
  if (!trace_) trace_ = std::make_unique<Trace>(engine, world_.rank());
  return trace_->observer(step);
}

void StepTraces::write() {
  if (!trace_) return;
  const auto folder = std::filesystem::path(config_.run.dir) / "trace";
  const auto tell = [&](const std::exception& error) {
    log_.warning("the trace of these steps is lost: {}", error.what());
  };
  try {
    comm::agree(world_, [&] { trace_->write(trace_file(folder, world_.rank())); });
  } catch (const UserError& error) {  // on all ranks, as is the other one
    tell(error);
  } catch (const comm::CommonError& error) {
    tell(error);
  }
  if (world_.rank() == 0) remove_traces_of_more_ranks(folder, world_.size());
  trace_.reset();
}

}  // namespace llampi::train
