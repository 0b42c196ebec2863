// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/spool.hpp"

#include <algorithm>
#include <cstring>

#include "llampi/core/error.hpp"

namespace llampi::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // a multiple of every width

template <class Stored>
void store(std::span<const std::int32_t> numbers, std::byte* to) {
  for (const auto number : numbers) {
    const auto stored = static_cast<Stored>(number);
    std::memcpy(to, &stored, sizeof(stored));
    to += sizeof(stored);
  }
}

}  // namespace

Spool::Spool(const std::filesystem::path& path) : path_(path), file_(PosixFile::create_unnamed(path)) {
  buffer_.reserve(kBufferBytes);
}

std::size_t Spool::extend(std::size_t count, std::size_t width) {
  if (buffer_.size() == kBufferBytes) flush();
  count = std::min(count, (kBufferBytes - buffer_.size()) / width);
  buffer_.resize(buffer_.size() + count * width);
  return count;
}

void Spool::append(std::span<const std::int32_t> numbers, std::size_t width) {
  while (!numbers.empty()) {
    const auto count = extend(numbers.size(), width);
    auto* to = buffer_.data() + buffer_.size() - count * width;
    const auto piece = numbers.first(count);
    if (width == 1) store<std::uint8_t>(piece, to);
    if (width == 2) store<std::uint16_t>(piece, to);
    if (width == 4) store<std::uint32_t>(piece, to);
    numbers = numbers.subspan(count);
  }
}

void Spool::append(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const auto count = extend(bytes.size(), 1);
    std::memcpy(buffer_.data() + buffer_.size() - count, bytes.data(), count);
    bytes = bytes.subspan(count);
  }
}

void Spool::append_ones(std::size_t count) {
  while (count > 0) {
    const auto piece = extend(count, 1);
    std::memset(buffer_.data() + buffer_.size() - piece, 1, piece);
    count -= piece;
  }
}

void Spool::flush() {
  file_.write_at(written_, buffer_);
  written_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void Spool::read(std::int64_t offset, std::span<std::byte> bytes) {
  flush();
  if (file_.read_at(offset, bytes) != bytes.size()) {
    throw Error(fmt::format("the temporary file of {} was cut short", path_.string()));
  }
}

void Spool::copy_to(const PosixFile& file, std::int64_t place) {
  flush();
  std::vector<std::byte> piece(kBufferBytes);
  for (std::int64_t done = 0; done < written_;) {
    const auto bytes = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::int64_t>(written_ - done, kBufferBytes)));
    read(done, bytes);
    file.write_at(place + done, bytes);
    done += static_cast<std::int64_t>(bytes.size());
  }
}

}  // namespace llampi::io
