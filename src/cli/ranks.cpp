// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks.hpp"

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/keys.hpp"
#include "cli/launch.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

int end_job(comm::World& world, const std::string& what) {
  print_error(fmt::format("{}: {}", comm::format_rank(world.rank(), world.topology().host), what));
  world.abort(kFailed);
  return kFailed;  // not reached, which g++ does not see through a virtual function
}

}  // namespace

int run_on_ranks(const std::function<int(comm::World&)>& body) {
  const std::unique_ptr<comm::World> world = comm::World::create();
  const Launch launch = inspect_launch(world->size(), environment_variable);
  if (launch.verdict == Launch::Verdict::wrong) {
    if (launch.speaks) print_error(launch.sentence);
    return kWrongInput;
  }
  try {
    return body(*world);
  } catch (const UserError& error) {
    if (world->rank() == 0) print_error(sentence_of(error));
    return kWrongInput;
  } catch (const comm::CommonError& error) {
    if (world->rank() == 0) print_error(sentence_of(error));
    return kFailed;
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
