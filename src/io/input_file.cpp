// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/input_file.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::io {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;

/// Of one compression. Both spans lose what was read of them or written to them.
class Unpacker {
 public:
  explicit Unpacker(const std::filesystem::path& file) : file_(file) {}
  virtual ~Unpacker() = default;
  /// @throws UnpackError
  virtual void unpack(std::span<const std::byte>& packed, std::span<std::byte>& space) = 0;
  /// Whether the file may end here.
  virtual bool may_end() const = 0;

 protected:
  /// @param reason the library's words
  [[noreturn]] void refuse(const char* library, const char* reason) const {
    throw UnpackError(file_, fmt::format("cannot be unpacked ({}: {})", library, reason));
  }

 private:
  const std::filesystem::path file_;
};

/// What a library wrote and read of two spans.
void advance(std::span<const std::byte>& packed, std::span<std::byte>& space, std::size_t packed_left,
             std::size_t space_left) {
  packed = packed.last(packed_left);
  space = space.last(space_left);
}

class Gzip final : public Unpacker {
 public:
  explicit Gzip(const std::filesystem::path& file) : Unpacker(file) {
    constexpr int kLargestWindow = 15, kOnlyGzip = 16;
    if (inflateInit2(&stream_, kLargestWindow + kOnlyGzip) != Z_OK) throw Error("zlib cannot be used");
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  void unpack(std::span<const std::byte>& packed, std::span<std::byte>& space) override {
    if (between_members_) {  // padding may follow the last one
      while (!packed.empty() && packed.front() == std::byte{0}) packed = packed.subspan(1);
      if (packed.empty()) return;
      inflateReset(&stream_);
      between_members_ = false;
    }
    // zlib does not write what it reads.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(space.data());
    const std::size_t asked = std::min(space.size(), std::size_t{1} << 30);
    stream_.avail_out = static_cast<uInt>(asked);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      refuse("gzip", stream_.msg != nullptr ? stream_.msg : zError(result));
    between_members_ = result == Z_STREAM_END;
    advance(packed, space, stream_.avail_in, space.size() - asked + stream_.avail_out);
  }
  bool may_end() const override { return between_members_; }

 private:
  z_stream stream_{};
  bool between_members_ = false;
};

class Zstd final : public Unpacker {
 public:
  explicit Zstd(const std::filesystem::path& file) : Unpacker(file) {
    // As `zstd --long=31` writes them; by itself the library takes windows of up to 128 MiB.
    constexpr int kLargestWindow = 31;
    if (stream_ == nullptr ||
        ZSTD_isError(ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindow)) != 0)
      throw Error("zstd cannot be used");
  }

  void unpack(std::span<const std::byte>& packed, std::span<std::byte>& space) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{space.data(), space.size(), 0};
    wanted_ = ZSTD_decompressStream(stream_.get(), &out, &in);
    if (ZSTD_isError(wanted_) != 0) refuse("zstd", ZSTD_getErrorName(wanted_));
    advance(packed, space, in.size - in.pos, out.size - out.pos);
  }
  bool may_end() const override { return wanted_ == 0; }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_{ZSTD_createDStream(), &ZSTD_freeDStream};
  std::size_t wanted_ = 0;  ///< of the frame's bytes, as zstd guesses; 0: it is complete
};

/// A skippable frame may come first, as pzstd writes them.
bool is_zstd(std::string_view head) {
  const bool may_skip = !head.empty() && (head.front() & 0xF0) == 0x50;
  return head.starts_with("\x28\xb5\x2f\xfd") || (may_skip && head.substr(1).starts_with("\x2a\x4d\x18"));
}

/// Null for what is not compressed.
std::unique_ptr<Unpacker> unpacker_for(const std::filesystem::path& file, std::span<const std::byte> begin) {
  const std::string_view head(reinterpret_cast<const char*>(begin.data()), begin.size());
  if (head.starts_with("\x1f\x8b")) return std::make_unique<Gzip>(file);
  if (is_zstd(head)) return std::make_unique<Zstd>(file);
  return nullptr;
}

}  // namespace

class InputFile::Impl {
 public:
  explicit Impl(const std::filesystem::path& path)
      : file_(PosixFile::open_for_reading(path)), buffer_(kChunk) {}

  std::size_t read(std::span<std::byte> bytes) {
    if (!begun_) begin();
    auto space = bytes;
    while (!space.empty()) {
      const bool at_end = rest_.empty() && !refill();
      if (at_end && (unpacker_ == nullptr || unpacker_->may_end())) break;
      const std::size_t before = space.size();
      unpacker_ == nullptr ? copy(space) : unpacker_->unpack(rest_, space);
      // At the end, what the unpacker still holds comes first.
      if (at_end && space.size() == before && !unpacker_->may_end())
        throw UnpackError(file_.path(), "is truncated: its compressed data end too early");
    }
    return bytes.size() - space.size();
  }

  std::int64_t file_bytes() const { return file_bytes_; }

 private:
  /// The whole first chunk, as a pipe may give a byte at a time.
  void begin() {
    std::size_t filled = 0;
    while (filled < buffer_.size()) {
      const std::size_t count = file_.read(std::span(buffer_).subspan(filled));
      if (count == 0) break;
      filled += count;
    }
    file_bytes_ = static_cast<std::int64_t>(filled);
    rest_ = std::span(buffer_).first(filled);
    unpacker_ = unpacker_for(file_.path(), rest_);
    begun_ = true;
  }

  /// False at the end of the file.
  bool refill() {
    const std::size_t count = file_.read(buffer_);
    file_bytes_ += static_cast<std::int64_t>(count);
    rest_ = std::span(buffer_).first(count);
    return count > 0;
  }

  void copy(std::span<std::byte>& space) {
    const std::size_t count = std::min(space.size(), rest_.size());
    std::copy_n(rest_.begin(), count, space.begin());
    rest_ = rest_.subspan(count);
    space = space.subspan(count);
  }

  PosixFile file_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;  ///< of the buffer, not yet used
  std::unique_ptr<Unpacker> unpacker_;
  std::int64_t file_bytes_ = 0;
  bool begun_ = false;
};

InputFile::InputFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
InputFile::~InputFile() = default;
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile& InputFile::operator=(InputFile&&) noexcept = default;

std::size_t InputFile::read(std::span<std::byte> bytes) { return impl_->read(bytes); }
std::int64_t InputFile::file_bytes() const { return impl_->file_bytes(); }

}  // namespace llampi::io
