// SPDX-License-Identifier: Apache-2.0
#include "measure/bench.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/core/words.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "measure/operation_times.hpp"

namespace llampi::measure {
namespace {

constexpr int kWarmUp = 2;
constexpr int kRounds = 3;
constexpr double kLearningRate = 1e-6;

device::HostBatch random_batch(model::BatchShape shape, std::int64_t vocabulary, std::uint64_t seed) {
  const RandomStream random(seed, "tokens");
  device::HostBatch batch(shape.tokens());
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    const auto i = static_cast<std::size_t>(t);
    const auto number = [&](std::uint64_t which) {
      return static_cast<std::int32_t>(random.bits(2 * i + which) % static_cast<std::uint64_t>(vocabulary));
    };
    batch.tokens()[i] = number(0);
    batch.labels()[i] = number(1);
  }
  batch.cut_into_documents(shape.seq_len);
  batch.valid_labels = shape.tokens();
  return batch;
}

/// An engine that trains on random tokens.
class Training {
 public:
  Training(const Bench& bench, const train::CompiledRun& run, const fsdp::EngineOptions& options)
      : bench_(bench),
        vocabulary_(run.model->vocabulary()),
        engine_(*run.model, bench.compute.device(), *bench.compute.host, bench.compute.world(), options) {
    engine_.initialise(1);
  }
  fsdp::Engine& engine() { return engine_; }
  double tokens() const {
    const auto& options = engine_.options();
    return static_cast<double>(options.batch.tokens() * options.micro_batches * bench_.world.size());
  }
  /// Of the slowest rank.
  double step() {
    ++steps_;
    const auto& options = engine_.options();
    std::vector<device::HostBatch> batches;
    for (int m = 0; m < options.micro_batches; ++m) {
      const int number = (steps_ * options.micro_batches + m) * bench_.world.size() + bench_.world.rank();
      batches.push_back(random_batch(options.batch, vocabulary_, static_cast<std::uint64_t>(number)));
    }
    bench_.world.barrier();
    const double begin = steady_seconds();
    engine_.step(batches, {.learning_rate = kLearningRate,
                           .optimizer_step = steps_,
                           .valid_labels = static_cast<std::int64_t>(tokens()),
                           .counts = device::largest_counts(batches)});
    return comm::max_over_ranks(bench_.world, steady_seconds() - begin);
  }
  double shortest_step() {
    double shortest = step();
    for (int i = 1; i < bench_.settings.steps; ++i) shortest = std::min(shortest, step());
    return shortest;
  }
  void warm_up() {
    for (int i = 0; i < kWarmUp; ++i) step();
  }

 private:
  const Bench& bench_;
  std::int64_t vocabulary_;
  fsdp::Engine engine_;
  int steps_ = 0;
};

/// What the time of a step is spent on, in the order of the rows.
enum class Phase : std::uint8_t { products, attention, others, optimizer, between };
constexpr auto word_table(Phase) {
  return std::to_array<Word<Phase>>({{Phase::products, "matrix products, including fused operations"},
                                     {Phase::attention, "attention"},
                                     {Phase::others, "other operations"},
                                     {Phase::optimizer, "gradient norm and optimizer"},
                                     {Phase::between, "between operations, and waiting"}});
}

Phase phase_of(const OperationTime& time) {
  using plan::Term;
  if (time.optimizes) return Phase::optimizer;
  const plan::Terms& amounts = time.amounts;
  for (const Term term : {Term::product_float32, Term::product_half, Term::product_fp8}) {
    if (amounts[term] > 0) return Phase::products;
  }
  for (const Term term : {Term::attention_forward, Term::attention_any_order, Term::attention_deterministic,
                          Term::attention_native}) {
    if (amounts[term] > 0) return Phase::attention;
  }
  return Phase::others;
}

/// The step with the least time in its operations, by phase, and each operation.
void measure_phases(const Bench& bench, Training& training) {
  OperationTimer timer(bench.compute.device(), bench.attention);
  std::map<std::string, OperationTime> best;
  double best_sum = 0, step_seconds = 0;
  for (int i = 0; i < bench.settings.steps; ++i) {
    const double seconds = training.step();
    auto times = timer.take();
    double sum = 0;
    for (const auto& [name, time] : times) sum += time.seconds;
    if (i > 0 && sum >= best_sum) continue;
    best = std::move(times), best_sum = sum, step_seconds = seconds;
  }
  std::map<Phase, double> phases = {{Phase::between, std::max(0.0, step_seconds - best_sum)}};
  for (const auto& [name, time] : best) phases[phase_of(time)] += time.seconds;
  for (const auto& [phase, word] : word_table(Phase{})) {
    bench.rows.push_back({.group = "phase",
                          .name = word,
                          .seconds = comm::max_over_ranks(bench.world, phases[phase]),
                          .unit = {}});
  }
  // Where a rank's shards hold nothing of the weights in 8 bits, it issues fewer operations.
  std::vector<std::string> own;
  for (const auto& [name, time] : best) own.push_back(name);
  std::set<std::string> names;
  for (const auto& of_rank : comm::all_gather_value(bench.world, own))
    names.insert(of_rank.begin(), of_rank.end());
  for (const std::string& name : names) {
    const auto found = best.find(name);
    const OperationTime time = found == best.end() ? OperationTime() : found->second;
    const double slowest = comm::max_over_ranks(bench.world, time.seconds / std::max(time.calls, 1));
    if (time.calls == 0) continue;
    bench.rows.push_back({.group = "operation",
                          .name = name,
                          .seconds = slowest,
                          .unit = {},
                          .amounts = time.amounts,
                          .calls = time.calls});
  }
}

void measure_checkpoint(const Bench& bench, fsdp::Engine& engine) {
  const auto stored = checkpoint::stored_tensors(engine);
  const auto infos = checkpoint::tensor_infos(engine, stored);
  const auto pieces = checkpoint::tensor_pieces(engine, engine.pieces_to_save(), stored);
  const checkpoint::FileSettings settings = train::file_settings(bench.config);
  std::int64_t bytes = 0;
  for (const auto& piece : pieces) {
    const std::int64_t of_moments = piece.exp_avg.elements() > 0 ? 2 * size_of(settings.moments) : 0;
    bytes += piece.elements() * (size_of(DType::float32) + of_moments);
  }
  bytes = comm::sum_over_ranks(bench.world, bytes);
  const auto number = comm::from_rank_0(bench.world, [] { return static_cast<std::int64_t>(::getpid()); });
  const std::filesystem::path file = bench.settings.folder / fmt::format("llampi-bench-{}.h5", number);
  std::optional<io::TemporaryFile> removed;  // on rank 0
  comm::on_rank_0(bench.world, [&] {
    if (std::filesystem::exists(file)) throw_user_error("{} exists; remove it", file.string());
    removed.emplace(file);
  });
  const auto add = [&](const char* name, double begin) {
    const double seconds = comm::max_over_ranks(bench.world, steady_seconds() - begin);
    bench.rows.push_back({.group = "checkpoint",
                          .name = name,
                          .seconds = seconds,
                          .rate = static_cast<double>(bytes) / seconds * 1e-9,
                          .unit = "GB/s"});
  };
  bench.world.barrier();
  double begin = steady_seconds();
  checkpoint::save_checkpoint(bench.world, bench.compute.device(), file,
                              {infos, pieces, {.step = 1}, {"{}", ""}}, settings);
  add("save", begin);
  bench.world.barrier();
  begin = steady_seconds();
  checkpoint::load_checkpoint(bench.world, bench.compute.device(), file, infos,
                              checkpoint::tensor_pieces(engine, engine.pieces_to_load(), stored),
                              {.io = settings.io});
  add("load, from the page cache", begin);
}

/// Of the fastest step of some.
Row step_row(Training& training, const char* group, const std::string& name) {
  const double seconds = training.shortest_step();
  return {.group = group,
          .name = name,
          .seconds = seconds,
          .rate = training.tokens() / seconds,
          .unit = "tokens/s"};
}

/// Of the fastest step of some, with an engine of its own; none if these ranks cannot have it, or it does not fit, which all ranks know.
std::optional<Row> measure_strategy(const Bench& bench, fsdp::Strategy strategy) {
  train::Config config = train::with_strategy(bench.config, strategy);
  std::string name = fsdp::to_string(strategy);
  if (fsdp::is_hybrid(strategy)) {
    const int ranks = bench.shape.ranks;
    const bool on_one_node = bench.shape.ranks_per_node == ranks;
    if (!config.fsdp.shard_group_size && on_one_node && ranks >= 4 && ranks % 2 == 0)
      config.fsdp.shard_group_size = ranks / 2;
    if (config.fsdp.shard_group_size) name += fmt::format(" of {}", *config.fsdp.shard_group_size);
  }
  try {
    const train::CompiledRun run = train::compile_run(config, bench.shape);
    Training training(bench, run, run.options);
    training.warm_up();
    return step_row(training, "strategy", name);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

void measure_steps(const Bench& bench) {
  const train::CompiledRun run = train::compile_run(bench.config, bench.shape);
  {
    Training training(bench, run, run.options);
    training.warm_up();
    bench.rows.push_back(step_row(training, "step", fsdp::to_string(run.options.strategy)));
    if (!run.options.graph) measure_phases(bench, training);
    if (!bench.settings.folder.empty()) measure_checkpoint(bench, training.engine());
  }
  if (run.options.graph) {  // operations are only seen when they are issued
    fsdp::EngineOptions issued = run.options;
    issued.graph = false;
    Training training(bench, run, issued);
    training.warm_up();
    measure_phases(bench, training);
  }
  if (!bench.settings.strategies || bench.world.size() == 1) return;
  for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
    if (strategy == run.options.strategy) continue;
    auto row = measure_strategy(bench, strategy);
    if (!row) continue;
    row->group = "step";
    if (bench.config.fsdp.shard_group_size) row->name = word;  // of the configured size, as the first row is
    bench.rows.push_back(*std::move(row));
  }
}

void measure_strategies(const Bench& bench) {
  const auto first = std::ssize(bench.rows);
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
      const auto row = measure_strategy(bench, strategy);
      if (!row) continue;
      const auto before = std::find_if(bench.rows.begin() + first, bench.rows.end(),
                                       [&](const Row& other) { return other.name == row->name; });
      if (before == bench.rows.end()) {
        bench.rows.push_back(*row);
      } else if (row->seconds < before->seconds) {
        *before = *row;
      }
    }
  }
}

}  // namespace llampi::measure
