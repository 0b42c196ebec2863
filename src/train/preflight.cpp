// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/preflight.hpp"
#include "llampi/train/open_compute.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/failure.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/content.hpp"
#include "llampi/health/watchdog.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/optim/loss_scaler.hpp"
#include "train/engine_config.hpp"
#include "train/inputs.hpp"
#include "train/not_finite.hpp"
#include "train/replicas.hpp"
#include "train/resume.hpp"
#include "train/room.hpp"
#include "train/run_engine.hpp"
#include "train/run_report.hpp"
#include "train/same_files.hpp"
#include "train/saver.hpp"
#include "train/state_sums.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 4;
constexpr int kOverflows = 64;         // of float16's loss scale, until it is found
constexpr std::int64_t kBatches = 16;  // that are looked through for one with valid labels

/// Of all checks, so that those that are not made are listed too.
constexpr std::array kNames = {"program", "data",     "weights", "products", "links",
                               "steps",   "replicas", "memory",  "room",     "checkpoint"};

/// A folder for the checkpoint, beside those of the run. Gone with the scope.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;  // nothing to do about one that cannot be removed
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// In the folder that a run's checkpoints would be in, or the nearest one above it that there is.
fs::path temporary_folder(const Config& config) {
  fs::path folder = fs::path(config.run.dir) / "checkpoints";
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return io::temporary_beside(folder / "check");
}

std::int64_t sum_of(const fsdp::ArenaBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// The first line of `text` that `usual` does not have.
std::string first_other_line(const std::string& text, const std::string& usual) {
  std::set<std::string> lines;
  std::istringstream all(usual);
  for (std::string line; std::getline(all, line);) lines.insert(line);
  std::istringstream others(text);
  for (std::string line; std::getline(others, line);) {
    if (lines.count(line) == 0) return line;
  }
  return "fewer lines";
}

std::string rate(double bytes_per_second) {
  return format_bytes(static_cast<std::int64_t>(bytes_per_second)) + "/s";
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
      : world_(world), config_(config), texts_(texts), options_(options), log_(log) {}

  PreflightResult run();

 private:
  void check_all();
  bool open();
  void compare_facts(const std::vector<Facts>& facts);
  bool choose();
  bool check_weights();
  void check_products();
  void check_links();
  std::string slow_links_text(const std::vector<selfcheck::Link>& links, const char* of,
                              bool are_nodes) const;
  bool build();
  bool check_steps();
  std::vector<device::HostBatch> batches(fsdp::StepInputs& inputs);
  bool check_replicas();
  void check_memory();
  bool check_room();
  checkpoint::CheckpointTexts checkpoint_texts() const {
    return {inputs_.llama.json, start_.run_text, inputs_.train_file->notes().chat_template,
            adapter_text_of(inputs_, config_)};
  }
  void check_checkpoint();
  void check_same_state(const std::vector<std::uint32_t>& saved, bool moments);
  void wipe(const std::vector<fsdp::StatePiece>& pieces);

  void add(const char* name, Verdict verdict, std::string text);
  void pass(const char* name, std::string text) { add(name, Verdict::pass, std::move(text)); }
  void fail(const char* name, std::string text) { add(name, Verdict::fail, std::move(text)); }
  void skip(const char* name, std::string text) { add(name, Verdict::skip, std::move(text)); }
  void skip_the_rest();
  bool attempt(const char* name, const std::string& advice, const std::function<void()>& work);
  std::string on_host(int rank) const {
    return fmt::format("rank {} on {}", rank, hosts_[static_cast<std::size_t>(rank)]);
  }
  std::string on_hosts(const std::vector<int>& ranks) const;
  double slowest(double seconds) {
    world_.max(std::span(&seconds, 1));
    return seconds;
  }

  comm::World& world_;
  const Config& config_;
  const ConfigTexts& texts_;
  const PreflightOptions& options_;
  const Log& log_;
  const Log silent_;
  health::FlightRecord record_;
  std::vector<std::string> hosts_;
  std::unique_ptr<TemporaryFolder> folder_;  ///< rank 0
  fs::path folder_path_;
  Inputs inputs_;
  Start start_;
  std::vector<checkpoint::Refused> refused_;
  comm::Compute compute_;
  std::unique_ptr<fsdp::Engine> engine_;
  checkpoint::TrainingState state_;
  PreflightResult result_;
};

void Preflight::add(const char* name, Verdict verdict, std::string text) {
  result_.checks.push_back({name, verdict, std::move(text)});
  if (options_.tell) options_.tell(result_.checks.back());
}

void Preflight::skip_the_rest() {
  for (std::size_t i = result_.checks.size(); i < kNames.size(); ++i)
    skip(kNames[i], "not checked after this failure");
}

std::string Preflight::on_hosts(const std::vector<int>& ranks) const {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) names.push_back(on_host(ranks[i]));
  const std::string more =
      ranks.size() > kNamed ? fmt::format(" and {} more", ranks.size() - kNamed) : std::string();
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

/// A failure of all ranks becomes that of the check. Of one rank alone it leaves, as others may wait for it.
bool Preflight::attempt(const char* name, const std::string& advice, const std::function<void()>& work) {
  const auto failure = comm::common_failure(work);
  if (!failure) return true;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    fail(name, sentence_of(error, texts_.name_of) + advice);
  }
  return false;
}

PreflightResult Preflight::run() {
  record_.set_phase("checks before a run");
  hosts_ = world_.all_gather(world_.topology().host);
  folder_path_ = comm::from_rank_0(world_, [&] {
    folder_ = std::make_unique<TemporaryFolder>(temporary_folder(config_));
    return folder_->path();
  });
  std::unique_ptr<health::Watchdog> watchdog;
  if (config_.run.watchdog_seconds > 0) {
    const health::WatchdogOptions options{.seconds = config_.run.watchdog_seconds,
                                          .run_dir = folder_path_,
                                          .beside = nullptr,
                                          .complain = options_.complain};
    watchdog = std::make_unique<health::Watchdog>(world_, record_, options, log_);
  }
  const auto error = comm::common_failure([&] { check_all(); });
  if (error) {
    if (watchdog) watchdog->leave();
    std::rethrow_exception(error);
  }
  folder_.reset();
  if (watchdog) watchdog->finish();
  world_.barrier();
  return std::move(result_);
}

void Preflight::check_all() {
  if (!open()) return skip_the_rest();
  if (!choose()) return skip_the_rest();
  check_products();
  check_links();
  if (!build()) return skip_the_rest();
  bool are_equal = true;
  if (check_steps()) {
    are_equal = check_replicas();
  } else {
    skip("replicas", "the steps failed");
  }
  check_memory();
  const bool fits = check_room();
  if (!fits) return skip("checkpoint", "there is no room for one");
  if (!are_equal) return skip("checkpoint", "replicas that differ cannot all get back what they had");
  check_checkpoint();
}

/// What each rank reads, which train() would refuse if any rank cannot. A mistake on all ranks is the user's.
bool Preflight::open() {
  const std::string model = comm::from_rank_0(world_, [&] { return model_of_begun_run(config_, silent_); });
  Facts own{.program = options_.program + "\n" + texts_.resolved,
            .model = {},
            .train = {},
            .eval = {},
            .failure = {}};
  own.failure = comm::failure_of(world_, [&] {
    inputs_ = open_inputs(config_, world_.size(), model);
    state_ = inputs_.fresh;
    own.model = inputs_.llama.json;
    own.train = data::describe_content(*inputs_.train_file);
    if (inputs_.eval_file) own.eval = data::describe_content(*inputs_.eval_file);
  });
  const auto facts = comm::all_gather_value(world_, own);
  const auto is_failure = [](const Facts& f) { return f.failure.kind != comm::Failure::Kind::none; };
  if (std::all_of(facts.begin(), facts.end(), is_failure)) facts.front().failure.rethrow("");
  compare_facts(facts);
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    if (!is_failure(facts[rank])) continue;
    fail("data", fmt::format("{} cannot read what the others read: {}", on_host(static_cast<int>(rank)),
                             facts[rank].failure.message));
    return false;
  }
  for (const auto& [what, member] :
       {std::pair("model.config", &Facts::model), std::pair("data.train", &Facts::train),
        std::pair("data.eval", &Facts::eval)}) {
    std::vector<std::string> values;
    for (const auto& f : facts) values.push_back(f.*member);
    const auto [others, other, usual] = deviation_of(values);
    if (others.empty()) continue;
    const std::string difference =
        member == &Facts::model ? "" : fmt::format(" ({} instead of {})", other, usual);
    fail("data", fmt::format("{} {} another {} than the other ranks{}; give all nodes the same file",
                             on_hosts(others), others.size() == 1 ? "reads" : "read", what, difference));
    return false;
  }
  pass("data", fmt::format("all ranks read the same: {}", facts.front().train));
  return true;
}

void Preflight::compare_facts(const std::vector<Facts>& facts) {
  std::vector<std::string> programs;
  for (const auto& f : facts) programs.push_back(f.program);
  const auto [others, other, usual] = deviation_of(programs);
  if (others.empty()) {
    pass("program",
         fmt::format("{} with the same program, libraries and configuration", count(world_.size(), "rank")));
    return;
  }
  fail("program",
       fmt::format(
           "{} {} another program, other libraries or another configuration than the other ranks: \"{}\" "
           "instead of \"{}\"; start the same installation everywhere",
           on_hosts(others), others.size() == 1 ? "runs" : "run", first_other_line(other, usual),
           first_other_line(usual, other)));
}

/// What the run would start from, and what computes it.
bool Preflight::choose() {
  start_ = choose_start(world_, config_, texts_, inputs_, refused_, log_);
  if (!check_weights()) return false;
  if (!start_.weights.empty()) {
    comm::agree(world_, [&] {
      check_same_model(inputs_.llama, config_.model.config, config_of_start(start_), start_.weights.string(),
                       "give the model.config that belongs to the weights");
    });
  }
  compute_ = open_compute_of_run(world_, config_, texts_.name_of, log_);
  return true;
}

/// The files that the run would start from, on each node.
bool Preflight::check_weights() {
  std::vector<std::string> places;
  const auto place = [&](const fs::path& path) {
    if (!path.empty()) places.push_back(path.string());
  };
  const bool is_broadcast = config_.fsdp.sync_init == checkpoint::WeightsReading::broadcast;
  place(start_.checkpoint);
  place(start_.adapter);
  if (!is_broadcast) place(start_.weights);
  if (places.empty()) {
    skip("weights", is_broadcast && !start_.weights.empty()
                        ? "fsdp.sync_init = broadcast: rank 0 reads them for all"
                        : "they are random: no file is read");
    return true;
  }
  record_.set_phase("compares the weights of nodes");
  const auto compared = compare_files(world_, [&] {
    std::vector<fs::path> files;
    const auto add = [&files](const std::vector<fs::path>& more) {
      files.insert(files.end(), more.begin(), more.end());
    };
    if (!start_.checkpoint.empty()) add({start_.checkpoint});
    if (!start_.adapter.empty()) add(checkpoint::adapter_files(start_.adapter));
    if (!start_.weights.empty() && !is_broadcast) {
      with_source("model.weights = ", start_.weights,
                  [&] { add(checkpoint::weights_files(start_.weights)); });
    }
    return files;
  });
  if (!compared.difference.empty()) {
    fail("weights",
         compared.difference + "; copy the files there again, or use a folder that all nodes share");
    return false;
  }
  if (compared.readers == 1) {
    skip("weights", "all ranks are on one node and read the same files");
    return true;
  }
  const std::string sampled =
      compared.compared_bytes < compared.bytes
          ? fmt::format("; compared are {}, spread evenly", format_bytes(compared.compared_bytes))
          : std::string();
  pass("weights", fmt::format("the same bytes on {}: {} in {} of {}{}",
                              count(world_.topology().nodes, "node"), format_bytes(compared.bytes),
                              count(compared.files, "file"), fmt::join(places, ", "), sampled));
  return true;
}

void Preflight::check_products() {
  record_.set_phase("times a matrix product");
  const DType dtype = compute_.on_gpu() ? config_.fsdp.param_dtype.value_or(DType::bfloat16) : DType::float32;
  auto& seconds = result_.figures.product_seconds;
  seconds = selfcheck::time_products(world_, compute_, dtype);
  const double usual = selfcheck::median(seconds);
  const auto slow = selfcheck::slow_ranks(seconds);
  if (slow.empty()) {
    pass("products", fmt::format("a fixed matrix product takes {:.2f} ms, at most {:.2f} ms on any rank",
                                 1e3 * usual, 1e3 * *std::max_element(seconds.begin(), seconds.end())));
    return;
  }
  std::vector<std::string> factors;
  for (const int rank : slow)
    factors.push_back(fmt::format("{:.2f}", seconds[static_cast<std::size_t>(rank)] / usual));
  fail(
      "products",
      fmt::format("{} {} slow: a fixed matrix product takes {} times the median of {:.2f} ms; look there for "
                  "other processes, fewer cores or threads, a lower clock or another kind of device",
                  on_hosts(slow), slow.size() == 1 ? "is" : "are", fmt::join(factors, ", "), 1e3 * usual));
}

/// Empty if none is slow.
std::string Preflight::slow_links_text(const std::vector<selfcheck::Link>& links, const char* of,
                                       bool are_nodes) const {
  const auto slow = selfcheck::find_slow_links(links);
  const auto& node_of_rank = world_.topology().node_of_rank;
  const auto name = [&](int end) {
    if (!are_nodes) return on_host(end);
    const auto first = std::find(node_of_rank.begin(), node_of_rank.end(), end) - node_of_rank.begin();
    return fmt::format("node {}", hosts_[static_cast<std::size_t>(first)]);
  };
  const auto fastest = [&](int end) {
    double bandwidth = 0;
    for (const auto& link : links) {
      if (link.a == end || link.b == end) bandwidth = std::max(bandwidth, link.bytes_per_second);
    }
    return bandwidth;
  };
  std::vector<std::string> parts;
  for (const int end : slow.ends)
    parts.push_back(fmt::format("all links of {} are slow ({} at most)", name(end), rate(fastest(end))));
  for (const auto& link : slow.links) {
    parts.push_back(fmt::format("the link between {} and {} is slow ({})", name(link.a), name(link.b),
                                rate(link.bytes_per_second)));
  }
  if (parts.empty()) return {};
  constexpr std::size_t kNamed = 8;
  const auto more =
      parts.size() > kNamed ? fmt::format(" and {} more", parts.size() - kNamed) : std::string();
  parts.resize(std::min(parts.size(), kNamed));
  return fmt::format("{}{}, where the median between {} is {}", fmt::join(parts, ", "), more, of,
                     rate(slow.median));
}

void Preflight::check_links() {
  if (world_.size() == 1) return skip("links", "there is only one rank");
  record_.set_phase("measures links");
  auto& links = result_.figures.links;
  links = selfcheck::measure_links(world_, compute_);
  std::vector<std::string> slow, figures;
  for (const auto& [of, are_nodes] :
       {std::pair(&links.between_nodes, true), std::pair(&links.inside_nodes, false)}) {
    if (of->empty()) continue;
    const char* where = are_nodes ? "nodes" : "ranks of a node";
    if (auto text = slow_links_text(*of, where, are_nodes); !text.empty()) slow.push_back(std::move(text));
    figures.push_back(fmt::format("{} between {}, median {}", count(std::ssize(*of), "link"), where,
                                  rate(selfcheck::find_slow_links(*of).median)));
  }
  if (slow.empty()) return pass("links", fmt::format("{}", fmt::join(figures, "; ")));
  fail("links", fmt::format("{}; look at cables, ports and network settings there", fmt::join(slow, "; ")));
}

/// The engine, filled with what the run would start from.
bool Preflight::build() {
  record_.set_phase("builds the model");
  auto [engine, decisions] = build_engine(world_, compute_, inputs_, config_, start_.run_text, log_);
  engine_ = std::move(engine);
  engine_->keep_record(record_);
  start_.run_text = with_decisions(start_.run_text, decisions);
  if (inputs_.packs_documents()) engine_->prepare_for_documents();
  try {
    const auto saved = fill_from_start(world_, compute_.device(), *engine_, start_, inputs_, config_, log_);
    if (!start_.checkpoint.empty()) state_ = continue_from(saved, state_);
  } catch (const checkpoint::DamagedCheckpoint& error) {  // on all ranks
    fail("steps",
         fmt::format("the run would skip its newest checkpoint: {}; delete it to continue from an older one",
                     error.what()));
    return false;
  }
  return true;
}

/// Of this rank: the first global batch that has labels, from where the run would start.
std::vector<device::HostBatch> Preflight::batches(fsdp::StepInputs& inputs) {
  std::vector<std::int64_t> numbers;
  const auto shape = fsdp::step_shape(engine_->options(), engine_->groups());
  for (int m = 0; m < shape.per_rank; ++m)
    numbers.push_back(fsdp::micro_batch_number(shape, engine_->groups(), world_.rank(), m));
  data::Loader loader(*inputs_.train_file, inputs_.batch_options, *inputs_.sampler, std::move(numbers));
  std::vector<device::HostBatch> batches;
  const std::int64_t last =
      std::min(data_steps(state_) + kBatches, data_steps(state_) + inputs_.sampler->steps_per_epoch());
  inputs.valid_labels = 0;
  for (std::int64_t step = data_steps(state_) + 1; step <= last && inputs.valid_labels == 0; ++step) {
    comm::agree(world_, [&] { batches = loader.next(step); });
    for (const auto& batch : batches) inputs.valid_labels += batch.valid_labels;
    world_.sum(std::span(&inputs.valid_labels, 1));
  }
  inputs.segments = device::most_segments(batches);
  comm::max_members(world_, inputs.segments);
  return batches;
}

/// On one batch, so that the loss must fall, at a learning rate that rises to optimizer.lr. False if the state is spoiled.
bool Preflight::check_steps() {
  record_.set_phase("trains a few steps");
  fsdp::StepInputs inputs;
  std::vector<device::HostBatch> own;
  if (!attempt("steps", "", [&] { own = batches(inputs); })) return false;
  if (inputs.valid_labels == 0) {
    fail("steps",
         fmt::format(
             "the first {} batches of {} have no valid labels; look at its loss mask with llampi inspect",
             kBatches, config_.data.train));
    return false;
  }
  auto& figures = result_.figures;
  optim::LossScaler scaler{.scale = scales_loss(config_) ? state_.loss_scale : 1};
  for (int step = 1, overflows = 0; step <= kSteps;) {
    const double begin = steady_seconds();
    record_.begin_step(step);
    fsdp::StepResult done;
    inputs.learning_rate = config_.optimizer.lr * step / kSteps;
    inputs.optimizer_step = state_.optimizer_steps + step;
    inputs.loss_scale = scaler.scale;
    if (!attempt("steps", "", [&] { done = engine_->step(own, inputs); })) return false;
    double loss = done.loss_sum;
    world_.sum(std::span(&loss, 1));
    loss /= static_cast<double>(inputs.valid_labels);
    const bool overflow = std::isfinite(loss) && !std::isfinite(done.grad_norm) && scales_loss(config_);
    if (scales_loss(config_)) scaler.update(overflow);
    if (overflow && ++overflows <= kOverflows) continue;
    if (!std::isfinite(loss) || !std::isfinite(done.grad_norm)) {
      const std::string where = find_not_finite(world_, compute_.device(), *engine_, done.loss_sum);
      fail("steps",
           fmt::format("the loss or the gradient is not finite at step {} of {}: {}; {}", step, kSteps, where,
                       step == 1 ? "look at the weights and the data"
                                 : "lower optimizer.lr, or set optimizer.clip_grad_norm"));
      return false;
    }
    const double seconds = slowest(steady_seconds() - begin);
    figures.step_seconds = step == 1 ? seconds : std::min(figures.step_seconds, seconds);
    figures.losses.push_back(loss);
    ++step;
  }
  figures.tokens_per_second =
      static_cast<double>(config_.train.global_batch * config_.data.seq_len) / figures.step_seconds;
  std::vector<std::string> losses;
  for (const double loss : figures.losses) losses.push_back(fmt::format("{:.4f}", loss));
  const std::string curve = fmt::format("loss {} in {} steps on one batch", fmt::join(losses, " "), kSteps);
  if (config_.optimizer.lr > 0 && figures.losses.back() >= figures.losses.front()) {
    fail("steps",
         fmt::format("{} does not fall; lower optimizer.lr = {}, or look at the data and the weights", curve,
                     config_.optimizer.lr));
    return true;
  }
  pass("steps", fmt::format("{}; fastest step {:.3g} s, {:.0f} tokens/s", curve, figures.step_seconds,
                            figures.tokens_per_second));
  return true;
}

/// False if some differ.
bool Preflight::check_replicas() {
  const int replicas = engine_->groups().replica_count();
  if (replicas == 1) {
    skip("replicas",
         fmt::format("fsdp.strategy = {} has none on these ranks", word_of(config_.fsdp.strategy)));
    return true;
  }
  const std::string difference = find_differing_replicas(world_, compute_.device(), *engine_);
  if (difference.empty()) {
    pass("replicas", fmt::format("{} have the same bits after the steps", count(replicas, "replica")));
    return true;
  }
  fail("replicas", difference +
                       "; look for defective memory or a defective device there: llampi check --all, and set "
                       "run.verify_replicas_every for the run");
  return false;
}

/// The largest figures over the ranks.
void Preflight::check_memory() {
  auto& figures = result_.figures;
  std::int64_t bytes[] = {sum_of(engine_->compiled().arena_bytes), sum_of(engine_->memory().used()),
                          compute_.on_gpu() ? compute_.gpu_bytes_in_use() : peak_resident_bytes()};
  const auto used = comm::all_gather_value(world_, bytes[1] > bytes[0]);
  world_.max(bytes);
  figures.planned_bytes = bytes[0], figures.used_bytes = bytes[1], figures.resident_bytes = bytes[2];
  const std::string text = fmt::format(
      "planned {} per rank, used {}; {} at most {}", format_bytes(bytes[0]), format_bytes(bytes[1]),
      compute_.on_gpu() ? "on the GPU, with libraries," : "resident, with program and libraries,",
      format_bytes(bytes[2]));
  const auto over = std::find(used.begin(), used.end(), true);
  if (over == used.end()) return pass("memory", text);
  fail("memory",
       fmt::format("{} uses more than planned ({}); please report this with the output of llampi plan",
                   on_host(static_cast<int>(over - used.begin())), text));
}

/// For the next checkpoint, and for all that are kept. False if not even the next one fits.
bool Preflight::check_room() {
  const auto tensors = tensors_to_save(*engine_, CheckpointContent::all);
  const checkpoint::CheckpointTexts texts = checkpoint_texts();
  auto& bytes = result_.figures.checkpoint_bytes;
  bytes = checkpoint::checkpoint_bytes(tensors, texts, file_settings(config_));
  struct Found {
    bool fits = false;
    std::string problem, free;
    auto members() { return std::tie(fits, problem, free); }
  };
  const auto found = comm::from_rank_0(world_, [&] {
    Found on_disk;
    const Log warnings([&](const std::string& line) { on_disk.problem = line.substr(line.find(": ") + 2); });
    std::vector<fs::path> damaged;
    for (const auto& file : refused_) damaged.push_back(file.file);
    const Room room(config_, bytes, warnings, fallback_folder(config_), damaged);
    std::error_code ignored;
    const fs::path second = config_.checkpoint.fallback_dir;
    const bool had_second = second.empty() || fs::exists(second, ignored);
    try {
      room.require_next();
      on_disk.fits = on_disk.problem.empty();
      if (on_disk.fits) room.foresee({state_.step, total_steps(config_, state_), config_.checkpoint.every});
    } catch (const UserError& error) {
      on_disk.problem = error.what();
    }
    if (!had_second) fs::remove(second, ignored);  // which require_next() has made
    const auto free = checkpoint::free_bytes(room.folder());
    on_disk.free = free ? fmt::format("{} are free in {}", format_bytes(*free), room.folder().string())
                        : fmt::format("{} does not say how much is free", room.folder().string());
    return on_disk;
  });
  if (found.problem.empty()) {
    pass("room",
         fmt::format("a checkpoint takes {}, and {}: enough for all that are kept (checkpoint.keep = {})",
                     format_bytes(bytes), found.free, config_.checkpoint.keep));
  } else {
    fail("room", found.problem);
  }
  return found.fits;
}

/// NaN everywhere, so that what is not loaded shows.
void Preflight::wipe(const std::vector<fsdp::StatePiece>& pieces) {
  checkpoint::Staging staging(compute_.device(), checkpoint::kTransferElements);
  for (const auto& piece : pieces) {
    for (const auto& tensor : {piece.master, piece.exp_avg, piece.exp_avg_sq}) {
      staging.in_parts(tensor, [&](const Tensor& part, std::int64_t) {
        std::fill_n(staging.room_for(part), part.elements(), std::nanf(""));
        staging.store(part);
      });
    }
  }
}

/// Saves the state as the run would, forgets it, loads it, and compares.
void Preflight::check_checkpoint() {
  record_.set_phase("saves and loads a checkpoint");
  device::Device& device = compute_.device();
  const auto settings = file_settings(config_);
  // Moments that are stored narrower than they are kept do not come back with the same bits.
  const bool moments = size_of(settings.moments) >= size_of(config_.optimizer.moment_dtype);
  const fs::path file = checkpoint::checkpoint_path(folder_path_, state_.step + kSteps);
  const auto before = state_sums(device, engine_->pieces_to_load(), *engine_, moments);
  const auto tensors = tensors_to_save(*engine_, CheckpointContent::all);
  const auto stored = infer::stored_tensors(*engine_);
  const auto pieces = infer::tensor_pieces(*engine_, engine_->pieces_to_save(), stored);
  const checkpoint::CheckpointTexts texts = checkpoint_texts();
  const std::string advice = fmt::format("; look at the file system of {}", config_.run.dir);
  auto& figures = result_.figures;
  const bool done = attempt("checkpoint", advice, [&] {
    comm::on_rank_0(world_, [&] {
      std::error_code error;
      fs::create_directories(file.parent_path(), error);
      if (error)
        throw_user_error("cannot create the folder {}: {}", file.parent_path().string(), error.message());
    });
    double begin = steady_seconds();
    checkpoint::save_checkpoint(world_, device, file, {tensors, pieces, state_, texts}, settings);
    figures.save_seconds = slowest(steady_seconds() - begin);
    auto to_load = engine_->pieces_to_load();
    if (stored == infer::Tensors::adapters) {  // the base is not in the file
      std::erase_if(to_load, [&](const auto& piece) {
        return !engine_->model().parameters()[static_cast<std::size_t>(piece.parameter)].adapter;
      });
    }
    wipe(to_load);
    begin = steady_seconds();
    checkpoint::load_checkpoint(world_, device, file, infer::tensor_infos(*engine_, stored),
                                infer::tensor_pieces(*engine_, to_load, stored),
                                {.io = config_.checkpoint.io, .log = log_});
    figures.load_seconds = slowest(steady_seconds() - begin);
  });
  if (done) check_same_state(before, moments);
}

void Preflight::check_same_state(const std::vector<std::uint32_t>& saved, bool moments) {
  const auto loaded = state_sums(compute_.device(), engine_->pieces_to_load(), *engine_, moments);
  const auto first = std::mismatch(saved.begin(), saved.end(), loaded.begin()).first - saved.begin();
  const auto of_ranks = comm::all_gather_value(world_, static_cast<std::int64_t>(first));
  const auto& figures = result_.figures;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == std::ssize(saved)) continue;
    return fail(
        "checkpoint",
        fmt::format("{} does not get back what it saved, first in {}; do not use the file system of {}",
                    on_host(static_cast<int>(rank)),
                    engine_->model().parameters()[static_cast<std::size_t>(of_ranks[rank])].name,
                    config_.run.dir));
  }
  const auto bytes = static_cast<double>(figures.checkpoint_bytes);
  pass("checkpoint", fmt::format("saved in {:.2f} s ({}), loaded in {:.2f} s ({}), the same bits{}",
                                 figures.save_seconds, rate(bytes / figures.save_seconds),
                                 figures.load_seconds, rate(bytes / figures.load_seconds),
                                 moments ? "" : " but for moments, which checkpoint.state_dtype rounds"));
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
