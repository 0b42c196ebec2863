// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/machine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llampi/core/elements.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/io/posix_file.hpp"
#include "plan/machine_files.hpp"

namespace llampi::plan {
namespace {

using Json = nlohmann::ordered_json;
using Gives = FigureKind::Gives;

constexpr FigureKind kFigureKinds[] = {
    {"peak_tflops_float32", "dense products in float32, peak: what MFU is a share of"},
    {"peak_tflops_bfloat16", "dense products of 16-bit numbers, peak"},
    {"product_tflops_float32", "products in float32, large ones", Term::product_float32, Gives::rate, 1e-12},
    {"product_edge_float32", "e of the rate / (1 + e (1/M + 1/N + 1/K))", Term::product_float32_edge,
     Gives::edge},
    {"product_tflops_bfloat16", "products of 16-bit numbers, large ones", Term::product_half, Gives::rate,
     1e-12},
    {"product_edge_bfloat16", "as product_edge_float32", Term::product_half_edge, Gives::edge},
    {"product_tflops_fp8", "products of 8-bit numbers, large ones", Term::product_fp8, Gives::rate, 1e-12},
    {"product_edge_fp8", "as product_edge_float32", Term::product_fp8_edge, Gives::edge},
    {"attention_forward_tflops", "forward, two products, the causal half", Term::attention_forward,
     Gives::rate, 1e-12},
    {"attention_forward_edge", "e of the rate / (1 + e / length of documents)", Term::attention_forward_edge,
     Gives::edge},
    {"attention_any_order_tflops", "backward with run.deterministic = false, five products, the causal half",
     Term::attention_any_order, Gives::rate, 1e-12},
    {"attention_any_order_edge", "as attention_forward_edge", Term::attention_any_order_edge, Gives::edge},
    {"attention_any_order_head_edge", "the same, divided by the size of a head",
     Term::attention_any_order_head_edge, Gives::edge},
    {"attention_deterministic_tflops", "backward by cuDNN, deterministic", Term::attention_deterministic,
     Gives::rate, 1e-12},
    {"attention_deterministic_edge", "as attention_forward_edge", Term::attention_deterministic_edge,
     Gives::edge},
    {"attention_deterministic_head_edge", "as attention_any_order_head_edge",
     Term::attention_deterministic_head_edge, Gives::edge},
    {"attention_deterministic_piece", "the same, for each piece beyond the first where dP is short of room",
     Term::attention_deterministic_piece, Gives::edge},
    {"attention_native_tflops", "backward by native kernels", Term::attention_native, Gives::rate, 1e-12},
    {"attention_native_edge", "as attention_forward_edge", Term::attention_native_edge, Gives::edge},
    {"memory_gb_s", "bytes read and written by memory-bound kernels of layers", Term::memory_bytes,
     Gives::rate, 1e-9},
    {"array_gb_s", "bytes read and written by casts, sums, gradient norm and update", Term::array_bytes,
     Gives::rate, 1e-9},
    {"kernel_us", "fixed time of an operation", Term::kernels, Gives::time, 1e-6},
    {"host_memory_gb_s", "bytes read and written by the optimizer on the host, for each GPU",
     Term::host_memory_bytes, Gives::rate, 1e-9},
    {"host_link_gb_s", "between a GPU and its host, each direction"},
    {"in_node_gb_s", "of a rank to the others of its node, each direction"},
    {.key = "in_node_latency_us", .meaning = "of a small message inside a node", .may_be_zero = true},
    {"network_gb_s", "of all NICs of a node together, each direction"},
    {"gpus_per_node",
     "that share the NICs of a node, each the same part, whether or not all of them compute"},
    {.key = "network_latency_us", .meaning = "of a small message between nodes", .may_be_zero = true},
    {.key = "message_us", .meaning = "to start one message", .may_be_zero = true},
    {"bandwidth_reached", "share of the bandwidths that is left with messages in both directions"},
};

std::size_t index_of(std::string_view key) {
  const auto found = std::ranges::find(kFigureKinds, key, &FigureKind::key);
  require(found != std::end(kFigureKinds), "not a figure of machines");
  return static_cast<std::size_t>(found - std::begin(kFigureKinds));
}

Figure parse_figure(const Json& json, const std::string& file, const std::string& key) {
  const auto bad = [&](const char* what) -> UserError {
    return UserError(fmt::format("{}: figure {} {}", file, key, what));
  };
  if (!json.is_object() || !json.contains("value") || !json["value"].is_number())
    throw bad("needs a \"value\" that is a number");
  Figure figure{.value = json["value"].get<double>()};
  if (!std::isfinite(figure.value) || figure.value < 0) throw bad("is not a number of at least 0");
  if (figure.value == 0 && !kFigureKinds[index_of(key)].may_be_zero)
    throw bad("is 0; leave it out if it is not known");
  const auto source = json.contains("source") && json["source"].is_string()
                          ? from_word<Source>(json["source"].get<std::string>())
                          : std::nullopt;
  if (!source) throw bad("needs a \"source\": measured, data sheet or assumed");
  figure.source = *source;
  if (json.contains("note") && json["note"].is_string()) figure.note = json["note"].get<std::string>();
  return figure;
}

std::string text_of(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
}

struct KnownMachine {
  std::string_view name, text;
};
const std::array<KnownMachine, 4>& machine_files() {
  static const std::array<KnownMachine, 4> kFiles = {{{"h100", kH100Json},
                                                      {"h200", kH200Json},
                                                      {"a100", kA100Json},
                                                      {"workstation-2-cores", kWorkstation2CoresJson}}};
  return kFiles;
}

}  // namespace

std::span<const FigureKind> figures_of_machines() { return kFigureKinds; }

MachineSpeed::MachineSpeed() : figures(std::size(kFigureKinds)) {}

const Figure* MachineSpeed::find(std::string_view key) const {
  const auto& figure = figures[index_of(key)];
  return figure ? &*figure : nullptr;
}

void MachineSpeed::set(std::string_view key, Figure figure) { figures[index_of(key)] = std::move(figure); }

double MachineSpeed::value(std::string_view key) const {
  if (const Figure* figure = find(key)) return figure->value;
  throw_user_error("{} has no figure {}, which this plan needs ({}); use a machine file that has it", file,
                   key, kFigureKinds[index_of(key)].meaning);
}

double MachineSpeed::value_or(std::string_view key, double otherwise) const {
  const Figure* figure = find(key);
  return figure == nullptr ? otherwise : figure->value;
}

MachineSpeed parse_machine(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("figures") || !json["figures"].is_object())
    throw_user_error("{} is not a machine file: it needs to be a JSON object with \"figures\"", file);
  MachineSpeed machine;
  machine.file = file;
  machine.name = text_of(json, "name");
  machine.description = text_of(json, "description");
  machine.device = text_of(json, "device");
  if (machine.name.empty() || machine.device.empty())
    throw_user_error("{} is not a machine file: it needs a \"name\" and a \"device\"", file);
  if (json.contains("cores")) {
    if (!json["cores"].is_number_integer() || json["cores"].get<std::int64_t>() < 1 ||
        json["cores"].get<std::int64_t>() > 65536)
      throw_user_error("{}: cores is not a number from 1 to 65536", file);
    machine.cores = json["cores"].get<int>();
  }
  if ((machine.device == "cpu") != (machine.cores > 0))
    throw_user_error("{}: device cpu needs \"cores\", and no other device has them", file);
  for (const auto& [key, figure] : json["figures"].items()) {
    if (std::ranges::find(kFigureKinds, key, &FigureKind::key) == std::end(kFigureKinds))
      throw_user_error("{}: there is no figure {} of machines", file, key);
    machine.set(key, parse_figure(figure, file, key));
  }
  return machine;
}

std::string to_json(const MachineSpeed& machine) {
  Json json = {{"name", machine.name}, {"description", machine.description}, {"device", machine.device}};
  if (machine.cores > 0) json["cores"] = machine.cores;
  json["figures"] = Json::object();
  for (std::size_t i = 0; i < machine.figures.size(); ++i) {
    const auto& figure = machine.figures[i];
    if (!figure) continue;
    json["figures"][std::string(kFigureKinds[i].key)] = {
        {"value", figure->value}, {"source", word_of(figure->source)}, {"note", figure->note}};
  }
  return json_text(json, 2) + "\n";
}

std::vector<std::string> known_machines() {
  std::vector<std::string> names;
  for (const auto& machine : machine_files()) names.emplace_back(machine.name);
  return names;
}

MachineSpeed read_machine(const std::string& name_or_file) {
  for (const auto& machine : machine_files()) {
    if (machine.name == name_or_file)
      return parse_machine(std::string(machine.text), "machine " + name_or_file);
  }
  std::error_code error;
  if (const auto status = std::filesystem::status(name_or_file, error);
      std::filesystem::status_known(status) && !std::filesystem::is_regular_file(status))
    throw_user_error("there is no machine file \"{}\"; give the path of one, or one of {}", name_or_file,
                     fmt::join(known_machines(), ", "));
  return parse_machine(io::read_whole(name_or_file), name_or_file);
}

Terms costs_of(const MachineSpeed& machine, double share, const std::vector<ActionWork>& work) {
  Terms needed;
  for (const auto& action : work) needed += action.amounts;
  Terms costs;
  double rate_cost = 0;  // of the rate that an edge follows
  for (const FigureKind& kind : figures_of_machines()) {
    if (kind.gives == Gives::nothing) continue;
    if (kind.gives == Gives::rate) {
      rate_cost = 0;
      if (needed[kind.term] > 0 || machine.find(kind.key) != nullptr)
        rate_cost = kind.unit / (machine.value(kind.key) * share);
      costs[kind.term] = rate_cost;
    } else if (kind.gives == Gives::edge) {
      costs[kind.term] = machine.value_or(kind.key, 0) * rate_cost;
    } else {
      costs[kind.term] = machine.value_or(kind.key, 0) * kind.unit;
    }
  }
  return costs;
}

double peak_of(const MachineSpeed& machine, DType dtype) {
  return 1e12 * machine.value_or(is_half(dtype) ? "peak_tflops_bfloat16" : "peak_tflops_float32", 0);
}

}  // namespace llampi::plan
