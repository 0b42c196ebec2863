// SPDX-License-Identifier: Apache-2.0
#include "train/resume.hpp"

#include <algorithm>
#include <optional>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/content.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/run_text.hpp"
#include "train/changed_keys.hpp"
#include "train/history.hpp"
#include "train/same_model.hpp"
#include "train/tokenizer_check.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

using Checkpoint = checkpoint::FoundCheckpoint;

/// Whether the checkpoint's run began from there. Where both were moved together, the same command says it.
bool began_from(const Checkpoint& checkpoint, const std::string& place) {
  const RunText text = read_run_text(checkpoint.summary.texts.run_config);
  const std::string given = text.value("run.resume"), noted = text.note(kBeganFrom);
  std::error_code ignored;
  return same_place(noted.empty() ? given : noted, place) || (given == place && !fs::exists(noted, ignored));
}

bool has_run(const fs::path& run_dir) {
  std::error_code ignored;
  return fs::exists(run_dir / "config.ini", ignored) || !checkpoint::list_checkpoints(run_dir).empty() ||
         !saved_checkpoints(run_dir).empty();
}

/// A checkpoint in a fallback folder of a run that had the same run.dir, which was deleted or moved since: whether that run is to
/// continue is not known.
void refuse_left_over(const Config& config, const std::optional<Checkpoint>& newest) {
  if (!newest || has_run(config.run.dir)) return;
  throw_user_error(
      "run.dir = {} has no run, and checkpoint.fallback_dir has a checkpoint of one that had this run.dir ({}); move that to "
      "{}/checkpoints to continue from it, or delete it to begin again",
      config.run.dir, newest->file.string(), config.run.dir);
}

/// The newest of the run's own.
std::optional<Checkpoint> newest_own(const Config& config, std::vector<checkpoint::Refused>& refused,
                                     const Log& log) {
  auto newest = checkpoint::newest_readable(run_checkpoints(config), refused, log);
  refuse_left_over(config, newest);
  return newest;
}

/// run.resume = FILE, which is gone or not whole: fine for a run that began from it and has saved since.
/// @param problem "is gone" @param error is thrown if it did not, or has not
Checkpoint newest_that_began_from(const Config& config, std::vector<checkpoint::Refused>& refused,
                                  const Log& log, const std::string& problem, const std::string& error) {
  const std::string& file = config.run.resume.file;
  auto own = newest_own(config, refused, log);
  if (!own || !began_from(*own, file)) throw UserError(error);
  log.info("run.resume = {} {}; {} began from it and continues from its own newest checkpoint", file, problem,
           config.run.dir);
  return *own;
}

/// Reads its summary; if it is damaged, says how.
std::optional<std::string> read_or_reason(Checkpoint& checkpoint,
                                          const std::vector<checkpoint::Refused>& refused) {
  if (const auto* known = checkpoint::find(refused, checkpoint.file)) return known->reason;
  try {
    checkpoint.summary = checkpoint::read_checkpoint_summary(checkpoint.file);
  } catch (const checkpoint::DamagedCheckpoint& error) {
    return error.problem();
  }
  return std::nullopt;
}

/// The file of run.resume = FILE, or the checkpoints of the run in that folder, by step.
std::vector<fs::path> given_checkpoints(const Config& config) {
  if (config.run.resume.mode != ResumeFrom::Mode::file) return {};
  const fs::path given = config.run.resume.file;
  std::error_code ignored;
  std::vector<fs::path> files;
  if (fs::is_directory(given, ignored)) files = run_checkpoints(given);
  if (files.empty()) files.push_back(given);
  return files;
}

/// run.resume = FILE or the folder of a run. What the run itself has saved since it began there goes first, even if the other
/// run is at a later step by now: the same command continues.
Checkpoint given_or_newer(const Config& config, std::vector<checkpoint::Refused>& refused, const Log& log) {
  const std::string& place = config.run.resume.file;
  const auto files = given_checkpoints(config);
  std::error_code ignored;
  if (!fs::exists(files.back(), ignored)) {
    return newest_that_began_from(
        config, refused, log, "is gone",
        fmt::format("run.resume = {}: no such file; give a checkpoint, the folder of a run, auto or never",
                    place));
  }
  if (fs::is_directory(files.back(), ignored)) {
    const auto vanished = vanished_checkpoint(place);
    const std::string error =
        vanished
            ? fmt::format("its newest checkpoint, {}, is gone, and no other one is left", vanished->text)
            : "this folder holds no checkpoints of a run; give the folder of a run that has saved one, or a "
              "checkpoint";
    return newest_that_began_from(config, refused, log, "has no checkpoint",
                                  fmt::format("run.resume = {}: {}", place, error));
  }
  Checkpoint given{files.back(), {}};
  auto reason = read_or_reason(given, refused);
  if (reason && files.size() > 1) {
    if (const auto older = checkpoint::newest_readable(files, refused, log)) given = *older, reason.reset();
  }
  if (reason)
    return newest_that_began_from(config, refused, log, fmt::format("cannot be read ({})", *reason),
                                  *reason + "; use another checkpoint");
  const auto own = newest_own(config, refused, log);
  const bool is_own = same_place(config.run.dir, place) || (own && same_place(own->file, given.file));
  if (!own || (is_own && own->summary.state.step <= given.summary.state.step)) {
    if (files.back() != place && !is_own)  // the newest of that run
      warn_if_newest_vanished(place, given.file, given.summary.state.step, log);
    return given;
  }
  const std::int64_t step = given.summary.state.step, own_step = own->summary.state.step;
  if (!is_own && !began_from(*own, place)) {
    const auto is_given = [&](const fs::path& file) { return same_place(file, given.file); };
    if (std::ranges::any_of(run_checkpoints(config), is_given)) {
      throw_user_error(
          "run.resume = {}, but {} has a later checkpoint, of step {}; move that away, or use another run.dir",
          place, config.run.dir, own_step);
    }
    throw_user_error(
        "{} has a checkpoint of step {} from a run that did not start from run.resume = {} (step {}); use another run.dir to "
        "start from that, or run.resume = auto to continue the run in {}; if this run saved {}, move it to {}/checkpoints",
        config.run.dir, own_step, place, step, config.run.dir, place, config.run.dir);
  }
  log.info(
      "run.resume = {} is at step {}; the run continues from its own newest checkpoint in {}, of step {}",
      place, step, own->file.parent_path().string(), own_step);
  return *own;
}

std::optional<Checkpoint> find_checkpoint(const Config& config, std::vector<checkpoint::Refused>& refused,
                                          const Log& log) {
  if (config.run.resume.mode == ResumeFrom::Mode::automatic) {
    auto newest = checkpoint::newest_or_none(run_checkpoints(config), config.run.dir, refused, log);
    refuse_left_over(config, newest);
    return newest;
  }
  if (config.run.resume.mode == ResumeFrom::Mode::file) return given_or_newer(config, refused, log);
  const auto existing = run_checkpoints(config);
  if (existing.empty()) return std::nullopt;
  throw_user_error("run.resume = never, but {} already holds {}; use another run.dir or run.resume = auto",
                   config.run.dir, count(std::ssize(existing), "checkpoint"));
}

/// Of those that `llampi import` writes, and of others that no run wrote, nothing says where the data continue.
void check_is_of_a_run(const Checkpoint& checkpoint) {
  const auto& saved = checkpoint.summary.state;
  if (saved.seq_len > 0 && saved.global_batch > 0) return;
  throw_user_error(
      "{} has seq_len = {} and global_batch = {}: no run has saved it; to begin a run with its weights, give it as "
      "model.weights, and another run.dir",
      checkpoint.file.string(), saved.seq_len, saved.global_batch);
}

void check_fits(const Checkpoint& checkpoint, const Config& config, const model::LlamaConfig& model) {
  const std::string source = checkpoint.file.string();
  const auto saved_model = checkpoint::llama_of(checkpoint.summary.texts, checkpoint.file);
  check_same_shapes(model, config.model.config, saved_model, source,
                    "a run continues with its own model; use another run.dir for this one");
  if (config.run.resume_with_changes) return;
  check_same_model(
      model, config.model.config, saved_model, source,
      "use another run.dir to start a new run, or set run.resume_with_changes = true to continue this one with it");
}

/// A checkpoint of adapters is one of a run that trains adapters, and no other.
void check_adapters(const Checkpoint& checkpoint, const Config& config) {
  const bool holds_adapters = !checkpoint.summary.texts.adapter.empty();
  if (holds_adapters == (config.lora.rank > 0)) return;
  if (holds_adapters) {
    throw_user_error(
        "{} holds adapters alone, and lora.rank = 0 trains a whole model; set lora.rank to that of its run",
        checkpoint.file.string());
  }
  throw_user_error(
      "{} holds a whole model, and lora.rank = {} trains adapters; start another run, with that as model.weights",
      checkpoint.file.string(), config.lora.rank);
}

/// A folder without a config.json is none of a model.
bool is_there(const fs::path& model) {
  std::error_code ignored;
  return fs::exists(fs::is_directory(model, ignored) ? model / "config.json" : model, ignored);
}

/// Note of what was read for model.weights, where that is not what it names.
constexpr std::string_view kReadFrom = "read from ";

std::string with_weights_note(const std::string& text, const Config& config, const fs::path& weights) {
  if (weights == *config.model.weights) return text;
  return with_note(text, "model.weights", std::string(kReadFrom) + weights.string());
}

/// Of a run that begins.
Start from_the_beginning(const Config& config, const ConfigTexts& texts, const Inputs& inputs,
                         const std::string& data, const Log& log) {
  if (const auto vanished = vanished_checkpoint(config.run.dir))
    log.warning(
        "the run begins again at step 1: its newest checkpoint, {}, is gone, and no other one is left",
        vanished->text);
  const Config defaults;
  if (same_place(config.run.dir, defaults.run.dir))
    log.info("run.dir is not given: the run is kept in {}", config.run.dir);
  Start start{.run_text = texts.resolved + "\n"};
  if (config.model.weights) {
    start.weights = resolve_weights(*config.model.weights, log);
    start.run_text = with_weights_note(start.run_text, config, start.weights);
  }
  if (config.lora.weights) start.adapter = resolve_weights(*config.lora.weights, log);
  start.run_text = with_note(start.run_text, "data.train", data);
  with_source("model.weights = ", start.weights, [&] {
    if (inputs.train->chat_template().empty())  // else nothing needs that of the weights
      with_source("lora.weights = ", start.adapter, [&] {
        start.chat_template = checkpoint::trained_template(start.weights, start.adapter).text;
      });
    check_tokenizers(config, inputs, start.weights, log);
  });
  return start;
}

/// Of the adapters in the checkpoint. The folder of a run stands for the file that it stood for when these began: that run may
/// have saved others since.
fs::path base_of(const Checkpoint& checkpoint, const Config& config, const Log& log) {
  const std::string& given = *config.model.weights;
  const RunText then = read_run_text(checkpoint.summary.texts.run_config);
  const std::string noted = then.note("model.weights");
  if (!noted.starts_with(kReadFrom)) return resolve_weights(given, log);
  const fs::path file = noted.substr(kReadFrom.size());
  std::vector<fs::path> places;
  if (same_place(then.value("model.weights"), given)) places.push_back(file);
  if (const auto step = checkpoint::checkpoint_step(file))  // of a folder that was moved
    places.push_back(checkpoint::checkpoint_path(given, *step));
  for (const auto& place : places) {
    std::error_code ignored;
    if (!fs::exists(place, ignored)) continue;
    log.info("{}: the base is {}, as when the run began", given, place.string());
    return place;
  }
  return resolve_weights(given, log);
}

/// Whether nothing is left to do. Says so.
bool is_finished(const Checkpoint& checkpoint, const Config& config, const checkpoint::TrainingState& state,
                 const Log& log) {
  const std::int64_t total = total_steps(config, state);
  if (state.step < total) return false;
  const std::string file = checkpoint.file.string();
  if (state.step == total) {
    log.info("run already complete: {} is at step {} of {}", file, state.step, total);
  } else {
    log.warning("nothing to do: {} is at step {}, and the run ends at step {}; increase {} to continue it",
                file, state.step, total, config.train.steps > 0 ? "train.steps" : "train.epochs");
  }
  return true;
}

std::optional<Checkpoint> newest_with_optimizer(std::vector<fs::path> files,
                                                std::vector<checkpoint::Refused>& refused, const Log& log) {
  for (; !files.empty(); files.pop_back()) {
    auto found = checkpoint::newest_readable({files.back()}, refused, log);
    if (found && found->summary.has_optimizer) return found;
  }
  return std::nullopt;
}

/// Instead of a file of weights alone, at which the run does not end: the newest before it with all state, if there is one; if the
/// run itself has none, one of run.resume, but none that was saved there after this run began from it.
Checkpoint continuable(const Checkpoint& newest, const Config& config, const checkpoint::TrainingState& fresh,
                       std::vector<checkpoint::Refused>& refused, const Log& log) {
  const auto state = continue_from(newest.summary.state, fresh);
  if (newest.summary.has_optimizer || state.step >= total_steps(config, state)) return newest;
  auto older = newest_with_optimizer(run_checkpoints(config), refused, log);
  if (!older) {
    const std::string began_at = read_run_text(newest.summary.texts.run_config).note(kBeganAt);
    const std::int64_t last = parse_number<std::int64_t>(began_at).value_or(newest.summary.state.step);
    auto given = given_checkpoints(config);
    std::erase_if(given,
                  [&](const fs::path& file) { return checkpoint::checkpoint_step(file).value_or(0) > last; });
    older = newest_with_optimizer(given, refused, log);
  }
  if (!older) return newest;
  check_is_of_a_run(*older);
  log.warning("{} has weights only; the run continues from {}, the newest with optimizer state",
              newest.file.string(), older->file.string());
  return *older;
}

/// On rank 0.
Start decide(const Config& config, const ConfigTexts& texts, const Inputs& inputs,
             std::vector<checkpoint::Refused>& refused, const Log& log) {
  auto checkpoint = find_checkpoint(config, refused, log);
  const std::string data = data::describe_content(*inputs.train);
  if (!checkpoint) return from_the_beginning(config, texts, inputs, data, log);
  check_is_of_a_run(*checkpoint);
  if (checkpoint->file != config.run.resume.file)  // which the user has chosen
    checkpoint = continuable(*checkpoint, config, inputs.fresh, refused, log);
  warn_if_newest_vanished(config.run.dir, checkpoint->file, checkpoint->summary.state.step, log);
  if (!checkpoint->summary.has_checksums) {
    log.info("{} has no checksums (an older llampi wrote it): damage to its values would go unnoticed",
             checkpoint->file.string());
  }
  check_fits(*checkpoint, config, inputs.llama);
  check_adapters(*checkpoint, config);
  const Continuing run{checkpoint->summary, config, texts, inputs.fresh, data};
  const auto changes = changes_of(run);
  refuse_changes(config, changes, checkpoint->file.string());
  report_changes(run, changes, log);
  const checkpoint::TrainingState state = continue_from(checkpoint->summary.state, inputs.fresh);
  std::string run_text = recorded_text(run);
  const auto own = run_checkpoints(config);
  if (std::ranges::find(own, checkpoint->file) == own.end()) {
    run_text =
        with_note(run_text, kBeganFrom, fs::absolute(config.run.resume.file).lexically_normal().string());
    run_text = with_note(run_text, kBeganAt, std::to_string(checkpoint->summary.state.step));
  }
  fs::path base;
  const bool finished = is_finished(*checkpoint, config, state, log);
  if (config.lora.rank > 0) {
    base = base_of(*checkpoint, config, log);
    run_text = with_weights_note(run_text, config, base);
  }
  return {.checkpoint = checkpoint->file,
          .finished = finished,
          .complete = finished && state.step == total_steps(config, state),
          .weights = std::move(base),
          .chat_template = checkpoint->summary.texts.chat_template,
          .run_text = std::move(run_text),
          .step = checkpoint->summary.state.step,
          .placement = read_run_text(checkpoint->summary.texts.run_config).note("run.placement")};
}

}  // namespace

Start choose_start(comm::World& world, const Config& config, const ConfigTexts& texts, const Inputs& inputs,
                   std::vector<checkpoint::Refused>& refused, const Log& log) {
  return comm::from_rank_0(world, [&] { return decide(config, texts, inputs, refused, log); });
}

std::string model_of_begun_run(const Config& config, const Log& log) {
  if (is_there(config.model.config)) return "";
  std::vector<checkpoint::Refused> refused;
  const auto newest = checkpoint::newest_readable(run_checkpoints(config), refused, Log());
  if (!newest ||
      !same_place(read_run_text(newest->summary.texts.run_config).value("model.config"), config.model.config))
    return "";
  log.info("model.config = {} no longer exists: the run continues with the model in {}", config.model.config,
           newest->file.string());
  return newest->summary.texts.model_config;
}

}  // namespace llampi::train
