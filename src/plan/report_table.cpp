// SPDX-License-Identifier: Apache-2.0
// The report for people.
#include <fmt/ranges.h>

#include <algorithm>

#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/plan/report.hpp"

namespace llampi::plan {
namespace {

constexpr int kUsualGpusOfANode = 8;
constexpr int kColumn = 15, kColumns = 3 * kColumn;  ///< of a table: one of bytes, all of them

std::string indented(const std::string& text) {
  std::string result;
  for (const auto& line : lines_of(text)) result += "  " + line + "\n";
  return result;
}

/// "1.66", "12,345".
std::string days(double number) {
  return number < 999.5 ? fmt::format("{:.3g}", number) : with_separators(number);
}

std::string describe_job(const Job& job, const ModelReport& model) {
  const auto& [m, options, mesh] = job;
  const std::int64_t parameters = model.parameters(), trained = model.trained_parameters();
  std::string text = count(parameters, "parameter");
  if (trained != parameters) text += fmt::format(", {} of them trained", with_separators(trained));
  text +=
      fmt::format(", in {}; {} on {}, {}", count(std::ssize(model.units), "unit"),
                  fsdp::to_string(options.strategy), count(m.shape.ranks, "rank"), count(m.nodes(), "node"));
  if (!m.shape.node_ranks.empty()) {
    text += fmt::format(" of {}", fmt::join(m.shape.node_ranks, ", "));
  } else if (m.nodes() > 1 && m.shape.ranks % m.shape.ranks_per_node != 0) {
    text += fmt::format(", {} on the last", count(m.shape.ranks % m.shape.ranks_per_node, "rank"));
  }
  if (!m.even()) text += ": the same number on each is faster";
  if (m.on_gpu() && m.nodes() == 1 && m.shape.ranks > kUsualGpusOfANode)
    text += "; --per-node divides the ranks into nodes";
  text += "\n" + fsdp::describe_mesh(mesh) + "\n";
  text += fmt::format("device {}, {} per rank; a step: {} of {} x {} per rank\n", m.device,
                      count(m.shape.threads, "thread"), count(options.micro_batches, "micro-batch", "es"),
                      options.batch.sequences, count(options.batch.seq_len, "token"));
  if (options.precision.frozen && trained < parameters) {
    text += fmt::format("frozen parameters are kept and all-gathered in {}\n",
                        fsdp::frozen_in_words(options.precision));
  }
  if (model.fp8) {
    text +=
        fmt::format("all-gather and matrix products of the blocks in FP8 (float8_e4m3fn){}\n",
                    *model.fp8 == model::Fp8Scales::block ? ", with a scale for each 128 x 128 of them" : "");
  }
  return text;
}

std::string describe_numbers(const fsdp::Precision& p, const fsdp::CompiledModel& compiled) {
  const auto pair = [](const char* what, DType one, const char* and_what, DType other) {
    return one == other ? fmt::format("{} and {} in {}", what, and_what, to_string(one))
                        : fmt::format("{} in {}, {} in {}", what, to_string(one), and_what, to_string(other));
  };
  return fmt::format("{}; {}; {}\n", pair("all-gather", p.param, "compute", p.compute),
                     pair("gradients reduced", p.reduce, "accumulated", p.gradient_shard),
                     pair("master parameters", p.master, "moments", p.moment)) +
         fmt::format("a step has {}, an evaluation {}\n", count(compiled.step.size(), "action"),
                     count(compiled.evaluation.size(), "action"));
}

std::string format_arenas(const Machine& machine, const MemoryReport& memory, const FitReport& fit) {
  std::string text = fmt::format("{:<32}", "memory per rank");
  for (int a = 0; a < fsdp::kArenas; ++a)
    text += fmt::format("{:>15}", fsdp::to_string(static_cast<fsdp::Arena>(a)));
  text += fmt::format("{:>15}\n", "all");
  const ArenaReport all = memory.total();
  const auto line = [&](const char* name, std::int64_t ArenaReport::*bytes) {
    std::string columns;
    for (const auto& arena : memory.arenas) columns += fmt::format("{:>15}", format_bytes(arena.*bytes));
    return fmt::format("  {:<30}{}{:>15}", name, columns, format_bytes(all.*bytes));
  };
  text += line("kept for the whole run", &ArenaReport::kept) + "\n";
  text += line("with what a step needs", &ArenaReport::step) + "\n";
  text += line("with what an evaluation needs", &ArenaReport::evaluation) + "\n";
  text += line("planned: the larger of the two", &ArenaReport::planned);
  text += fmt::format(" = {}\n", count(all.planned, "byte"));
  const auto besides = [&](const char* name, int column, std::int64_t bytes, const std::string& remark) {
    return fmt::format("  {:<30}{:>{}}{:>{}}, {}\n", name, format_bytes(bytes), column, "", kColumns - column,
                       remark);
  };
  text += besides("program and libraries, about", machine.on_gpu() ? 2 * kColumn : kColumns, kProcessBytes,
                  "not part of what is planned");
  if (!machine.on_gpu()) return text;
  text += besides("CUDA context, its libraries", kColumn, context_bytes(machine.shape.backend),
                  "measured on one H100");
  text += besides("kernels that are loaded later", kColumn, fsdp::loaded_later_bytes(machine.shape.backend),
                  "measured on one H100");
  if (fit.graph_bytes > 0)
    text += besides("CUDA graphs", kColumn, fit.graph_bytes, "an estimate, not measured yet");
  return text +
         besides("NCCL's communicators", kColumn, fit.communicator_bytes, "an estimate, not measured yet");
}

/// Whether it fits, where that can be told.
std::string format_fit(const Machine& m, const FitReport& fit) {
  const auto verdict = [](bool fits) { return fits ? "fits: " : "does not fit: "; };
  std::string text =
      fmt::format("needs about {} per {}", format_bytes(fit.needed_bytes), m.on_gpu() ? "GPU" : "rank");
  if (!m.knows_memory()) return text + "\n";
  text = verdict(fit.on_device) + text + fmt::format(", {} has {}", m.device_in_words(), m.memory_in_words());
  const std::int64_t left = m.memory_bytes - fit.needed_bytes;
  if (left >= 0 && left < fit.communicator_bytes)
    text += fmt::format("; narrowly: {} are left, and NCCL's {} are an estimate", format_bytes(left),
                        format_bytes(fit.communicator_bytes));
  text += "\n";
  if (m.knows_host_memory()) {
    text += fmt::format("host memory {}needs about {} per node, which has {}\n", verdict(fit.on_host),
                        format_bytes(fit.host_needed_bytes), format_bytes(m.host_memory_bytes));
  } else if (constexpr std::int64_t kWorthALine = std::int64_t{1} << 30;
             fit.host_needed_bytes > kWorthALine * m.most_ranks_on_a_node()) {
    text += fmt::format("host memory: needs about {} per node, which --host-memory would check\n",
                        format_bytes(fit.host_needed_bytes));
  }
  if (fit.longest_seq_len > 0)
    text += fmt::format(
        "longest data.seq_len that fits, other keys unchanged: {}{}\n", count(fit.longest_seq_len, "token"),
        fit.longest_seq_len == fit.max_positions ? ", the model's max_position_embeddings" : "");
  return text;
}

/// What one column of the memory table adds up: "GPU, at the peak" or "host, at the peak".
struct MemoryColumn {
  std::string title;
  std::optional<fsdp::Arena> arena;  ///< none: both
  bool at_peak = false;
  std::int64_t libraries = 0;  ///< bytes of the program and its libraries, an estimate
  std::int64_t nccl = 0;       ///< of its communicators, likewise

  std::int64_t of(const MemoryReport& memory, fsdp::Category category) const {
    const CategoryReport bytes = memory.total(category, arena);
    return at_peak ? bytes.peak : bytes.kept;
  }
  /// Bytes of the arenas that hold nothing at the peak: gaps between buffers, and what an evaluation or another moment needs.
  std::int64_t idle(const MemoryReport& memory) const {
    if (!at_peak) return 0;
    std::int64_t bytes = memory.total(arena).planned;
    for (int c = 0; c < fsdp::kCategories; ++c) bytes -= of(memory, static_cast<fsdp::Category>(c));
    return bytes;
  }
};

std::vector<MemoryColumn> memory_columns(const Machine& machine, const FitReport& fit) {
  using fsdp::Arena;
  if (!machine.on_gpu())  // one memory
    return {{"always", {}, false, kProcessBytes}, {"at the peak", {}, true, kProcessBytes}};
  const std::int64_t on_gpu = context_bytes(machine.shape.backend) +
                              fsdp::loaded_later_bytes(machine.shape.backend) + fit.graph_bytes;
  return {{"GPU, always", Arena::device, false, on_gpu, fit.communicator_bytes},
          {"GPU, at the peak", Arena::device, true, on_gpu, fit.communicator_bytes},
          {"host, at the peak", Arena::host, true, kProcessBytes}};
}

bool has(const MemoryReport& memory, fsdp::Purpose purpose) {
  return std::ranges::any_of(memory.purposes, [&](const auto& row) { return row.purpose == purpose; });
}

/// By category, for the whole run and at the peak of a step. The last row is what format_fit() names.
std::string format_categories(const Machine& machine, const MemoryReport& memory, const FitReport& fit) {
  const auto columns = memory_columns(machine, fit);
  std::vector<std::int64_t> sums(columns.size());
  std::string text = fmt::format("{:<32}", "memory per rank");
  for (const auto& column : columns) text += fmt::format("{:>19}", column.title);
  text += "\n";
  const auto add_row = [&](const char* name, const auto& bytes_of) {
    std::string cells;
    std::int64_t in_row = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t bytes = bytes_of(columns[i]);
      cells += fmt::format("{:>19}", bytes > 0 ? format_bytes(bytes) : "-");
      sums[i] += bytes;
      in_row += bytes;
    }
    if (in_row > 0) text += fmt::format("  {:<30}{}\n", name, cells);
  };
  for (int c = 0; c < fsdp::kCategories; ++c) {
    const auto category = static_cast<fsdp::Category>(c);
    const bool has_masters = category == fsdp::Category::optimizer && has(memory, fsdp::Purpose::master);
    add_row(has_masters ? "optimizer, master parameters" : fsdp::to_string(category),
            [&](const MemoryColumn& column) { return column.of(memory, category); });
  }
  add_row("reserved, unused at the peak", [&](const MemoryColumn& column) { return column.idle(memory); });
  add_row(machine.on_gpu() ? "program and CUDA, about" : "program and libraries, about",
          [](const MemoryColumn& column) { return column.libraries; });
  add_row("NCCL, about", [](const MemoryColumn& column) { return column.nccl; });
  text += fmt::format("  {:<30}", "total");
  for (const std::int64_t sum : sums) text += fmt::format("{:>19}", format_bytes(sum));
  return text + "\n";
}

std::string format_peak(const MemoryReport& memory, const fsdp::Program& step) {
  const PeakReport& peak = memory.peak;
  std::string text =
      fmt::format("peak of a step: action {} of {}, {}\n", peak.action, step.size(), peak.description);
  const ArenaReport all = memory.total();
  auto rows = peak.purposes;
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (const auto& row : rows) {
    if (row.persistent) continue;
    text += fmt::format("  {:<22} {:>12} in {}\n", fsdp::to_string(row.purpose), format_bytes(row.bytes),
                        count(row.buffers, "buffer"));
  }
  text += fmt::format("  {:<22} {:>12}\n", "kept for the whole run", format_bytes(all.kept));
  return text + fmt::format("  {:<22} {:>12}\n", "unused at the peak",
                            format_bytes(all.step - all.kept - peak.transient_bytes()));
}

std::string format_traffic(const Traffic& traffic, const fsdp::DeviceMesh& mesh) {
  const auto line = [](const char* name, std::int64_t bytes, const std::string& meaning) {
    return fmt::format("  {:<22} {:>12}{}\n", name, format_bytes(bytes), bytes > 0 ? "  " + meaning : "");
  };
  const int shards = mesh.shard_count();
  const std::string others = fmt::format("{}/{}", shards - 1, shards);
  const std::string replicas = fmt::format("{}/{}", mesh.replica_count() - 1, mesh.replica_count());
  const bool in_parts = traffic.replica_gathered > 0;
  return "bytes communicated and copied in a step, per rank\n" +
         line("gathered", traffic.gathered,
              "whole units, after their all-gather; a rank receives " + others + " of it") +
         line("reduced", traffic.reduced,
              "unsharded gradients, before their reduce-scatter; a rank sends " + others + " of it") +
         line("reduced over replicas", traffic.replica_reduced,
              fmt::format("gradients that are {}; a rank sends {}{} of it",
                          in_parts ? "reduce-scattered" : "all-reduced", in_parts ? "" : "2 x ", replicas)) +
         (in_parts ? line("gathered over replicas", traffic.replica_gathered,
                          "updated shards; a rank receives " + replicas + " of it")
                   : "") +
         line("host to device", traffic.host_to_device, "copied") +
         line("device to host", traffic.device_to_host, "copied");
}

std::string format_times(const TimeReport& time, const Job& job) {
  if (!time.speed) return "";
  std::string text =
      fmt::format("\nseconds of a step, predicted; * as configured\n  {:<22}{:>10}{:>12}{:>12}{:>8}{:>14}\n",
                  "strategy", "step", "computing", "exposed", "in %", "tokens/s");
  std::string_view said;
  for (const auto& row : time.strategies) {
    if (!row.impossible.empty()) {
      text += fmt::format("  {:<22}  not possible: {}\n", fsdp::to_string(row.strategy),
                          row.impossible == said ? "for the same reason" : row.impossible);
      said = row.impossible;
      continue;
    }
    said = {};
    const double waiting = row.time.waiting_seconds();
    text += fmt::format("{} {:<22}{:>#10.4g}{:>#12.4g}{:>#12.4g}{:>7.1f}%{:>14}{}\n",
                        row.strategy == job.options.strategy ? "*" : " ", fsdp::to_string(row.strategy),
                        row.time.seconds, row.time.compute_seconds, waiting, 100 * waiting / row.time.seconds,
                        with_separators(static_cast<double>(job.tokens()) / row.time.seconds),
                        row.fits.value_or(true) ? "" : "  does not fit");
  }
  return text;
}

std::string format_prediction(const std::optional<Prediction>& prediction, const Machine& machine) {
  if (!prediction) return "";
  const Prediction& p = *prediction;
  std::string text = fmt::format("\ntime of a step as configured, predicted for {}\n", p.machine);
  const int digits = p.time.seconds < 0.1 ? 6 : 4;
  const auto line = [&](const char* name, double seconds) {
    if (seconds > 0)
      text += fmt::format("  {:<48}{:>10.{}f} s{:>7.1f}%\n", name, seconds, digits,
                          100 * seconds / p.time.seconds);
  };
  line("matrix products", p.parts.products);
  line("attention", p.parts.attention);
  line("memory-bound kernels", p.parts.memory);
  line("fixed time of kernels", p.parts.kernels);
  line("recomputation", p.parts.recomputed);
  line("gradient norm and optimizer", p.parts.optimizer);
  line("computing slowed by communication", p.slowdown_seconds());
  line(p.parts.host_optimizer > 0 ? "exposed communication, copies and update on host"
                                  : "exposed communication and copies",
       p.time.waiting_seconds());
  line("step", p.time.seconds);
  text += fmt::format("  {} tokens/s, {} per rank", with_separators(p.tokens_per_second()),
                      with_separators(p.tokens_per_second() / p.ranks));
  if (p.peak_flops > 0) text += fmt::format(", MFU {:.1f} %", 100 * p.mfu());
  text += "\n";
  if (p.budget_tokens > 0) {
    text += fmt::format("  {} tokens: {} days, {} {}-hours\n", in_words(p.budget_tokens),
                        days(p.budget_seconds() / 86400), with_separators(p.budget_device_hours()),
                        machine.on_gpu() ? "GPU" : "rank");
  }
  return text;
}

/// What was chosen by what fits, or given.
std::string describe_choices(const Job& job, const ChoicesReport& choices) {
  const fsdp::EngineOptions& options = job.options;
  std::string text;
  if (options.checkpointing != fsdp::Checkpointing::none) {
    const double part = choices.added.recomputed_part();
    text +=
        fmt::format("recomputed in the backward pass (activation.checkpointing): {}; {}\n",
                    fsdp::to_string(options.checkpointing),
                    part == 0 ? "memory-bound operations only, no matrix product"
                              : fmt::format("at most {:.1f} % more FLOPs of matrix products", 100 * part));
  }
  const bool offloads_saved = options.checkpointing.uses(fsdp::Checkpointing::offload);
  const bool offloads_residuals = options.offload.residuals;
  if (offloads_residuals || offloads_saved) {
    text += fmt::format("in host memory between forward and backward pass: {}{}{}{}\n",
                        offloads_residuals ? "residuals (activation.offload)" : "",
                        offloads_residuals && offloads_saved ? ", " : "",
                        offloads_saved ? "what feed-forward networks save (activation.checkpointing)" : "",
                        // A CPU copies within one memory, for which the figures of links say nothing.
                        job.machine.on_gpu()
                            ? fmt::format("; at most {:.1f} % more time, waiting for copies at {:.0f} GB/s",
                                          100 * choices.added.waiting_part(), fsdp::kHostBytesPerSecond / 1e9)
                            : "");
  }
  if (choices.attention_lacks_workspace)
    text +=
        "deterministic attention of whole sequences: not enough memory is left for its workspace (run.attention_workspace), so slower kernels compute it\n";
  if (options.batch.attention_room > 0) {
    text += fmt::format(
        "deterministic attention may use up to {} of workspace (run.attention_workspace); what it uses is in \"other\" below\n",
        format_bytes(options.batch.attention_room));
  }
  if (const std::int64_t logits = job.logits_workspace(); logits != 0 && logits != device::kLogitsBytes) {
    text += fmt::format(
        "the loss may use up to {} for logits (run.logits_workspace); what it uses is in \"other\" below\n",
        format_bytes(logits));
  }
  return text;
}

}  // namespace

std::string format_report(const PlanReport& report) {
  const auto& [job, model, choices, fit, memory, traffic, time] = report;
  return describe_job(job, model) + describe_choices(job, choices) + format_fit(job.machine, fit) + "\n" +
         format_categories(job.machine, memory, fit) + format_prediction(time.prediction, job.machine) +
         format_times(time, job);
}

std::string format_details(const PlanReport& report, const fsdp::CompiledModel& compiled) {
  const Job& job = report.job;
  return describe_numbers(job.options.precision, compiled) + "\nmemory per rank, planned for a step:\n" +
         indented(fsdp::format_memory(compiled.step)) + "\n" +
         format_arenas(job.machine, report.memory, report.fit) + "\n" +
         format_peak(report.memory, compiled.step) + "\n" + format_traffic(report.traffic, job.mesh);
}

}  // namespace llampi::plan
