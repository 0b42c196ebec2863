// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/posix_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "llampi/core/error.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::io {
namespace {

/// Throws for the current errno. `action`: "read", "written", ...
[[noreturn]] void fail(const std::filesystem::path& path, const char* call, const char* action) {
  const int error = errno;
  const auto reason = std::generic_category().message(error);
  static constexpr std::array kUsers{ENOENT, ENOTDIR, EISDIR, EACCES, EPERM,        EROFS,  ENOSPC,
                                     EDQUOT, EFBIG,   ELOOP,  ENXIO,  ENAMETOOLONG, EMFILE, ENFILE};
  for (const int users : kUsers) {
    if (error == users)
      throw FileError(fmt::format("{} cannot be {}: {}{}", output_of(path).string(), action, reason,
                                  error == EMFILE ? "; raise the limit with `ulimit -n`" : ""),
                      error);
  }
  throw CallError(call, fmt::format("{}: {}", path.string(), reason));
}

/// `call` again for as long as a signal interrupts it.
template <class Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

void give_name(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename", "created");
}

}  // namespace

std::filesystem::file_type type_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::none)
    throw_user_error("{} cannot be read: {}", path.string(), error.message());
  return type;
}

PosixFile::PosixFile(const std::filesystem::path& path, int flags, const char* action) : path_(path) {
  descriptor_ = retry([&] { return open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) fail(path, "open", action);
}

PosixFile PosixFile::open_for_reading(const std::filesystem::path& path) { return {path, O_RDONLY, "read"}; }

PosixFile PosixFile::open_for_writing(const std::filesystem::path& path) {
  return {path, O_WRONLY, "written"};
}

PosixFile PosixFile::create(const std::filesystem::path& path) {
  return {path, O_RDWR | O_CREAT | O_TRUNC, "created"};
}

PosixFile PosixFile::open_or_create(const std::filesystem::path& path) {
  return {path, O_RDWR | O_CREAT, "created"};
}

PosixFile PosixFile::create_unnamed(const std::filesystem::path& path) {
  PosixFile file = create(temporary_beside(path));
  std::filesystem::remove(file.path());
  file.path_ = path;
  return file;
}

PosixFile PosixFile::in_memory(const char* name) {
  PosixFile file;
  file.descriptor_ = ::memfd_create(name, MFD_CLOEXEC);
  if (file.descriptor_ < 0) fail(name, "memfd_create", "created");
  file.path_ = "/proc/self/fd/" + std::to_string(file.descriptor_);
  return file;
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

std::int64_t PosixFile::size() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) fail(path_, "fstat", "read");
  return status.st_size;
}

std::size_t PosixFile::read(std::span<std::byte> bytes) const {
  const auto count = retry([&] { return ::read(descriptor_, bytes.data(), bytes.size()); });
  if (count < 0) fail(path_, "read", "read");
  return static_cast<std::size_t>(count);
}

std::size_t PosixFile::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {  // one pread moves 2 GiB at most
    const auto rest = bytes.subspan(done);
    const auto count = retry([&] {
      return pread(descriptor_, rest.data(), rest.size(), offset + static_cast<std::int64_t>(done));
    });
    if (count < 0) fail(path_, "pread", "read");
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

void PosixFile::read_ahead(std::int64_t offset, std::int64_t bytes) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

void PosixFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto count = retry([&] { return pwrite(descriptor_, bytes.data(), bytes.size(), offset); });
    if (count < 0) fail(path_, "pwrite", "written");
    offset += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void PosixFile::replace_content(std::string_view text) const {
  const auto bytes = static_cast<std::int64_t>(text.size());
  if (bytes > 0 && retry([&] { return ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, bytes); }) != 0 &&
      (errno == ENOSPC || errno == EDQUOT))  // otherwise the file system cannot tell
    fail(path_, "fallocate", "written");
  write_at(0, std::as_bytes(std::span(text)));
  truncate(bytes);
  sync();
}

void PosixFile::truncate(std::int64_t bytes) const {
  if (retry([&] { return ::ftruncate(descriptor_, bytes); }) != 0) fail(path_, "ftruncate", "written");
}

void PosixFile::sync() const {
  if (retry([&] { return ::fsync(descriptor_); }) == 0) return;
  const int error = errno;
  struct stat status {};
  const bool is_folder = ::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode);
  if (is_folder && (error == EINVAL || error == ENOTSUP)) return;  // some file systems cannot sync one
  errno = error;
  fail(path_, "fsync", "written");
}

Lock PosixFile::lock() const {
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EACCES) return Lock::taken;
    if (errno != EINTR) return Lock::unsupported;
  }
  return Lock::locked;
}

bool PosixFile::is_at_its_path() const {
  struct stat here {
  }, there{};
  if (::fstat(descriptor_, &here) != 0) fail(path_, "fstat", "read");
  return ::stat(path_.c_str(), &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

std::string read_whole(const std::filesystem::path& path) {
  const auto file = PosixFile::open_for_reading(path);
  std::string text(static_cast<std::size_t>(file.size()) + 1, '\0');  // one more, in which the end is found
  std::size_t done = 0;
  while (const auto count = file.read(std::as_writable_bytes(std::span(text)).subspan(done))) {
    done += count;
    if (done == text.size()) text.resize(2 * done);  // a pipe, or a file that grows meanwhile
  }
  text.resize(done);
  return text;
}

void write_whole(const std::filesystem::path& path, std::string_view text, bool on_disk) {
  if (on_disk) clear_leftovers(path, {});
  const auto temporary = temporary_beside(path);
  try {
    const auto out = PosixFile::create(temporary);
    out.write_at(0, std::as_bytes(std::span(text)));
    if (on_disk) {
      out.sync();
      rename_into_place(temporary, path);
    } else {
      give_name(temporary, path);
    }
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

namespace {

/// The link on the way to `path`, itself included, that leads nowhere; empty if there is none.
std::filesystem::path dangling_link(const std::filesystem::path& path) {
  std::filesystem::path way;
  std::error_code ignored;
  for (const auto& step : path) {
    way /= step;
    if (std::filesystem::is_symlink(way, ignored) && !std::filesystem::exists(way, ignored)) return way;
  }
  return {};
}

}  // namespace

void create_folder(const std::filesystem::path& folder, std::string_view advice) {
  if (folder.empty()) return;
  std::error_code error, ignored;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  if (const auto link = dangling_link(folder); !link.empty())
    throw_user_error("cannot create the folder {}: the link {} leads to {}, which is not there{}",
                     folder.string(), link.string(), std::filesystem::read_symlink(link, ignored).string(),
                     advice);
  throw_user_error("cannot create the folder {}: {}{}", folder.string(), error.message(), advice);
}

void rename_into_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  give_name(from, to);
  sync_folder_of(to);
}

void sync_folder_of(const std::filesystem::path& file) {
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  PosixFile::open_for_reading(folder).sync();
}

}  // namespace llampi::io
