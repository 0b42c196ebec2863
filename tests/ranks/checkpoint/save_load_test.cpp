// SPDX-License-Identifier: Apache-2.0
// Saving and loading, cut and dealt in many ways, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/save.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const CheckpointTexts kTexts{"{\"hidden_size\": 80}", "[run]\nseed = 5\n"};

SamplePieces even(int parts, const SampleOptions& options = {}) {
  return SamplePieces::even(parts, test_rank(), test_ranks(), options);
}

void save(const fs::path& file, const SamplePieces& pieces, const SaveOptions& options = {}) {
  save_checkpoint(test_world(), sample_device(), file,
                  {pieces.tensors(), pieces.pieces(), sample_state(), kTexts}, options);
}

TrainingState load(const fs::path& file, const SamplePieces& pieces) {
  return load_checkpoint(test_world(), sample_device(), file, pieces.tensors(), pieces.pieces());
}

bool there_is_no_temporary(const fs::path& folder) {
  wait_for_all_ranks();
  return std::none_of(fs::directory_iterator(folder), {},
                      [](const auto& e) { return e.path().extension() == ".tmp"; });
}

TEST(SaveLoad, GoesFromEveryPartitionToEveryOther) {
  const SharedFolder folder;
  for (const int saved : {1, 2, 3, 4, 7}) {
    const fs::path file = folder.path() / "step.h5";
    save(file, even(saved).fill());
    EXPECT_TRUE(there_is_no_temporary(folder.path()));
    for (const int loaded : {1, 2, 3, 4, 5}) {
      const auto pieces = even(loaded);
      EXPECT_EQ(fields(load(file, pieces)), fields(sample_state()));
      EXPECT_EQ(pieces.differences(), 0) << "saved in " << saved << " parts, loaded in " << loaded;
    }
  }
}

TEST(SaveLoad, TakesRandomCutsDealtAtRandom) {
  const SharedFolder folder;
  const int rank = test_rank(), ranks = test_ranks();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    const fs::path file = folder.path() / "step.h5";
    SaveOptions options;
    if (seed % 2 == 0) options.file.transfer_elements = 1000;  // many calls for one piece
    save(file, SamplePieces::random(seed, rank, ranks).fill(), options);
    const auto pieces = SamplePieces::random(seed + 100, rank, ranks);
    load(file, pieces);
    EXPECT_EQ(pieces.differences(), 0);
  }
}

TEST(SaveLoad, LetsOneRankHaveEverything) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  const bool last = test_rank() == test_ranks() - 1;
  save(file, SamplePieces::even(1, last ? 0 : 1, 2).fill());
  const auto pieces = SamplePieces::even(1, 0, 1);  // every rank all of it
  load(file, pieces);
  EXPECT_EQ(pieces.differences(), 0);
}

// File systems without stripes ignore what is asked of them.
TEST(SaveLoad, StripesMayBeAskedForAnywhere) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  SaveOptions options;
  options.file.stripes = 2;
  options.file.stripe_bytes = 1 << 20;
  save(file, even(3).fill(), options);
  const auto pieces = even(2);
  load(file, pieces);
  EXPECT_EQ(pieces.differences(), 0);
}

TEST(SaveLoad, HasNoMomentsOfAModelAlone) {
  const SharedFolder folder;
  const fs::path with = folder.path() / "with.h5", without = folder.path() / "without.h5";
  save(with, even(2).fill());
  save(without, even(2, {.moments = false}).fill());
  EXPECT_TRUE(read_checkpoint_summary(with).has_optimizer);
  EXPECT_FALSE(read_checkpoint_summary(without).has_optimizer);
  for (const auto& file : {with, without}) {
    const auto pieces = even(3, {.moments = false});
    load(file, pieces);
    EXPECT_EQ(pieces.differences(), 0);
  }
  EXPECT_THAT(message_of<UserError>([&] { load(without, even(2)); }), HasSubstr("no optimizer state"));
}

TEST(SaveLoad, GivesASummaryOfWhatWasSaved) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  save(file, even(2).fill());
  const auto summary = read_checkpoint_summary(file);
  EXPECT_EQ(fields(summary.state), fields(sample_state()));
  EXPECT_EQ(summary.texts.model_config, kTexts.model_config);
  EXPECT_EQ(summary.texts.run_config, kTexts.run_config);
  EXPECT_FALSE(summary.program_version.empty());
  EXPECT_FALSE(summary.git_sha.empty());
  EXPECT_THAT(summary.created, ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
  EXPECT_NO_THROW(require_same_tensors("the summary", sample_tensors(), summary.tensors));
  EXPECT_EQ(identify(file), FileKind::checkpoint);
}

TEST(SaveLoad, KeepsLongTexts) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  const CheckpointTexts texts{std::string(200 * 1024, 'm') + "\u00e9", std::string(300 * 1024, 'r'),
                              std::string(70 * 1024, 't')};
  const auto pieces = even(2).fill();
  // What the other ranks pass does not matter; it would damage the file if it did.
  save_checkpoint(test_world(), sample_device(), file,
                  {pieces.tensors(), pieces.pieces(), sample_state(),
                   test_rank() == 0 ? texts : CheckpointTexts{"other", ""}});
  const auto summary = read_checkpoint_summary(file);
  EXPECT_TRUE(summary.texts.model_config == texts.model_config);
  EXPECT_TRUE(summary.texts.run_config == texts.run_config);
  EXPECT_TRUE(summary.texts.chat_template == texts.chat_template);
  EXPECT_NO_THROW(load(file, even(2)));
}

TEST(SaveLoad, MetadataFitsItsEstimate) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 300; ++i) {
    tensors.push_back(
        {"model.layers." + std::to_string(i) + ".self_attn.q_proj.weight_of_a_long_name", {3, 2}});
  }
  SamplePieces pieces(tensors);
  for (int i = 0; i < 300; ++i) {
    if (i % test_ranks() == test_rank()) pieces.add(i, 0, 6);
  }
  for (const std::size_t length : {10, 20'000, 60'000, 100'000}) {
    SCOPED_TRACE(length);
    const CheckpointTexts texts{std::string(length, 'm'), std::string(length, 'r')};
    save_checkpoint(test_world(), sample_device(), file, {tensors, pieces.pieces(), sample_state(), texts});
    const auto values_bytes = std::int64_t{3} * 300 * 6 * 4;
    const auto file_bytes = static_cast<std::int64_t>(fs::file_size(file));
    EXPECT_LT(file_bytes - values_bytes, metadata_bytes(tensors, texts, io::kChecksumBlockElements));
  }
}

TEST(SaveLoad, PiecesMustCoverEachElementOnce) {
  const SharedFolder folder;
  const bool first = test_rank() == 0;
  const std::vector<TensorInfo> tensors{{"a", {10, 10}}};
  const auto refused = [&](const std::vector<std::pair<int, int>>& ranges) {
    SamplePieces pieces(tensors);
    for (const auto& [begin, end] : ranges) {
      if (first) pieces.add(0, begin, end - begin);
    }
    const auto message = message_of<Error>([&] { save(folder.path() / "step.h5", pieces); });
    EXPECT_THAT(message, AllOf(HasSubstr("internal error"), HasSubstr("cover each element once")));
    EXPECT_TRUE(fs::is_empty(folder.path()));
  };
  refused({{0, 99}});
  refused({{1, 100}});
  refused({});
  refused({{0, 100}, {5, 6}});
  refused({{0, 50}, {40, 90}});  // as many elements as the tensor has
  refused({{0, 50}, {0, 50}});
  refused({{0, 100}, {0, 100}});
  refused({{0, 30}, {40, 70}, {0, 40}});
}

TEST(SaveLoad, IsStrictAboutNamesAndShapes) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  save(file, even(2).fill());

  auto tensors = sample_tensors();
  tensors[0].shape = {80, 331};
  tensors[1].name = "renamed";
  auto message =
      message_of<UserError>([&] { load_checkpoint(test_world(), sample_device(), file, tensors, {}); });
  EXPECT_THAT(message,
              AllOf(HasSubstr(file.string()), HasSubstr("missing renamed"),
                    HasSubstr("unexpected model.layers.0.input_layernorm.weight"),
                    HasSubstr("model.embed_tokens.weight ([331, 80] where the model has [80, 331])")));

  for (int i = 0; i < 8; ++i) tensors.push_back({"absent." + std::to_string(i), {1}});
  message = message_of<UserError>([&] { load_checkpoint(test_world(), sample_device(), file, tensors, {}); });
  EXPECT_THAT(message, AllOf(HasSubstr("missing renamed, absent.0, absent.1, absent.2, absent.3 and 4 more"),
                             Not(HasSubstr("absent.4"))));
}

TEST(SaveLoad, SaysWhyAFileCannotBeLoaded) {
  const SharedFolder folder;
  const auto refusal = [&](const fs::path& file) {
    return message_of<UserError>([&] { load(file, even(2)); });
  };
  const fs::path text = folder.path() / "text.h5";
  on_rank_0([&] { write_bytes(text, "this is no HDF5 file, but it is longer than a signature"); });
  EXPECT_THAT(refusal(folder.path() / "absent.h5"), HasSubstr("absent.h5"));
  EXPECT_THAT(refusal(text), HasSubstr("text.h5"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr(folder.path().string()));
}

TEST(SaveLoad, ReplacesTheOldFileAndALeftOverTemporary) {
  const SharedFolder folder;
  const fs::path file = folder.path() / "step.h5";
  on_rank_0([&] {
    write_bytes(file, "old");
    write_bytes(folder.path() / "step.h5.tmp", std::string(1 << 20, 'x'));
  });
  save(file, even(3).fill());
  EXPECT_TRUE(there_is_no_temporary(folder.path()));
  const auto pieces = even(2);
  load(file, pieces);
  EXPECT_EQ(pieces.differences(), 0);
}

TEST(SaveLoad, SaysWhyAFolderCannotBeWritten) {
  const SharedFolder folder;
  const auto refusal = [&](const fs::path& file) {
    return message_of<UserError>([&] { save(file, even(2).fill()); });
  };
  EXPECT_THAT(refusal(folder.path() / "absent" / "step.h5"),
              AllOf(HasSubstr("no such folder"), HasSubstr("absent"), HasSubstr("another place")));
  on_rank_0([&] {
    write_bytes(folder.path() / "file", "");
    fs::create_directory(folder.path() / "folder.h5");
  });
  EXPECT_THAT(refusal(folder.path() / "file" / "step.h5"), HasSubstr("no such folder"));
  EXPECT_THAT(refusal(folder.path() / "folder.h5"), HasSubstr("folder of that name"));
  EXPECT_TRUE(there_is_no_temporary(folder.path()));
}

}  // namespace
}  // namespace llampi::test
