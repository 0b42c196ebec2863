// SPDX-License-Identifier: Apache-2.0
#include "train/run_lock.hpp"

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// " (Slurm job 17, process 4711 on node7, since 2026-11-22T15:00:00Z)"; empty where it is not known. Of a job that was killed
/// nothing is said: another one has the folder since.
std::string describe_lock_holder(const fs::path& folder) {
  const auto job = running_job(folder);
  return job ? fmt::format(" ({}, since {})", to_string(*job), job->since) : "";
}

void remove(const std::vector<fs::path>& innermost_first) {
  std::error_code ignored;
  for (const auto& path : innermost_first) fs::remove(path, ignored);  // a folder only if it is empty
}

}  // namespace

RunLock::RunLock(fs::path folder, const Log& log, double patience, const std::function<void()>& waits)
    : folder_(std::move(folder)) {
  do {
    make();
    wait(log, patience, waits);
  } while (!file_.is_at_its_path());  // a job that had made it has removed it
  holder_.emplace(folder_);
}

RunLock::~RunLock() {
  holder_.reset();
  try {
    // Otherwise another job has made it at the same time, and has had the folder.
    if (file_.size() == 0) remove(made_);
  } catch (const Error&) {  // it stays
  }
}

void RunLock::make() {
  const fs::path file = folder_ / "history.jsonl";
  for (;;) {
    made_ = io::missing_paths(file);
    try {
      io::create_folder(folder_, "; choose another run.dir");
      file_ = io::PosixFile::open_or_create(file);
      return;
    } catch (const UserError& error) {
      remove(made_);
      const auto* of_file = dynamic_cast<const io::FileError*>(&error);
      std::error_code ignored;
      const bool is_removed =  // by another job
          of_file != nullptr && of_file->error_number() == ENOENT && !fs::exists(folder_, ignored);
      if (!is_removed) throw;
    }
  }
}

void RunLock::wait(const Log& log, double patience, const std::function<void()>& waits) {
  const io::Lock first = file_.lock();
  if (first == io::Lock::unsupported) {
    log.warning("{} is on a file system without locks: do not run two jobs in it", folder_.string());
    made_.clear();  // another job may have it
  }
  if (first != io::Lock::taken) return;
  log.info("{} is in use by another job{}; waiting up to {:.0f} s for it to finish, then giving up",
           folder_.string(), describe_lock_holder(folder_), patience);
  for (const double begin = steady_seconds(); file_.lock() == io::Lock::taken;) {
    if (steady_seconds() - begin > patience) refuse();
    if (waits) waits();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void RunLock::refuse() const {
  throw_user_error("{} is in use by another job{}; wait for it to finish, or choose another run.dir",
                   folder_.string(), describe_lock_holder(folder_));
}

}  // namespace llampi::train
