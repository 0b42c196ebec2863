// The training loop.
#include "llampi/train/train.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>

#include "llampi/core/text.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/plan/memory_report.hpp"
#include "train/metrics.hpp"
#include "train/session.hpp"
#include "train/stop.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The largest resident memory that this process has had.
std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

Decay decay_of(const std::string& name) {
  return name == "linear" ? Decay::linear : (name == "constant" ? Decay::constant : Decay::cosine);
}

Prefetch prefetch_of(const std::string& name) {
  return name == "post" ? Prefetch::post : (name == "none" ? Prefetch::none : Prefetch::pre);
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw_user_error("cannot write {}; check the path and its permissions", file.string());
}

class Trainer {
 public:
  Trainer(World& world, const Config& config, const std::string& resolved, const Log& log)
      : world_(world), config_(config), resolved_(resolved), log_(log), started_(now()) {}

  Outcome run();

 private:
  void open_inputs();
  std::optional<fs::path> find_checkpoint() const;
  void resume_from(const fs::path& file);
  void check_same_data(const fs::path& file) const;
  void open_run_folder();
  EngineOptions engine_options(int micro_batches) const;
  void describe_run() const;
  Outcome loop();
  StepMetrics one_step(std::int64_t step, std::span<const HostBatch> batches, std::int64_t valid);
  void report(const StepMetrics& metrics);
  void evaluate_now();
  void save();
  bool must_stop(double step_seconds) const;
  bool due(std::int64_t every) const {
    return every > 0 && (state_.step % every == 0 || state_.step == total_steps_);
  }

  World& world_;
  const Config& config_;
  const std::string& resolved_;
  const Log& log_;
  const double started_;

  LlamaConfig llama_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TokenFile> train_file_, eval_file_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MetricsFile> metrics_;  ///< rank 0
  BatchOptions batch_options_;
  LearningRateSchedule schedule_;
  TrainingState state_;
  std::int64_t total_steps_ = 0;
  std::int64_t first_step_ = 0;   ///< that this process runs
  std::int64_t saved_step_ = -1;  ///< of the newest checkpoint
  double save_seconds_ = 0;       ///< of the slowest save so far
  double step_seconds_sum_ = 0;
};

void Trainer::open_inputs() {
  const auto& c = config_;
  const std::int64_t per_pass = world_.size() * c.train.micro_batch;
  if (c.train.global_batch % per_pass != 0) {
    throw_user_error(
        "train.global_batch = {} is not a multiple of {} ranks x train.micro_batch = {}; use a multiple of "
        "{}",
        c.train.global_batch, world_.size(), c.train.micro_batch, per_pass);
  }
  llama_ = LlamaConfig::read(c.model.config);
  model_ = make_llama(llama_);
  if (c.data.seq_len > llama_.max_position_embeddings) {
    throw_user_error("data.seq_len = {} is larger than max_position_embeddings = {} of {}", c.data.seq_len,
                     llama_.max_position_embeddings, c.model.config);
  }
  const auto open = [&](const std::string& path) {
    auto file = std::make_unique<TokenFile>(path);
    if (file->vocabulary() > llama_.vocab_size) {
      throw_user_error(
          "{} was made with a vocabulary of {}, the model {} has only {}; tokenize again or use another "
          "model",
          path, file->vocabulary(), c.model.config, llama_.vocab_size);
    }
    return file;
  };
  train_file_ = open(c.data.train);
  const std::int64_t samples = train_file_->samples(c.data.seq_len);
  if (samples < c.train.global_batch) {
    throw_user_error(
        "{} has {} samples of {} tokens, fewer than train.global_batch = {}; use more text, a shorter "
        "data.seq_len or a smaller batch",
        c.data.train, samples, c.data.seq_len, c.train.global_batch);
  }
  sampler_ = std::make_unique<Sampler>(samples, c.train.global_batch, c.run.seed, c.data.shuffle);
  if (!c.data.eval.empty()) {
    eval_file_ = open(c.data.eval);
    if (eval_file_->samples(c.data.seq_len) < 1) {
      throw_user_error("{} has {} tokens, too few for one sample of data.seq_len = {} + 1", c.data.eval,
                       eval_file_->tokens(), c.data.seq_len);
    }
  } else if (c.train.eval_every > 0) {
    throw_user_error("train.eval_every = {} needs data.eval, a token file to evaluate on",
                     c.train.eval_every);
  }
  total_steps_ = c.train.steps > 0
                     ? c.train.steps
                     : std::llround(c.train.epochs * static_cast<double>(sampler_->steps_per_epoch()));
  if (total_steps_ < 1) throw_user_error("train.epochs = {} is less than one step", c.train.epochs);
  batch_options_ = {c.data.seq_len, c.train.micro_batch, c.data.document_mask, llama_.vocab_size};
  schedule_ = {decay_of(c.optimizer.schedule), c.optimizer.lr, c.optimizer.min_lr, c.optimizer.warmup_steps,
               total_steps_};
  state_ = {.seed = static_cast<std::int64_t>(c.run.seed),
            .seq_len = c.data.seq_len,
            .global_batch = c.train.global_batch,
            .data_tokens = train_file_->tokens(),
            .shuffle = c.data.shuffle};
}

std::optional<fs::path> Trainer::find_checkpoint() const {
  const auto& resume = config_.run.resume;
  if (resume != "auto" && resume != "never") {
    if (!fs::exists(resume))
      throw_user_error("run.resume = {}: no such file; give a checkpoint, auto or never", resume);
    return fs::path(resume);
  }
  const auto existing = list_checkpoints(config_.run.dir);
  if (resume == "never" && !existing.empty()) {
    throw_user_error(
        "run.resume = never, but {} already holds {} checkpoint(s); use another run.dir or run.resume = auto",
        config_.run.dir, existing.size());
  }
  if (existing.empty()) return std::nullopt;
  return existing.back();
}

void Trainer::check_same_data(const fs::path& file) const {
  if (config_.run.resume_with_changes) return;
  const auto saved = read_checkpoint_summary(file).state;
  const auto differ = [&](const char* what, auto then, auto here) {
    if (then == here) return;
    throw_user_error(
        "{} was written with {} = {}, this run has {}; set run.resume_with_changes = true if that is meant",
        file.string(), what, then, here);
  };
  differ("data.seq_len", saved.seq_len, state_.seq_len);
  differ("train.global_batch", saved.global_batch, state_.global_batch);
  differ("a training file of tokens", saved.data_tokens, state_.data_tokens);
  differ("run.seed", saved.seed, state_.seed);
  differ("data.shuffle", saved.shuffle, state_.shuffle);
}

void Trainer::resume_from(const fs::path& file) {
  const auto here = state_;
  const auto saved =
      load_checkpoint(world_, file, tensor_infos(*model_), tensor_pieces(engine_->pieces_to_load()));
  state_.step = saved.step;
  state_.optimizer_steps = saved.optimizer_steps;
  state_.tokens_seen = saved.tokens_seen;
  // With another global batch the data goes on at the next whole batch.
  state_.samples_consumed =
      (saved.samples_consumed + here.global_batch - 1) / here.global_batch * here.global_batch;
  state_.epoch = saved.epoch;
  saved_step_ = saved.step;
}

void Trainer::open_run_folder() {
  if (world_.rank() != 0) return;
  std::error_code error;
  fs::create_directories(fs::path(config_.run.dir) / "checkpoints", error);
  if (error) {
    throw_user_error("cannot create the run folder {}: {}; choose another run.dir", config_.run.dir,
                     error.message());
  }
  write_text(fs::path(config_.run.dir) / "config.ini", resolved_);
  metrics_ = std::make_unique<MetricsFile>(fs::path(config_.run.dir) / "metrics.jsonl", state_.step);
}

EngineOptions Trainer::engine_options(int micro_batches) const {
  const auto& c = config_;
  EngineOptions options;
  options.batch = {c.train.micro_batch, c.data.seq_len};
  options.micro_batches = micro_batches;
  options.strategy = c.fsdp.strategy == "no_shard" ? Strategy::no_shard : Strategy::full_shard;
  options.backward_prefetch = prefetch_of(c.fsdp.backward_prefetch);
  options.forward_prefetch = c.fsdp.forward_prefetch;
  options.limit_all_gathers = c.fsdp.limit_all_gathers;
  options.adamw = {c.optimizer.beta1, c.optimizer.beta2, c.optimizer.eps};
  options.clip_grad_norm = c.optimizer.clip_grad_norm;
  options.groups = parameter_groups(model_->parameters(), c.optimizer.weight_decay, c.optimizer.no_decay);
  return options;
}

void Trainer::describe_run() const {
  std::int64_t elements = 0;
  for (const auto& p : model_->parameters()) elements += p.elements();
  const auto& topology = world_.topology();
  const auto& compiled = engine_->compiled();
  log_.info("llampi: {} parameters, {} layers, vocabulary {}", elements, llama_.layers, llama_.vocab_size);
  log_.info("ranks: {} on {} node(s); {}", world_.size(), topology.nodes, world_.describe());
  log_.info("device: {}", device_->describe());
  log_.info("fsdp: {}, {} units over {} shards", config_.fsdp.strategy, compiled.units.size(),
            compiled.units.front().shards);
  log_.info("memory per rank, planned: {} on the device and {} for communication",
            format_bytes(compiled.arena_bytes[0]), format_bytes(compiled.arena_bytes[1]));
  log_.info("data: {} tokens, {} samples of {}, {} steps per epoch; {} steps in all", train_file_->tokens(),
            train_file_->samples(config_.data.seq_len), config_.data.seq_len, sampler_->steps_per_epoch(),
            total_steps_);
}

Outcome Trainer::run() {
  std::optional<fs::path> checkpoint;
  const int threads = threads_per_rank(world_, config_.run.threads);
  agree(world_, [&] {
    open_inputs();
    checkpoint = find_checkpoint();
    if (checkpoint) check_same_data(*checkpoint);
    device_ = make_cpu_device(threads);
  });
  if (checkpoint && config_.run.resume == "auto") {
    std::int64_t done = 0;
    agree(world_, [&] { done = read_checkpoint_summary(*checkpoint).state.step; });
    if (done >= total_steps_) {
      log_.info("{} has all {} steps already; nothing to do", config_.run.dir, total_steps_);
      return Outcome::done;
    }
  }
  const auto micro_batches =
      static_cast<int>(config_.train.global_batch / (world_.size() * config_.train.micro_batch));
  EngineOptions options;
  agree(world_, [&] { options = engine_options(micro_batches); });
  engine_ = std::make_unique<Engine>(*model_, *device_, world_, options);
  if (checkpoint) {
    resume_from(*checkpoint);
  } else if (config_.model.weights == "random") {
    engine_->initialise(config_.run.seed);
  } else {
    load_weights(world_, config_.model.weights, llama_, *engine_);
  }
  agree(world_, [&] { open_run_folder(); });
  describe_run();
  if (checkpoint) log_.info("resumed from {} at step {}", checkpoint->string(), state_.step);
  return loop();
}

/// True if this rank wants to stop before another step: a signal, or no time left for a step and a save.
bool Trainer::must_stop(double step_seconds) const {
  if (take_stop_request()) return true;
  if (config_.run.max_hours <= 0) return false;
  const double state_bytes = 12.0 * static_cast<double>(engine_->compiled().units.size()) *
                             static_cast<double>(engine_->compiled().units.front().flat_elements());
  const double save =
      save_seconds_ > 0 ? save_seconds_ : 1.0 + state_bytes / 200e6;  // not measured yet: a slow disk
  return now() - started_ + 1.5 * step_seconds + 2 * save > config_.run.max_hours * 3600;
}

Outcome Trainer::loop() {
  Loader loader(*train_file_, batch_options_, *sampler_, config_.train.global_batch, world_.rank(),
                world_.size());
  first_step_ = state_.step + 1;
  double last_seconds = 0;
  while (state_.step < total_steps_) {
    const double begin = now();
    std::vector<HostBatch> batches;
    agree(world_, [&] { batches = loader.next(state_.samples_consumed / config_.train.global_batch + 1); });
    const double data_seconds = now() - begin;

    // Valid labels of the global batch, and how many ranks want to stop.
    std::int64_t counts[2] = {0, must_stop(last_seconds) ? 1 : 0};
    for (const auto& batch : batches) counts[0] += batch.valid_labels;
    world_.sum(counts);
    if (counts[1] > 0) {
      if (state_.step >= first_step_) save();
      log_.info("stopped after step {}; run the same command again to continue", state_.step);
      return Outcome::stopped;
    }

    StepMetrics metrics = one_step(state_.step + 1, batches, counts[0]);
    metrics.data_seconds = data_seconds;
    metrics.step_seconds = last_seconds = now() - begin;
    metrics.tokens_per_second =
        static_cast<double>(config_.train.global_batch * config_.data.seq_len) / last_seconds;
    metrics.tokens_per_second_per_rank = metrics.tokens_per_second / world_.size();
    metrics.memory_bytes = peak_memory_bytes();
    world_.max(std::span(&metrics.memory_bytes, 1));
    step_seconds_sum_ += last_seconds;
    report(metrics);
    if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) {
      throw Error(fmt::format(
          "the loss or the gradient is not finite at step {}; the newest checkpoint is of step {}",
          metrics.step, std::max<std::int64_t>(saved_step_, 0)));
    }
    if (due(config_.train.eval_every)) evaluate_now();
    if (due(config_.checkpoint.every) || state_.step == total_steps_) save();
  }
  return Outcome::done;
}

StepMetrics Trainer::one_step(std::int64_t step, std::span<const HostBatch> batches, std::int64_t valid) {
  StepMetrics metrics{.step = step, .lr = schedule_.at(step), .tokens = valid};
  if (valid > 0) {
    const auto result = engine_->step(batches, {metrics.lr, state_.optimizer_steps + 1, valid});
    metrics.loss = result.loss_sum;
    world_.sum(std::span(&metrics.loss, 1));
    metrics.loss /= static_cast<double>(valid);
    metrics.grad_norm = result.grad_norm;
    ++state_.optimizer_steps;
  } else {
    log_.warning("step {} has no valid labels: loss 0, no update", step);
  }
  state_.step = step;
  state_.tokens_seen += valid;
  state_.samples_consumed += config_.train.global_batch;
  state_.epoch = state_.samples_consumed / config_.train.global_batch / sampler_->steps_per_epoch();
  metrics.tokens_seen = state_.tokens_seen;
  return metrics;
}

void Trainer::report(const StepMetrics& m) {
  agree(world_, [&] {
    if (metrics_) metrics_->append(to_json(m) + "\n");
  });
  if (m.step % config_.log.every != 0 && m.step != total_steps_) return;
  const double average = step_seconds_sum_ / static_cast<double>(m.step - first_step_ + 1);
  log_.info("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.3f}  {:.0f} tokens/s  {} left", m.step,
            fmt::formatted_size("{}", total_steps_), total_steps_, m.loss, m.lr, m.grad_norm,
            m.tokens_per_second, format_duration(average * static_cast<double>(total_steps_ - m.step)));
}

void Trainer::evaluate_now() {
  const auto result = evaluate_file(world_, *engine_, *eval_file_, batch_options_);
  log_.info("step {}  eval loss {:.4f}  perplexity {:.2f}  over {} tokens", state_.step, result.loss,
            result.perplexity, result.tokens);
  agree(world_, [&] {
    if (metrics_) metrics_->append(evaluation_json(state_.step, result.loss) + "\n");
  });
}

/// The metrics of a step are on disk before its checkpoint gets its name.
void Trainer::save() {
  if (saved_step_ == state_.step) return;
  const double begin = now();
  agree(world_, [&] {
    if (metrics_) metrics_->sync();
  });
  const auto file = checkpoint_path(config_.run.dir, state_.step);
  save_checkpoint(world_, file, tensor_infos(*model_), tensor_pieces(engine_->pieces_to_save()), state_,
                  {llama_.json, resolved_});
  saved_step_ = state_.step;
  save_seconds_ = std::max(save_seconds_, now() - begin);
  agree(world_, [&] {
    if (world_.rank() == 0) prune_checkpoints(config_.run.dir, config_.checkpoint.keep);
  });
  log_.info("saved {} in {:.2f} s", file.string(), now() - begin);
}

}  // namespace

Outcome train(World& world, const Config& config, const std::string& resolved, const Log& log) {
  return Trainer(world, config, resolved, log).run();
}

}  // namespace llampi
