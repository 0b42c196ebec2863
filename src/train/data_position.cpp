// SPDX-License-Identifier: Apache-2.0
#include "train/data_position.hpp"

#include <algorithm>
#include <cmath>

#include "llampi/core/integers.hpp"

namespace llampi::train {
namespace {

std::int64_t steps_per_epoch(const checkpoint::TrainingState& s) {
  return std::max<std::int64_t>(1, (s.data_tokens - 1) / s.seq_len / s.global_batch);
}

}  // namespace

std::int64_t data_steps(const checkpoint::TrainingState& state) {
  return state.samples_consumed / state.global_batch;
}

std::int64_t data_epoch(const checkpoint::TrainingState& state) {
  return data_steps(state) / steps_per_epoch(state);
}

checkpoint::TrainingState continue_from(const checkpoint::TrainingState& saved,
                                        const checkpoint::TrainingState& fresh) {
  const std::int64_t steps_in_epoch = data_steps(saved) % steps_per_epoch(saved);
  const std::int64_t tokens_in_epoch = steps_in_epoch * saved.global_batch * saved.seq_len;
  const std::int64_t here =
      std::min(steps_per_epoch(fresh), ceil_div(tokens_in_epoch, fresh.global_batch * fresh.seq_len));
  checkpoint::TrainingState state = fresh;
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

std::int64_t total_steps(const Config& config, const checkpoint::TrainingState& state) {
  if (config.train.steps > 0) return config.train.steps;
  const double steps = config.train.epochs * static_cast<double>(steps_per_epoch(state));
  return state.step + std::llround(steps) - data_steps(state);
}

}  // namespace llampi::train
