// SPDX-License-Identifier: Apache-2.0
// The checksums in files: those of the values, whoever wrote which part.
#include "checkpoint/checksums.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "checkpoint/save.hpp"
#include "checkpoint/tensor_list.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;

/// By path, computed from the sample.
std::map<std::string, std::vector<std::uint32_t>> expected(std::int64_t block) {
  std::map<std::string, std::vector<std::uint32_t>> checksums;
  const auto tensors = sample_tensors();
  for (int role = 0; role < 3; ++role) {
    for (int t = 0; t < std::ssize(tensors); ++t) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < size_of_tensor(tensors[t]); ++i)
        values.push_back(std::bit_cast<float>(sample_bits(role, t, i)));
      auto& sums = checksums[fmt::format("/{}/{}", kRoles[role].group, tensors[t].name)];
      for (auto rest = std::span(values); !rest.empty();) {
        const auto part = rest.first(std::min(rest.size(), static_cast<std::size_t>(block)));
        sums.push_back(io::crc32_of(std::as_bytes(part)));
        rest = rest.subspan(part.size());
      }
    }
  }
  return checksums;
}

void expect_right(const fs::path& file, std::int64_t block) {
  const io::Hdf5Lock lock;
  const auto stored = read_metadata(io::hdf5::open_file(file).id(), file).checksums;
  std::map<std::string, std::vector<std::uint32_t>> found;
  for (const auto& dataset : stored.datasets) found[dataset.path] = dataset.blocks;
  EXPECT_EQ(stored.block_elements, block);
  EXPECT_EQ(found, expected(block));
}

TEST(Checksums, AreThoseOfTheValuesHoweverTheyAreDivided) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  const int rank = test_rank(), ranks = test_ranks();
  for (const std::int64_t block : {std::int64_t{1000}, std::int64_t{4096}, io::kChecksumBlockElements}) {
    for (const int parts : {1, 2, 3, 7}) {
      SCOPED_TRACE(fmt::format("blocks of {}, {} parts", block, parts));
      SaveOptions options;
      options.block_elements = block;
      options.file.transfer_elements = 700 * parts;
      const auto pieces = parts == 7 ? SamplePieces::random(5, rank, ranks).fill()
                                     : SamplePieces::even(parts, rank, ranks).fill();
      save_checkpoint(test_world(), sample_device(), file,
                      {pieces.tensors(), pieces.pieces(), sample_state(), {"{}", ""}}, options);
      expect_right(file, block);
      wait_for_all_ranks();
    }
  }
}

// What a rank writes is what it has, widened: the checksums are of that.
TEST(Checksums, AreThoseOfWidenedValues) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  const SampleOptions options{.model = DType::bfloat16, .moment = DType::float16};
  const auto pieces = SamplePieces::even(3, test_rank(), test_ranks(), options).fill();
  save_checkpoint(test_world(), sample_device(), file,
                  {pieces.tensors(), pieces.pieces(), sample_state(), {"{}", ""}});
  wait_for_all_ranks();
  EXPECT_GT(verify_checkpoint(file), 0);
  wait_for_all_ranks();
}

}  // namespace
}  // namespace llampi::test
