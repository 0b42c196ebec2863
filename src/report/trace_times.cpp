// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/trace_times.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRanks = 64;
constexpr std::uintmax_t kLargestTrace = std::uintmax_t{256} << 20;

/// Intervals of time in microseconds.
using Times = std::vector<std::pair<double, double>>;

/// Joined where they overlap, in order.
Times united(Times times) {
  std::sort(times.begin(), times.end());
  Times result;
  for (const auto& [begin, end] : times) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

double length_of(const Times& times) {
  double length = 0;
  for (const auto& [begin, end] : times) length += end - begin;
  return length;
}

/// Of two lists that are united: length of what both have.
double common_length(const Times& a, const Times& b) {
  double length = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    length += std::max(0.0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    if (a[i].second < b[j].second) {
      ++i;
    } else {
      ++j;
    }
  }
  return length;
}

bool is_collective(const std::string& operation) {
  static const std::set<std::string> kCollectives = {"unshard", "reduce", "all_reduce", "reduce_scatter",
                                                     "all_gather"};
  return kCollectives.contains(operation);
}

bool is_copy(const std::string& operation) { return operation == "h2d" || operation == "d2h"; }

/// That only frees a buffer.
bool is_nothing(const std::string& operation) { return operation == "reshard"; }

}  // namespace

RankTimes trace_times(const std::string& text) try {
  RankTimes result;
  const auto trace = nlohmann::json::parse(text, nullptr, false);
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) return result;
  Times compute, collectives, copies;
  std::map<std::int64_t, std::pair<double, double>> steps;
  for (const auto& event : trace["traceEvents"]) {
    if (!event.is_object() || event.value("ph", "") != "X") continue;
    const double begin = event.value("ts", 0.0), end = begin + event.value("dur", 0.0);
    const auto operation = event.value("cat", std::string());
    result.rank = event.value("pid", 0);
    if (const auto arguments = event.find("args"); arguments != event.end() && arguments->is_object()) {
      auto& [first, last] =
          steps.try_emplace(arguments->value("step", std::int64_t{0}), begin, end).first->second;
      first = std::min(first, begin);
      last = std::max(last, end);
    }
    if (is_nothing(operation)) continue;
    (is_collective(operation) ? collectives : is_copy(operation) ? copies : compute).emplace_back(begin, end);
    result.operations[operation] += end - begin;
  }
  result.steps = std::ssize(steps);
  if (steps.empty()) return result;
  const double scale = 1e-6 / static_cast<double>(steps.size());
  for (const auto& [step, ends] : steps) result.step += scale * (ends.second - ends.first);
  compute = united(std::move(compute));
  collectives = united(std::move(collectives));
  result.compute = scale * length_of(compute);
  result.communication = scale * length_of(collectives);
  result.exposed = scale * (length_of(collectives) - common_length(collectives, compute));
  result.copies = scale * length_of(united(std::move(copies)));
  for (auto& [operation, time] : result.operations) time *= scale;
  return result;
} catch (const nlohmann::json::exception&) {  // a value of another type
  return {};
}

std::vector<RankTimes> read_trace_times(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json") && entry->file_size(error) <= kLargestTrace)
      files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  files.resize(std::min(files.size(), kMostRanks));
  std::vector<RankTimes> ranks;
  for (const auto& file : files) {
    try {
      if (auto times = trace_times(io::read_whole(file)); times.steps > 0) ranks.push_back(std::move(times));
    } catch (const UserError&) {  // it cannot be read
    }
  }
  return ranks;
}

}  // namespace llampi::report
