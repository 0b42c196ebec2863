// SPDX-License-Identifier: Apache-2.0
// The learning rate of a step.
#pragma once

#include <cstdint>

#include "llampi/core/words.hpp"

namespace llampi::optim {

/// How the learning rate falls after warm-up.
enum class Decay : std::uint8_t { cosine, linear, constant };
constexpr auto word_table(Decay) {
  return std::to_array<Word<Decay>>(
      {{Decay::cosine, "cosine"}, {Decay::linear, "linear"}, {Decay::constant, "constant"}});
}

/// At step t, from 1: warm-up gives lr * t / warmup_steps for t <= warmup_steps; after it the rate falls from
/// lr at t = warmup_steps to min_lr at t = total_steps.
struct LearningRateSchedule {
  Decay decay = Decay::cosine;
  double lr = 0;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;

  double at(std::int64_t step) const;
};

}  // namespace llampi::optim
