// SPDX-License-Identifier: Apache-2.0
// GoogleTest on several ranks: every rank runs every test, rank 0 prints, and a test fails if it fails on any
// rank.
//
// A rank that fails does not leave the others hanging: an exception that escapes a test ends the job, and so
// does a failure after which the other ranks do not come to the end of the test within some seconds.
#include "support/mpi_test.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/handles.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::test {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);

std::unique_ptr<comm::World>& the_world() {
  static std::unique_ptr<comm::World> world;
  return world;
}

[[noreturn]] void end_job(const std::string& why) {
  std::fprintf(stderr, "rank %d: %s\n", test_world().rank(), why.c_str());
  std::fflush(nullptr);
  test_world().abort(1);
  std::abort();  // GCC does not see that a virtual function does not return
}

/// Exchanges texts between ranks on a communicator that no test uses, and with a limit to its patience.
class Meeting {
 public:
  explicit Meeting(comm::World& world) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_dup(comm::mpi_communicator(world), &copy);
    communicator_ = comm::Communicator(copy);
    lengths_.resize(static_cast<std::size_t>(world.size()));
  }

  /// Every rank's text. Returns an empty list if this rank is `impatient` and the others do not come.
  std::vector<std::string> exchange(const std::string& text, bool impatient) {
    const int length = static_cast<int>(text.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&length, 1, MPI_INT, lengths_.data(), 1, MPI_INT, communicator_.get(), &request);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int done = 0; done == 0;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done == 0 && impatient && std::chrono::steady_clock::now() > deadline) return {};
    }
    std::vector<int> offsets;
    int total = 0;
    for (const int other : lengths_) {
      offsets.push_back(total);
      total += other;
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths_.data(), offsets.data(), MPI_CHAR,
                   communicator_.get());
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
      texts.push_back(
          all.substr(static_cast<std::size_t>(offsets[rank]), static_cast<std::size_t>(lengths_[rank])));
    }
    return texts;
  }

 private:
  comm::Communicator communicator_;
  std::vector<int> lengths_;  // outlives a request that is given up
};

/// Collects this rank's failures and lets the ranks meet at the end of each test.
class RankListener final : public ::testing::EmptyTestEventListener {
 public:
  explicit RankListener(comm::World& world) : world_(world), meeting_(world) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed() || reporting_) return;
    failures_ += fmt::format("{}:{}: {}\n", result.file_name() ? result.file_name() : "",
                             result.line_number(), result.message());
  }

  void OnTestEnd(const ::testing::TestInfo& test) override {
    const std::string name = fmt::format("{}.{}\n", test.test_suite_name(), test.name());
    const auto texts = meeting_.exchange(name + failures_, !failures_.empty());
    if (texts.empty())
      end_job(fmt::format("failed in {}{}and the other ranks do not come to its end", name, failures_));
    reporting_ = true;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].starts_with(name))
        end_job(fmt::format("in {}while rank {} is in {}", name, rank, texts[rank]));
      const std::string theirs = texts[rank].substr(name.size());
      if (world_.rank() == 0 && rank != 0 && !theirs.empty())
        ADD_FAILURE() << "rank " << rank << ": " << theirs;
    }
    reporting_ = false;
    failures_.clear();
  }

  /// The worst exit status; every rank must have run the same tests.
  int agree_on_status(int status) {
    const auto& unit = *::testing::UnitTest::GetInstance();
    const auto texts = meeting_.exchange(
        fmt::format("{} tests, {} skipped", unit.test_to_run_count(), unit.skipped_test_count()), false);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] == texts[0]) continue;
      if (world_.rank() == 0)
        std::fprintf(stderr, "rank 0 ran %s, rank %zu %s\n", texts[0].c_str(), rank, texts[rank].c_str());
      status = 1;
    }
    std::int64_t worst = status;
    world_.max(std::span<std::int64_t>(&worst, 1));
    return static_cast<int>(worst);
  }

 private:
  comm::World& world_;
  Meeting meeting_;
  std::string failures_;
  bool reporting_ = false;
};

int run_tests(comm::World& world) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
  }
  auto* listener = new RankListener(world);  // owned by GoogleTest once it is appended
  listeners.Append(listener);
  // A rank whose test throws must not go on to the next test while the others wait for it in this one.
  GTEST_FLAG_SET(catch_exceptions, false);
  const int status = listener->agree_on_status(RUN_ALL_TESTS());
  delete listeners.Release(listener);  // while MPI still runs
  return status;
}

}  // namespace

comm::World& test_world() { return *the_world(); }
int test_rank() { return test_world().rank(); }
int test_ranks() { return test_world().size(); }
void wait_for_all_ranks() { test_world().barrier(); }

}  // namespace llampi::test

int main(int argc, char** argv) {
  llampi::test::the_world() = llampi::comm::World::create();
  ::testing::InitGoogleTest(&argc, argv);
  int status = 1;
  try {
    status = llampi::test::run_tests(llampi::test::test_world());
  } catch (const std::exception& error) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    llampi::test::end_job(fmt::format("exception in {}.{}: {}", test ? test->test_suite_name() : "?",
                                      test ? test->name() : "?", error.what()));
  }
  llampi::test::the_world().reset();
  return status;
}
