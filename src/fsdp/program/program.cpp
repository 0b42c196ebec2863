// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/program.hpp"

#include <algorithm>
#include <utility>

namespace llampi::fsdp {

const char* to_string(CopyPayload payload) {
  constexpr std::array kNames = {"none",     "inputs",  "shard",    "new_shard", "state",
                                 "gradient", "scalars", "residual", "saved"};
  return kNames.at(static_cast<std::size_t>(payload));
}

const char* to_string(Ranks ranks) {
  constexpr std::array kNames = {"self", "shard_group", "replicate_group"};
  return kNames.at(static_cast<std::size_t>(ranks));
}

const char* to_string(Arena arena) {
  constexpr std::array kNames = {"device", "host"};
  return kNames.at(static_cast<std::size_t>(arena));
}

const char* to_string(Category category) {
  constexpr std::array kNames = {"parameters", "gradients", "optimizer", "activations", "other"};
  return kNames.at(static_cast<std::size_t>(category));
}

const char* to_string(Slot slot) {
  constexpr std::array kNames = {"input",
                                 "output",
                                 "workspace",
                                 "scalars",
                                 "batch",
                                 "residual_gradient",
                                 "parameter",
                                 "transposed",
                                 "fp8_scales",
                                 "fp8_maxima",
                                 "parameter_gradient",
                                 "saved",
                                 "scratch",
                                 "kv_cache",
                                 "constant",
                                 "logits",
                                 "gradient",
                                 "master",
                                 "exp_avg",
                                 "exp_avg_sq",
                                 "norm_scalars",
                                 "reserved"};
  return kNames.at(static_cast<std::size_t>(slot));
}

const Operand* Action::find(Slot slot) const {
  const auto found =
      std::find_if(operands.begin(), operands.end(), [&](const Operand& o) { return o.slot == slot; });
  return found == operands.end() ? nullptr : &*found;
}

BufferId Program::add(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size() - 1);
}

std::pair<std::int64_t, std::int64_t> extent(const Buffer& buffer, const Part& part) {
  if (part.whole() || part.own != Own::none) return {0, buffer.elements()};
  return {part.offset, part.offset + part.rows * part.cols};
}

HappensBefore::HappensBefore(const std::vector<Action>& actions) {
  std::array<int, device::kStreams> last{};  // per stream: its latest action
  last.fill(-1);
  for (const auto& action : actions) {
    const int index = static_cast<int>(known_.size());
    const auto stream = action.stream.index();
    std::array<int, device::kStreams> known{};
    known.fill(-1);
    const auto learn = [&](int other) {
      if (other < 0) return;
      for (std::size_t s = 0; s < device::kStreams; ++s) known[s] = std::max(known[s], known_[other][s]);
      auto& own = known[streams_[other].index()];
      own = std::max(own, other);
    };
    learn(last[stream]);
    for (const int w : action.waits) learn(w);
    known_.push_back(known);
    streams_.push_back(action.stream);
    last[stream] = index;
  }
}

}  // namespace llampi::fsdp
