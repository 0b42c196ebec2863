// SPDX-License-Identifier: Apache-2.0
// Preloaded into a run (LD_PRELOAD): makes one call on a file of a checkpoint, on metrics.jsonl or on history.jsonl fail, or
// kills the process there. FAULTY_IO=RANK:CALL:NUMBER:WHAT, where CALL is stat, open (for reading), read, write, fsync, rename, remove,
// flock (of history.jsonl alone) or data (reading train.h5), NUMBER counts such calls of that rank from 1, and WHAT is kill (before the call), killed (after it), short (half
// of it, then kill), hang, slow (two seconds before it), flip (a bit of it: of a write, in the middle), or an error's name;
// errors go on from there, but for EIOonce.
// FREE_BYTES=FILE: where a path contains the first word of a line of FILE, so many bytes are free there as
// the second word says; if there is a third, only once that file is there. FILE is read anew each time.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace {

struct Fault {
  std::string call, what;
  long number = 0;

  Fault() {
    const char* text = std::getenv("FAULTY_IO");
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    char wanted[16], name[16], action[16];
    if (text == nullptr || rank == nullptr) return;
    if (std::sscanf(text, "%15[0-9]:%15[a-z]:%ld:%15[A-Za-z]", wanted, name, &number, action) != 4) {
      std::fprintf(stderr, "FAULTY_IO=%s is none\n", text);
      std::abort();
    }
    if (std::strcmp(rank, wanted) == 0) call = name, what = action;
  }
};

const Fault& fault() {
  static const Fault instance;
  return instance;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool concerns(const std::string& path) {
  if (fault().call == "flock") return path.ends_with("/history.jsonl");
  if (fault().call == "data") return path.ends_with("/train.h5");
  return path.find("/checkpoints/step-") != std::string::npos || path.ends_with("/metrics.jsonl");
}

std::string path_of(int descriptor) {
  char path[4096];
  const auto link = "/proc/self/fd/" + std::to_string(descriptor);
  const auto length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();  // not reached
}

/// Runs `call`, or what is to happen instead of it. `half` does half of it, where there is such a thing, and `flip`
/// all of it but one bit.
template <class Call, class Half, class Flip>
auto injected(const char* name, const std::string& path, const Call& call, const Half& half, const Flip& flip)
    -> decltype(call()) {
  static std::atomic<long> calls{0};
  if (fault().call != name || !concerns(path)) return call();
  const long number = ++calls;
  if (number < fault().number) return call();
  const auto& what = fault().what;
  for (const auto& [word, error] :
       {std::pair("ENOSPC", ENOSPC), {"EIO", EIO}, {"EROFS", EROFS}, {"ENOLCK", ENOLCK}}) {
    if (what != word) continue;
    errno = error;
    return -1;
  }
  if (number > fault().number) return call();
  if (what == "EIOonce") {
    errno = EIO;
    return -1;
  }
  if (what == "flip") return flip();
  if (what == "slow") {
    ::sleep(2);
    return call();
  }
  if (what == "short") half();
  if (what == "killed") call();
  while (what == "hang") ::pause();
  die();
}

constexpr auto kNoHalf = [] {};
constexpr auto kNoFlip = []() -> int { std::abort(); };

/// With one bit changed.
std::string flipped(const void* data, std::size_t bytes) {
  std::string copy(static_cast<const char*>(data), bytes);
  if (bytes > 0) copy[bytes / 2] = static_cast<char>(copy[bytes / 2] ^ 1);
  return copy;
}

template <class Write>
ssize_t write_at(const char* symbol, int descriptor, const void* data, std::size_t bytes, off_t offset) {
  const auto real = next<Write>(symbol);
  return injected(
      "write", path_of(descriptor), [&] { return real(descriptor, data, bytes, offset); },
      [&] { real(descriptor, data, bytes / 2, offset); },
      [&] { return real(descriptor, flipped(data, bytes).data(), bytes, offset); });
}

template <class... Arguments>
ssize_t read_at(const char* symbol, int descriptor, void* data, std::size_t bytes, Arguments... offset) {
  const auto real = next<ssize_t (*)(int, void*, std::size_t, Arguments...)>(symbol);
  return injected(
      fault().call == "data" ? "data" : "read", path_of(descriptor),
      [&] { return real(descriptor, data, bytes, offset...); }, kNoHalf, kNoFlip);
}

int open_at(const char* symbol, const char* path, int flags, mode_t mode) {
  const auto real = next<int (*)(const char*, int, mode_t)>(symbol);
  const auto call = [&] { return real(path, flags, mode); };
  return (flags & O_ACCMODE) == O_RDONLY ? injected("open", path, call, kNoHalf, kNoFlip) : call();
}

/// Of open(): only where a file may be made there is one.
mode_t mode_of(int flags, va_list arguments) {
  const bool makes = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return makes ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int stat(const char* path, struct stat* status) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  return injected(
      "stat", path, [&] { return real(path, status); }, kNoHalf, kNoFlip);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("open64", path, flags, mode);
}

ssize_t read(int descriptor, void* data, std::size_t bytes) {
  return read_at("read", descriptor, data, bytes);
}

ssize_t pread(int descriptor, void* data, std::size_t bytes, off_t offset) {
  return read_at("pread", descriptor, data, bytes, offset);
}

ssize_t pread64(int descriptor, void* data, std::size_t bytes, off_t offset) {
  return read_at("pread64", descriptor, data, bytes, offset);
}

ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  using Write = ssize_t (*)(int, const void*, std::size_t);
  static const auto real = next<Write>("write");
  return injected(
      "write", path_of(descriptor), [&] { return real(descriptor, data, bytes); },
      [&] { real(descriptor, data, bytes / 2); },
      [&] { return real(descriptor, flipped(data, bytes).data(), bytes); });
}

ssize_t pwrite(int descriptor, const void* data, std::size_t bytes, off_t offset) {
  return write_at<ssize_t (*)(int, const void*, std::size_t, off_t)>("pwrite", descriptor, data, bytes,
                                                                     offset);
}

ssize_t pwrite64(int descriptor, const void* data, std::size_t bytes, off_t offset) {
  return write_at<ssize_t (*)(int, const void*, std::size_t, off_t)>("pwrite64", descriptor, data, bytes,
                                                                     offset);
}

int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  return injected(
      "fsync", path_of(descriptor), [&] { return real(descriptor); }, kNoHalf, kNoFlip);
}

int statvfs(const char* path, struct statvfs* status) noexcept {
  static const auto real = next<int (*)(const char*, struct statvfs*)>("statvfs");
  const int result = real(path, status);
  const char* file = std::getenv("FREE_BYTES");
  if (result != 0 || file == nullptr) return result;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string part, needed;
    unsigned long bytes = 0;
    if (!(words >> part >> bytes) || std::strstr(path, part.c_str()) == nullptr) continue;
    if (words >> needed && ::access(needed.c_str(), F_OK) != 0) continue;
    status->f_frsize = 1;
    status->f_bavail = bytes;
    break;
  }
  return result;
}

int flock(int descriptor, int operation) noexcept {
  static const auto real = next<int (*)(int, int)>("flock");
  return injected(
      "flock", path_of(descriptor), [&] { return real(descriptor, operation); }, kNoHalf, kNoFlip);
}

int remove(const char* path) noexcept {
  static const auto real = next<int (*)(const char*)>("remove");
  return injected(
      "remove", path, [&] { return real(path); }, kNoHalf, kNoFlip);
}

int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return injected(
      "rename", to, [&] { return real(from, to); }, kNoHalf, kNoFlip);
}

}  // extern "C"
