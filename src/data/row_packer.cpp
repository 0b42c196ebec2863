// SPDX-License-Identifier: Apache-2.0
#include "data/row_packer.hpp"

#include <limits>

#include "data/best_fit.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::data {
namespace {

constexpr auto kMaskBit = std::numeric_limits<std::int32_t>::min();

}  // namespace

RowPacker::RowPacker(const std::filesystem::path& output, std::int64_t seq_len, std::int32_t padding)
    : seq_len_(seq_len), padding_(padding), spool_(output) {
  require(seq_len > 0 && seq_len <= std::numeric_limits<std::int32_t>::max(), "sequence length of rows");
}

void RowPacker::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
  require(ids.size() == mask.size() && ids.size() <= std::numeric_limits<std::uint32_t>::max(),
          "length of a conversation");
  ids_.assign(ids.begin(), ids.end());
  for (std::size_t i = 0; i < ids_.size(); ++i) ids_[i] |= mask[i] != 0 ? kMaskBit : 0;
  spool_.append(ids_);
  begins_.push_back(begins_.back() + static_cast<std::int64_t>(ids.size()));
}

void RowPacker::write_conversation(TokenFileWriter& writer, std::size_t conversation) {
  const auto begin = begins_[conversation];
  ids_.resize(static_cast<std::size_t>(begins_[conversation + 1] - begin));
  mask_.resize(ids_.size());
  spool_.read(begin * static_cast<std::int64_t>(sizeof(std::int32_t)),
              std::as_writable_bytes(std::span(ids_)));
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    mask_[i] = ids_[i] < 0 ? 1 : 0;
    ids_[i] &= ~kMaskBit;
  }
  writer.append(ids_, mask_);
  writer.end_document();
}

void RowPacker::write_padding(TokenFileWriter& writer, std::int64_t tokens) const {
  if (tokens == 0) return;
  const auto count = static_cast<std::size_t>(tokens);
  writer.append(std::vector(count, padding_), std::vector<std::uint8_t>(count, 0));
  writer.end_document();
}

RowPacker::Rows RowPacker::write(TokenFileWriter& writer) {
  Rows result;
  std::vector<std::uint32_t> lengths(begins_.size() - 1);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<std::uint32_t>(begins_[i + 1] - begins_[i]);
    result.cut += lengths[i] > seq_len_ ? 1 : 0;
  }
  const auto packing = best_fit(lengths, static_cast<std::uint32_t>(seq_len_));
  std::size_t i = 0;
  for (const auto end : packing.ends) {
    std::int64_t tokens = 0;
    for (; i < end; ++i) {
      write_conversation(writer, packing.items[i]);
      tokens += lengths[packing.items[i]];
    }
    const auto rows = ceil_div(tokens, seq_len_);
    const auto padding = rows * seq_len_ - tokens;
    write_padding(writer, padding);
    result.rows += rows;
    result.padding += padding;
    result.padding_documents += padding > 0 ? 1 : 0;
  }
  if (result.rows > 0) {
    write_padding(writer, 1);
    ++result.padding_documents;
  }
  return result;
}

}  // namespace llampi::data
