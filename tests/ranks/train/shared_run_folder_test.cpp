// SPDX-License-Identifier: Apache-2.0
// A run.dir that the nodes do not share is found when the run starts, and not at its first save.
#include "train/shared_folder.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <vector>

#include "llampi/core/error.hpp"
#include "support/mpi_test.hpp"
#include "support/shared_folder.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Ranks 0 to N/2 - 1 are on one node, the others on another.
class SharedRunFolder : public ::testing::Test {
 protected:
  SharedRunFolder() : world_(test_world(), nodes_of(test_world().size())) {
    for (const auto* name : {"checkpoints", "elsewhere/checkpoints"})
      if (test_world().rank() == 0) fs::create_directories(folder_.path() / name);
    test_world().barrier();
  }
  static std::vector<int> nodes_of(int ranks) {
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(2 * rank / ranks);
    return nodes;
  }
  bool nothing_is_left() const { return fs::is_empty(folder_.path() / "checkpoints"); }

  SharedFolder folder_;
  SimulatedNodes world_;
};

TEST_F(SharedRunFolder, IsSeenByAllNodes) {
  train::require_shared_folder(world_, folder_.path() / "checkpoints", "mine", nullptr, 0);
  test_world().barrier();
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(SharedRunFolder, IsNotAnotherOneOnTheOtherNode) {
  const fs::path own = world_.topology().node == 0 ? folder_.path() : folder_.path() / "elsewhere";
  try {
    train::require_shared_folder(world_, own / "checkpoints", "mine", nullptr, 0.1);
    FAIL() << "the second node has another folder";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("run.dir = mine is another folder here than on the node of rank 0"),
                      HasSubstr("that all nodes share"), HasSubstr("node1")));
  }
  test_world().barrier();
  EXPECT_TRUE(nothing_is_left());
}

}  // namespace
}  // namespace llampi::test
