// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks.hpp"

#include <memory>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/keys.hpp"
#include "cli/launch.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/health/done_within.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

int end_job(comm::World& world, const std::string& what) {
  print_error(fmt::format("{}: {}", comm::format_rank(world.rank(), world.topology().host), what));
  world.abort(kFailed);
  return kFailed;  // not reached, which g++ does not see through a virtual function
}

/// After an error that all ranks throw. @param ends a world of the same ranks, where they meet; null: they cannot
int end_together(comm::World& world, comm::World* ends, double patience, const std::string& what,
                 int status) {
  if (world.rank() == 0) print_error(what);
  if (ends != nullptr && health::done_within(patience, [ends] { ends->barrier(); }) == health::Done::no) {
    if (world.rank() != 0) return end_job(world, what);
    return end_job(world, "other ranks did not end with this one, so the job is aborted");
  }
  return status;
}

}  // namespace

int run_on_ranks(const std::function<int(comm::World&)>& body, double patience) {
  const std::unique_ptr<comm::World> world = comm::World::create();
  const std::unique_ptr<comm::World> ends = world->size() > 1 ? world->duplicate() : nullptr;
  const Launch launch = inspect_launch(world->size(), environment_variable);
  if (launch.verdict == Launch::Verdict::wrong) {
    if (launch.speaks) print_error(launch.sentence);
    return kWrongInput;
  }
  try {
    return body(*world);
  } catch (const UserError& error) {
    return end_together(*world, ends.get(), patience, sentence_of(error), kWrongInput);
  } catch (const comm::CommonError& error) {
    return end_together(*world, ends.get(), patience, sentence_of(error), kFailed);
  } catch (const std::exception& error) {
    return end_job(*world, sentence_of(error));
  } catch (...) {
    return end_job(*world, "an exception of unknown type");
  }
}

train::Config resolve_on_rank_0(comm::World& world, const Arguments& arguments, const Log& log,
                                const std::vector<Option>& more, Purpose purpose) {
  const auto resolve = [&] {
    std::set<std::string> given;
    train::Config config = resolve_config(arguments, log, purpose, more, &given);
    if (purpose == Purpose::plan) choose_global_batch(config, world.size(), given, log);
    return to_ini(config);
  };
  return parse_ini(comm::from_rank_0(world, resolve), "the configuration of rank 0", purpose);
}

}  // namespace llampi::cli
