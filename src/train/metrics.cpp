#include "train/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

/// The lines of `file` that belong to steps up to `last_step`.
std::string kept_lines(const std::filesystem::path& file, std::int64_t last_step) {
  std::string kept, line;
  std::ifstream in(file, std::ios::binary);
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no line end: torn
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) break;
    if (json["step"].get<std::int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_seen": {}, "step_seconds": {}, )"
      R"("data_seconds": {}, "tokens_per_second": {}, "tokens_per_second_per_rank": {}, "mfu": null, "memory_bytes": {}}})",
      m.step, number(m.loss), number(m.grad_norm), number(m.lr), m.tokens, m.tokens_seen,
      number(m.step_seconds), number(m.data_seconds), number(m.tokens_per_second),
      number(m.tokens_per_second_per_rank), m.memory_bytes);
}

std::string evaluation_json(std::int64_t step, double eval_loss) {
  return fmt::format(R"({{"step": {}, "eval_loss": {}}})", step, number(eval_loss));
}

MetricsFile::MetricsFile(std::filesystem::path file, std::int64_t last_step) : file_(std::move(file)) {
  const std::string kept = kept_lines(file_, last_step);
  auto temporary = file_;
  temporary += ".tmp";
  descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_user_error("cannot write {}: {}", temporary.string(), std::strerror(errno));
  append(kept);
  sync();
  std::error_code error;
  std::filesystem::rename(temporary, file_, error);
  if (error) throw_user_error("cannot write {}: {}", file_.string(), error.message());
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::append(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    const auto written = ::write(descriptor_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_user_error("cannot write {}: {}", file_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
}

void MetricsFile::sync() {
  if (::fsync(descriptor_) != 0)
    throw_user_error("cannot write {}: {}", file_.string(), std::strerror(errno));
}

}  // namespace llampi
