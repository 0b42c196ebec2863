// SPDX-License-Identifier: Apache-2.0
// The attributes of /state, in the order of the documentation, which is also that of the metadata's checksum.
#pragma once

#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi::checkpoint {

/// Calls visit(name, field) for each field that every file has.
template <class State, class Visitor>
void for_each_field(State& state, Visitor&& visit) {
  visit("step", state.step);
  visit("optimizer_steps", state.optimizer_steps);
  visit("tokens_seen", state.tokens_seen);
  visit("samples_consumed", state.samples_consumed);
  visit("epoch", state.epoch);
  visit("seed", state.seed);
  visit("seq_len", state.seq_len);
  visit("global_batch", state.global_batch);
  visit("data_tokens", state.data_tokens);
  visit("shuffle", state.shuffle);
}

/// Fields that the first files do not have.
template <class State, class Visitor>
void for_each_later_field(State& state, Visitor&& visit) {
  visit("loss_scale", state.loss_scale);
  visit("loss_scale_good_steps", state.loss_scale_good_steps);
}

}  // namespace llampi::checkpoint
