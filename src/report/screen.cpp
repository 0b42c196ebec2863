// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/screen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "llampi/core/text.hpp"
#include "llampi/report/series.hpp"

namespace llampi::report {
namespace {

constexpr int kLabelColumns = 10;  ///< of the numbers left of a curve
constexpr int kLeastCurveRows = 3, kLeastCurveColumns = 8;
constexpr int kBarColumns = 24;

/// Cut to so many characters of UTF-8, each of them one column wide here, or filled up with spaces.
std::string fitted(const std::string& text, int columns, bool filled) {
  std::string result;
  int width = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (begins && width == columns) break;
    width += begins ? 1 : 0;
    result += c;
  }
  if (filled) result.append(static_cast<std::size_t>(columns - width), ' ');
  return result;
}

/// What cannot be shown becomes a question mark.
std::string shown(const std::string& text, bool utf8) {
  std::string result = replace_controls(text, '?');
  if (utf8) return result;
  std::erase_if(result, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; });
  std::ranges::replace_if(
      result, [](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; }, '?');
  return result;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  for (const auto& [unit, letter] : {std::pair(1e12, 'T'), {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}}) {
    if (size >= 10 * unit) return fmt::format("{:.4g}{}", value / unit, letter);
  }
  return fmt::format("{:.4g}", value);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return seconds < 60 ? fmt::format("{:.3g} s", seconds) : format_duration(seconds);
}

std::string percent(double part) { return std::isfinite(part) ? fmt::format("{:.1f} %", 100 * part) : "-"; }

std::string progress_bar(double part, int columns, bool utf8) {
  const int full = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * columns));
  std::string bar;
  for (int i = 0; i < columns; ++i) bar += i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : ".");
  return bar;
}

/// One value for each of so many places from left to right.
std::vector<double> spread(std::span<const double> values, int places) {
  const auto wanted = static_cast<std::size_t>(places);
  std::vector<double> result(wanted, std::numeric_limits<double>::quiet_NaN());
  if (values.empty()) return result;
  for (std::size_t i = 0; i < wanted; ++i) {
    if (values.size() >= wanted) {
      const std::size_t begin = i * values.size() / wanted, end = (i + 1) * values.size() / wanted;
      const auto part = values.subspan(begin, end - begin);
      result[i] = thin(part, part.size()).mean[0];
      continue;
    }
    const double at = static_cast<double>(i) * static_cast<double>(values.size() - 1) /
                      std::max(1.0, static_cast<double>(wanted - 1));
    const auto left = static_cast<std::size_t>(at), right = std::min(left + 1, values.size() - 1);
    const double part = at - static_cast<double>(left);
    result[i] = part == 0 ? values[left] : (1 - part) * values[left] + part * values[right];
  }
  return result;
}

/// A grid of dots, of which each character has several.
struct Dots {
  int columns, rows;
  std::vector<bool> set =
      std::vector<bool>(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows));
  std::size_t index(int column, int row) const { return static_cast<std::size_t>(row * columns + column); }
};

/// The curve from top to bottom, joined between neighbours.
Dots dots_of(std::span<const double> values, int columns, int rows) {
  Dots dots{columns, rows};
  const std::vector<double> points = spread(values, columns);
  const Bounds bounds = bounds_of(points);
  const double height = bounds.high - bounds.low;  // 0: what differs at all differs by roundings
  int before = -1;
  for (int column = 0; column < columns; ++column) {
    const double value = points[static_cast<std::size_t>(column)];
    if (!std::isfinite(value)) {
      before = -1;
      continue;
    }
    const int row =
        height > 0 ? static_cast<int>(std::lround((bounds.high - value) / height * (rows - 1))) : 0;
    int first = row, last = row;
    if (before >= 0 && before < row) first = before + 1;
    if (before > row) last = before - 1;
    for (int r = first; r <= last; ++r) dots.set[dots.index(column, r)] = true;
    before = row;
  }
  return dots;
}

/// Braille patterns begin at U+2800; each of their eight dots is a bit.
std::string braille(const Dots& dots, int column, int row) {
  constexpr std::array<std::array<int, 2>, 4> kBits = {
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  int pattern = 0;
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 2; ++c) {
      if (dots.set[dots.index(2 * column + c, 4 * row + r)])
        pattern |= kBits[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
    }
  }
  if (pattern == 0) return " ";
  return {static_cast<char>(0xe2), static_cast<char>(0xa0 | pattern >> 6),
          static_cast<char>(0x80 | (pattern & 0x3f))};
}

struct Curve {
  std::string title;
  const std::vector<double>* values;
};

/// A title, the curve with its largest and least value beside it, and the axis.
std::vector<std::string> panel(const Curve& curve, const Run& run, int columns, int rows, bool utf8) {
  const int width = columns - kLabelColumns - 2;
  std::vector<std::string> lines = {curve.title};
  const std::vector<std::string> drawn = plot(*curve.values, width, rows, utf8);
  const Bounds bounds = bounds_of(spread(*curve.values, utf8 ? 2 * width : width));
  for (int row = 0; row < rows; ++row) {
    std::string label;
    if (row == 0) label = short_number(bounds.high);
    if (row == rows - 1 && bounds.low < bounds.high) label = short_number(bounds.low);
    lines.push_back(fmt::format("{:>{}} {}{}", label, kLabelColumns - 1, utf8 ? "│" : "|",
                                drawn[static_cast<std::size_t>(row)]));
  }
  const std::string first = std::to_string(run.steps.step.front()),
                    last = std::to_string(run.steps.step.back());
  lines.push_back(fmt::format("{:>{}}{}{:>{}}", "", kLabelColumns + 1, first, last,
                              std::max(0, width - static_cast<int>(first.size()))));
  return lines;
}

std::vector<Curve> curves_of(const Run& run) {
  std::vector<Curve> curves;
  for (const auto& [key, title] : {std::pair("loss", "loss"),
                                   {"grad_norm", "gradient norm"},
                                   {"lr", "learning rate"},
                                   {"tokens_per_second", "tokens/s"},
                                   {"memory_bytes", "memory in bytes"},
                                   {"loss_scale", "loss scale"}}) {
    const auto* values = run.steps.find(key);
    if (values != nullptr && std::ranges::any_of(*values, [](double value) { return std::isfinite(value); }))
      curves.push_back({title, values});
  }
  return curves;
}

/// Of the ranks whose traces are there, the one that computes longest.
std::string slowest_rank(const Run& run, const std::optional<TracedRanks>& traced) {
  if (!traced || traced->is_of_earlier_job || run.trace.size() < 2) return "";
  const std::string steps = traced->first_step == traced->last_step
                                ? fmt::format("step {}", traced->first_step)
                                : fmt::format("steps {}-{}", traced->first_step, traced->last_step);
  return fmt::format("trace of {}: rank {} computes longest, {}, {:.0f} % over the median", steps,
                     traced->slowest, seconds_text(traced->seconds), 100 * traced->excess);
}

/// Where there is no room for both, the beginning of the folder goes, but not its name.
std::string folder_and_state(const std::filesystem::path& run_folder, const std::string& state, int columns) {
  std::string folder = run_folder.string();
  const auto name = run_folder.filename().string();
  const auto room = std::max(std::ssize(name), columns - std::ssize(state) - 5);
  if (std::ssize(folder) > room + 3)
    folder =
        "..." +
        (room == std::ssize(name) ? name : folder.substr(folder.size() - static_cast<std::size_t>(room)));
  return fmt::format("{}: {}", folder, state);
}

std::string progress_line(const Summary& s, bool is_running, const Screen& screen) {
  if (s.total_steps == 0) return fmt::format("step {}", s.step);
  const double part = static_cast<double>(s.step) / static_cast<double>(s.total_steps);
  const std::string steps = fmt::format("step {} of {}  ", s.step, s.total_steps);
  std::string rest = fmt::format("  {:.0f} %", std::floor(100 * part));
  if (std::isfinite(s.seconds_left))
    rest += fmt::format("  {} {}", format_duration(s.seconds_left), is_running ? "left" : "of training left");
  const int room = screen.columns - static_cast<int>(steps.size() + rest.size());
  return steps + progress_bar(part, std::clamp(room, 0, kBarColumns), screen.utf8) + rest;
}

std::string memory_line(const Run& run, const Summary& s) {
  std::string line = "memory ";
  line += std::isfinite(s.memory_bytes) ? format_bytes(static_cast<std::int64_t>(s.memory_bytes)) : "-";
  if (const auto planned = run.planned_bytes.find("device"); planned != run.planned_bytes.end())
    line += fmt::format(" {}, {} planned", run.device.starts_with("cpu") ? "resident" : "in use",
                        format_bytes(planned->second));
  if (run.ranks > 0) line += fmt::format("  {}, {}", count(run.ranks, "rank"), count(run.nodes, "node"));
  if (s.jobs > 1) line += "  " + count(s.jobs, "job");
  return line;
}

std::vector<std::string> summary_lines(const Run& run, const Summary& s, double now, const Screen& screen) {
  std::vector<std::string> lines = {folder_and_state(run.folder, s.state, screen.columns),
                                    progress_line(s, run.running.has_value(), screen)};
  if (run.unreadable_lines > 0)
    lines.push_back(fmt::format("metrics.jsonl has lines that cannot be read: {}",
                                with_separators(run.unreadable_lines)));
  if (run.steps.size() == 0) return lines;
  lines.push_back(fmt::format("loss {}  gradient norm {}  learning rate {}  labels so far {}",
                              short_number(s.loss), short_number(s.grad_norm), short_number(s.lr),
                              short_number(s.tokens)));
  lines.push_back(fmt::format("{} tokens/s  step {}  waiting for data {}  MFU {}",
                              short_number(s.tokens_per_second), seconds_text(s.step_seconds),
                              percent(s.data_share), percent(s.mfu)));
  lines.push_back(memory_line(run, s));
  if (std::isfinite(s.eval_loss)) {
    lines.push_back(fmt::format("evaluation: loss {} at step {}", short_number(s.eval_loss),
                                run.evaluations.step.back()));
    if (std::isfinite(s.best_eval_loss))
      lines.back() += fmt::format(", best {} at step {}", short_number(s.best_eval_loss), s.best_eval_step);
  }
  if (s.checkpoints > 0) {
    const auto last = std::find_if(run.history.rbegin(), run.history.rend(), [](const auto& event) {
      return event.kind == HistoryEvent::Kind::checkpoint;
    });
    lines.push_back(fmt::format("checkpoint: step {}, {} ago, written in {}", last->step,
                                format_duration(std::max(0.0, now - last->time)),
                                seconds_text(last->seconds)));
  }
  if (s.slow_rank) {
    const SlowRank& slow = *s.slow_rank;
    lines.push_back(fmt::format("slowest in {} of {}: rank {}, computing {} a step; average rank {}",
                                slow.steps, count(slow.of_steps, "step"), slow.rank,
                                seconds_text(slow.seconds), seconds_text(slow.mean_seconds)));
  }
  if (const std::string rank = slowest_rank(run, s.traced); !rank.empty()) lines.push_back(rank);
  if (!run.traces_left_out.empty()) lines.push_back("traces left out: " + run.traces_left_out);
  return lines;
}

void add_panels(std::vector<std::string>& lines, const Run& run, const Screen& screen) {
  const int side_by_side = screen.columns >= 72 ? 2 : 1;
  const int columns = (screen.columns - 2 * (side_by_side - 1)) / side_by_side;
  if (columns < kLabelColumns + 2 + kLeastCurveColumns) return;
  const auto curves = curves_of(run);
  const int free_rows = screen.rows - static_cast<int>(lines.size());
  const int wanted =
      (static_cast<int>(std::min<std::size_t>(curves.size(), 4)) + side_by_side - 1) / side_by_side;
  const int frame = 2;  // title and axis
  const int bands = std::min(wanted, free_rows / (kLeastCurveRows + frame));
  if (bands < 1) return;
  const int rows = std::clamp(free_rows / bands - frame, kLeastCurveRows, 12);
  for (std::size_t c = 0; c < curves.size() && c < static_cast<std::size_t>(bands * side_by_side);
       c += static_cast<std::size_t>(side_by_side)) {
    const auto left = panel(curves[c], run, columns, rows, screen.utf8);
    const bool has_right = side_by_side == 2 && c + 1 < curves.size();
    const auto right = has_right ? panel(curves[c + 1], run, columns, rows, screen.utf8)
                                 : std::vector<std::string>(left.size());
    for (std::size_t i = 0; i < left.size(); ++i)
      lines.push_back(has_right ? fitted(left[i], columns + 2, true) + right[i] : left[i]);
  }
}

}  // namespace

std::vector<std::string> plot(std::span<const double> values, int columns, int rows, bool utf8) {
  const Dots dots = utf8 ? dots_of(values, 2 * columns, 4 * rows) : dots_of(values, columns, rows);
  std::vector<std::string> lines;
  for (int row = 0; row < rows; ++row) {
    std::string line;
    for (int column = 0; column < columns; ++column)
      line +=
          utf8 ? braille(dots, column, row) : std::string(1, dots.set[dots.index(column, row)] ? '*' : ' ');
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> screen_lines(const Run& run, const Screen& screen, double now) {
  const Summary summary = summarize(run, now);
  std::vector<std::string> lines = summary_lines(run, summary, now, screen);
  for (auto& line : lines) line = shown(line, screen.utf8);
  if (run.steps.size() > 0) add_panels(lines, run, screen);
  lines.resize(std::min(lines.size(), static_cast<std::size_t>(std::max(1, screen.rows))));
  for (auto& line : lines) {
    line = fitted(line, screen.columns, false);
    line.erase(line.find_last_not_of(' ') + 1);
  }
  return lines;
}

}  // namespace llampi::report
