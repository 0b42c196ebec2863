// SPDX-License-Identifier: Apache-2.0
#include "gpu/steps.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpu/clock.hpp"
#include "gpu/noise.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/fit_decisions.hpp"

namespace llampi::bench {
namespace {

constexpr std::int64_t kMostLayers = 18;  // as llmq was measured with, on larger GPUs too
constexpr int kWarmUp = 3;                // loading of kernels, first connections, capture
constexpr int kFewest = 3;                // timed steps

fsdp::EngineOptions engine_options(const model::Model& model, const Machine& machine, const Options& o) {
  fsdp::EngineOptions options;
  options.batch = {o.tokens / o.seq_len, o.seq_len};
  options.micro_batches = o.micro_batches;
  options.offload.residuals = o.offload == "residuals";
  options.checkpointing = fsdp::parse_checkpointing(o.checkpointing).value_or(fsdp::Checkpointing::none);
  if (machine.gpu) {
    options.precision.param = options.precision.compute = DType::bfloat16;
    options.graph = o.graph;
  }
  options.precision.master = options.precision.moment = dtype_of_word(o.state);
  options.precision.reduce = options.precision.gradient_shard = dtype_of_word(o.gradient);
  options.clip_grad_norm = 1;
  options.parameter_groups = optim::parameter_groups(model.parameters(), {.weight_decay = 0.1});
  return options;
}

/// Likewise with what is decided by memory, as a run decides it: recomputation, and room for deterministic
/// attention. Layers are chosen without it, so that there are as many in every row. Collective.
fsdp::EngineOptions fitting_options(const model::Model& model, const Machine& machine, comm::World& world,
                                    const Options& o) {
  fsdp::EngineOptions options = engine_options(model, machine, o);
  const bool divides = o.micro_batch == "auto";
  if (divides) options.micro_batches *= static_cast<int>(std::exchange(options.batch.sequences, 1));
  const device::GpuProperties& gpu = machine.properties;
  const bool keeps_dp = machine.gpu && device::deterministic_attention_keeps_dp(gpu.major) &&
                        o.deterministic && o.attention != "native";
  const bool decides_room = keeps_dp && o.attention_workspace < 0;
  if (keeps_dp && !decides_room) options.batch.attention_room = o.attention_workspace << 20;
  if (o.logits_workspace >= 0) options.batch.logits_bytes = o.logits_workspace << 20;
  const int local_ranks = world.topology().local_ranks;
  std::int64_t bytes[] = {machine.device().available_bytes(local_ranks),
                          machine.host->available_bytes(local_ranks)};
  comm::min_over_ranks(world, bytes);
  const fsdp::AvailableMemory available{
      .backend = world.backend(), .one_memory = !machine.gpu, .on_device = bytes[0], .on_host = bytes[1]};
  const auto mesh = fsdp::make_device_mesh(options.strategy, world.topology().node_of_rank, 0);
  return fsdp::decide_what_fits(
      fsdp::make_fit_question(model, options, mesh, machine.device().sizes(), available),
      {.checkpointing = o.checkpointing == "auto",
       .offload = machine.gpu != nullptr,
       .micro_batch = divides,
       .most_attention_room = decides_room ? fsdp::most_attention_room(gpu.memory_bytes) : 0,
       .logits = machine.gpu && o.logits_workspace < 0});
}

device::HostBatch random_batch(const Options& o, std::uint64_t seed) {
  const RandomStream random(seed, "tokens");
  device::HostBatch batch(o.tokens);
  const auto vocabulary = static_cast<std::uint64_t>(o.vocabulary);
  for (std::int64_t t = 0; t < o.tokens; ++t) {
    const auto i = static_cast<std::size_t>(t);
    batch.tokens()[i] = static_cast<std::int32_t>(random.bits(2 * i) % vocabulary);
    // As a chat has them: an answer after its question.
    const bool has_label =
        static_cast<double>(t % o.seq_len) >= (1 - o.labels) * static_cast<double>(o.seq_len);
    batch.labels()[i] = has_label ? static_cast<std::int32_t>(random.bits(2 * i + 1) % vocabulary) : -1;
    batch.valid_labels += has_label ? 1 : 0;
  }
  batch.cut_into_documents(o.seq_len / o.documents);
  return batch;
}

/// None where there is no such file yet.
device::AlgorithmChoices read_choices(const std::string& file) {
  std::ifstream in(file);
  return in ? nlohmann::json::parse(in).get<device::AlgorithmChoices>() : device::AlgorithmChoices();
}

void write_choices(const std::string& file, device::AlgorithmChoices known,
                   const device::AlgorithmChoices& chosen) {
  if (file.empty()) return;
  known.insert(chosen.begin(), chosen.end());
  if (!(std::ofstream(file) << nlohmann::json(known).dump(1) << '\n').flush())
    throw_user_error("{} cannot be written", file);
}

/// An engine with random weights that trains on tokens that differ from step to step and rank to rank.
class Training {
 public:
  Training(const model::Model& model, device::Device& device, const Machine& machine, comm::World& world,
           const Options& options)
      : world_(world),
        options_(options),
        engine_(model, device, *machine.host, world, fitting_options(model, machine, world, options)) {
    choose_products(device);
    fill_parameters(engine_, device);
  }

  /// Seconds that it took.
  double step() {
    ++steps_;
    std::vector<device::HostBatch> batches;
    std::int64_t labels = 0;
    for (int m = 0; m < options_.micro_batches; ++m) {
      const int number = (steps_ * options_.micro_batches + m) * world_.size() + world_.rank();
      batches.push_back(random_batch(options_, static_cast<std::uint64_t>(number)));
      labels += batches.back().valid_labels;
    }
    world_.barrier();
    const double begin = now();
    result_ = engine_.step(batches, {.learning_rate = 1e-5,
                                     .optimizer_step = steps_,
                                     .valid_labels = labels * world_.size(),
                                     .counts = device::largest_counts(batches)});
    const double seconds = now() - begin;  // step() has waited for the device
    result_.loss_sum /= static_cast<double>(labels);
    return seconds;
  }
  double tuning_seconds() const { return tuning_seconds_; }
  /// Of the last step; the loss is the mean of this rank.
  const fsdp::StepResult& result() const { return result_; }
  const fsdp::Engine& engine() const { return engine_; }

 private:
  /// Once for a device, which remembers them.
  void choose_products(device::Device& device) {
    device::Autotuner* const autotuner = device.autotuner();
    if (options_.tuning == "off" || autotuner == nullptr || !autotuner->choices().empty()) return;
    const device::AlgorithmChoices known = read_choices(options_.choices);
    autotuner->adopt(known);
    const double begin = now();
    autotuner->measure(true);
    engine_.rehearse(options_.labels < 1);
    autotuner->measure(false);
    tuning_seconds_ = now() - begin;
    if (world_.rank() == 0) write_choices(options_.choices, known, autotuner->choices());
  }

  comm::World& world_;
  const Options& options_;
  fsdp::Engine engine_;
  double tuning_seconds_ = 0;
  int steps_ = 0;
  fsdp::StepResult result_;
};

}  // namespace

std::unique_ptr<model::Model> make_model(const Options& options, std::int64_t layers) {
  model::LlamaConfig config;
  config.vocab_size = options.vocabulary;
  config.hidden_size = options.hidden;
  config.intermediate_size = options.feed_forward;
  config.layers = layers;
  config.query_heads = options.query_heads;
  config.key_value_heads = options.key_value_heads;
  config.head_dim = options.hidden / options.query_heads;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000;
  return model::make_llama(config,
                           options.product == "fp8" ? std::optional(model::Fp8Recipe()) : std::nullopt);
}

std::int64_t layers_that_fit(const Machine& machine, comm::World& world, const Options& options) {
  if (options.layers > 0) return options.layers;
  const auto headroom = static_cast<std::int64_t>(options.headroom_gib * 0x1p30);
  // The least memory of all ranks.
  const std::int64_t lacking =
      comm::max_over_ranks(world, headroom - machine.device().available_bytes(world.topology().local_ranks));
  const auto mesh = fsdp::make_device_mesh(fsdp::Strategy::full_shard, world.topology().node_of_rank, 0);
  Options sized = options;
  sized.gradient = "float32";  // as many layers with narrower ones, beside PyTorch, which needs more memory
  const auto needed = [&](std::int64_t layers) {
    const auto model = make_model(sized, layers);
    const auto compiled = fsdp::compile_model(*model, engine_options(*model, machine, sized), mesh,
                                              machine.device().sizes(), world.backend());
    return compiled.arena_bytes[static_cast<std::size_t>(fsdp::Arena::device)];
  };
  std::int64_t layers = 0;
  while (layers < kMostLayers && needed(layers + 1) <= -lacking) ++layers;
  if (layers == 0) {
    throw_user_error(
        "one layer needs {} of GPU memory, and {} are left besides a headroom of {}; use fewer --tokens",
        format_bytes(needed(1)), format_bytes(std::max<std::int64_t>(0, -lacking)), format_bytes(headroom));
  }
  return layers;
}

Options with_micro_batches(const model::Model& model, const Machine& machine, comm::World& world,
                           Options options) {
  if (options.micro_batch != "auto") return options;
  const fsdp::EngineOptions chosen = fitting_options(model, machine, world, options);
  options.tokens = chosen.batch.tokens();
  options.micro_batches = chosen.micro_batches;
  options.micro_batch = "chosen";
  return options;
}

StepTimes time_steps(const model::Model& model, const Machine& machine, comm::World& world,
                     const Options& options) {
  Training training(model, machine.device(), machine, world, options);
  StepTimes times;
  const auto& arenas = training.engine().compiled().arena_bytes;
  times.flops_per_token =
      fsdp::flops_per_token(model, training.engine().options(), training.engine().compiled(), options.labels);
  times.arena_bytes = arenas[static_cast<std::size_t>(fsdp::Arena::device)];
  const auto run = [&] {
    const double seconds = training.step();
    times.losses.push_back(training.result().loss_sum);
    return seconds;
  };
  double latest = 0;
  for (int step = 0; step < kWarmUp; ++step) latest = run();
  latest = comm::max_over_ranks(world, latest);  // all ranks take equally many steps
  const int wanted = static_cast<int>(options.seconds / std::max(latest, 1e-6));
  const int steps = std::min(options.steps, std::max(kFewest, std::min(wanted, options.steps)));
  for (int step = 0; step < steps; ++step) times.seconds.push_back(run());
  std::sort(times.seconds.begin(), times.seconds.end());
  times.grad_norm = training.result().grad_norm;
  times.tuning_seconds = training.tuning_seconds();
  times.attention_room = training.engine().options().batch.attention_room;
  times.logits_bytes = training.engine().options().batch.logits_bytes;
  times.checkpointing = to_string(training.engine().options().checkpointing);
  times.offload_residuals = training.engine().options().offload.residuals;
  return times;
}

Profile profile_step(const model::Model& model, const Machine& machine, comm::World& world,
                     const Options& options) {
  OperationTimer timer(machine.device());
  Options issued = options;  // operations of a captured step cannot be timed
  issued.graph = false;
  Training training(model, machine.device(), machine, world, issued);
  Profile profile;
  training.step();
  profile.first_loss = training.result().loss_sum;
  training.step();
  timer.reset();
  profile.seconds = training.step();
  profile.operations = timer.times();
  return profile;
}

}  // namespace llampi::bench
