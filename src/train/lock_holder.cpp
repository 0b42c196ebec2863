// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/lock_holder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "llampi/core/clock.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/process.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

fs::path file_in(const fs::path& folder) { return folder / "running.json"; }

std::string scheduler_job() {
  for (const auto& [variable, scheduler] : {std::pair("SLURM_JOB_ID", "Slurm"), {"PBS_JOBID", "PBS"}}) {
    if (const char* id = std::getenv(variable); id != nullptr && *id != '\0')
      return fmt::format("{} job {}", scheduler, id);
  }
  return "";
}

}  // namespace

LockHolder::LockHolder(const fs::path& folder) : file_(file_in(folder)) {
  const nlohmann::json json = {{"job", scheduler_job()},
                               {"host", host_name()},
                               {"process", ::getpid()},
                               {"processes_of", process_namespace()},
                               {"since", utc_now()}};
  try {
    io::write_whole(file_, json_text(json) + "\n", false);
  } catch (const std::exception&) {
    std::error_code ignored;
    fs::remove(file_, ignored);  // of an earlier job
  }
}

LockHolder::~LockHolder() {
  std::error_code ignored;
  fs::remove(file_, ignored);
}

std::string to_string(const RunningJob& job) {
  return fmt::format("{}process {} on {}", job.scheduler_job.empty() ? "" : job.scheduler_job + ", ",
                     job.process, job.host);
}

std::optional<RunningJob> running_job(const fs::path& folder) try {
  const auto json = nlohmann::json::parse(io::read_whole(file_in(folder)));
  RunningJob job{json.at("job"), json.at("process"), json.at("host"), json.at("since")};
  const bool here = job.host == host_name() && json.at("processes_of") == process_namespace();
  if (here && process_state(job.process) == 0) return std::nullopt;
  return job;
} catch (const std::exception&) {  // not there, or not whole
  return std::nullopt;
}

}  // namespace llampi::train
