// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/memory_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi::plan {
namespace {

constexpr double kLeft = 70, kTop = 58, kPlotWidth = 800, kPlotHeight = 280, kWidth = 890, kHeight = 430;
constexpr std::size_t kMostColumns = 800;  // one for each pixel

constexpr std::string_view kStyle = R"(
text { font: 13px sans-serif; fill: #1f2328; }
.title { font-weight: bold; font-size: 15px; }
.small { font-size: 12px; fill: #59636e; }
.back { fill: #ffffff; }
.line { stroke: #59636e; stroke-width: 1; fill: none; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.planned { stroke: #b42318; stroke-width: 1.5; stroke-dasharray: 6 4; }
.parameters { fill: #3b76c4; } .gradients { fill: #d9822b; } .optimizer { fill: #3f9a5b; }
.activations { fill: #9a5fc0; } .other { fill: #8a929b; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9da7b3; } .back { fill: #0d1117; }
.line { stroke: #9da7b3; } .grid { stroke: #30363d; } .planned { stroke: #ff7b72; }
.parameters { fill: #4f8fe0; } .gradients { fill: #e39a4d; } .optimizer { fill: #56b877; }
.activations { fill: #b07cd6; } .other { fill: #6e7781; }
}
)";

using Bytes = std::array<std::int64_t, fsdp::kCategories>;

const char* name_of(std::size_t category) { return fsdp::to_string(static_cast<fsdp::Category>(category)); }

std::int64_t sum_of(const Bytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// Of the device's buffers, during each action.
std::vector<Bytes> bytes_of_actions(const fsdp::Program& program) {
  std::vector<Bytes> bytes(program.actions.size() + 1);
  for (const auto& buffer : program.buffers) {
    if (buffer.arena != fsdp::Arena::device) continue;
    const auto category = static_cast<std::size_t>(buffer.purpose.category());
    if (buffer.persistent) bytes.front()[category] += buffer.bytes;
    for (const auto& range : buffer.live) {
      bytes.at(static_cast<std::size_t>(range.first))[category] += buffer.bytes;
      bytes.at(static_cast<std::size_t>(range.last) + 1)[category] -= buffer.bytes;
    }
  }
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    for (std::size_t c = 0; c < bytes[i].size(); ++c) bytes[i][c] += bytes[i - 1][c];
  }
  bytes.pop_back();
  return bytes;
}

/// At most kMostColumns, each the largest of its actions.
std::vector<Bytes> columns_of(const std::vector<Bytes>& actions) {
  const std::size_t count = std::min(actions.size(), kMostColumns);
  std::vector<Bytes> columns;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = actions.begin() + static_cast<std::ptrdiff_t>(i * actions.size() / count);
    const auto end = actions.begin() + static_cast<std::ptrdiff_t>((i + 1) * actions.size() / count);
    columns.push_back(
        *std::max_element(begin, end, [](const Bytes& a, const Bytes& b) { return sum_of(a) < sum_of(b); }));
  }
  return columns;
}

/// A part of a step: "forward", with the first and the last of its actions.
struct Part {
  std::string_view name;
  int first = 0, last = 0;
};

std::vector<Part> parts_of_step(const std::vector<fsdp::Action>& actions) {
  std::vector<Part> parts;
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    const fsdp::Op op = actions[static_cast<std::size_t>(i)].op;
    const std::string_view name =
        op == fsdp::Op::forward                                                         ? "forward"
        : op == fsdp::Op::backward                                                      ? "backward"
        : op == fsdp::Op::sum_squares || op == fsdp::Op::norm || op == fsdp::Op::update ? "optimizer"
                                                                                        : "";
    if (name.empty()) continue;
    if (parts.empty() || parts.back().name != name) parts.push_back({name, i, i});
    parts.back().last = i;
  }
  return parts;
}

}  // namespace

std::string memory_svg(const Job& job, const fsdp::CompiledModel& compiled) {
  const auto& actions = compiled.step.actions;
  require(!actions.empty(), "a picture is of a training step");
  const auto of_actions = bytes_of_actions(compiled.step);
  const auto columns = columns_of(of_actions);
  const auto peak = std::max_element(of_actions.begin(), of_actions.end(),
                                     [](const Bytes& a, const Bytes& b) { return sum_of(a) < sum_of(b); });
  const std::int64_t peak_bytes = sum_of(*peak);
  const std::int64_t planned = compiled.step.arena_bytes[static_cast<std::size_t>(fsdp::Arena::device)];
  const double scale = kPlotHeight / (1.05 * static_cast<double>(std::max(planned, std::int64_t{1})));
  const auto x_of = [&](double action) {
    return kLeft + kPlotWidth * action / static_cast<double>(actions.size());
  };
  const auto y_of = [&](std::int64_t bytes) {
    return kTop + kPlotHeight - scale * static_cast<double>(bytes);
  };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "data-peak-bytes=\"{2}\" data-planned-bytes=\"{3}\">\n<title>Memory of a rank's device during a training step</title>\n"
      "<style>{4}</style>\n<rect class=\"back\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, kHeight, peak_bytes, planned, kStyle);
  svg += fmt::format(
      "<text class=\"title\" x=\"{}\" y=\"22\">Memory of a rank's device during a training step</text>\n",
      kLeft);
  svg += fmt::format("<text class=\"small\" x=\"{}\" y=\"42\">{}, {}, micro-batch {} x {}, {}</text>\n",
                     kLeft, fsdp::to_string(job.options.strategy), count(job.machine.shape.ranks, "rank"),
                     job.options.batch.sequences, count(job.options.batch.seq_len, "token"),
                     count(job.options.micro_batches, "micro-batch", "es"));
  constexpr int kLines = 4;
  for (int i = 0; i <= kLines; ++i) {
    const std::int64_t bytes = planned * i / kLines;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n"
        "<text class=\"small\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kLeft + kPlotWidth, y_of(bytes), kLeft - 6, y_of(bytes) + 4, format_bytes(bytes));
  }
  const auto column_x = [&](std::size_t i) {
    return kLeft + kPlotWidth * static_cast<double>(i) / static_cast<double>(columns.size());
  };
  std::vector<std::int64_t> below(columns.size()), top(columns.size());
  for (std::size_t c = 0; c < fsdp::kCategories; ++c) {
    for (std::size_t i = 0; i < columns.size(); ++i) top[i] = below[i] + columns[i][c];
    // Along the top, and back along the bottom, with a point only where a height changes.
    std::string path = fmt::format("M{:.1f} {:.1f}", kLeft, y_of(top.front()));
    for (std::size_t i = 1; i < columns.size(); ++i) {
      if (top[i] != top[i - 1]) path += fmt::format("H{:.1f}V{:.1f}", column_x(i), y_of(top[i]));
    }
    path += fmt::format("H{:.1f}V{:.1f}", kLeft + kPlotWidth, y_of(below.back()));
    for (std::size_t i = columns.size() - 1; i > 0; --i) {
      if (below[i] != below[i - 1]) path += fmt::format("H{:.1f}V{:.1f}", column_x(i), y_of(below[i - 1]));
    }
    svg += fmt::format("<path class=\"{}\" d=\"{}H{:.1f}Z\"/>\n", name_of(c), path, kLeft);
    below = top;
  }
  svg += fmt::format("<line class=\"planned\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.2f}\" y2=\"{2:.2f}\"/>\n", kLeft,
                     kLeft + kPlotWidth, y_of(planned));
  svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">planned {}; peak {}</text>\n",
                     kLeft + kPlotWidth, y_of(planned) - 4, format_bytes(planned), format_bytes(peak_bytes));
  constexpr double kBottom = kTop + kPlotHeight;
  for (const Part& part : parts_of_step(actions)) {
    const double begin = x_of(part.first), end = x_of(part.last + 1);
    svg +=
        fmt::format("<path class=\"line\" d=\"M{0:.1f} {2} v5 H{1:.1f} v-5\"/>\n", begin, end, kBottom + 3);
    constexpr double kRoomForName = 62;
    if (end - begin > kRoomForName)
      svg += fmt::format("<text class=\"small\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                         (begin + end) / 2, kBottom + 24, part.name);
  }
  constexpr double kLegend = kPlotWidth / fsdp::kCategories;
  for (std::size_t c = 0; c < fsdp::kCategories; ++c) {
    svg += fmt::format(
        "<rect class=\"{0}\" x=\"{1}\" y=\"{2}\" width=\"12\" height=\"12\"/>\n<text x=\"{3}\" y=\"{4}\">{0}</text>\n"
        "<text class=\"small\" x=\"{3}\" y=\"{5}\">{6} at the peak</text>\n",
        name_of(c), kLeft + kLegend * static_cast<double>(c), kBottom + 42,
        kLeft + kLegend * static_cast<double>(c) + 18, kBottom + 53, kBottom + 70, format_bytes((*peak)[c]));
  }
  return svg + "</svg>\n";
}

}  // namespace llampi::plan
