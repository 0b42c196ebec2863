// SPDX-License-Identifier: Apache-2.0
// Malformed files from elsewhere, given to the program: status 2, one sentence that names the file, and
// nothing left behind. The files are those from which the fuzz targets start: bad_* is refused, good_* is
// accepted, found_* is one or the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const fs::path kTests(LLAMPI_TEST_DATA);
const fs::path kCorpus = kTests / "fuzz" / "corpus";

std::vector<fs::path> inputs(const std::string& parser) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kCorpus / parser)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class Malformed : public ::testing::Test {
 protected:
  Ending run(const std::string& arguments, const std::string& input) const {
    return shell(folder_.path(), "printf '" + input + "' | " + LLAMPI_PROGRAM + " " + arguments);
  }

  /// @param name what the sentence must hold
  void expect_refused(const std::string& arguments, const std::string& name,
                      const std::string& input = "") const {
    const Ending ending = run(arguments, input);
    EXPECT_EQ(ending.status, 2) << ending.err;
    EXPECT_EQ(ending.out, "");
    EXPECT_THAT(ending.err, StartsWith("llampi: "));
    EXPECT_THAT(ending.err, HasSubstr(name));
    const auto controls = std::count_if(ending.err.begin(), ending.err.end(),
                                        [](unsigned char c) { return std::iscntrl(c) != 0; });
    EXPECT_EQ(controls, 1) << "more than the line's end in: " << ending.err;
    EXPECT_LT(ending.err.size(), 4100U);
  }

  /// One of the corpus, as its name says.
  void expect(const fs::path& file, const std::string& arguments, const std::string& name,
              const std::string& input = "") const {
    SCOPED_TRACE(file);
    const std::string kind = file.filename().string();
    if (kind.starts_with("bad_")) return expect_refused(arguments, name, input);
    const Ending ending = run(arguments, input);
    EXPECT_THAT(ending.status, AnyOf(0, kind.starts_with("good_") ? 0 : 2)) << ending.err;
  }

  void copy(const fs::path& file, const std::string& name) const {
    fs::copy_file(file, folder_.path() / name, fs::copy_options::overwrite_existing);
  }

  /// A Hugging Face folder "model"; its weights are to be added.
  void make_folder() const {
    fs::remove_all(folder_.path() / "model");
    fs::create_directories(folder_.path() / "model" / "folder");
    copy(kCorpus / "model_config" / "good_plain", "model/config.json");
  }

  void expect_nothing_imported() const {
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      EXPECT_THAT(entry.path().filename().string(), Not(StartsWith("imported.h5")));
    }
  }

  ScratchFolder folder_;
};

constexpr const char* kImport = "import --weights model --output imported.h5";

TEST_F(Malformed, SafetensorsAreRefused) {
  make_folder();
  for (const auto& file : inputs("safetensors")) {
    copy(file, "model/model.safetensors");
    expect(file, kImport, "model.safetensors");
    if (file.filename().string().starts_with("bad_")) expect_nothing_imported();
    fs::remove(folder_.path() / "imported.h5");
  }
}

TEST_F(Malformed, SafetensorsIndexIsRefused) {
  make_folder();
  copy(kCorpus / "safetensors" / "good_bf16", "model/model-00001-of-00002.safetensors");
  for (const auto& file : inputs("safetensors_index")) {
    copy(file, "model/model.safetensors.index.json");
    expect(file, kImport, "model/");
    if (file.filename().string().starts_with("bad_")) expect_nothing_imported();
    fs::remove(folder_.path() / "imported.h5");
  }
}

TEST_F(Malformed, SafetensorsIndexOfFilesElsewhereIsRefused) {
  make_folder();
  fs::create_directory(folder_.path() / "elsewhere");
  copy(kCorpus / "safetensors" / "good_bf16", "elsewhere/model.safetensors");
  const std::string there = "elsewhere/model.safetensors";
  for (const auto& file : {"../" + there, (folder_.path() / there).string()}) {
    folder_.write("model/model.safetensors.index.json",
                  R"({"weight_map": {"model.norm.weight": ")" + file + R"("}})");
    expect_refused(kImport, "which is not a file of this folder");
  }
  expect_nothing_imported();
}

TEST_F(Malformed, ModelConfigIsRefused) {
  make_folder();
  for (const auto& file : inputs("model_config")) {
    copy(file, "model/config.json");
    expect(file, "inspect model", "config.json");
  }
}

TEST_F(Malformed, ConfigurationIsRefused) {
  for (const auto& file : inputs("ini_config")) {
    copy(file, "run.ini");
    if (!file.filename().string().starts_with("good_")) expect(file, "train --config run.ini", "run.ini");
  }
}

TEST_F(Malformed, TokenizerJsonIsRefused) {
  for (const auto& file : inputs("tokenizer_json")) {
    copy(file, "tokenizer.json");
    expect(file, "tokenize --tokenizer tokenizer.json --print", "tokenizer", "hello ab\\n");
  }
}

TEST_F(Malformed, TokenizerModelIsRefused) {
  for (const auto& file : inputs("tokenizer_model")) {
    copy(file, "tokenizer.model");
    expect(file, "tokenize --tokenizer tokenizer.model --print", "tokenizer.model", "hello ab\\n");
  }
}

TEST_F(Malformed, FilesBesideATokenizerAreRefused) {
  copy(kCorpus / "tokenizer_json" / "good_small", "tokenizer.json");
  for (const auto& file : inputs("tokenizer_neighbours")) {
    if (!file.filename().string().starts_with("bad_")) continue;
    for (const char* name : {"tokenizer_config.json", "generation_config.json", "added_tokens.json"})
      copy(file, name);
    expect(file, "tokenize --tokenizer . --print", ".json");
  }
}

TEST_F(Malformed, LinesOfTextsAreRefused) {
  for (const auto& file : inputs("text_line")) {
    copy(file, "a.jsonl");
    expect(file, "tokenize --tokenizer bytes --format jsonl --output t.h5 a.jsonl", "a.jsonl:1");
    fs::remove(folder_.path() / "t.h5");
  }
}

TEST_F(Malformed, LinesOfConversationsAreRefused) {
  const std::string tokenizer = (kTests / "fixtures" / "tokenizers" / "llama2").string();
  for (const auto& file : inputs("chat_line")) {
    copy(file, "a.jsonl");
    expect(file,
           "tokenize --tokenizer " + tokenizer +
               " --format chat --template llama2 --seq-len 64 --output t.h5 a.jsonl",
           "a.jsonl:1");
    fs::remove(folder_.path() / "t.h5");
  }
}

TEST_F(Malformed, NestingAMillionLevelsDeepIsRefused) {
  const std::string deep(1'000'000, '[');
  make_folder();
  folder_.write("model/model.safetensors.index.json", R"({"weight_map": )" + deep);
  expect_refused(kImport, "model.safetensors.index.json");
  const std::string header = R"({"a":)" + deep;
  const std::uint64_t length = header.size();
  folder_.write("model/model.safetensors",
                std::string(reinterpret_cast<const char*>(&length), sizeof length) + header);
  expect_refused(kImport, "model.safetensors");
  folder_.write("model/config.json", R"({"model_type": )" + deep);
  expect_refused("inspect model", "config.json");
  folder_.write("tokenizer.json", R"({"model": )" + deep);
  expect_refused("tokenize --tokenizer tokenizer.json --print", "tokenizer.json");
  folder_.write("a.jsonl", R"({"text": )" + deep);
  expect_refused("tokenize --tokenizer bytes --format jsonl --output t.h5 a.jsonl", "a.jsonl:1");
}

TEST_F(Malformed, AHeaderOf99MegabytesIsRefused) {
  make_folder();
  const std::uint64_t length = 99'000'000;
  folder_.write("model/model.safetensors",
                std::string(reinterpret_cast<const char*>(&length), sizeof length));
  fs::resize_file(folder_.path() / "model" / "model.safetensors", 120'000'000);  // zeros
  expect_refused(kImport, "model.safetensors");
}

}  // namespace
}  // namespace llampi::test
