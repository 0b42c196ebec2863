// SPDX-License-Identifier: Apache-2.0
// Checkpointing as text.
#include <fmt/format.h>

#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/step_options.hpp"

namespace llampi::fsdp {

std::vector<Checkpointing> BlockCheckpointing::of_blocks(std::size_t count) const {
  std::vector<Checkpointing> others;
  for (std::size_t block = 0; block < count; ++block) {
    const Checkpointing level = block < blocks.size() ? blocks[block] : blocks.back();
    if (level != Checkpointing::offload) others.push_back(level);
  }
  const std::size_t offloaded = count - others.size();
  std::vector<Checkpointing> all;
  for (std::size_t block = 0, placed = 0; block < count; ++block) {
    const bool is_next = placed < offloaded && block == placed * count / offloaded;
    placed += is_next ? 1 : 0;
    all.push_back(is_next ? Checkpointing::offload : others[block - placed]);
  }
  return all;
}

std::string to_string(const BlockCheckpointing& checkpointing) {
  const auto& blocks = checkpointing.blocks;
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    while (end < blocks.size() && blocks[end] == blocks[begin]) ++end;
    text += fmt::format("{}{}", begin == 0 ? "" : ", ", word_of(blocks[begin]));
    if (end < blocks.size()) text += fmt::format(" {}", end - begin);
  }
  return text;
}

std::optional<BlockCheckpointing> parse_checkpointing(std::string_view text) {
  constexpr int kMostBlocks = 10'000;
  BlockCheckpointing result;
  result.blocks.clear();
  while (true) {
    const auto comma = text.find(',');
    const std::string_view part = trimmed(text.substr(0, comma), " ");
    const auto space = part.find(' ');
    const auto level = from_word<Checkpointing>(part.substr(0, space));
    if (!level || (space == part.npos) != (comma == text.npos)) return std::nullopt;
    if (comma == text.npos) {
      result.blocks.push_back(*level);
      return result;
    }
    const auto blocks = parse_number<int>(trimmed(part.substr(space), " "));
    if (!blocks || *blocks < 1 || *blocks > kMostBlocks - static_cast<int>(result.blocks.size()))
      return std::nullopt;
    result.blocks.insert(result.blocks.end(), static_cast<std::size_t>(*blocks), *level);
    text.remove_prefix(comma + 1);
  }
}

}  // namespace llampi::fsdp
