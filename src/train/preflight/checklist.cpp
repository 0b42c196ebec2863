// SPDX-License-Identifier: Apache-2.0
#include "train/preflight/checklist.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "llampi/comm/common_failure.hpp"
#include "llampi/core/text.hpp"

namespace llampi::train {
namespace {

/// Of all checks, so that those that are not made are listed too.
constexpr std::array kNames = {"program",  "data",   "weights", "products",   "links", "steps",
                               "replicas", "memory", "room",    "checkpoint", "saving"};

}  // namespace

void Checklist::add(const char* name, Verdict verdict, std::string text) {
  checks_.push_back({name, verdict, std::move(text)});
  if (tell_) tell_(checks_.back());
}

void Checklist::skip_the_rest() {
  for (std::size_t i = checks_.size(); i < kNames.size(); ++i)
    skip(kNames[i], "not checked after this failure");
}

std::string Checklist::on_hosts(const std::vector<int>& ranks) const {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) names.push_back(on_host(ranks[i]));
  const std::string more =
      ranks.size() > kNamed ? fmt::format(" and {} more", ranks.size() - kNamed) : std::string();
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

bool Checklist::attempt(const char* name, const std::string& advice, const std::function<void()>& work) {
  const auto failure = comm::common_failure(work);
  if (!failure) return true;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    fail(name, sentence_of(error, name_of_) + advice);
  }
  return false;
}

std::string format_rate(double bytes_per_second) {
  return bytes_per_second < 1e9 ? fmt::format("{:.0f} MB/s", bytes_per_second * 1e-6)
                                : fmt::format("{:.2f} GB/s", bytes_per_second * 1e-9);
}

}  // namespace llampi::train
