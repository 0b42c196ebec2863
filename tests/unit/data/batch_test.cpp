// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/loader.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> to_vector(std::span<std::int32_t> values) { return {values.begin(), values.end()}; }

std::vector<std::int32_t> documents(device::HostBatch& batch) {
  return to_vector(batch.cu_seqlens().first(static_cast<std::size_t>(batch.documents + 1)));
}

/// Tokens 10 .. 21 in documents of 3, 0, 4 and 5 tokens: [10 11 12] [] [13 14 15 16] [17 18 19 20 21].
data::TokenFile small_file(const TemporaryFolder& folder) {
  return data::TokenFile(
      write_tokens(folder / "small.h5", 256, {{10, 11, 12}, {}, {13, 14, 15, 16}, {17, 18, 19, 20, 21}}));
}

TEST(MakeBatch, KeepsDocumentsApart) {
  const TemporaryFolder folder;
  const auto file = small_file(folder);
  ASSERT_EQ(file.samples(5), 2);
  auto batch = data::make_batch(
      file, {.seq_len = 5, .micro_batch = 2, .document_mask = true, .vocabulary = 256}, {0, 1});
  EXPECT_EQ(batch.token_count(), 10);
  EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  EXPECT_THAT(to_vector(batch.labels()), ElementsAre(11, 12, -1, 14, 15, 16, -1, 18, 19, 20));
  EXPECT_THAT(to_vector(batch.positions()), ElementsAre(0, 1, 2, 0, 1, 0, 1, 0, 1, 2));
  EXPECT_THAT(documents(batch), ElementsAre(0, 3, 5, 7, 10));
  EXPECT_EQ(batch.documents, 4);
  EXPECT_EQ(batch.valid_labels, 8);
}

TEST(MakeBatch, JoinsDocumentsWithoutTheMask) {
  const TemporaryFolder folder;
  const auto file = small_file(folder);
  auto batch = data::make_batch(
      file, {.seq_len = 5, .micro_batch = 2, .document_mask = false, .vocabulary = 256}, {1, 0});
  EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(15, 16, 17, 18, 19, 10, 11, 12, 13, 14));
  EXPECT_THAT(to_vector(batch.labels()), ElementsAre(16, 17, 18, 19, 20, 11, 12, 13, 14, 15));
  EXPECT_THAT(to_vector(batch.positions()), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(documents(batch), ElementsAre(0, 5, 10));
  EXPECT_EQ(batch.valid_labels, 10);
}

TEST(MakeBatch, TakesOneDocumentPerSample) {
  const TemporaryFolder folder;
  const data::TokenFile file(write_tokens(folder / "a.h5", 256, {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10}}));
  auto batch = data::make_batch(
      file, {.seq_len = 3, .micro_batch = 3, .document_mask = true, .vocabulary = 256}, {2, 0, 1});
  EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(7, 8, 9, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(to_vector(batch.labels()), ElementsAre(8, 9, -1, 2, 3, -1, 5, 6, -1));
  EXPECT_THAT(documents(batch), ElementsAre(0, 3, 6, 9));
  EXPECT_EQ(batch.valid_labels, 6);
}

TEST(MakeBatch, TakesRowsOfIds) {
  auto batch = data::make_batch(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}, 2);
  EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(to_vector(batch.labels()), ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(to_vector(batch.positions()), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(documents(batch), ElementsAre(0, 2, 4));
  EXPECT_EQ(batch.valid_labels, 4);
  EXPECT_THROW(data::make_batch(std::vector<std::int32_t>{1, 2, 3, 4}, 2), Error);  // not whole rows
}

TEST(MakeBatch, TakesDocumentsOfOneTokenAndSequencesOfOne) {
  const TemporaryFolder folder;
  const data::TokenFile file(write_tokens(folder / "a.h5", 256, {{1}, {2}, {3}}));
  auto one =
      data::make_batch(file, {.seq_len = 2, .micro_batch = 1, .document_mask = true, .vocabulary = 256}, {0});
  EXPECT_THAT(to_vector(one.labels()), ElementsAre(-1, -1));
  EXPECT_THAT(to_vector(one.positions()), ElementsAre(0, 0));
  EXPECT_THAT(documents(one), ElementsAre(0, 1, 2));
  EXPECT_EQ(one.valid_labels, 0);
  auto two = data::make_batch(
      file, {.seq_len = 1, .micro_batch = 2, .document_mask = false, .vocabulary = 256}, {1, 0});
  EXPECT_THAT(to_vector(two.tokens()), ElementsAre(2, 1));
  EXPECT_THAT(to_vector(two.labels()), ElementsAre(3, 2));
  EXPECT_THAT(documents(two), ElementsAre(0, 1, 2));
}

TEST(MakeBatch, LeavesEmptySlots) {
  const TemporaryFolder folder;
  const auto file = small_file(folder);
  auto batch = data::make_batch(
      file, {.seq_len = 3, .micro_batch = 3, .document_mask = true, .vocabulary = 256}, {-1, 2, -1});
  EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(0, 0, 0, 16, 17, 18, 0, 0, 0));
  EXPECT_THAT(to_vector(batch.labels()), ElementsAre(-1, -1, -1, -1, 18, 19, -1, -1, -1));
  EXPECT_THAT(to_vector(batch.positions()), ElementsAre(0, 1, 2, 0, 0, 1, 0, 1, 2));
  EXPECT_THAT(documents(batch), ElementsAre(0, 3, 4, 6, 9));
  EXPECT_EQ(batch.valid_labels, 2);
}

// In the fixture token i is 7 i mod 331, documents start at 0, 13, 13 and 30, and the mask is 0 where i is a
// multiple of 3.
TEST(MakeBatch, NeverPredictsWhatTheLossMaskHides) {
  for (const char* name : {"loss_mask.h5", "bool_mask.h5", "gzip.h5"}) {
    const data::TokenFile file(fixture(std::string("token_files/") + name));
    auto batch = data::make_batch(
        file, {.seq_len = 10, .micro_batch = 2, .document_mask = true, .vocabulary = 331}, {1, 0});
    EXPECT_THAT(to_vector(batch.tokens()), ElementsAre(70, 77, 84, 91, 98, 105, 112, 119, 126, 133,  //
                                                       0, 7, 14, 21, 28, 35, 42, 49, 56, 63));
    // Positions 11 to 20: 12, 15, 18 are masked, 13 begins a document.
    EXPECT_THAT(to_vector(batch.labels()), ElementsAre(77, -1, -1, 98, -1, 112, 119, -1, 133, 140,  //
                                                       7, 14, -1, 28, 35, -1, 49, 56, -1, 70));
    EXPECT_THAT(documents(batch), ElementsAre(0, 3, 10, 20));
    EXPECT_EQ(batch.valid_labels, 13);
  }
}

TEST(MakeBatch, NamesATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  const auto file = small_file(folder);
  const data::BatchOptions options{.seq_len = 5, .micro_batch = 1, .document_mask = true, .vocabulary = 20};
  EXPECT_EQ(data::make_batch(file, options, {0}).valid_labels, 4);
  EXPECT_THAT(
      user_error([&] { data::make_batch(file, options, {1}); }),
      AllOf(HasSubstr("small.h5"), HasSubstr("token 20 at position 10"), HasSubstr("vocabulary of 20")));
  const data::TokenFile huge(fixture("token_files/huge_token.h5"));
  EXPECT_THAT(
      user_error([&] { data::make_batch(huge, {.seq_len = 49, .micro_batch = 1, .vocabulary = 331}, {0}); }),
      HasSubstr("at position 40"));
  const data::TokenFile negative(fixture("token_files/negative.h5"));
  EXPECT_THAT(user_error([&] {
                data::make_batch(negative, {.seq_len = 4, .micro_batch = 1, .vocabulary = 331}, {0});
              }),
              HasSubstr("at position 3"));
}

TEST(MakeBatch, RefusesSamplesBeyondTheFile) {
  const TemporaryFolder folder;
  const auto file = small_file(folder);
  const data::BatchOptions options{.seq_len = 5, .micro_batch = 1, .document_mask = true, .vocabulary = 256};
  EXPECT_THROW(data::make_batch(file, options, {2}), Error);
  EXPECT_THROW(data::make_batch(file, options, {0, 1}), Error) << "more samples than slots";
}

}  // namespace
}  // namespace llampi::test
