// SPDX-License-Identifier: Apache-2.0
// Checksums of the tensors of a model, by which adapters name their base.
#include <algorithm>
#include <array>
#include <filesystem>

#include "checkpoint/node_ranks.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {
namespace {

std::uint32_t sum_of_blocks(std::uint32_t before, std::uint32_t block) {
  std::array<std::byte, 4> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(block >> (8 * i) & 0xFF);
  return io::crc32_of(bytes, before);
}

}  // namespace

TensorSums sums_of_tensors(comm::World& world, const std::vector<TensorInfo>& tensors,
                           std::vector<io::RangeSum> sums) {
  std::vector<std::int64_t> elements;
  for (const auto& tensor : tensors) elements.push_back(elements_of(tensor.shape));
  const auto combined = [&](std::vector<io::RangeSum> of) {
    io::BlockSums sums_of = io::combine(std::move(of), elements, io::kChecksumBlockElements);
    sums_of.whole.insert(sums_of.whole.end(), sums_of.parts.begin(), sums_of.parts.end());
    return std::move(sums_of.whole);
  };
  // A node sends what its ranks have read once, however many of them have.
  const NodeRanks ranks(world, 1);
  const io::BlockSums all =
      io::combine(ranks.gather(combined(std::move(sums)), combined), elements, io::kChecksumBlockElements);
  std::vector<std::uint32_t> result(tensors.size(), 0);
  std::vector<std::int64_t> blocks(tensors.size(), 0);
  for (const auto& block : all.whole) {
    const auto t = static_cast<std::size_t>(block.dataset);
    result[t] = sum_of_blocks(result[t], block.crc);
    ++blocks[t];
  }
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      require(blocks[t] == io::blocks_of(elements[t], io::kChecksumBlockElements),
              "checksums of a base that was read once, by all ranks together");
    }
  });
  result = comm::broadcast_value(world, result);
  TensorSums by_name;
  for (std::size_t t = 0; t < tensors.size(); ++t) by_name[tensors[t].name] = result[t];
  return by_name;
}

TensorSums sums_of_source(comm::World& world, const WeightsSource& source) {
  std::vector<io::RangeSum> sums;
  comm::agree(world, [&] {
    std::vector<float> values(static_cast<std::size_t>(kTransferElements));
    TensorParts parts(world.rank(), world.size(), kTransferElements);
    for (int t = 0; t < static_cast<int>(source.tensors().size()); ++t) {
      const auto& shape = source.tensors()[static_cast<std::size_t>(t)].shape;
      parts.next(elements_of(shape), [&](std::int64_t begin, std::int64_t count) {
        source.read(t, begin, count, values.data());
        io::add_sums(sums, t, begin, std::span<const float>(values).first(static_cast<std::size_t>(count)),
                     io::kChecksumBlockElements);
      });
    }
  });
  return sums_of_tensors(world, source.tensors(), std::move(sums));
}

std::unique_ptr<WeightsSource> merge_checked(comm::World& world, std::unique_ptr<WeightsSource> base,
                                             Adapter adapter) {
  if (!adapter.info.base_sums.empty()) {
    const TensorSums found = sums_of_source(world, *base);
    comm::agree(
        world, [&] { require_same_base(found, adapter.info, base->path().string(), adapter.path.string()); });
  }
  std::unique_ptr<WeightsSource> merged;
  comm::agree(world, [&] { merged = merge(std::move(base), std::move(adapter)); });
  return merged;
}

void require_same_base(const TensorSums& found, const AdapterInfo& info, const std::string& base,
                       const std::string& adapter) {
  const TensorSums& expected = info.base_sums;
  if (expected.empty()) return;
  std::vector<std::string> different;
  for (const auto& [name, sum] : expected) {
    const auto here = found.find(name);
    if (here == found.end() || here->second != sum) different.push_back(name);
  }
  if (different.empty() && found.size() == expected.size()) return;
  const std::string differences =
      fmt::format("{} {}", different.empty() ? "more tensors than that has" : names_text(different),
                  different.size() > 1 || different.empty() ? "differ" : "differs");
  std::error_code ignored;
  if (std::filesystem::equivalent(base, info.base, ignored) ||
      std::filesystem::equivalent(std::filesystem::path(base).parent_path(), info.base, ignored)) {
    throw_user_error(
        "{} has changed since the adapters in {} were trained on it: {}; bring back the model that was there",
        info.base, adapter, differences);
  }
  const std::string gone =
      std::filesystem::exists(info.base, ignored) ? "" : ", no longer there" + seen_from(info.base);
  throw_user_error("{} is not the model that the adapters in {} were trained on: {}; give that model{}", base,
                   adapter, differences,
                   info.base.empty() ? "" : fmt::format(", which was read from {}{}", info.base, gone));
}

}  // namespace llampi::checkpoint
