// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/process.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace llampi {

namespace {

/// A file that cannot be read, for want of descriptors or memory, does not mean that the process has ended.
bool has_ended(std::int64_t pid) { return ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH; }

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

void raise_open_files() {
  constexpr rlim_t kWanted = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t most = std::min(limit.rlim_max, kWanted);
  if (limit.rlim_cur >= most) return;
  limit.rlim_cur = most;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if not, opening a file says so
}

char process_state(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return has_ended(pid) ? '\0' : '?';
  const char state = line[name_end + 2];
  return state == 'Z' || state == 'X' ? '\0' : state;
}

std::string process_namespace() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

std::int64_t io_bytes() {
  std::ifstream file("/proc/self/io");
  std::int64_t sum = 0;
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;) {
    if (key == "rchar:" || key == "wchar:") sum += value;
  }
  return sum;
}

}  // namespace llampi
