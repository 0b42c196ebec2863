// SPDX-License-Identifier: Apache-2.0
#include "train/spilled_metrics.hpp"

#include <fmt/format.h>

#include <string_view>
#include <system_error>

#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBefore = "metrics-to-", kAfter = ".jsonl";

}  // namespace

fs::path spilled_metrics(const fs::path& fallback, std::int64_t step) {
  return fallback / fmt::format("{}{:08}{}", kBefore, step, kAfter);
}

std::map<std::int64_t, fs::path> list_spilled_metrics(const fs::path& fallback) {
  std::map<std::int64_t, fs::path> found;
  std::error_code ignored;
  if (fallback.empty()) return found;
  for (const auto& file : io::entries_of(fallback, ignored)) {
    const std::string name = file.filename().string();
    if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) continue;
    const auto step = parse_number<std::int64_t>(
        std::string_view(name).substr(kBefore.size(), name.size() - kBefore.size() - kAfter.size()));
    if (step && spilled_metrics(fallback, *step) == file) found.emplace(*step, file);
  }
  return found;
}

void remove_spilled_metrics(const fs::path& fallback, std::int64_t last_step) {
  std::error_code ignored;
  for (const auto& [step, file] : list_spilled_metrics(fallback)) {
    if (step <= last_step) fs::remove(file, ignored);
  }
}

}  // namespace llampi::train
