// SPDX-License-Identifier: Apache-2.0
// A job that the watchdog watches, for tests/system/watchdog/watchdog_test.cpp: steps of operations between all ranks,
// and one rank that fails in the way the arguments name.
//   watched_job FOLDER SECONDS WAY RANK STEPS [one-thread|apart]
// one-thread: MPI does not let a second thread call it; apart: each rank is on a machine of its own.
// Way kill-the-monitors: the rank, which is 0, kills rank 1 and itself. Way no-thread: it stops, and from then on no rank can start a thread.
// Way long: each step takes 1.5 s, and the watchdog is told so. Way side-work: the rank's second thread hangs, for which those of the others wait, while steps go on.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "llampi/comm/comm.hpp"
#include "llampi/core/error.hpp"
#include "llampi/health/flight_request.hpp"
#include "llampi/health/watchdog.hpp"
#include "support/world_over.hpp"

namespace {

std::atomic<bool> no_more_threads = false;
pid_t pid_of_rank_1 = 0;

}  // namespace

/// In the place of the library's, as at the limit of a user's processes or of memory.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                              void* argument) {
  if (no_more_threads) return EAGAIN;
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, work, argument);
}

namespace {

constexpr int kBadStep = 3;

using namespace llampi;

/// Ranks that do not see each other's processes.
class WorldOfNodes final : public test::WorldOver {
 public:
  explicit WorldOfNodes(llampi::comm::World& world) : test::WorldOver(world), topology_(world.topology()) {
    topology_.nodes = world.size();
    topology_.node = world.rank();
    topology_.local_rank = 0;
    topology_.local_ranks = 1;
    for (int rank = 0; rank < world.size(); ++rank) topology_.node_of_rank[rank] = rank;
  }
  const llampi::comm::Topology& topology() const override { return topology_; }
  std::vector<std::string> all_gather_on_node(const std::string& text) override { return {text}; }

 private:
  llampi::comm::Topology topology_;
};

void fail(llampi::comm::World& world, const std::string& way) {
  if (way == "exit") std::exit(0);
  if (way == "exit-at-once") ::_exit(0);
  if (way == "kill-the-monitors") ::kill(pid_of_rank_1, SIGKILL);
  if (way == "kill" || way == "kill-the-monitors") std::raise(SIGKILL);
  if (way == "throw") throw Error("something is wrong here");
  if (way == "stop") {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // so that where it is has been heard
    std::raise(SIGSTOP);
  }
  if (way == "stop-all-but-one" && world.rank() + 1 < world.size()) std::raise(SIGSTOP);
  if (way == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
}

void step(llampi::comm::World& world, llampi::health::FlightRecord& record, int number,
          const std::string& way, bool bad) {
  record.begin_step(number);
  record.act("thinking", 0, 0);
  if (way == "long") std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  if (way == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(700));
  if (way == "no-thread" && number == kBadStep) no_more_threads = true;
  if (bad && number == kBadStep) fail(world, way == "no-thread" ? "stop" : way);
  const bool different = bad && number == kBadStep && way == "diverge";
  {
    const llampi::health::FlightScope scope(record, {"unshard", 0, 4096, 0});
    world.barrier();
  }
  if (way == "leave-out" && bad && number == kBadStep) {
    const llampi::health::FlightScope scope(record, {"unshard", 0, 4096, 0});  // the first of the next step
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  {
    const llampi::health::FlightScope scope(record,
                                            {different ? "reduce" : "unshard", 1, different ? 64 : 4096, 0});
    world.barrier();
  }
  record.end_step();
}

}  // namespace

int main(int arguments, char** argv) {
  const std::string folder = argv[1], way = argv[3];
  const int bad_rank = std::atoi(argv[4]), steps = std::atoi(argv[5]);
  // As in `llampi train`: it ends no rank, so ranks see others end.
  std::signal(SIGTERM, [](int) { llampi::health::request_flight_record(); });
  const auto mpi = llampi::comm::World::create();
  test::WorldOfOneThread one_thread(*mpi);
  WorldOfNodes apart(*mpi);
  const std::string kind = arguments > 6 ? argv[6] : "";
  llampi::comm::World* const world = kind == "one-thread" ? &one_thread
                                     : kind == "apart"    ? &apart
                                                          : mpi.get();
  llampi::health::FlightRecord record;
  try {
    if (world->size() > 1) pid_of_rank_1 = std::stoi(world->all_gather(std::to_string(::getpid()))[1]);
    record.set_names({"model.layers.0", "model.layers.1"});
    const bool speaks = world->rank() == 0;
    const auto complain = [](const std::string& summary) {
      std::fprintf(stderr, "llampi: watchdog: %s\n", summary.c_str());
    };
    const auto side_work = std::make_shared<llampi::health::SideWork>();
    // In a phase it is as patient as elsewhere.
    llampi::health::Watchdog watchdog(
        *world, record,
        {.seconds = std::atof(argv[2]),
         .run_dir = folder,
         .side_work = side_work,
         .complain = complain,
         .least_phase_seconds = 0},
        speaks ? Log([](const std::string& line) { std::cout << line << std::endl; }) : Log());
    if (way == "long") watchdog.allow_steps_of(60);
    if (way == "side-work") {
      std::thread([beside = world->duplicate().release(), side_work, bad_rank] {
        side_work->begin("saving a checkpoint in the background", *beside);
        if (beside->rank() == bad_rank) std::this_thread::sleep_for(std::chrono::hours(1));
        beside->barrier();
      }).detach();
    }
    const bool bad = world->rank() == bad_rank || way == "stop-all-but-one";
    for (int number = 1; number <= steps; ++number) {
      step(*world, record, number, way, bad);
      if (speaks) std::cout << "step " << number << std::endl;
    }
    watchdog.finish();
  } catch (const std::exception& error) {
    std::cerr << "llampi: rank " << world->rank() << ": " << error.what() << std::endl;
    world->abort(1);
  }
  return 0;
}
