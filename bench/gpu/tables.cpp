// SPDX-License-Identifier: Apache-2.0
// Results as Markdown.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "gpu/beside.hpp"
#include "gpu/results.hpp"

namespace llampi::bench {
namespace {

using nlohmann::json;

std::vector<json> read_lines(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw_user_error("{} cannot be read", file);
  std::vector<json> rows;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) rows.push_back(json::parse(line));
  }
  return rows;
}

std::string row_of(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string head_of(const std::vector<std::string>& titles, std::size_t texts) {
  std::vector<std::string> rule(titles.size(), "---:");
  for (std::size_t i = 0; i < texts; ++i) rule[i] = "---";
  return row_of(titles) + row_of(rule);
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "?";
}

constexpr std::int64_t kUsualHidden = 4096;  // of Llama-3-8B, whose blocks most rows are of
std::int64_t hidden_of(const json& row) { return row.value("hidden", kUsualHidden); }

/// What is not as in the usual row.
std::string name_of(const json& row) {
  std::string name = row.at("system");
  const auto unless = [&](const char* key, const std::string& usual, const std::string& text) {
    if (row.contains(key) && row[key] != usual) name += ", " + text + row[key].get<std::string>();
  };
  if (hidden_of(row) != kUsualHidden) name += fmt::format(", hidden {}", hidden_of(row));
  unless("checkpointing", "none", "checkpointing ");
  if (row.value("checkpointing", "") == "auto" && row.contains("recomputed"))
    name += fmt::format(" ({}{})", row["recomputed"].get<std::string>(),
                        row.value("offload_residuals", false) ? "; residuals in host memory" : "");
  unless("offload", "none", "offload ");
  if (const double labels = row.value("labels", 1.0); labels < 1)
    name += fmt::format(", labels for {:.0f} % of the tokens", 100 * labels);
  unless("state", "bfloat16", "state ");
  unless("gradient", "float32", "gradients ");
  unless("product", "auto", "products in ");
  unless("attention", "auto", "attention ");
  unless("note", "", "");
  if (!row.value("deterministic", true)) name += ", not deterministic";
  if (row["system"] == "llmq" && row.value("deterministic", true))
    name += ", deterministic";  // as it was given
  if (!row.value("graph", true)) name += ", without graphs";
  if (row.value("tuning", "auto") == "off") name += ", products as the library chooses";
  if (const std::int64_t logits = row.value("logits_workspace", std::int64_t{-1}); logits >= 0)
    name += fmt::format(", logits in {} MiB", logits);
  if (row.value("divides", false)) name += ", micro-batches as chosen";
  if (row.value("documents", 1) > 1)
    name += fmt::format(", {} documents a sequence", row["documents"].get<int>());
  if (row.value("ranks", 1) > 1) name += fmt::format(", {} ranks", row["ranks"].get<int>());
  return name;
}

/// The largest rate at which the device was seen to multiply.
double limit_of(const std::vector<json>& rows) {
  double limit = 0;
  for (const auto& row : rows) {
    if (row.contains("limits")) limit = std::max(limit, row["limits"]["square_tflops"].get<double>());
  }
  return limit;
}

/// What no verdict needs is named below the tables instead.
bool lacked_time(const json& row) {
  return row.value("not_measured", "") == "no time left" && !row.value("verdict", false);
}

std::string main_table(const std::vector<json>& rows) {
  const double limit = limit_of(rows);
  std::string text = head_of({"system", "sequence", "micro-batches", "layers", "tokens/s per GPU", "TFLOP/s",
                              "MFU", "of the product limit", "step, ms (least to most)", "memory, GB"},
                             1);
  for (const auto& row : rows) {
    if (lacked_time(row)) continue;
    std::vector<std::string> cells = {name_of(row)};
    for (const char* key : {"seq_len", "micro_batches", "layers"})
      cells.push_back(row.contains(key) ? row[key].dump() : "");
    if (row.contains("sequences")) cells[2] += " × " + row["sequences"].dump();
    if (row.contains("not_measured")) {
      cells.push_back("not measured: " + row["not_measured"].get<std::string>());
      cells.resize(10);
    } else {
      const double rate = row.at("tflops");
      cells.push_back(fmt::format("{:.0f}", row.at("tokens_per_second").get<double>()));
      cells.push_back(fmt::format("{:.1f}", rate));
      cells.push_back(percent(rate, row.at("peak_tflops")));
      cells.push_back(percent(rate, limit));
      cells.push_back(fmt::format("{:.1f} ({:.1f} to {:.1f})", 1e3 * row.at("step_seconds").get<double>(),
                                  1e3 * row.at("step_seconds_min").get<double>(),
                                  1e3 * row.at("step_seconds_max").get<double>()));
      cells.push_back(fmt::format("{:.1f}", row.at("memory_bytes").get<double>() / 1e9));
    }
    text += row_of(cells);
  }
  return text;
}

/// The results that have such a part, a column each: "8192" or "8192, checkpointing full".
struct Column {
  std::string title;
  const json* row;
};
std::vector<Column> columns_with(const std::vector<json>& rows, const char* part) {
  std::vector<Column> columns;
  for (const auto& row : rows) {
    if (!row.contains(part)) continue;
    const std::string name = name_of(row);
    const auto comma = name.find(", ");
    const std::string more = comma == std::string::npos ? "" : name.substr(comma);
    columns.push_back({fmt::format("{}{}", row["seq_len"].get<std::int64_t>(), more), &row});
  }
  return columns;
}

/// Of such a part of a profile; 0 where it is not there.
double seconds_in(const json& row, const char* part, const std::string& name) {
  return row["profile"].value(part, json::object()).value(name, 0.0);
}

/// Of all columns, what takes the most time in any of them first.
std::vector<std::string> names_in(const std::vector<Column>& columns, const char* part) {
  std::map<std::string, double> most;
  for (const auto& column : columns) {
    const json classes = (*column.row)["profile"].value(part, json::object());
    for (const auto& [name, seconds] : classes.items())
      most[name] = std::max(most[name], seconds.get<double>());
  }
  std::vector<std::string> names;
  for (const auto& [name, seconds] : most) names.push_back(name);
  std::sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return most[a] > most[b]; });
  return names;
}

std::string class_table(const std::vector<json>& rows) {
  auto columns = columns_with(rows, "profile");
  std::erase_if(columns, [](const Column& c) { return !(*c.row)["profile"].contains("classes"); });
  if (columns.empty()) return "";
  std::vector<std::string> titles = {"kernels, ms of a step"};
  for (const auto& column : columns) titles.push_back(column.title);
  std::string text = "\n" + head_of(titles, 1);
  const auto add = [&](const std::string& name, const auto& seconds_of) {
    std::vector<std::string> cells = {name};
    for (const auto& column : columns) {
      const auto& profile = (*column.row)["profile"];
      const double seconds = seconds_of(*column.row);
      cells.push_back(fmt::format("{:.1f} ({})", 1e3 * seconds, percent(seconds, profile["seconds"])));
    }
    text += row_of(cells);
  };
  for (const auto& name : names_in(columns, "classes"))
    add(name, [&](const json& row) { return seconds_in(row, "classes", name); });
  add("all: the step, issued", [](const json& row) { return row["profile"]["seconds"].get<double>(); });
  add("the step as it runs", [](const json& row) { return row["step_seconds"].get<double>(); });
  add("its matrix products alone",
      [](const json& row) { return row["limits"]["step_products_seconds"].get<double>(); });
  return text;
}

/// The same products in 8 bits, and what goes before them.
std::string fp8_tables(const json& fp8) {
  std::string text =
      "\n" +
      head_of({"product in 8 bits", "forward (fast accumulation with one scale), TFLOP/s", "dX", "dW"}, 1);
  const auto rate = [](const json& row, const char* key) {
    return fmt::format("{:.0f}", row[key].get<double>());
  };
  for (const auto& p : fp8["products"])
    text += row_of({p["name"], rate(p, "forward_tflops"), rate(p, "dx_tflops"), rate(p, "dweight_tflops")});
  text += "\n" + head_of({"before them", "GB/s, bytes read and written"}, 1);
  for (const auto& b : fp8["bandwidths"]) text += row_of({b["name"], rate(b, "gbytes_per_second")});
  return text;
}

std::string products_of(const Column& column, double limit) {
  const json& limits = (*column.row)["limits"];
  std::string text = "\n" + head_of({fmt::format("product, alone, hidden {}", hidden_of(*column.row)),
                                     "rows × out × in", "forward, TFLOP/s", "backward"},
                                    1);
  for (const auto& p : limits["products"]) {
    const auto& shape = p["shape"];
    text += row_of({p["name"], fmt::format("{} × {} × {}", shape[0].dump(), shape[1].dump(), shape[2].dump()),
                    fmt::format("{:.1f}", p["forward_tflops"].get<double>()),
                    fmt::format("{:.1f}", p["backward_tflops"].get<double>())});
  }
  text +=
      row_of({"all of a step", "", fmt::format("{:.1f}", limits["step_products_tflops"].get<double>()), ""});
  text += row_of({"a large square (the limit)", "", fmt::format("{:.1f}", limit), ""});
  text += fmt::format("\nA copy in the device's memory moves {:.0f} GB/s, bytes read and written.\n",
                      limits["copy_gbytes_per_second"].get<double>());
  return limits.contains("fp8") ? text + fp8_tables(limits["fp8"]) : text;
}

/// Of the first row of each model.
std::string product_table(const std::vector<json>& rows) {
  std::string text;
  std::set<std::int64_t> shown;
  for (const auto& column : columns_with(rows, "limits")) {
    if (shown.insert(hidden_of(*column.row)).second) text += products_of(column, limit_of(rows));
  }
  return text;
}

std::string note_of_time(const std::vector<json>& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) {
    if (!lacked_time(row)) continue;
    names.push_back(name_of(row));
    if (row.contains("seq_len")) names.back() += fmt::format(" at {}", row["seq_len"].get<std::int64_t>());
  }
  return names.empty() ? "" : fmt::format("\nNo time was left for: {}.\n", fmt::join(names, "; "));
}

}  // namespace

std::string tables(const std::string& file) {
  const auto rows = read_lines(file);
  return main_table(rows) + verdicts(rows) + class_table(rows) + product_table(rows) + note_of_time(rows);
}

}  // namespace llampi::bench
