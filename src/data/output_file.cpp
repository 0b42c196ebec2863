#include "data/output_file.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <random>
#include <string_view>

#include "data/posix_file.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".llampi-", kEnd = ".tmp";
constexpr std::chrono::hours kOld{24};

/// Host and, where containers have process numbers of their own, their name space.
std::string owner() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::error_code ignored;
  std::string space = fs::read_symlink("/proc/self/ns/pid", ignored).string();  // pid:[4026531836]
  std::erase_if(space, [](char c) { return c < '0' || c > '9'; });
  return fmt::format("{}-{}", host.data(), space);
}

/// Whose temporary file of `path` this is: "HOST-SPACE-PROCESS"; nothing if it is another file.
std::optional<std::string> writer_of(const fs::path& entry, const fs::path& path) {
  const std::string name = entry.filename().string();
  const std::string begin = path.filename().string() + std::string(kMark);
  if (!name.starts_with(begin) || !name.ends_with(kEnd)) return {};
  const std::string middle = name.substr(begin.size(), name.size() - begin.size() - kEnd.size());
  const auto dash = middle.rfind('-');
  if (dash == std::string::npos) return {};
  return middle.substr(0, dash);
}

bool is_dead(const std::string& writer) {
  const std::string mine = owner() + "-";
  if (!writer.starts_with(mine)) return false;
  pid_t process = 0;
  const char* end = writer.data() + writer.size();
  const auto [stop, error] = std::from_chars(writer.data() + mine.size(), end, process);
  if (error != std::errc() || stop != end || process <= 0) return false;
  return ::kill(process, 0) != 0 && errno == ESRCH;
}

bool is_old(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written > kOld;
}

}  // namespace

void OutputFile::check() const {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status)) throw_user_error("{} is a folder: give the name of a file", path.string());
  if (!fs::is_regular_file(status))
    throw_user_error("{} is not a regular file: name another output", path.string());
  if (overwrite || is_own(path)) return;
  throw_user_error("{} already exists and is not {}: name another file, or replace it with --overwrite",
                   path.string(), kind);
}

void OutputFile::place(const fs::path& temporary) const {
  // A link, unlike a new name, replaces nothing.
  if (::link(temporary.c_str(), path.c_str()) == 0) {
    fs::remove(temporary);
    sync_folder_of(path);
    return;
  }
  check();  // there is a file, or no hard links
  rename_into_place(temporary, path);
}

fs::path temporary_beside(const fs::path& path) {
  std::random_device random;
  return path.string() + fmt::format("{}{}-{}-{:08x}{}", kMark, owner(), ::getpid(), random(), kEnd);
}

void clear_leftovers(const fs::path& path, const Log& log) {
  const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<fs::path> leftovers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (writer_of(entry->path(), path)) leftovers.push_back(entry->path());
  }
  for (const auto& file : leftovers) {
    if (is_dead(*writer_of(file, path))) {
      fs::remove(file, error);
    } else if (is_old(file)) {
      log.warning("{} was left by a process that ended, or is being written: remove it if no job writes {}",
                  file.string(), path.string());
    }
  }
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;  // nothing to do about one that cannot be removed
  fs::remove(path_, ignored);
}

}  // namespace llampi
