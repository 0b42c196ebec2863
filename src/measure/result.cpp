// SPDX-License-Identifier: Apache-2.0
// The result for people and for programs.
#include "llampi/measure/result.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi::measure {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

const Row* find(const Result& result, const std::string& group, const std::string& name) {
  const auto found = std::ranges::find_if(
      result.rows, [&](const Row& row) { return row.group == group && row.name == name; });
  return found == result.rows.end() ? nullptr : &*found;
}

/// Four digits of a rate, tokens/s as everywhere else.
std::string shown_rate(const Row& row) {
  return row.rate < 1000 ? fmt::format("{:.4g}", row.rate) : with_separators(row.rate);
}

/// "+25.0 % time, slower".
std::string change_of_time(double then, double now) {
  const double percent = then > 0 ? 100 * (now / then - 1) : 0;
  if (std::abs(percent) < 0.05) return "same time";
  return fmt::format("{:+.1f} % time, {}", percent, percent > 0 ? "slower" : "faster");
}

std::string shown_value(const std::string& value) { return value.empty() ? "not set" : value; }

/// What may make times differ, by name.
std::map<std::string, std::string> conditions(const Result& result) {
  std::map<std::string, std::string> all = result.configuration;
  all["device"] = result.device;
  all["ranks"] = std::to_string(result.ranks);
  all["nodes"] = std::to_string(result.nodes);
  all["threads per rank"] = std::to_string(result.shape.threads);
  return all;
}

}  // namespace

std::string format(const Result& result) {
  std::string text = fmt::format("{}; {} on {}, {} per rank\n", result.device, count(result.ranks, "rank"),
                                 count(result.nodes, "node"), count(result.shape.threads, "thread"));
  std::string group;
  const Row* first = nullptr;  // the first row of the group, with which the others are compared
  for (const auto& row : result.rows) {
    if (row.group == "operation") continue;  // for calibration, and in the file
    if (row.group != group) text += fmt::format("\n{}\n", group = row.group);
    text += fmt::format("  {:<52}{:>12.4f} ms", row.name, row.seconds * 1e3);
    if (!row.unit.empty()) text += fmt::format("{:>14} {}", shown_rate(row), row.unit);
    if (row.bus_rate > 0) text += fmt::format(", bus bandwidth {:.4g} GB/s", row.bus_rate);
    if (row.group == "step" || row.group == "strategy") {
      if (first == nullptr || first->group != row.group) {
        first = &row;
      } else {
        text += fmt::format(", {:+.1f} % against {}", 100 * (row.rate / first->rate - 1), first->name);
      }
    }
    text += "\n";
  }
  return text;
}

std::string to_json(const Result& result) {
  Json rows = Json::array();
  for (const auto& row : result.rows) {
    rows.push_back({{"group", row.group},
                    {"name", row.name},
                    {"seconds", row.seconds},
                    {"rate", row.unit.empty() ? Json() : Json(row.rate)},
                    {"unit", row.unit.empty() ? Json() : Json(row.unit)},
                    {"bus_rate", row.bus_rate > 0 ? Json(row.bus_rate) : Json()}});
  }
  return Json{{"llampi_bench", kVersion},
              {"device", result.device},
              {"gpu", result.gpu},
              {"ranks", result.ranks},
              {"nodes", result.nodes},
              {"ranks_on_node", result.ranks_on_node},
              {"threads", result.shape.threads},
              {"configuration", result.configuration},
              {"rows", rows}}
             .dump(1) +
         "\n";
}

Result from_json(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("llampi_bench", Json()) != kVersion)
    throw_user_error("{} is not a file that llampi bench --json has written", file);
  try {
    Result result{.device = json.at("device"),
                  .gpu = json.at("gpu"),
                  .ranks = json.at("ranks"),
                  .nodes = json.at("nodes"),
                  .ranks_on_node = json.at("ranks_on_node"),
                  .rows = {}};
    result.shape.threads = json.at("threads");
    if (json.contains("configuration")) json["configuration"].get_to(result.configuration);
    for (const auto& row : json.at("rows")) {
      Row read{.group = row.at("group"), .name = row.at("name"), .seconds = row.at("seconds"), .unit = {}};
      if (row.at("unit").is_string()) read.unit = row.at("unit"), read.rate = row.at("rate");
      if (row.at("bus_rate").is_number()) read.bus_rate = row.at("bus_rate");
      result.rows.push_back(std::move(read));
    }
    return result;
  } catch (const nlohmann::json::exception&) {
    throw_user_error(
        "{} is not a file that llampi bench --json has written: a value is missing or of another type", file);
  }
}

std::string format_comparison(const Result& now, const Result& then) {
  std::string text;
  const auto before = conditions(then);
  for (const auto& [name, value] : conditions(now)) {
    const auto found = before.find(name);
    if (found == before.end() || found->second == value) continue;
    text += fmt::format("not the same: {} was {}, and is {}\n", name, shown_value(found->second),
                        shown_value(value));
  }
  text += fmt::format("{:<12}{:<52}{:>12}{:>12}  {}\n", "", "milliseconds", "then", "now", "change");
  for (const auto& row : now.rows) {
    const Row* earlier = find(then, row.group, row.name);
    if (earlier == nullptr || row.seconds <= 0) continue;
    text += fmt::format("{:<12}{:<52}{:>12.4f}{:>12.4f}  {}\n", row.group, row.name, earlier->seconds * 1e3,
                        row.seconds * 1e3, change_of_time(earlier->seconds, row.seconds));
  }
  return text;
}

}  // namespace llampi::measure
