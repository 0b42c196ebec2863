// SPDX-License-Identifier: Apache-2.0
// A job that ends in the way its argument names; ranks_test.cpp runs it under mpirun.
#include <csignal>
#include <iostream>
#include <string>

#include "cli/ranks.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/train.hpp"

int main(int, char** argv) {
  const std::string way = argv[1];
  return llampi::cli::run_on_ranks(
      [&](llampi::comm::World& world) {
        const bool last = world.rank() == world.size() - 1;
        if (way == "stopped") return 75;
        if (way == "user-error") throw llampi::UserError("the sky is green; look again");
        if (way == "common") throw llampi::comm::CommonError("the sky has fallen");
        if (way == "agreed")
          llampi::comm::agree(world, [&] {
            if (last) throw llampi::UserError("the sky is green");
          });
        if (way == "alone-" + std::to_string(world.rank())) throw llampi::UserError("the sky is green");
        if (way == "error" && last) throw llampi::Error("a call failed\non two lines");
        if (way == "unknown" && last) throw 5;
        if (way == "killed" && last) std::raise(SIGKILL);
        world.barrier();  // where the others wait for the one that failed
        return 0;
      },
      1);
}
