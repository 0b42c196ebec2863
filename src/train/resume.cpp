#include "train/resume.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "llampi/core/error.hpp"
#include "train/rank_0.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

struct Checkpoint {
  fs::path file;
  CheckpointSummary summary;
};

std::int64_t steps_per_epoch(const TrainingState& s) {
  return std::max<std::int64_t>(1, (s.data_tokens - 1) / s.seq_len / s.global_batch);
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

const Refused* find(const std::vector<Refused>& refused, const fs::path& file) {
  const auto match =
      std::find_if(refused.begin(), refused.end(), [&](const Refused& other) { return other.file == file; });
  return match == refused.end() ? nullptr : &*match;
}

/// The newest checkpoint of a run folder that can be read; nothing if there is none.
std::optional<Checkpoint> newest_readable(const fs::path& run_dir, std::vector<Refused>& refused,
                                          const Log& log) {
  const auto files = list_checkpoints(run_dir);
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (find(refused, *file) != nullptr) continue;
    try {
      return Checkpoint{*file, read_checkpoint_summary(*file)};
    } catch (const UserError& error) {
      refused.push_back({*file, error.what()});
      log.warning("skipped a checkpoint: {}", error.what());
    }
  }
  return std::nullopt;
}

/// run.resume = auto. A folder whose checkpoints are all damaged is not begun anew.
std::optional<Checkpoint> newest_or_none(const fs::path& run_dir, std::vector<Refused>& refused,
                                         const Log& log) {
  auto newest = newest_readable(run_dir, refused, log);
  const auto files = list_checkpoints(run_dir);
  if (newest || files.empty()) return newest;
  std::vector<std::string> names;
  for (auto file = files.rbegin(); file != files.rend(); ++file) names.push_back(file->filename().string());
  throw_user_error(
      "no checkpoint of {} is whole: {} refused, of the newest one: {}; bring one back from a copy, or move "
      "the folder checkpoints away to begin anew",
      run_dir.string(), fmt::join(names, ", "), find(refused, files.back())->reason);
}

/// run.resume = FILE. What the run itself has saved after it goes first: the same command continues.
Checkpoint given_or_newer(const Config& config, std::vector<Refused>& refused, const Log& log) {
  const fs::path file = config.run.resume;
  if (const auto* known = find(refused, file)) throw UserError(known->reason);
  if (!fs::exists(file)) {
    throw_user_error("run.resume = {}: no such file; give a checkpoint, auto or never", config.run.resume);
  }
  Checkpoint given{file, read_checkpoint_summary(file)};
  auto own = newest_readable(config.run.dir, refused, log);
  if (!own || own->summary.state.step <= given.summary.state.step) return given;
  log.info("run.resume = {} is of step {}; {} has gone on from there, so it continues from its own newest",
           file.string(), given.summary.state.step, config.run.dir);
  return *own;
}

std::optional<Checkpoint> find_checkpoint(const Config& config, std::vector<Refused>& refused,
                                          const Log& log) {
  if (config.run.resume == "auto") return newest_or_none(config.run.dir, refused, log);
  if (config.run.resume != "never") return given_or_newer(config, refused, log);
  const auto existing = list_checkpoints(config.run.dir);
  if (existing.empty()) return std::nullopt;
  throw_user_error(
      "run.resume = never, but {} already holds {} checkpoint(s); use another run.dir or run.resume = auto",
      config.run.dir, existing.size());
}

void check_same_data(const Checkpoint& checkpoint, const TrainingState& here) {
  const auto& saved = checkpoint.summary.state;
  const auto differ = [&](const char* what, auto then, auto now) {
    if (then == now) return;
    throw_user_error(
        "{} was written with {} = {}, this run has {}; set run.resume_with_changes = true if that is meant",
        checkpoint.file.string(), what, then, now);
  };
  differ("data.seq_len", saved.seq_len, here.seq_len);
  differ("train.global_batch", saved.global_batch, here.global_batch);
  differ("a training file of tokens", saved.data_tokens, here.data_tokens);
  differ("run.seed", saved.seed, here.seed);
  differ("data.shuffle", saved.shuffle, here.shuffle);
}

void check_fits(const Checkpoint& checkpoint, const Config& config, const LlamaConfig& model,
                const TrainingState& fresh) {
  const std::string source = checkpoint.file.string();
  const auto& saved = checkpoint.summary.state;
  if (saved.seq_len < 1 || saved.global_batch < 1) {
    throw_user_error("{} has seq_len = {} and global_batch = {}: no run can have saved it", source,
                     saved.seq_len, saved.global_batch);
  }
  const auto saved_model = LlamaConfig::parse(checkpoint.summary.texts.model_config, source);
  check_same_shapes(model, config.model.config, saved_model, source,
                    "a run continues with its own model; use another run.dir for this one");
  if (config.run.resume_with_changes) return;
  check_same_data(checkpoint, fresh);
  check_same_model(model, config.model.config, saved_model, source,
                   "set run.resume_with_changes = true if that is meant");
}

std::string rope_scaling_text(const LlamaConfig& model) {
  if (!model.rope_scaling) return "none";
  const auto& r = *model.rope_scaling;
  return fmt::format("llama3 (factor {}, low_freq_factor {}, high_freq_factor {}, original length {})",
                     r.factor, r.low_freq_factor, r.high_freq_factor, r.original_max_position_embeddings);
}

}  // namespace

std::int64_t data_steps(const TrainingState& state) { return state.samples_consumed / state.global_batch; }

std::int64_t data_epoch(const TrainingState& state) { return data_steps(state) / steps_per_epoch(state); }

TrainingState continue_from(const TrainingState& saved, const TrainingState& fresh) {
  const std::int64_t steps_in_epoch = data_steps(saved) % steps_per_epoch(saved);
  const std::int64_t tokens_in_epoch = steps_in_epoch * saved.global_batch * saved.seq_len;
  const std::int64_t here =
      std::min(steps_per_epoch(fresh), divide_up(tokens_in_epoch, fresh.global_batch * fresh.seq_len));
  TrainingState state = fresh;
  state.step = saved.step;
  state.optimizer_steps = saved.optimizer_steps;
  state.tokens_seen = saved.tokens_seen;
  if (fresh.loss_scale > 0 && saved.loss_scale > 0) {
    state.loss_scale = saved.loss_scale;
    state.loss_scale_good_steps = saved.loss_scale_good_steps;
  }
  state.samples_consumed = (data_epoch(saved) * steps_per_epoch(fresh) + here) * fresh.global_batch;
  state.epoch = data_epoch(state);
  return state;
}

std::int64_t total_steps(const Config& config, const TrainingState& state) {
  if (config.train.steps > 0) return config.train.steps;
  const double steps = config.train.epochs * static_cast<double>(steps_per_epoch(state));
  return state.step + std::llround(steps) - data_steps(state);
}

namespace {

/// Throws where two models differ in a field.
struct Comparison {
  const std::string &run_source, &weights_source, &advice;

  template <class Value>
  void operator()(const char* field, const Value& here, const Value& there) const {
    if (here == there) return;
    throw_user_error("{} has {} = {}, but {} has {}; {}", run_source, field, here, weights_source, there,
                     advice);
  }
};

}  // namespace

void check_same_shapes(const LlamaConfig& run, const std::string& run_source, const LlamaConfig& weights,
                       const std::string& weights_source, const std::string& advice) {
  const Comparison differ{run_source, weights_source, advice};
  differ("vocab_size", run.vocab_size, weights.vocab_size);
  differ("hidden_size", run.hidden_size, weights.hidden_size);
  differ("intermediate_size", run.intermediate_size, weights.intermediate_size);
  differ("num_hidden_layers", run.layers, weights.layers);
  differ("num_attention_heads", run.query_heads, weights.query_heads);
  differ("num_key_value_heads", run.key_value_heads, weights.key_value_heads);
  differ("head_dim", run.head_dim, weights.head_dim);
  differ("tie_word_embeddings", run.tie_word_embeddings, weights.tie_word_embeddings);
}

void check_same_model(const LlamaConfig& run, const std::string& run_source, const LlamaConfig& weights,
                      const std::string& weights_source, const std::string& advice) {
  check_same_shapes(run, run_source, weights, weights_source, advice);
  const Comparison differ{run_source, weights_source, advice};
  differ("rms_norm_eps", run.rms_norm_eps, weights.rms_norm_eps);
  differ("rope_theta", run.rope_theta, weights.rope_theta);
  differ("rope_scaling", rope_scaling_text(run), rope_scaling_text(weights));
}

Start choose_start(World& world, const Config& config, const LlamaConfig& model, const TrainingState& fresh,
                   std::vector<Refused>& refused, const Log& log) {
  constexpr char kContinue = 'c', kFinished = 'f';
  const std::string answer = from_rank_0(world, [&]() -> std::string {
    const auto checkpoint = find_checkpoint(config, refused, log);
    if (!checkpoint) return "";
    if (!checkpoint->summary.has_checksums) {
      log.info("{} has no checksums (an older llampi wrote it): damage to its values would go unnoticed",
               checkpoint->file.string());
    }
    check_fits(*checkpoint, config, model, fresh);
    const TrainingState state = continue_from(checkpoint->summary.state, fresh);
    return (state.step >= total_steps(config, state) ? kFinished : kContinue) + checkpoint->file.string();
  });
  if (answer.empty()) return {};
  return {answer.substr(1), answer.front() == kFinished};
}

}  // namespace llampi
