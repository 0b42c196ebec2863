// SPDX-License-Identifier: Apache-2.0
// Files that stay: each number of ranks writes one, and each number of ranks reads all of them. ctest runs
// `Write...` first, on 1, 2, 3 and 4 ranks, then `Read...` on as many, and then read_with_h5py.py.
#include <gtest/gtest.h>

#include "checkpoint/checksums.hpp"
#include "checkpoint/save.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

std::filesystem::path file_written_by(int ranks) {
  return std::filesystem::path(LLAMPI_EXCHANGE_FOLDER) / ("written_by_" + std::to_string(ranks) + ".h5");
}

SamplePieces own_pieces() {
  const int ranks = test_ranks();
  SampleOptions options;
  options.tensors[4].optimizer = false;
  return SamplePieces::even(ranks, test_rank(), ranks, options);
}

TEST(Exchange, WritesAFileForEachNumberOfRanks) {
  const auto pieces = own_pieces().fill();
  SaveOptions options;
  options.block_elements = 1000;  // several blocks, which ranks share
  save_checkpoint(
      test_world(), sample_device(), file_written_by(test_ranks()),
      {pieces.tensors(), pieces.pieces(), sample_state(), {"{\"hidden_size\": 80}", "[run]\nseed = 5\n"}},
      options);
}

TEST(Exchange, ReadsTheFilesOfEveryNumberOfRanks) {
  for (const int writers : {1, 2, 3, 4}) {
    SCOPED_TRACE(writers);
    const auto pieces = own_pieces();
    const auto state = load_checkpoint(test_world(), sample_device(), file_written_by(writers),
                                       pieces.tensors(), pieces.pieces());
    EXPECT_EQ(fields(state), fields(sample_state()));
    EXPECT_EQ(pieces.differences(), 0);
  }
}

TEST(Exchange, ReadsTheSameChecksumsInAllFiles) {
  const auto checksums_of = [](int writers) {
    const io::Hdf5Lock lock;
    return read_all_checksums(io::hdf5::open_file(file_written_by(writers)).id()).datasets;
  };
  const auto expected = checksums_of(1);
  ASSERT_EQ(expected.size(), 3 * sample_tensors().size() - 2);
  for (const int writers : {2, 3, 4}) {
    const auto found = checksums_of(writers);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].path, expected[i].path);
      EXPECT_EQ(found[i].blocks, expected[i].blocks) << found[i].path << " of " << writers << " ranks";
    }
  }
}

}  // namespace
}  // namespace llampi::test
