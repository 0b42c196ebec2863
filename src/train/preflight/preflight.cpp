// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/preflight.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/content.hpp"
#include "llampi/health/watchdog.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/optim/loss_scaler.hpp"
#include "train/data_position.hpp"
#include "train/engine_config.hpp"
#include "train/failure_message.hpp"
#include "train/not_finite.hpp"
#include "train/preflight/checklist.hpp"
#include "train/preflight/checkpoint_checks.hpp"
#include "train/preflight/speed.hpp"
#include "train/prometheus.hpp"
#include "train/replicas.hpp"
#include "train/run_folder.hpp"
#include "train/run_report.hpp"
#include "train/run_setup.hpp"
#include "train/same_files.hpp"
#include "train/shared_folder.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 4;
constexpr double kSmallRate = 0.01;    // of optimizer.lr
constexpr int kOverflows = 64;         // of float16's loss scale, until it is found
constexpr std::int64_t kBatches = 16;  // that are looked through for one with valid labels

/// What the temporary folder is for: in the folder that a run's checkpoints would be in, or the nearest one above it that there is.
fs::path check_folder(const Config& config) {
  const fs::path checkpoints = fs::path(config.run.dir) / "checkpoints";
  std::error_code ignored;
  const bool leads_nowhere =
      fs::is_symlink(fs::symlink_status(checkpoints, ignored)) && !fs::exists(checkpoints, ignored);
  const fs::path folder = leads_nowhere ? checkpoints : io::nearest_existing(checkpoints);
  if (io::type_of(folder) != fs::file_type::directory)
    throw_user_error("run.dir = {} cannot be used: {} is not a folder", config.run.dir, folder.string());
  return folder / "check";
}

/// The first line of `text` that `usual` does not have.
std::string first_other_line(const std::string& text, const std::string& usual) {
  const auto known = lines_of(usual);
  const std::set<std::string> lines(known.begin(), known.end());
  for (const auto& line : lines_of(text)) {
    if (lines.count(line) == 0) return line;
  }
  return "fewer lines";
}

/// A value that deviates, and the one that it should be.
struct Deviation {
  std::vector<int> ranks;    ///< with another value; empty: none
  std::string other, usual;  ///< of the first of them, and of the first of the others
};
Deviation deviation_of(const std::vector<std::string>& values) {
  const auto ranks = selfcheck::deviating(values);
  if (ranks.empty()) return {};
  std::size_t usual = 0;
  while (std::count(ranks.begin(), ranks.end(), static_cast<int>(usual)) > 0) ++usual;
  return {ranks, values[static_cast<std::size_t>(ranks.front())], values[usual]};
}

/// What ranks should have in common.
struct Facts {
  std::string program, model, train, eval;
  comm::Failure failure;

  auto members() { return std::tie(program, model, train, eval, failure); }
};

class Preflight {
 public:
  Preflight(comm::World& world, const Config& config, const ConfigTexts& texts,
            const PreflightOptions& options, const Log& log)
      : run_{world, config, texts, log}, options_(options), list_(world, options.tell, texts.name_of) {}

  PreflightResult run();

 private:
  void check_all();
  bool open();
  void compare_facts(const std::vector<Facts>& facts);
  bool choose();
  bool open_compute();
  bool check_weights();
  bool build();
  bool check_steps();
  std::vector<device::HostBatch> batches(fsdp::StepInputs& inputs);
  bool check_replicas();
  void check_memory();
  void measure_copies();
  void check_checkpoints(bool steps_done, bool are_equal);

  RunSetup run_;
  const PreflightOptions& options_;
  const Log silent_;
  Checklist list_;
  std::unique_ptr<io::TemporaryFile> folder_;  ///< rank 0
  fs::path folder_path_;
  PreflightFigures figures_;
  std::string why_no_copies_;
};

PreflightResult Preflight::run() {
  run_.record.set_phase("checks before a run");
  folder_path_ = comm::from_rank_0(run_.world, [&] {
    check_run_folder(run_.config.run.dir);
    if (const auto& file = run_.config.log.prometheus; !file.empty())
      PrometheusFile(file, run_.config.run.dir, silent_);  // as train() opens it
    const fs::path check = check_folder(run_.config);
    io::clear_leftovers(check, run_.log, health::kFlightFolder);  // a message may have named its records
    folder_ = std::make_unique<io::TemporaryFile>(io::temporary_beside(check));
    return folder_->path();
  });
  std::unique_ptr<health::Watchdog> watchdog;
  if (run_.config.run.watchdog_seconds > 0) {
    const health::WatchdogOptions options{.seconds = run_.config.run.watchdog_seconds,
                                          .run_dir = folder_path_,
                                          .side_work = nullptr,
                                          .complain = options_.complain};
    watchdog = std::make_unique<health::Watchdog>(run_.world, run_.record, options, run_.log);
  }
  const auto error = comm::common_failure([&] {
    if (options_.before) {
      const health::FlightPhase phase(run_.record, "compares tensors with the reference");
      options_.before();
    }
    check_all();
    if (!options_.after) return;
    run_.record.set_phase("compares this machine with a machine file");
    run_.close();
    options_.after(figures_);
  });
  if (error) {
    if (watchdog) watchdog->leave();
    std::rethrow_exception(error);
  }
  folder_.reset();
  if (watchdog) watchdog->finish();
  run_.world.barrier();
  return {list_.checks(), std::move(figures_)};
}

void Preflight::check_all() {
  if (!open()) return list_.skip_the_rest();
  if (!choose()) return list_.skip_the_rest();
  run_.record.set_phase("times a matrix product");
  check_products(
      list_, run_.compute,
      run_.compute.on_gpu() ? run_.config.fsdp.param_dtype.value_or(DType::bfloat16) : DType::float32,
      figures_.product_seconds);
  run_.record.set_phase("measures links");
  check_links(list_, run_.compute, figures_.links, [this] { run_.record.act("measures links"); });
  measure_copies();
  if (!build()) return list_.skip_the_rest();
  bool are_equal = true;
  const bool steps_done = check_steps();
  if (steps_done) {
    are_equal = check_replicas();
  } else {
    list_.skip("replicas", "the steps failed");
  }
  check_memory();
  check_checkpoints(steps_done, are_equal);
  const auto& options = run_.engine->options();
  const bool keeps_on_host =
      options.offload != fsdp::Offload{} || options.checkpointing.uses(fsdp::Checkpointing::offload);
  if (!run_.compute.on_gpu() || !keeps_on_host) return;
  if (!why_no_copies_.empty()) return list_.skip("copies", why_no_copies_);
  check_copies(list_, figures_.copy_bytes_per_second);
}

/// While the GPU's memory is free; whether the run needs them is known later.
void Preflight::measure_copies() {
  if (!run_.compute.on_gpu()) return;
  run_.record.set_phase("times copies between GPU and host");
  const auto failure = comm::common_failure(
      [&] { figures_.copy_bytes_per_second = selfcheck::measure_host_copies(run_.world, run_.compute); });
  if (failure) why_no_copies_ = "they could not be timed: " + message_of(failure, run_.texts.name_of);
}

void Preflight::check_checkpoints(bool steps_done, bool are_equal) {
  const bool fits = check_room(list_, run_, figures_.checkpoint_bytes);
  if (!fits || !are_equal) {
    list_.skip("checkpoint",
               !fits ? "there is no room for one" : "replicas that differ cannot all get back what they had");
    return list_.skip("saving", "no checkpoint was saved");
  }
  run_.record.set_phase("saves and loads a checkpoint");
  const fs::path file = checkpoint::checkpoint_path(folder_path_, run_.state.step + kSteps);
  // First of all: a file system that is not shared only says that a file is not there.
  const bool is_shared = list_.attempt("checkpoint", "", [&] {
    comm::on_rank_0(run_.world, [&] { io::create_folder(file.parent_path()); });
    require_shared_folder(run_.world, file.parent_path(), run_.config.run.dir,
                          [&] { run_.record.act("looking for the run folder"); });
  });
  if (!is_shared || !check_round_trip(list_, run_, file, figures_))
    return list_.skip("saving", "no checkpoint was saved and loaded");
  if (!steps_done) return list_.skip("saving", "the steps failed");
  check_saving(list_, run_, figures_);
}

/// What each rank reads, which train() would refuse if any rank cannot. A mistake on all ranks is the user's.
bool Preflight::open() {
  const std::string model =
      comm::from_rank_0(run_.world, [&] { return model_of_begun_run(run_.config, silent_); });
  Facts own{.program = options_.program, .model = {}, .train = {}, .eval = {}, .failure = {}};
  own.failure = comm::failure_of(run_.world, [&] {
    run_.open_inputs(model);
    own.model = run_.inputs.llama.json;
    own.train = data::describe_content(*run_.inputs.train);
    for (const auto& file : run_.inputs.eval_files)
      own.eval += (own.eval.empty() ? "" : "; ") + data::describe_content(file);
  });
  const auto facts = comm::all_gather_value(run_.world, own);
  const auto is_failure = [](const Facts& f) { return f.failure.kind != comm::Failure::Kind::none; };
  if (std::all_of(facts.begin(), facts.end(), is_failure)) facts.front().failure.rethrow("");
  compare_facts(facts);
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    if (!is_failure(facts[rank])) continue;
    list_.fail("data", fmt::format("{} cannot read what the others read: {}",
                                   list_.on_host(static_cast<int>(rank)), facts[rank].failure.message));
    return false;
  }
  for (const auto& [what, member] :
       {std::pair("model.config", &Facts::model), std::pair("data.train", &Facts::train),
        std::pair("data.eval", &Facts::eval)}) {
    std::vector<std::string> values;
    for (const auto& f : facts) values.push_back(f.*member);
    const auto [others, other, usual] = deviation_of(values);
    if (others.empty()) continue;
    const std::string difference = member == &Facts::model
                                       ? ""
                                       : fmt::format(" ({} instead of {})", data::content_in_words(other),
                                                     data::content_in_words(usual));
    list_.fail("data",
               fmt::format("{} {} another {} than the other ranks{}; give all nodes the same file",
                           list_.on_hosts(others), others.size() == 1 ? "reads" : "read", what, difference));
    return false;
  }
  list_.pass("data", "all ranks read the same: " + data::content_in_words(facts.front().train));
  return true;
}

void Preflight::compare_facts(const std::vector<Facts>& facts) {
  std::vector<std::string> programs;
  for (const auto& f : facts) programs.push_back(f.program);
  const auto [others, other, usual] = deviation_of(programs);
  if (others.empty()) {
    list_.pass("program",
               fmt::format("{} with the same program and libraries", count(run_.world.size(), "rank")));
    return;
  }
  list_.fail("program", fmt::format("{} {} another program or other libraries than the other ranks: \"{}\" "
                                    "instead of \"{}\"; start the same installation everywhere",
                                    list_.on_hosts(others), others.size() == 1 ? "runs" : "run",
                                    first_other_line(other, usual), first_other_line(usual, other)));
}

/// What the run would start from, and what computes it.
bool Preflight::choose() {
  run_.choose_start();
  if (!check_weights()) return false;
  run_.check_weights();
  return open_compute();
}

/// False if only some nodes have GPUs that could be used.
bool Preflight::open_compute() {
  run_.open_compute();
  if (run_.compute.blind_ranks.empty()) return true;
  list_.fail("products", run_.compute.blind_ranks + "; run.device = cpu, if that is meant");
  return false;
}

/// The files that the run would start from, on each node.
bool Preflight::check_weights() {
  std::vector<std::string> places;
  const auto place = [&](const fs::path& path) {
    if (!path.empty()) places.push_back(path.string());
  };
  const bool is_broadcast = run_.config.fsdp.sync_init == checkpoint::WeightsReading::broadcast;
  place(run_.start.checkpoint);
  place(run_.start.adapter);
  if (!is_broadcast) place(run_.start.weights);
  if (places.empty()) {
    list_.skip("weights", is_broadcast && !run_.start.weights.empty()
                              ? "fsdp.sync_init = broadcast: rank 0 reads them for all"
                              : "they are random: no file is read");
    return true;
  }
  run_.record.set_phase("compares the weights of nodes");
  const auto compared = compare_files(run_.world, [&] {
    std::vector<fs::path> files;
    const auto add = [&files](const std::vector<fs::path>& more) {
      files.insert(files.end(), more.begin(), more.end());
    };
    if (!run_.start.checkpoint.empty()) add({run_.start.checkpoint});
    if (!run_.start.adapter.empty()) add(checkpoint::adapter_files(run_.start.adapter));
    if (!run_.start.weights.empty() && !is_broadcast) {
      with_source("model.weights = ", run_.start.weights,
                  [&] { add(checkpoint::weights_files(run_.start.weights)); });
    }
    return files;
  });
  if (!compared.difference.empty()) {
    list_.fail("weights",
               compared.difference + "; copy the files there again, or use a folder that all nodes share");
    return false;
  }
  if (compared.readers == 1) {
    list_.skip("weights", "all ranks are on one node and read the same files");
    return true;
  }
  const std::string sampled =
      compared.compared_bytes < compared.bytes
          ? fmt::format("; compared are {}, spread evenly", format_bytes(compared.compared_bytes))
          : std::string();
  list_.pass("weights", fmt::format("the same bytes on {}: {} in {} of {}{}",
                                    count(run_.world.topology().nodes, "node"), format_bytes(compared.bytes),
                                    count(compared.files, "file"), fmt::join(places, ", "), sampled));
  return true;
}

/// The engine, filled with what the run would start from.
bool Preflight::build() {
  run_.record.set_phase("builds the model");
  run_.build_engine();
  if (run_.inputs.packs_documents()) run_.engine->prepare_for_documents();
  try {
    run_.fill_engine();
  } catch (const checkpoint::DamagedCheckpoint& error) {  // on all ranks
    list_.fail(
        "steps",
        fmt::format("the run would skip its newest checkpoint: {}; delete it to continue from an older one",
                    error.problem()));
    return false;
  }
  return true;
}

/// Of this rank: the first global batch that has labels, from where the run would start.
std::vector<device::HostBatch> Preflight::batches(fsdp::StepInputs& inputs) {
  data::Loader loader = run_.open_loader();
  std::vector<device::HostBatch> batches;
  const std::int64_t last = std::min(data_steps(run_.state) + kBatches,
                                     data_steps(run_.state) + run_.inputs.sampler->steps_per_epoch());
  inputs.valid_labels = 0;
  for (std::int64_t step = data_steps(run_.state) + 1; step <= last && inputs.valid_labels == 0; ++step) {
    comm::agree(run_.world, [&] { batches = loader.next(step); });
    for (const auto& batch : batches) inputs.valid_labels += batch.valid_labels;
    inputs.valid_labels = comm::sum_over_ranks(run_.world, inputs.valid_labels);
  }
  inputs.counts = device::largest_counts(batches);
  comm::max_members(run_.world, inputs.counts);
  return batches;
}

/// The largest learning rate of the steps that are to come; of a run that is finished, that of its last.
double largest_rate_to_come(const Config& config, const checkpoint::TrainingState& state) {
  const std::int64_t last = total_steps(config, state), next = std::min(state.step + 1, last);
  return schedule_of(config, last).at(std::clamp(config.optimizer.warmup_steps, next, last));
}

/// On one batch, so that the loss must fall, at a rising learning rate. False if the state is spoiled.
bool Preflight::check_steps() {
  run_.record.set_phase("trains a few steps");
  fsdp::StepInputs inputs;
  std::vector<device::HostBatch> own;
  if (!list_.attempt("steps", "", [&] { own = batches(inputs); })) return false;
  if (inputs.valid_labels == 0) {
    list_.fail(
        "steps",
        fmt::format(
            "the first {} batches of {} have no valid labels; look at its loss mask with llampi inspect",
            kBatches, run_.config.data.train));
    return false;
  }
  auto& figures = figures_;
  const double largest_rate = largest_rate_to_come(run_.config, run_.state);
  optim::LossScaler scaler{.scale = scales_loss(run_.config) ? run_.state.loss_scale : 1};
  for (int step = 1, overflows = 0; step <= kSteps;) {
    const double begin = steady_seconds();
    run_.record.begin_step(step);
    fsdp::StepResult done;
    inputs.learning_rate = largest_rate * step / kSteps;
    inputs.optimizer_step = run_.state.optimizer_steps + step;
    inputs.loss_scale = scaler.scale;
    if (!list_.attempt("steps", "", [&] { done = run_.engine->step(own, inputs); })) return false;
    const double loss =
        comm::sum_over_ranks(run_.world, done.loss_sum) / static_cast<double>(inputs.valid_labels);
    const bool overflow = std::isfinite(loss) && !std::isfinite(done.grad_norm) && scales_loss(run_.config);
    if (scales_loss(run_.config)) scaler.update(overflow);
    if (overflow && ++overflows <= kOverflows) continue;
    if (!std::isfinite(loss) || !std::isfinite(done.grad_norm)) {
      const std::string where =
          find_not_finite(run_.world, run_.compute.device(), *run_.engine, done.loss_sum).where;
      list_.fail("steps", fmt::format("the loss or the gradient is not finite at step {} of {}: {}; {}", step,
                                      kSteps, where,
                                      step == 1 ? "look at the weights and the data"
                                                : "lower optimizer.lr, or set optimizer.clip_grad_norm"));
      return false;
    }
    const double seconds = comm::max_over_ranks(run_.world, steady_seconds() - begin);
    figures.step_seconds = step == 1 ? seconds : std::min(figures.step_seconds, seconds);
    figures.losses.push_back(loss);
    ++step;
  }
  figures.tokens_per_second =
      static_cast<double>(run_.config.train.global_batch * run_.config.data.seq_len) / figures.step_seconds;
  std::vector<std::string> losses;
  for (const double loss : figures.losses) losses.push_back(fmt::format("{:.4f}", loss));
  const std::string curve = fmt::format("loss {} in {} steps on one batch", fmt::join(losses, " "), kSteps);
  // Steps that are small enough change a loss by less than its rounding.
  const bool must_fall =
      largest_rate > 0 && largest_rate >= kSmallRate * run_.config.optimizer.lr && !run_.start.finished;
  if (must_fall && figures.losses.back() >= figures.losses.front()) {
    list_.fail("steps", fmt::format("{} does not fall at a learning rate that rises to {:.3g}; lower "
                                    "optimizer.lr, or look at the data and the weights",
                                    curve, largest_rate));
    return true;
  }
  list_.pass("steps", fmt::format("{}; fastest step {:.3g} s, {} tokens/s", curve, figures.step_seconds,
                                  with_separators(figures.tokens_per_second)));
  return true;
}

/// False if some differ.
bool Preflight::check_replicas() {
  const int replicas = run_.engine->mesh().replica_count();
  if (replicas == 1) {
    list_.skip("replicas",
               fmt::format("fsdp.strategy = {} has none on these ranks", word_of(run_.config.fsdp.strategy)));
    return true;
  }
  const std::string difference = find_differing_replicas(run_.world, run_.compute.device(), *run_.engine);
  if (difference.empty()) {
    list_.pass("replicas", fmt::format("{} have the same bits after the steps", count(replicas, "replica")));
    return true;
  }
  list_.fail("replicas",
             difference +
                 "; look for defective memory or a defective device there: llampi check --all, and set "
                 "run.verify_replicas_every for the run");
  return false;
}

/// The largest figures over the ranks.
void Preflight::check_memory() {
  auto& figures = figures_;
  std::int64_t bytes[] = {fsdp::total(run_.engine->compiled().arena_bytes),
                          fsdp::total(run_.engine->memory().used()),
                          run_.compute.on_gpu() ? run_.compute.gpu_bytes_in_use() : peak_resident_bytes()};
  const auto used = comm::all_gather_value(run_.world, bytes[1] > bytes[0]);
  run_.world.max(bytes);
  figures.planned_bytes = bytes[0], figures.used_bytes = bytes[1], figures.resident_bytes = bytes[2];
  const std::string text = fmt::format(
      "planned {} per rank, used {}; {} at most {}", format_bytes(bytes[0]), format_bytes(bytes[1]),
      run_.compute.on_gpu() ? "on the GPU, with libraries," : "resident, with program and libraries,",
      format_bytes(bytes[2]));
  const auto over = std::find(used.begin(), used.end(), true);
  if (over == used.end()) return list_.pass("memory", text);
  list_.fail("memory",
             fmt::format("{} uses more than planned ({}); please report this with the output of llampi plan",
                         list_.on_host(static_cast<int>(over - used.begin())), text));
}

}  // namespace

bool PreflightResult::passed() const {
  return std::none_of(checks.begin(), checks.end(),
                      [](const auto& check) { return check.verdict == Verdict::fail; });
}

PreflightResult preflight(comm::World& world, const Config& config, const ConfigTexts& texts,
                          const PreflightOptions& options, const Log& log) {
  return Preflight(world, config, texts, options, log).run();
}

}  // namespace llampi::train
