// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <new>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace comm;

/// What agree() throws when `work` does: "UserError: ..." or "Error: ...", or nothing.
std::string outcome(const std::function<void()>& work, const decltype(agree)& agreement = agree) {
  try {
    agreement(test_world(), work);
    return {};
  } catch (const UserError& error) {
    return std::string("UserError: ") + error.what();
  } catch (const CommonError& error) {
    return std::string("Error: ") + error.what();
  }
}

/// The message of a rank that did not fail like all others. Collective.
std::string on_rank(int rank, const std::string& message) {
  World& world = test_world();
  if (world.size() == 1) return message;
  const auto hosts = world.all_gather(world.topology().host);
  return fmt::format("rank {} on {}: {}", rank, hosts[static_cast<std::size_t>(rank)], message);
}

TEST(Agree, ThrowsNothingWhereAllIsWell) {
  int calls = 0;
  EXPECT_EQ(outcome([&] { ++calls; }), "");
  EXPECT_EQ(calls, 1);
}

TEST(Agree, TheSameMistakeEverywhereIsSaidOnce) {
  EXPECT_EQ(outcome([] { throw UserError("no such file"); }), "UserError: no such file");
  EXPECT_EQ(outcome([] { throw Error("broken"); }), "Error: broken");
}

TEST(Agree, OneRanksFailureIsEverybodys) {
  for (int failing = 0; failing < test_world().size(); ++failing) {
    const auto fail = [&] {
      if (test_world().rank() == failing) throw UserError("bad token");
    };
    EXPECT_EQ(outcome(fail), "UserError: " + on_rank(failing, "bad token"));
  }
}

TEST(Agree, AMistakeOfSomeNodesAloneIsNotTheUsers) {
  const int size = test_world().size();
  const auto mistake = [] { throw UserError(fmt::format("no file {}", test_world().rank())); };
  EXPECT_EQ(outcome(mistake, agree_on_nodes), "UserError: " + on_rank(0, "no file 0"));
  if (size == 1) return;
  const auto on_last = [&] {
    if (test_world().rank() == size - 1) mistake();
  };
  EXPECT_EQ(outcome(on_last, agree_on_nodes),
            "Error: " + on_rank(size - 1, fmt::format("no file {}", size - 1)));
  EXPECT_EQ(outcome([] {}, agree_on_nodes), "");
}

TEST(Agree, TheLowestFailingRankIsNamed) {
  const int size = test_world().size();
  const auto fail = [&] {
    if (test_world().rank() >= size / 2) throw Error(fmt::format("failure {}", test_world().rank()));
  };
  EXPECT_EQ(outcome(fail), "Error: " + on_rank(size / 2, fmt::format("failure {}", size / 2)));
}

TEST(Agree, AUsersMistakeGoesBeforeOtherErrors) {
  const int size = test_world().size();
  const auto fail = [&] {
    if (test_world().rank() == size - 1) throw UserError("mistake");
    throw Error("consequence");
  };
  EXPECT_EQ(outcome(fail), "UserError: " + on_rank(size - 1, "mistake"));
}

TEST(Agree, EqualWordsOfDifferentKindsAreNotAlike) {
  const int size = test_world().size();
  const auto fail = [&] {
    if (test_world().rank() == size - 1) throw UserError("words");
    throw Error("words");
  };
  EXPECT_EQ(outcome(fail), "UserError: " + on_rank(size - 1, "words"));
}

TEST(Agree, OtherExceptionsCountAsErrors) {
  EXPECT_EQ(outcome([] { throw std::runtime_error("odd"); }), "Error: odd");
  EXPECT_EQ(outcome([] { throw std::bad_alloc(); }), std::string("Error: ") + std::bad_alloc().what());
  EXPECT_EQ(outcome([] { throw CallError("MPI_Send", "no route"); }).substr(0, 31),
            "Error: MPI_Send failed: no rout");
  EXPECT_EQ(outcome([] { throw 3; }), "Error: an exception of unknown type");
}

TEST(Agree, WorksAgainAfterAFailure) {
  EXPECT_NE(outcome([] { throw Error(""); }), "");
  EXPECT_EQ(outcome([] {}), "");
}

}  // namespace
}  // namespace llampi::test
