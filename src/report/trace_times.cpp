// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/trace_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

bool is_copy(const std::string& operation) { return operation == "h2d" || operation == "d2h"; }

/// An operation that only frees a buffer.
bool is_nothing(const std::string& operation) { return operation == "reshard"; }

/// Adds up the events of a trace, one at a time.
class Sums {
 public:
  /// @throws json::exception for an event with values of other types
  void add(const json& event) {
    if (event.value("ph", "") != "X") return;
    const double begin = event.value("ts", 0.0), end = begin + std::max(0.0, event.value("dur", 0.0));
    const auto operation = event.value("cat", std::string());
    result_.rank = event.value("pid", 0);
    const auto found = event.find("args");
    const bool has_arguments = found != event.end() && found->is_object();
    if (has_arguments) {
      auto& [first, last] =
          steps_.try_emplace(found->value("step", std::int64_t{0}), begin, end).first->second;
      first = std::min(first, begin);
      last = std::max(last, end);
    }
    if (is_nothing(operation)) return;
    const bool is_of_ranks = has_arguments && found->contains("ranks");
    Times& times = is_of_ranks ? collectives_ : is_copy(operation) ? copies_ : compute_;
    times.emplace_back(begin, end);
    result_.operations[operation] += end - begin;
  }

  RankTimes result() && {
    result_.steps = std::ssize(steps_);
    if (steps_.empty()) return {};
    result_.first_step = steps_.begin()->first;
    result_.last_step = steps_.rbegin()->first;
    const double scale = 1e-6 / static_cast<double>(steps_.size());
    for (const auto& [step, ends] : steps_) result_.step += scale * (ends.second - ends.first);
    compute_ = united(std::move(compute_));
    collectives_ = united(std::move(collectives_));
    result_.compute = scale * length_of(compute_);
    result_.communication = scale * length_of(collectives_);
    result_.exposed = scale * (length_of(collectives_) - common_length(collectives_, compute_));
    result_.copies = scale * length_of(united(std::move(copies_)));
    for (auto& [operation, time] : result_.operations) time *= scale;
    return std::move(result_);
  }

 private:
  RankTimes result_;
  Times compute_, collectives_, copies_;
  std::map<std::int64_t, std::pair<double, double>> steps_;
};

}  // namespace

/// Each event is forgotten once it is added: as a tree, a trace takes several times the memory of its text.
RankTimes trace_times(const std::string& text) try {
  Sums sums;
  bool in_events = false;
  const auto take = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth == 1 && event == Event::key) in_events = parsed == "traceEvents";
    if (depth != 2 || event != Event::object_end || !in_events) return true;
    sums.add(parsed);
    return false;
  };
  const bool is_whole = !json::parse(text, take, false).is_discarded();
  return is_whole ? std::move(sums).result() : RankTimes();
} catch (const json::exception&) {  // a value of another type
  return {};
}

TraceFiles find_traces(const fs::path& folder) {
  TraceFiles traces;
  std::error_code ignored;
  for (const auto& file : io::entries_of(folder, ignored)) {
    const std::string name = file.filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".json")) continue;
    std::error_code of_file;  // a link that leads nowhere, say: it cannot be read
    const std::uintmax_t bytes = fs::file_size(file, of_file);
    traces.files.push_back({file, of_file ? 0 : bytes, fs::last_write_time(file, of_file)});
  }
  std::ranges::sort(traces.files, {}, &TraceFiles::File::path);
  const std::size_t kept = std::min(traces.files.size(), kMostRanks);
  traces.beyond = std::ssize(traces.files) - static_cast<std::int64_t>(kept);
  traces.files.resize(kept);
  traces.too_large = static_cast<std::int64_t>(
      std::erase_if(traces.files, [](const auto& file) { return file.bytes > kLargestTrace; }));
  return traces;
}

TraceTimes read_trace_times(const TraceFiles& traces) {
  TraceTimes times;
  std::int64_t unreadable = 0;
  for (const auto& file : traces.files) {
    RankTimes rank;
    try {
      rank = trace_times(io::read_whole(file.path));
    } catch (const Error&) {  // it cannot be read
    }
    if (rank.steps > 0) {
      times.ranks.push_back(std::move(rank));
    } else {
      ++unreadable;
    }
  }
  std::vector<std::string> left_out;
  if (traces.beyond > 0) left_out.push_back(fmt::format("{} after the first {}", traces.beyond, kMostRanks));
  if (traces.too_large > 0)
    left_out.push_back(fmt::format("{} larger than {}", traces.too_large, format_bytes(kLargestTrace)));
  if (unreadable > 0) left_out.push_back(fmt::format("{} that cannot be read", unreadable));
  times.left_out = fmt::format("{}", fmt::join(left_out, ", "));
  return times;
}

}  // namespace llampi::report
