// SPDX-License-Identifier: Apache-2.0
#include "train/shared_folder.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::train {

namespace fs = std::filesystem;

void require_shared_folder(comm::World& world, const fs::path& folder, const std::string& run_dir,
                           const std::function<void()>& waits, double patience) {
  if (world.topology().nodes == 1) return;
  std::optional<io::TemporaryFile> made;  // on rank 0
  const std::string name = comm::from_rank_0(world, [&] {
    io::clear_leftovers(folder / "shared", {});
    made.emplace(io::temporary_beside(folder / "shared"));
    io::PosixFile::create(made->path());
    return made->path().filename().string();
  });
  comm::agree(world, [&] {
    if (world.topology().local_rank != 0) return;
    std::error_code error;
    for (const double begin = steady_seconds(); !fs::exists(folder / name, error);) {
      if (steady_seconds() - begin > patience) {
        throw ConfigError({.field = "run.dir",
                           .value = run_dir,
                           .problem = error ? "cannot be read here: " + error.message()
                                            : "is another folder here than on the node of rank 0",
                           .remedy = "choose a folder on a file system that all nodes share"});
      }
      if (waits) waits();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}

}  // namespace llampi::train
