// Files that stay: each number of ranks writes one, and each number of ranks reads all of them. ctest runs
// `Write` first, on 1, 2, 3 and 4 ranks, then `Read` on as many, and then read_with_h5py.py.
#include <gtest/gtest.h>

#include "checkpoint/sample.hpp"
#include "support/mpi_test.hpp"

namespace llampi {
namespace {

std::filesystem::path file_written_by(int ranks) {
  return std::filesystem::path(LLAMPI_EXCHANGE_FOLDER) / ("written_by_" + std::to_string(ranks) + ".h5");
}

SamplePieces own_pieces() {
  const int ranks = test_world().size();
  SampleOptions options;
  options.tensors[4].optimizer = false;
  return SamplePieces::even(ranks, test_world().rank(), ranks, options);
}

TEST(Exchange, Write) {
  const auto pieces = own_pieces().fill();
  save_checkpoint(test_world(), sample_device(), file_written_by(test_world().size()), pieces.tensors(),
                  pieces.pieces(), sample_state(), {"{\"hidden_size\": 80}", "[run]\nseed = 5\n"});
}

TEST(Exchange, Read) {
  for (const int writers : {1, 2, 3, 4}) {
    SCOPED_TRACE(writers);
    const auto pieces = own_pieces();
    const auto state = load_checkpoint(test_world(), sample_device(), file_written_by(writers),
                                       pieces.tensors(), pieces.pieces());
    EXPECT_EQ(fields(state), fields(sample_state()));
    EXPECT_EQ(pieces.differences(), 0);
  }
}

}  // namespace
}  // namespace llampi
