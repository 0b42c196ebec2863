#include "train/engine_config.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "train/not_finite.hpp"

namespace llampi::train {
namespace {

fsdp::Checkpointing checkpointing_of(const std::string& name) {
  return name == "full" ? fsdp::Checkpointing::full
                        : (name == "selective" ? fsdp::Checkpointing::selective : fsdp::Checkpointing::none);
}

DType dtype_from(const std::string& name) {
  return name == "bfloat16" ? DType::bfloat16 : (name == "float16" ? DType::float16 : DType::float32);
}

/// A positive number, or 0 if the text is none.
std::int64_t positive(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::max<std::int64_t>(0, value) : 0;
}

/// 0 stands for the ranks of a node.
int group_size_of(const std::string& text) {
  if (text.empty() || text == "node") return 0;
  const std::int64_t size = positive(text);
  if (size == 0) throw_user_error("fsdp.shard_group_size = {}: use node or a number of ranks", text);
  return static_cast<int>(std::min<std::int64_t>(size, std::numeric_limits<int>::max()));
}

fsdp::WrapOptions wrap_of(const Config& c) {
  fsdp::WrapOptions options;
  options.policy = c.fsdp.wrap == "size"
                       ? fsdp::WrapPolicy::size
                       : (c.fsdp.wrap == "modules" ? fsdp::WrapPolicy::modules
                                                   : (c.fsdp.wrap == "none" ? fsdp::WrapPolicy::none
                                                                            : fsdp::WrapPolicy::transformer));
  options.min_params = c.fsdp.wrap_min_params;
  std::istringstream words(c.fsdp.wrap_modules);
  for (std::string word; words >> word;) options.modules.push_back(word);
  return options;
}

fsdp::Prefetch prefetch_of(const std::string& name) {
  return name == "post" ? fsdp::Prefetch::post
                        : (name == "none" ? fsdp::Prefetch::none : fsdp::Prefetch::pre);
}

}  // namespace

namespace {

/// What asks for something that would have no effect, or that cannot be had together.
void check_together(const Config& c) {
  if (c.fsdp.offload_step == "host" && c.fsdp.cpu_offload == "none") {
    throw_user_error("fsdp.offload_step = host needs fsdp.cpu_offload = optimizer or params");
  }
  if (!fsdp::is_hybrid(fsdp::strategy_from(c.fsdp.strategy)) && c.fsdp.shard_group_size != "node") {
    throw_user_error("fsdp.shard_group_size = {} needs a hybrid strategy, not {}", c.fsdp.shard_group_size,
                     c.fsdp.strategy);
  }
  NotFinitePolicy::parse(c.train.not_finite);
  if (c.run.watchdog_seconds > 0 && c.run.watchdog_seconds < 1) {
    throw_user_error("run.watchdog_seconds = {}: use 0 (off), or at least 1", c.run.watchdog_seconds);
  }
  if (c.fsdp.wrap != "modules" && !c.fsdp.wrap_modules.empty()) {
    throw_user_error("fsdp.wrap_modules needs fsdp.wrap = modules, not {}", c.fsdp.wrap);
  }
  if (c.fsdp.param_dtype == "float16" && c.optimizer.master_dtype == "bfloat16") {
    throw_user_error(
        "fsdp.param_dtype = float16 does not go with optimizer.master_dtype = bfloat16; use float32 for the "
        "master or bfloat16 for both");
  }
  if (c.optimizer.gradient_dtype != "float32" && c.fsdp.reduce_dtype != c.optimizer.gradient_dtype) {
    throw_user_error(
        "optimizer.gradient_dtype = {} needs fsdp.reduce_dtype = {} too: sums are not kept in less than they "
        "travel in",
        c.optimizer.gradient_dtype, c.optimizer.gradient_dtype);
  }
}

}  // namespace

fsdp::EngineOptions engine_options(const Config& c, const model::Model& model, int micro_batches,
                                   Hardware hardware) {
  check_together(c);
  fsdp::EngineOptions options;
  options.batch = {c.train.micro_batch, c.data.seq_len};
  options.micro_batches = micro_batches;
  options.strategy = fsdp::strategy_from(c.fsdp.strategy);
  options.shard_group_size = group_size_of(c.fsdp.shard_group_size);
  options.wrap = wrap_of(c);
  options.accumulate_unsharded = c.fsdp.accumulate == "unsharded";
  options.checkpointing = checkpointing_of(c.activation.checkpointing);
  options.precision.param = dtype_from(c.fsdp.param_dtype);
  if (hardware == Hardware::gpu) {
    if (c.fsdp.param_dtype == "auto") options.precision.param = DType::bfloat16;
    options.precision.compute = options.precision.param;
    options.graph = c.run.cuda_graph == "auto";
  }
  options.precision.reduce = dtype_from(c.fsdp.reduce_dtype);
  options.precision.master = dtype_from(c.optimizer.master_dtype);
  options.precision.moment = dtype_from(c.optimizer.moment_dtype);
  options.precision.gradient_shard = dtype_from(c.optimizer.gradient_dtype);
  options.offload.params = c.fsdp.cpu_offload == "params";
  options.offload.optimizer = c.fsdp.cpu_offload != "none";
  options.offload.host_step = options.offload.optimizer && c.fsdp.offload_step == "host";
  options.snapshot = c.checkpoint.async && c.checkpoint.every > 0;
  options.seed = c.run.seed;
  options.backward_prefetch = prefetch_of(c.fsdp.backward_prefetch);
  options.forward_prefetch = c.fsdp.forward_prefetch;
  options.limit_all_gathers = c.fsdp.limit_all_gathers;
  options.adamw = {c.optimizer.beta1, c.optimizer.beta2, c.optimizer.eps};
  options.clip_grad_norm = c.optimizer.clip_grad_norm;
  options.groups = optim::parameter_groups(model.parameters(), {.weight_decay = c.optimizer.weight_decay,
                                                                .no_decay = c.optimizer.no_decay,
                                                                .weight_decays = c.optimizer.weight_decays,
                                                                .lr_factors = c.optimizer.lr_factors,
                                                                .frozen = c.optimizer.frozen});
  return options;
}

optim::LearningRateSchedule schedule_of(const Config& c, std::int64_t total_steps) {
  const auto& name = c.optimizer.schedule;
  const optim::Decay decay = name == "linear"
                                 ? optim::Decay::linear
                                 : (name == "constant" ? optim::Decay::constant : optim::Decay::cosine);
  return {decay, c.optimizer.lr, c.optimizer.min_lr, c.optimizer.warmup_steps, total_steps};
}

bool scales_loss(const Config& c) {
  return c.fsdp.param_dtype == "float16" || c.fsdp.reduce_dtype == "float16";
}

std::pair<std::int64_t, std::int64_t> steps_to_trace(const std::string& text) {
  if (text.empty() || text == "0") return {0, 0};
  const auto dash = text.find('-');
  const auto first = positive(text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : positive(text.substr(dash + 1));
  if (first == 0 || last < first)
    throw_user_error("log.trace = {}: use a step or a range of steps such as 3-5", text);
  return {first, last};
}

}  // namespace llampi::train
