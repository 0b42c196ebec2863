// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/temporary_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/core/process.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".llampi-", kEnd = ".tmp";
constexpr std::chrono::hours kOld{24};

/// Tells hosts of one name apart, as clones and containers may have it; empty: unknown.
std::string start_of_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");  // 8 hexadecimal digits and more
  std::string id;
  file >> id;
  return id.substr(0, id.find('-'));
}

/// Host, its start and, where containers have process numbers of their own, their name space.
std::string owner() {
  std::error_code ignored;
  std::string space = fs::read_symlink("/proc/self/ns/pid", ignored).string();  // pid:[4026531836]
  std::erase_if(space, [](char c) { return c < '0' || c > '9'; });
  return fmt::format("{}-{}-{}", host_name(), start_of_host(), space);
}

struct Temporary {
  fs::path path;
  std::string output;  ///< the name that it was to get
  std::string writer;  ///< "HOST-START-SPACE-PROCESS"
};

/// What the name of a file says, if it is that of a temporary one.
std::optional<Temporary> parse_name(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto mark = name.rfind(kMark), dash = name.rfind('-');
  if (mark == std::string::npos || !name.ends_with(kEnd) || dash < mark + kMark.size()) return {};
  const auto begin = mark + kMark.size();
  return Temporary{path, name.substr(0, mark), name.substr(begin, dash - begin)};
}

std::vector<Temporary> temporaries_in(const fs::path& folder) {
  std::vector<Temporary> found;
  std::error_code ignored;
  for (const auto& file : entries_of(folder, ignored)) {
    if (auto temporary = parse_name(file)) found.push_back(*std::move(temporary));
  }
  return found;
}

/// A zombie, which its parent has not waited for yet, writes nothing any more.
bool is_dead(const std::string& writer) {
  const std::string mine = owner() + "-";
  if (!writer.starts_with(mine)) return false;
  const auto process = parse_number<pid_t>(std::string_view(writer).substr(mine.size()));
  return process && *process > 0 && process_state(*process) == '\0';
}

bool is_old(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written > kOld;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

void remove_leftover(const fs::path& path, std::string_view kept_entry) {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : entries_of(path, ignored)) {
      if (entry.filename() != kept_entry) fs::remove_all(entry, ignored);
    }
  }
  fs::remove(path, ignored);
}

void clear(const Temporary& temporary, const Log& log, std::string_view kept_entry = {}) {
  if (is_dead(temporary.writer)) {
    remove_leftover(temporary.path, kept_entry);
  } else if (is_old(temporary.path)) {
    log.warning("{} was left by a process that ended, or is being written: remove it if no job writes {}",
                temporary.path.string(), temporary.output);
  }
}

}  // namespace

fs::path temporary_beside(const fs::path& path) {
  std::random_device random;
  return path.string() + fmt::format("{}{}-{}-{:08x}{}", kMark, owner(), ::getpid(), random(), kEnd);
}

fs::path output_of(const fs::path& path) {
  const auto temporary = parse_name(path);
  return temporary ? path.parent_path() / temporary->output : path;
}

void clear_leftovers(const fs::path& path, const Log& log, std::string_view kept_entry) {
  for (const auto& temporary : temporaries_in(folder_of(path))) {
    if (temporary.output == path.filename()) clear(temporary, log, kept_entry);
  }
}

void clear_leftovers_in(const fs::path& folder, const Log& log) {
  for (const auto& temporary : temporaries_in(folder)) clear(temporary, log);
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;  // nothing to do about one that cannot be removed
  fs::remove_all(path_, ignored);
}

}  // namespace llampi::io
