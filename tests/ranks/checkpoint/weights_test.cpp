// SPDX-License-Identifier: Apache-2.0
// Weights from a checkpoint to Hugging Face folders and back, by every number of ranks; sharded folders.
#include "llampi/checkpoint/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/weights_folder.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/core/error.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const CheckpointTexts kTexts{"{\"hidden_size\": 80}", "[run]\nseed = 5\n"};

SamplePieces pieces_of(int parts, DType model = DType::float32) {
  return SamplePieces::even(parts, test_rank(), test_ranks(), {.moments = false, .model = model});
}

/// A checkpoint of the sample, and what an export of it with `options` is.
class Exported {
 public:
  explicit Exported(const ExportOptions& options) {
    const auto pieces = pieces_of(3).fill();
    save_checkpoint(test_world(), sample_device(), checkpoint(),
                    {pieces.tensors(), pieces.pieces(), {}, kTexts});
    fs::create_directories(folder());
    export_weights(test_world(), *open_checkpoint_weights(checkpoint()), folder(), options);
  }
  fs::path checkpoint() const { return shared_.path() / "step.h5"; }
  fs::path folder() const { return shared_.path() / "exported"; }
  fs::path file(const std::string& name) const { return folder() / name; }

 private:
  SharedFolder shared_;
};

void load(const fs::path& folder, const SamplePieces& pieces, WeightsReading reading) {
  load_weights(test_world(), sample_device(), *open_safetensors(folder, false), pieces.tensors(),
               pieces.pieces(), reading);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Weights, BackFromOneFileWithTheSameBits) {
  const Exported exported({});
  EXPECT_THAT(names_in(exported.folder()), ::testing::ElementsAre("model.safetensors"));
  for (const int parts : {1, 2, 3, 5}) {
    for (const auto reading : {WeightsReading::each, WeightsReading::broadcast}) {
      const auto pieces = pieces_of(parts);
      load(exported.folder(), pieces, reading);
      EXPECT_EQ(pieces.differences(), 0) << parts << " parts";
    }
  }
}

TEST(Weights, BackFromSeveralFiles) {
  // The embedding, 105,920 bytes, is larger than a file may be and has one of its own.
  const Exported exported({.max_shard_bytes = 60'000});
  EXPECT_THAT(names_in(exported.folder()),
              ::testing::ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  std::ifstream stream(exported.file("model.safetensors.index.json"));
  const auto index = json::parse(stream);
  EXPECT_EQ(index["weight_map"].size(), sample_tensors().size());
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00002-of-00003.safetensors");
  std::int64_t bytes = 0;
  for (const auto& tensor : sample_tensors()) bytes += size_of_tensor(tensor) * 4;
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  for (const auto reading : {WeightsReading::each, WeightsReading::broadcast}) {
    const auto pieces = pieces_of(4);
    load(exported.folder(), pieces, reading);
    EXPECT_EQ(pieces.differences(), 0);
  }
}

TEST(Weights, Bfloat16IsRoundedOnce) {
  const Exported exported({.dtype = DType::bfloat16});
  // The sample's narrow pieces expect its values rounded to nearest even.
  const auto pieces = pieces_of(2, DType::bfloat16);
  load(exported.folder(), pieces, WeightsReading::each);
  EXPECT_EQ(pieces.differences(), 0);
}

TEST(Weights, ImportedIntoACheckpoint) {
  const Exported exported({.max_shard_bytes = 1});
  const fs::path imported = exported.folder().parent_path() / "imported.h5";
  import_weights(test_world(), *open_safetensors(exported.folder(), false), imported, kTexts);
  const auto summary = read_checkpoint_summary(imported);
  EXPECT_FALSE(summary.has_optimizer);
  EXPECT_EQ(summary.state.step, 0);
  EXPECT_EQ(summary.texts.model_config, kTexts.model_config);
  const auto pieces = pieces_of(3);
  load_checkpoint(test_world(), sample_device(), imported, pieces.tensors(), pieces.pieces());
  EXPECT_EQ(pieces.differences(), 0);
}

/// Weights with a tensor that cannot be read.
class Unreadable final : public WeightsSource {
 public:
  explicit Unreadable(
      const WeightsSource& source,
      std::function<void()> fail = [] { throw_user_error("x.safetensors: it is F64; convert it first"); })
      : source_(source), fail_(std::move(fail)) {}
  fs::path path() const override { return source_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return source_.tensors(); }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    if (tensor == 1) fail_();
    source_.read(tensor, begin, elements, values);
  }

 private:
  const WeightsSource& source_;
  std::function<void()> fail_;
};

TEST(Weights, ImportedTellWhatIsWrongWithThem) {
  const Exported exported({});
  const auto source = open_safetensors(exported.folder(), false);
  const fs::path imported = exported.folder().parent_path() / "imported.h5";
  const std::string message =
      message_of<UserError>([&] { import_weights(test_world(), Unreadable(*source), imported, kTexts); });
  EXPECT_THAT(message, AllOf(HasSubstr("x.safetensors: it is F64; convert it first"),
                             ::testing::Not(HasSubstr("make room"))));
  wait_for_all_ranks();
  EXPECT_FALSE(fs::exists(imported));
}

TEST(Weights, FoldersThatHoldWeightsAreLeftAlone) {
  const Exported exported({});
  const auto source = open_checkpoint_weights(exported.checkpoint());
  EXPECT_THAT(
      message_of<UserError>([&] { export_weights(test_world(), *source, exported.folder(), {}); }),
      AllOf(HasSubstr("already holds weights (model.safetensors)"), HasSubstr("choose another folder")));
}

TEST(Weights, AFullDiskLeavesWhatWasThere) {
  const Exported exported({.max_shard_bytes = 60'000});
  const auto source = open_checkpoint_weights(exported.checkpoint());
  wait_for_all_ranks();  // one may still tidy up
  const auto before = names_in(exported.folder());
  wait_for_all_ranks();
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const rlimit limit{10'000, unlimited.rlim_max};  // no file may be larger: a full disk without a disk
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto message = message_of<UserError>(
      [&] { export_weights(test_world(), *source, exported.folder(), {.overwrite = true}); });
  setrlimit(RLIMIT_FSIZE, &unlimited);
  std::signal(SIGXFSZ, handler);
  wait_for_all_ranks();
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_EQ(names_in(exported.folder()), before);
}

TEST(Weights, AreReplacedAsAWhole) {
  const Exported exported({.max_shard_bytes = 60'000});
  ASSERT_GT(names_in(exported.folder()).size(), 2U);
  on_rank_0([&] {
    std::ofstream(exported.folder() / "config.json") << "{}";
    std::ofstream(exported.folder() / "notes.safetensors.txt") << "stay";
  });
  const auto source = open_checkpoint_weights(exported.checkpoint());
  export_weights(test_world(), *source, exported.folder(), {.overwrite = true});
  wait_for_all_ranks();
  EXPECT_THAT(names_in(exported.folder()),
              ::testing::UnorderedElementsAre("model.safetensors", "notes.safetensors.txt"))
      << "whoever exports writes config.json again, when all is there";
}

TEST(Weights, DamageWhileItIsReadReachesAllRanks) {
  const Exported exported({});
  const auto source = open_safetensors(exported.folder(), false);
  wait_for_all_ranks();
  on_rank_0([&] { fs::resize_file(exported.file("model.safetensors"), 2000); });
  for (const auto reading : {WeightsReading::each, WeightsReading::broadcast}) {
    const auto pieces = pieces_of(1);
    const auto work = [&] {
      load_weights(test_world(), sample_device(), *source, pieces.tensors(), pieces.pieces(), reading);
    };
    EXPECT_THAT(message_of<UserError>(work), HasSubstr("has become shorter while it was read"));
  }
}

// No mistake of the user, so nothing that a caller of the source foresees.
TEST(Weights, ThatRank0FailsToReadFailOnAllRanks) {
  const Exported exported({});
  const auto source = open_safetensors(exported.folder(), false);
  const Unreadable unreadable(*source, [] { throw Error("the disk does not answer"); });
  const auto pieces = pieces_of(1);
  const auto work = [&] {
    load_weights(test_world(), sample_device(), unreadable, pieces.tensors(), pieces.pieces(),
                 WeightsReading::broadcast);
  };
  EXPECT_THAT(message_of<comm::CommonError>(work), HasSubstr("the disk does not answer"));
}

// ---- an index and its files
// ----------------------------------------------------------------------------------

std::string refusal_of_index(const std::string& text) {
  try {
    parse_safetensors_index(text, "INDEX");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(WeightsIndex, ThatIsMalformedIsRefused) {
  EXPECT_EQ(refusal_of_index(R"({"weight_map":{"a":"model-1.safetensors"}})"), "accepted");
  for (const std::string text : {"", "{", "[]", "null", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
                                 R"({"weight_map":{"a":1}})"})
    EXPECT_THAT(refusal_of_index(text), HasSubstr("INDEX is not a safetensors index")) << text;
  for (const std::string name :
       {"", ".", "..", "/etc/passwd", "../a.safetensors", "sub/a.safetensors", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(refusal_of_index(R"({"weight_map":{"t":")" + name + "\"}}"),
                HasSubstr("not a file of this folder"))
        << name;
  }
}

/// Replaces the index of an exported folder and says why it cannot be read then.
std::string refusal_of_folder(const Exported& exported, const std::function<void(json& map)>& change) {
  const auto path = exported.file("model.safetensors.index.json");
  on_rank_0([&] {
    std::ifstream in(path);
    auto index = json::parse(in);
    change(index["weight_map"]);
    write_bytes(path, index.dump());
  });
  return message_of<UserError>([&] { open_safetensors(exported.folder(), false); });
}

TEST(WeightsIndex, NamesWhatIsNotThere) {
  const ExportOptions options{.max_shard_bytes = 60'000};
  EXPECT_THAT(refusal_of_folder(Exported(options), [](json& map) { map["absent"] = map["scalar"]; }),
              HasSubstr("has absent in model-00003"));
  EXPECT_THAT(refusal_of_folder(Exported(options), [](json& map) { map.erase("scalar"); }),
              AllOf(HasSubstr("holds scalar"), HasSubstr("does not name")));
  EXPECT_THAT(refusal_of_folder(Exported(options), [](json& map) { map["scalar"] = map["column"]; }),
              AllOf(HasSubstr("holds scalar"), HasSubstr("has in model-00001")));
  EXPECT_THAT(refusal_of_folder(Exported(options), [](json& map) { map["scalar"] = "other.safetensors"; }),
              HasSubstr("other.safetensors, which is not there"));
}

}  // namespace
}  // namespace llampi::test
