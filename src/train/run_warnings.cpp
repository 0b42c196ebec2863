// SPDX-License-Identifier: Apache-2.0
#include "train/run_warnings.hpp"

#include <algorithm>
#include <filesystem>
#include <string>

#include "llampi/core/text.hpp"

namespace llampi::train {

void warn_of_zero_learning_rate(const optim::LearningRateSchedule& schedule, std::int64_t first_step,
                                const Log& log) {
  // A decay to 0 ends with one such step, which is as asked.
  if (first_step != schedule.total_steps || schedule.at(first_step) > 0) return;
  log.warning(
      "the only step to do has learning rate 0, so nothing is trained: set optimizer.min_lr above 0, or do "
      "more steps");
}

void warn_of_long_warmup(const optim::LearningRateSchedule& schedule, const Log& log) {
  if (schedule.warmup_steps <= schedule.total_steps) return;
  log.warning("optimizer.warmup_steps = {} and the run has {}: the learning rate never reaches optimizer.lr",
              schedule.warmup_steps, count(schedule.total_steps, "step"));
}

void warn_of_known_evaluation(const data::TrainingData& train, const std::vector<data::TokenFile>& eval,
                              const Log& log) {
  for (const auto& file : eval) {
    const auto is_it = [&](const data::TrainingData::Part& part) {
      std::error_code ignored;
      return std::filesystem::equivalent(part.file.path(), file.path(), ignored);
    };
    if (std::ranges::any_of(train.parts(), is_it))
      log.warning(
          "{} is in data.train and in data.eval: its evaluation says nothing of texts that are new to the model",
          file.path().string());
  }
}

void warn_of_rows_left_out(const data::TokenFile& file, std::int64_t seq_len, const Log& log) {
  const std::int64_t row = file.notes().row_tokens;
  if (row == 0) return;
  const std::int64_t rows = file.samples(row), left_out = rows - file.samples(seq_len) * (seq_len / row);
  if (100 * left_out < rows) return;
  log.warning(
      "{}: {} of {} packed sequences, at the end of the file, fill no sample of data.seq_len = {} and are never trained on; "
      "data.seq_len = {} takes all",
      file.path().string(), left_out, with_separators(rows), seq_len, row);
}

void warn_of_keys_without_effect(const Config& config, bool on_gpu, const fsdp::DeviceMesh& mesh,
                                 const Log& log) {
  const auto& f = config.fsdp;
  const auto warn = [&log](bool is_set, const std::string& setting, const std::string& reason) {
    if (is_set) log.warning("{} has no effect: {}", setting, reason);
  };
  if (!on_gpu) {
    const std::string cpus = "this run is on CPUs";
    warn(f.product_sms > 0, fmt::format("fsdp.product_sms = {}", f.product_sms), cpus);
    warn(f.nccl_ctas > 0, fmt::format("fsdp.nccl_ctas = {}", f.nccl_ctas), cpus);
    warn(f.nccl_window, "fsdp.nccl_window = true", cpus);
    warn(f.nccl_copy_engines, "fsdp.nccl_copy_engines = true", cpus);
    warn(f.nccl_split_share, "fsdp.nccl_split_share = true", cpus);
    warn(f.reduction == comm::Reduction::nccl, "fsdp.reduction = nccl", cpus);
    const std::string in_host_memory =
        cpus + ", whose memory is that of the host: it is copied there for nothing";
    warn(f.cpu_offload != CpuOffload::none, fmt::format("fsdp.cpu_offload = {}", word_of(f.cpu_offload)),
         in_host_memory);
    warn(config.activation.offload == ActivationOffload::residuals, "activation.offload = residuals",
         in_host_memory);
    const auto& checkpointing = config.activation.checkpointing;
    warn(checkpointing && checkpointing->uses(fsdp::Checkpointing::offload),
         "activation.checkpointing = offload", in_host_memory);
  }
  warn(!config.data.eval.empty() && config.train.eval_every == 0,
       fmt::format("data.eval = {}", config.data.eval), "with train.eval_every = 0 nothing is evaluated");
  const bool keeps_units = !fsdp::reshards_after_forward(f.strategy);
  warn(
      keeps_units && f.backward_prefetch != Config().fsdp.backward_prefetch,
      fmt::format("fsdp.backward_prefetch = {}", word_of(f.backward_prefetch)),
      fmt::format("with fsdp.strategy = {} units stay unsharded for the backward pass", word_of(f.strategy)));
  const auto& o = config.optimizer;
  warn(o.schedule == optim::Decay::constant && o.min_lr > 0, fmt::format("optimizer.min_lr = {}", o.min_lr),
       "with optimizer.schedule = constant the learning rate does not fall");
  warn(f.all_reduce_stream && mesh.shard_count() == 1, "fsdp.all_reduce_stream = true",
       "shard groups have one rank, so nothing is reduced inside them meanwhile");
  warn(config.run.verify_replicas_every > 0 && mesh.replica_count() == 1,
       fmt::format("run.verify_replicas_every = {}", config.run.verify_replicas_every),
       fmt::format("with fsdp.strategy = {} there are no replicas", word_of(f.strategy)));
}

void warn_of_unsaved_run(const Config& config, double step_seconds, std::int64_t steps_left, const Log& log) {
  constexpr double kHour = 3600;
  if (config.checkpoint.every > 0) return;
  double seconds = step_seconds * static_cast<double>(steps_left);
  if (config.run.max_hours > 0) seconds = std::min(seconds, config.run.max_hours * kHour);
  if (seconds <= kHour) return;
  const auto every = static_cast<std::int64_t>(std::max(1.0, kHour / 2 / std::max(step_seconds, 1e-6)));
  log.warning(
      "checkpoint.every = 0: nothing is saved for about {}, and a job that is killed loses all of it; "
      "checkpoint.every = {} saves about every half hour",
      format_duration(seconds), every);
}

}  // namespace llampi::train
