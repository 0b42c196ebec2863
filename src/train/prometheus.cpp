// SPDX-License-Identifier: Apache-2.0
#include "train/prometheus.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <fstream>

#include "llampi/core/error.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "# HELP llampi_step ";

std::string sample(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{:.15g}", value);
}

std::string label_value(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return escaped;
}

bool is_own_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line;
  return in.peek() == std::ifstream::traits_type::eof() ||
         (std::getline(in, line) && line.starts_with(kFirstLine));
}

}  // namespace

std::string prometheus_text(const Standing& standing, const std::string& run) {
  std::string text;
  const std::string label = label_value(run);
  const auto add = [&](const char* type, const char* name, const char* help, double value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0}{{run=\"{3}\"}} {4}\n", name, help, type, label,
                        sample(value));
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    add("gauge", name, help, value);
  };
  const auto& step = standing.step;
  gauge("llampi_step", "Last optimizer step that is done.", static_cast<double>(step.step));
  gauge("llampi_steps_planned", "Optimizer steps of the whole run.",
        static_cast<double>(standing.total_steps));
  gauge("llampi_step_timestamp_seconds", "When the last step was done, in seconds since 1970.", step.time);
  gauge("llampi_loss", "Training loss of the last step; NaN if it was not finite.", step.loss);
  if (standing.eval_loss) gauge("llampi_eval_loss", "Loss of the last evaluation.", *standing.eval_loss);
  gauge("llampi_learning_rate", "Learning rate of the last step.", step.lr);
  gauge("llampi_gradient_norm", "Gradient norm of the last step, before clipping.", step.grad_norm);
  add("counter", "llampi_tokens_seen_total", "Labels that the run has been trained on so far.",
      static_cast<double>(step.tokens_seen));
  gauge("llampi_step_seconds", "Duration of the last step.", step.step_seconds);
  gauge("llampi_data_seconds", "Part of the last step that was spent waiting for data.", step.data_seconds);
  gauge("llampi_tokens_per_second", "Tokens per second in the last step, over all ranks.",
        step.tokens_per_second);
  if (std::isfinite(step.mfu)) gauge("llampi_mfu", "Model FLOP/s utilization in the last step.", step.mfu);
  gauge("llampi_memory_bytes", "Memory of the rank that uses most: of its GPU, or on CPUs of its process.",
        static_cast<double>(step.memory_bytes));
  if (step.loss_scale > 0) gauge("llampi_loss_scale", "Loss scale of the last step.", step.loss_scale);
  if (step.fp8) {
    gauge("llampi_fp8_saturated", "Infinite numbers that casts to FP8 met in the last step.",
          static_cast<double>(step.fp8->saturated));
    gauge("llampi_fp8_zero_scale", "Tensors of zeros that casts to FP8 met in the last step.",
          static_cast<double>(step.fp8->zero_scales));
  }
  gauge("llampi_checkpoint_step", "Step of the newest checkpoint; 0: there is none.",
        static_cast<double>(standing.saved_step));
  return text;
}

PrometheusFile::PrometheusFile(fs::path file, std::string run, const Log& log)
    : file_(io::follow_links(std::move(file))), run_(std::move(run)), log_(log) {
  const io::OutputFile output{.path = file_,
                              .kind = "a file that log.prometheus wrote",
                              .is_own = is_own_file,
                              .option = "log.prometheus",
                              .advice = "name another file"};
  output.check();
  io::clear_leftovers(file_, {});
}

void PrometheusFile::write(const Standing& standing) try {
  io::write_whole(file_, prometheus_text(standing, run_), false);
  failed_ = false;
} catch (const std::exception& error) {
  if (!failed_) log_.warning("log.prometheus is not up to date: {}", error.what());
  failed_ = true;
}

}  // namespace llampi::train
