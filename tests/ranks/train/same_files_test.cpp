// SPDX-License-Identifier: Apache-2.0
// Files on nodes that only the topology says that there are: each rank is in a folder of its own, where it has a copy of its own or
// a link to that of its node.
#include "train/same_files.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "llampi/core/error.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace train;
namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kBlock = kCompareBlockBytes;

class SameFiles : public ::testing::Test {
 protected:
  SameFiles() : before_(fs::current_path()) {
    folder_ = test_world().broadcast(
        (fs::temp_directory_path() / fmt::format("llampi-files-{}", ::getpid())).string(), 0);
    fs::create_directories(own(test_world().rank()));
    fs::current_path(own(test_world().rank()));
  }
  ~SameFiles() override {
    fs::current_path(before_);
    test_world().barrier();
    if (test_world().rank() == 0) fs::remove_all(folder_);
  }
  fs::path own(int rank) const { return folder_ / std::to_string(rank); }

  /// Two ranks on each node; the last one may be alone on its.
  static std::vector<int> pairs() {
    std::vector<int> node_of_rank;
    for (int rank = 0; rank < test_world().size(); ++rank) node_of_rank.push_back(rank / 2);
    return node_of_rank;
  }
  /// a, of two and a half blocks, and b, of a few bytes: a copy for each node.
  void write_copies() const {
    const int rank = test_world().rank();
    test_world().barrier();
    for (const auto* name : {"a", "b"}) fs::remove(name);
    if (rank % 2 == 0) {
      std::string values(static_cast<std::size_t>(2 * kBlock + kBlock / 2), '\0');
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * i / 7 + i);
      std::ofstream("a", std::ios::binary) << values;
      std::ofstream("b", std::ios::binary) << "a few bytes";
    } else {
      for (const auto* name : {"a", "b"}) fs::create_symlink(own(rank - 1) / name, name);
    }
    test_world().barrier();
  }
  static void change(const char* name, std::int64_t place) {
    std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(place);
    const int value = file.get();
    file.seekp(place);
    file.put(static_cast<char>(value ^ 1));
  }
  FileComparison compare(const CompareLimits& limits = {}, const std::vector<int>& nodes = pairs()) const {
    SimulatedNodes world(test_world(), nodes);
    const auto result = compare_files(
        world,
        [] {
          return std::vector<fs::path>{"a", "b"};
        },
        limits);
    const auto all = test_world().all_gather(result.difference);
    EXPECT_EQ(std::count(all.begin(), all.end(), all.front()), std::ssize(all));
    test_world().barrier();
    return result;
  }
  static int last_node() { return pairs().back(); }
  static bool on_last_node() { return pairs()[static_cast<std::size_t>(test_world().rank())] == last_node(); }
  /// Whether this rank writes the copy of the last node.
  static bool writes_last() { return on_last_node() && test_world().rank() % 2 == 0; }

  fs::path before_, folder_;
};

TEST_F(SameFiles, AreReadWholeByEachNode) {
  write_copies();
  const auto result = compare();
  EXPECT_EQ(result.difference, "");
  EXPECT_EQ(result.readers, last_node() + 1);
  EXPECT_EQ(result.files, 2);
  EXPECT_EQ(result.bytes, 2 * kBlock + kBlock / 2 + 11);
  EXPECT_EQ(result.compared_bytes, last_node() == 0 ? 0 : result.bytes);
}

TEST_F(SameFiles, NameTheNodeAndTheFileOfOneChangedByte) {
  if (last_node() == 0) GTEST_SKIP() << "one node has nothing to compare with";
  for (const std::int64_t place :
       {std::int64_t{0}, kBlock - 1, kBlock, 2 * kBlock + 12345, 5 * kBlock / 2 - 1}) {
    write_copies();
    if (writes_last()) change("a", place);
    EXPECT_EQ(compare().difference, fmt::format("node node{} has other bytes in a", last_node())) << place;
  }
  write_copies();
  if (writes_last()) change("a", 7), change("b", 0);
  EXPECT_EQ(compare().difference,
            fmt::format("node node{} has other bytes in a and in 1 more file", last_node()));
}

TEST_F(SameFiles, NameTheNodeWhoseBlocksChangedPlaces) {
  if (last_node() == 0) GTEST_SKIP() << "one node has nothing to compare with";
  write_copies();
  if (writes_last()) {
    std::fstream file("a", std::ios::binary | std::ios::in | std::ios::out);
    std::string first(kBlock, '\0'), second(kBlock, '\0');
    file.read(first.data(), kBlock).read(second.data(), kBlock);
    file.seekp(0);
    file << second << first;
  }
  EXPECT_EQ(compare().difference, fmt::format("node node{} has other bytes in a", last_node()));
}

TEST_F(SameFiles, NameARankThatSeesAnotherCopyThanItsNode) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank has nothing to compare with";
  const std::vector<int> one_node(static_cast<std::size_t>(test_world().size()), 0);
  write_copies();
  if (test_world().rank() == 1) {
    fs::remove("b");
    fs::copy_file(own(0) / "b", "b");
  }
  const auto same = compare({}, one_node);
  EXPECT_EQ(same.difference, "");
  EXPECT_EQ(same.readers, last_node() + 2);
  if (test_world().rank() == 1) change("b", 3);
  EXPECT_EQ(compare({}, one_node).difference, "rank 1 on node0 has other bytes in b");
}

TEST_F(SameFiles, NameOtherSizesAndMissingFiles) {
  if (last_node() == 0) GTEST_SKIP() << "one node has nothing to compare with";
  write_copies();
  if (writes_last()) fs::resize_file("a", 2 * kBlock);
  const auto cut = compare();
  EXPECT_EQ(cut.difference,
            fmt::format("node node{} has 8,388,608 bytes in a instead of 10,485,760", last_node()));
  EXPECT_EQ(cut.compared_bytes, 0);
  if (writes_last()) fs::remove("a");
  EXPECT_EQ(compare().difference,
            fmt::format("node node{} has files that cannot be read there: a: No such file or directory",
                        last_node()));
}

TEST_F(SameFiles, AreSampledBeyondTheLimits) {
  if (last_node() == 0) GTEST_SKIP() << "one node has nothing to compare with";
  const auto is_found_at = [&](std::int64_t place, const CompareLimits& limits) {
    write_copies();
    if (writes_last()) change("a", place);
    const auto result = compare(limits);
    EXPECT_LE(result.compared_bytes, result.bytes);
    return !result.difference.empty();
  };
  // One block: the ends of files, and no more.
  for (const auto& limits : {CompareLimits{.rank_bytes = 1}, CompareLimits{.job_bytes = 1}}) {
    EXPECT_TRUE(is_found_at(0, limits));
    EXPECT_TRUE(is_found_at(2 * kBlock, limits));
    EXPECT_FALSE(is_found_at(kBlock, limits));
  }
  EXPECT_TRUE(is_found_at(kBlock, {.rank_bytes = 4 * kBlock}));
}

TEST_F(SameFiles, ThatNoRankHasAreTheUsersMistake) { EXPECT_THROW(compare(), UserError); }

}  // namespace
}  // namespace llampi::test
