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
      checksums_(checksums_for(about.tensors, checksum_block_elements, about.moments)) {
  // Metadata in one block, for who reads it.
  file_ = create_checkpoint(memory_.path(), settings,
                            metadata_block_bytes(about.tensors, about.texts, checksum_block_elements));
  write_attributes(file_.id(), about);
  datasets_ = create_datasets(file_.id(), about.tensors, about.moments);
  create_checksums(file_.id(), datasets_, checksums_);
  places_ = places_of(file_.id(), datasets_);
}

void Frame::close() {
  datasets_ = {};
  file_.close();
}

void Frame::lay_out(const std::filesystem::path& file) {
  close();
  const auto out = io::PosixFile::open_for_writing(file);
  write_to(out);
  const auto values_of_file = values();
  const std::int64_t end = values_of_file.empty() ? 0 : values_of_file.back().end;
  out.truncate(std::max(end, memory_.size()));
}

void Frame::complete(const CheckpointSummary& about, std::vector<io::RangeSum> sums) {
  if (!file_) {
    file_ = open_checkpoint(memory_.path());
    datasets_ = open_datasets(file_.id(), about.tensors);
  }
  set_blocks(checksums_, checksums_.combine(std::move(sums)).whole);
  write_checksums(file_.id(), datasets_, checksums_, metadata_checksum(about, checksums_));
  close();
}

std::vector<Frame::Range> Frame::values() const {
  std::vector<Range> ranges;
  const auto elements = checksums_.elements();
  for (std::size_t role = 0; role < places_.size(); ++role) {
    for (int t = 0; t < static_cast<int>(places_[role].size()); ++t) {
      const Place& place = places_[role][t];
      if (!place.is_there()) continue;
      ranges.push_back({place.offset, place.byte_of(elements[dataset_index(role, t, places_[role].size())])});
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
