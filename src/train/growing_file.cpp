// SPDX-License-Identifier: Apache-2.0
#include "train/growing_file.hpp"

#include <span>

#include "llampi/core/error.hpp"

namespace llampi::train {

GrowingFile::GrowingFile(const std::filesystem::path& file)
    : file_(io::PosixFile::open_for_writing(file)), bytes_(file_.size()) {}

std::string GrowingFile::append(std::string_view bytes) try {
  unwritten_ += bytes;
  write();
  return {};
} catch (const Error& error) {
  return error.what();
}

void GrowingFile::sync() {
  write();
  file_.sync();
}

/// A part that was written before it failed is written again, at the same place.
void GrowingFile::write() {
  file_.write_at(bytes_, std::as_bytes(std::span(unwritten_)));
  bytes_ += static_cast<std::int64_t>(unwritten_.size());
  unwritten_.clear();
}

}  // namespace llampi::train
