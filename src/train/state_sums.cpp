// SPDX-License-Identifier: Apache-2.0
#include "train/state_sums.hpp"

#include <span>

#include "llampi/checkpoint/staging.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::train {

std::vector<std::uint32_t> state_sums(device::Device& device, const std::vector<fsdp::StatePiece>& pieces,
                                      const fsdp::Engine& engine, bool moments) {
  std::vector<std::uint32_t> sums(engine.model().parameters().size(), 0);
  checkpoint::Staging staging(device, checkpoint::kTransferElements);
  const auto add = [&](const Tensor& tensor, std::uint32_t& sum) {
    staging.in_parts(tensor, [&](const Tensor& part, std::int64_t) {
      const std::span values(staging.fetch(part), static_cast<std::size_t>(part.elements()));
      sum = io::crc32_of(std::as_bytes(values), sum);
    });
  };
  for (const auto& piece : pieces) {
    auto& sum = sums[static_cast<std::size_t>(piece.parameter)];
    add(piece.master, sum);
    if (!moments) continue;
    add(piece.exp_avg, sum);
    add(piece.exp_avg_sq, sum);
  }
  return sums;
}

}  // namespace llampi::train
