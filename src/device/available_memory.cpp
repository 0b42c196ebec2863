// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: of the machine, and of each control group around it, in which
// containers and batch systems put limits.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "llampi/core/split.hpp"
#include "llampi/device/host_memory.hpp"

namespace llampi::device {
namespace {

namespace fs = std::filesystem;

/// What the memory controller of one version of control groups calls its files.
struct Controller {
  const char *limit, *used, *reclaimable;
};
constexpr Controller kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Controller kVersion2 = {"memory.max", "memory.current", "inactive_file"};

/// The number after the word `key` in a file, or the first one; nothing if there is none, as in "max".
std::optional<std::int64_t> number_in(const fs::path& file, const std::string& key = {}) {
  std::ifstream in(file);
  std::string word;
  while (!key.empty() && in >> word && word != key) continue;
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Where a hierarchy of groups with a memory controller can be seen.
struct Hierarchy {
  Controller controller;
  std::string group;        ///< the folder that is mounted, as seen from the root of the hierarchy
  std::string mount_point;  ///< where
};

/// By /proc/self/mountinfo (see proc(5)).
std::vector<Hierarchy> mounted_hierarchies(const fs::path& root, bool version_2) {
  std::vector<Hierarchy> found;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const auto fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 5 || fields.end() - dash < 4) continue;
    const bool wanted =
        version_2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && contains(split(dash[3], ','), "memory");
    if (wanted) found.push_back({version_2 ? kVersion2 : kVersion1, fields[3], fields[4]});
  }
  return found;
}

/// What one group leaves. Pages of files that were not used of late are given back when memory is short.
std::optional<std::int64_t> left_by(const fs::path& group, const Controller& controller) {
  const auto limit = number_in(group / controller.limit), used = number_in(group / controller.used);
  if (!limit || !used) return std::nullopt;
  const std::int64_t reclaimable = number_in(group / "memory.stat", controller.reclaimable).value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - reclaimable));
}

/// The least that the group `path`, or one around it as far as they can be seen, leaves.
void take_least(std::int64_t& least, const fs::path& root, const Hierarchy& hierarchy, std::string path) {
  const std::string above = hierarchy.group == "/" ? "" : hierarchy.group;
  const bool inside = path.starts_with(above + "/") && path.find("/..") == std::string::npos;
  path = inside ? path.substr(above.size()) : "";
  for (;; path.erase(path.rfind('/'))) {
    const auto left = left_by(root / (hierarchy.mount_point + path).substr(1), hierarchy.controller);
    if (left) least = std::min(least, *left);
    if (path.empty()) return;
  }
}

}  // namespace

std::int64_t available_host_memory(const fs::path& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (const auto kib = number_in(root / "proc/meminfo", "MemAvailable:")) least = *kib * 1024;
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/path" is of version 2, "5:cpu,memory:/path" of 1
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !contains(split(controllers, ','), "memory")) continue;
    for (const auto& hierarchy : mounted_hierarchies(root, controllers.empty()))
      take_least(least, root, hierarchy, line.substr(second + 1));
  }
  return least;
}

}  // namespace llampi::device
