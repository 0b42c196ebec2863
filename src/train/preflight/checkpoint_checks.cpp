// SPDX-License-Identifier: Apache-2.0
#include "train/preflight/checkpoint_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/checkpoint/room.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "train/room.hpp"
#include "train/saver.hpp"
#include "train/state_sums.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// NaN everywhere, so that what is not loaded shows.
void wipe(device::Device& device, const std::vector<fsdp::StatePiece>& pieces) {
  checkpoint::Staging staging(device, checkpoint::kTransferElements);
  for (const auto& piece : pieces) {
    for (const auto& tensor : {piece.master, piece.exp_avg, piece.exp_avg_sq}) {
      staging.in_parts(tensor, [&](const Tensor& part, std::int64_t) {
        std::fill_n(staging.room_for(part), part.elements(), std::nanf(""));
        staging.store(part);
      });
    }
  }
}

void check_same_state(Checklist& list, const RunSetup& run, const std::vector<std::uint32_t>& saved,
                      bool moments, const PreflightFigures& figures) {
  const auto loaded = state_sums(run.compute.device(), run.engine->pieces_to_load(), *run.engine, moments);
  const auto first = std::mismatch(saved.begin(), saved.end(), loaded.begin()).first - saved.begin();
  const auto of_ranks = comm::all_gather_value(list.world(), static_cast<std::int64_t>(first));
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == std::ssize(saved)) continue;
    return list.fail(
        "checkpoint",
        fmt::format("{} does not get back what it saved, first in {}; do not use the file system of {}",
                    list.on_host(static_cast<int>(rank)),
                    run.engine->model().parameters()[static_cast<std::size_t>(of_ranks[rank])].name,
                    run.config.run.dir));
  }
  const auto bytes = static_cast<double>(figures.checkpoint_bytes);
  list.pass("checkpoint",
            fmt::format("saved in {:.2f} s ({}), loaded in {:.2f} s ({}), the same bits{}",
                        figures.save_seconds, format_rate(bytes / figures.save_seconds), figures.load_seconds,
                        format_rate(bytes / figures.load_seconds),
                        moments ? "" : " but for moments, which checkpoint.state_dtype rounds"));
}

}  // namespace

bool check_room(Checklist& list, const RunSetup& run, std::int64_t& bytes) {
  const Config& config = run.config;
  const auto tensors = tensors_to_save(*run.engine, CheckpointContent::all);
  bytes = checkpoint::checkpoint_bytes(tensors, run.checkpoint_texts(), file_settings(config));
  struct Found {
    bool fits = false;  ///< the next checkpoint, into run.dir
    std::string problems, free;
    auto members() { return std::tie(fits, problems, free); }
  };
  const auto found = comm::from_rank_0(list.world(), [&] {
    Found on_disk;
    Room room(config, bytes, fallback_folder(config));
    room.note_checkpoints(run.state.step, run.refused);
    std::vector<std::string> problems;
    if (const auto of_next = room.problem_of_next()) {
      problems.push_back(of_next->text);
    } else {
      on_disk.fits = true;
      const Saves saves{run.state.step, total_steps(config, run.state), config.checkpoint.every};
      if (const auto at_the_end = room.problem_at_the_end(saves)) problems.push_back(*at_the_end);
    }
    if (const auto of_fallback = room.problem_of_fallback()) problems.push_back(of_fallback->text);
    on_disk.problems = fmt::format("{}", fmt::join(problems, "; and "));
    const auto free = checkpoint::free_bytes(room.folder());
    on_disk.free = free ? fmt::format("{} are free in {}", format_bytes(*free), room.folder().string()) : "";
    return on_disk;
  });
  if (found.problems.empty() && found.free.empty()) {
    list.skip(
        "room",
        fmt::format("a checkpoint takes about {}, and the file system of {} does not say how much is free",
                    format_bytes(bytes), config.run.dir));
  } else if (found.problems.empty()) {
    list.pass("room",
              fmt::format(
                  "a checkpoint takes about {}, and {}: enough for all that are kept (checkpoint.keep = {})",
                  format_bytes(bytes), found.free, config.checkpoint.keep));
  } else {
    list.fail("room", found.problems);
  }
  return found.fits;
}

bool check_round_trip(Checklist& list, const RunSetup& run, const fs::path& file, PreflightFigures& figures) {
  comm::World& world = list.world();
  device::Device& device = run.compute.device();
  fsdp::Engine& engine = *run.engine;
  const auto settings = file_settings(run.config);
  // Moments that are stored narrower than they are kept do not come back with the same bits.
  const bool moments = size_of(settings.moments) >= size_of(run.config.optimizer.moment_dtype);
  const auto before = state_sums(device, engine.pieces_to_load(), engine, moments);
  const auto tensors = tensors_to_save(engine, CheckpointContent::all);
  const auto stored = checkpoint::stored_tensors(engine);
  const auto pieces = checkpoint::tensor_pieces(engine, engine.pieces_to_save(), stored);
  const std::string advice = fmt::format("; look at the file system of {}", run.config.run.dir);
  const bool done = list.attempt("checkpoint", advice, [&] {
    double begin = steady_seconds();
    checkpoint::save_checkpoint(world, device, file, {tensors, pieces, run.state, run.checkpoint_texts()},
                                settings);
    figures.save_seconds = comm::max_over_ranks(world, steady_seconds() - begin);
    auto to_load = engine.pieces_to_load();
    if (stored == checkpoint::TensorSet::adapters) {  // the base is not in the file
      std::erase_if(to_load, [&](const auto& piece) {
        return !engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].adapter;
      });
    }
    wipe(device, to_load);
    begin = steady_seconds();
    checkpoint::load_checkpoint(world, device, file, checkpoint::tensor_infos(engine, stored),
                                checkpoint::tensor_pieces(engine, to_load, stored),
                                {.io = run.config.checkpoint.io, .log = run.log});
    figures.load_seconds = comm::max_over_ranks(world, steady_seconds() - begin);
  });
  if (done) check_same_state(list, run, before, moments, figures);
  return done;
}

bool saves_before_the_end(std::int64_t every, std::int64_t step, std::int64_t last) {
  return every > 0 && (step / every + 1) * every < last;
}

PreflightCheck judge_saving(const SavingTime& time, const std::string& folder) {
  const double between = static_cast<double>(time.every) * time.step_seconds;
  const double most = time.in_background ? kMostWriting : kMostWaiting;
  const double share = time.save_seconds / (time.in_background ? between : between + time.save_seconds);
  std::string text = fmt::format(
      "a checkpoint takes {:.3g} s, and the {} between two checkpoints {} {:.3g} s: ", time.save_seconds,
      count(time.every, "step"), time.every == 1 ? "takes" : "take", between);
  text += time.in_background
              ? fmt::format("it is written in the background during {:.1f} % of that time", 100 * share)
              : fmt::format("saving is {:.1f} % of the time", 100 * share);
  if (share <= most || time.save_seconds < kSavingDoesNotMatter) return {"saving", Verdict::pass, text};
  const double enough =
      time.save_seconds * (time.in_background ? 1 / most : 1 / most - 1) / time.step_seconds;
  return {
      "saving", Verdict::fail,
      fmt::format(
          "{}, more than {:.0f} %; set checkpoint.every to {} or more, {}or use a faster file system than that "
          "of {}",
          text, 100 * most, with_separators(std::ceil(enough)),
          time.in_background ? "" : "set checkpoint.async = true, ", folder)};
}

void check_saving(Checklist& list, const RunSetup& run, const PreflightFigures& figures) {
  const auto& settings = run.config.checkpoint;
  if (!saves_before_the_end(settings.every, run.state.step, total_steps(run.config, run.state))) {
    return list.skip(
        "saving",
        fmt::format("checkpoint.every = {}: {}the only checkpoint is that of the last step", settings.every,
                    run.state.step > 0 ? fmt::format("after step {}, ", run.state.step) : ""));
  }
  const auto bytes = checkpoint::checkpoint_bytes(tensors_to_save(*run.engine, settings.content),
                                                  run.checkpoint_texts(), file_settings(run.config));
  const double part = static_cast<double>(bytes) / static_cast<double>(figures.checkpoint_bytes);
  const auto check = judge_saving({.save_seconds = figures.save_seconds * part,
                                   .step_seconds = figures.step_seconds,
                                   .every = settings.every,
                                   .in_background = settings.async},
                                  run.config.run.dir);
  check.verdict == Verdict::pass ? list.pass("saving", check.text) : list.fail("saving", check.text);
}

}  // namespace llampi::train
