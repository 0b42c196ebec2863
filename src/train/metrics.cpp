// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "train/spilled_metrics.hpp"

namespace llampi::train {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

/// Its step, and whether it is one of training: a step has one such line, and one of an evaluation.
using LineKey = std::pair<std::int64_t, bool>;

struct Kept {
  std::string lines;
  std::int64_t last = 0;             ///< step of the last line; 0: there is none
  std::int64_t last_trained = -1;    ///< the same, if it is one of training
  std::int64_t malformed = 0;        ///< lines with others after them
  std::int64_t first_malformed = 0;  ///< its number in the file, from 1
};

/// Empty if there is no such file. @throws Error if it cannot be read: nothing may be written in its place then
std::string text_of(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::status(file, ignored).type() == std::filesystem::file_type::not_found) return "";
  return io::read_whole(file);
}

/// The lines of steps up to `last_step`. @param known where it is given: without those that are in it; those that are kept are added
Kept kept_lines(std::string_view text, std::int64_t last_step, std::set<LineKey>* known = nullptr) {
  Kept kept;
  std::int64_t number = 0;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    ++number;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      if (text.empty()) break;  // torn
      if (kept.malformed++ == 0) kept.first_malformed = number;
      continue;
    }
    const auto step = json["step"].get<std::int64_t>();
    if (step > last_step) continue;
    const LineKey key{step, json.contains("loss")};
    if (known != nullptr && !known->insert(key).second) continue;
    kept.lines.append(line).append("\n");
    kept.last = step;
    kept.last_trained = key.second ? step : -1;
  }
  return kept;  // without what has no line end, which is torn
}

/// On GPUs only.
std::string process_bytes(std::int64_t bytes) {
  if (bytes == 0) return "";
  return fmt::format(R"(, "gpu_process_bytes": {})", bytes < 0 ? "null" : std::to_string(bytes));
}

std::string fp8_counts(const std::optional<device::Fp8Counts>& counts) {
  if (!counts) return "";
  return fmt::format(R"(, "fp8_saturated": {}, "fp8_zero_scale": {})", counts->saturated,
                     counts->zero_scales);
}

std::string slowest_rank(const std::optional<SlowestRank>& slowest) {
  if (!slowest) return "";
  return fmt::format(R"(, "slowest_rank": {}, "slowest_rank_seconds": {}, "mean_rank_seconds": {})",
                     slowest->rank, number(slowest->seconds), number(slowest->mean_seconds));
}

/// Cuts the file back, in place if lines at its end go: the disk may have no room for a second one. Returns the step of its last line, if that is one of training.
std::int64_t cut_back(const std::filesystem::path& file, std::int64_t last_step, const Log& log) {
  const std::string text = text_of(file);
  const Kept kept = kept_lines(text, last_step);
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored) && text.starts_with(kept.lines)) {
    if (kept.lines.size() < text.size())
      io::PosixFile::open_for_writing(file).truncate(std::ssize(kept.lines));
  } else {
    io::write_whole(io::follow_links(file), kept.lines);
  }
  if (kept.malformed > 0)
    log.warning("{} had {} malformed {} (the first was line {}): removed; the other lines are kept",
                file.string(), kept.malformed, kept.malformed == 1 ? "line" : "lines", kept.first_malformed);
  return kept.last_trained;
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_seen": {}, "step_seconds": {}, )"
      R"("data_seconds": {}, "tokens_per_second": {}, "tokens_per_second_per_rank": {}, "mfu": {}, "memory_bytes": {}{}, "checkpoint_stall_seconds": {}{}{}{}, "time": {:.3f}}})",
      m.step, number(m.loss), number(m.grad_norm), number(m.lr), m.tokens, m.tokens_seen,
      number(m.step_seconds), number(m.data_seconds), number(m.tokens_per_second),
      number(m.tokens_per_second_per_rank), number(m.mfu), m.memory_bytes, process_bytes(m.gpu_process_bytes),
      number(m.checkpoint_stall_seconds), slowest_rank(m.slowest), fp8_counts(m.fp8),
      m.loss_scale > 0 ? fmt::format(R"(, "loss_scale": {})", number(m.loss_scale)) : "", m.time);
}

std::string evaluation_json(std::int64_t step, double eval_loss, const FileLosses& losses, double time) {
  std::string of_files;
  for (const auto& [file, loss] : losses) {
    const auto name = nlohmann::json(file).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    of_files += fmt::format("{}{}: {}", of_files.empty() ? "" : ", ", name, number(loss));
  }
  return fmt::format(R"({{"step": {}, "eval_loss": {}{}, "time": {:.3f}}})", step, number(eval_loss),
                     losses.empty() ? "" : fmt::format(R"(, "eval_losses": {{{}}})", of_files), time);
}

std::int64_t last_step_in(const std::filesystem::path& metrics) {
  return kept_lines(text_of(metrics), std::numeric_limits<std::int64_t>::max()).last;
}

std::int64_t last_trained_step_in(const std::filesystem::path& metrics) {
  return kept_lines(text_of(metrics), std::numeric_limits<std::int64_t>::max()).last_trained;
}

MetricsFile::MetricsFile(const std::filesystem::path& file, std::int64_t last_step, const Log& log)
    : last_trained_(cut_back(file, last_step, log)), path_(file), file_(file) {}

void MetricsFile::restore(const std::filesystem::path& fallback, std::int64_t last_step, const Log& log) {
  const auto spilled = list_spilled_metrics(fallback);
  if (spilled.empty()) return;
  // Of a later step where the newest checkpoint there could not be continued from.
  const auto source = spilled.lower_bound(last_step);
  if (source != spilled.end()) {
    std::set<LineKey> known;
    kept_lines(text_of(path_), last_step, &known);
    const Kept lacking = kept_lines(text_of(source->second), last_step, &known);
    if (!lacking.lines.empty()) {
      static_cast<void>(append(lacking.lines));
      last_trained_ = lacking.last_trained;
    }
  }
  try {
    sync();
    remove_spilled_metrics(fallback, last_step);
  } catch (const UserError& error) {
    log.warning("{}; lines that are only in {} stay there until they can be written", error.what(),
                fallback.string());
  }
}

}  // namespace llampi::train
