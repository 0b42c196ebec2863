// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/frame.hpp"

#include <algorithm>

#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

void copy(const io::PosixFile& from, const io::PosixFile& to, std::int64_t begin, std::int64_t end) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(end - begin));
  require(from.read_at(begin, bytes) == bytes.size(), "a frame that ends early");
  to.write_at(begin, bytes);
}

}  // namespace

Frame::Frame(const CheckpointSummary& about, const FileSettings& settings,
             std::int64_t checksum_block_elements)
    : memory_(io::PosixFile::in_memory("checkpoint")),
      checksums_(checksums_for(about.tensors, checksum_block_elements)) {
  // Metadata in one block, for who reads it.
  file_ = create_checkpoint(memory_.path(), settings,
                            metadata_block_bytes(about.tensors, about.texts, checksum_block_elements));
  write_attributes(file_.id(), about);
  datasets_ = create_datasets(file_.id(), about.tensors);
  create_checksums(file_.id(), datasets_, checksums_);
  places_ = places_of(datasets_);
}

void Frame::complete(const CheckpointSummary& about, std::vector<io::RangeSum> sums) {
  set_blocks(checksums_,
             io::combine(std::move(sums), checksums_.elements(), checksums_.block_elements).whole);
  write_checksums(file_.id(), datasets_, checksums_, metadata_checksum(about, checksums_));
  datasets_ = {};
  file_.close();
}

std::vector<Frame::Range> Frame::values() const {
  std::vector<Range> ranges;
  const auto elements = checksums_.elements();
  for (std::size_t role = 0; role < places_.size(); ++role) {
    for (int t = 0; t < static_cast<int>(places_[role].size()); ++t) {
      const std::int64_t begin = places_[role][t];
      if (begin < 0) continue;
      const std::int64_t count = elements[dataset_index(role, t, places_[role].size())];
      ranges.push_back({begin, begin + count * static_cast<std::int64_t>(sizeof(float))});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

void Frame::write_to(const io::PosixFile& out) const {
  std::int64_t begin = 0;
  for (const auto& range : values()) {
    copy(memory_, out, begin, range.begin);
    begin = range.end;
  }
  copy(memory_, out, begin, memory_.size());
}

}  // namespace llampi::checkpoint
