// SPDX-License-Identifier: Apache-2.0
// What the emulated cuDNN launched for an attention, as tests compare it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include "emulator/seams/attention_graphs.hpp"

namespace llampi::test {

/// Documents or sequences of at most so many tokens, key/value heads.
struct Launch {
  std::int64_t batch, longest, key_value_heads;
  bool ragged = false;

  bool operator==(const Launch&) const = default;
  friend void PrintTo(const Launch& l, std::ostream* out) {
    *out << fmt::format("{} of {} tokens, {} heads{}", l.batch, l.longest, l.key_value_heads,
                        l.ragged ? ", packed" : "");
  }
};

/// Of one direction; those of the other are forgotten too.
inline std::vector<Launch> take_launches(device::cuda::Direction direction) {
  std::vector<Launch> launches;
  for (const auto& p : emulator::take_attention_launches()) {
    if (p.direction == direction) launches.push_back({p.batch, p.longest, p.key_value_heads, p.ragged});
  }
  return launches;
}

}  // namespace llampi::test
