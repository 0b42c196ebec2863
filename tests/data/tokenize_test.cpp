#include "llampi/data/tokenize.hpp"

#include <sys/stat.h>

#include <thread>

#include "data_testing.hpp"

namespace llampi::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Tokenize, MakesOneDocumentOfEachFile) {
  const TemporaryFolder folder;
  write_text(folder / "b.txt", "second");
  write_text(folder / "a.txt", std::string("fir\0st\xff", 7));
  const auto tokenizer = make_tokenizer("bytes");
  const auto statistics = tokenize_text(*tokenizer, {folder / "a.txt", folder / "b.txt"}, folder / "out.h5");
  EXPECT_EQ(statistics.documents, 2);
  EXPECT_EQ(statistics.tokens, 13);
  EXPECT_EQ(statistics.bytes, 13);
  const TokenFile file(folder / "out.h5");
  EXPECT_EQ(file.vocabulary(), 256);
  EXPECT_EQ(file.tokenizer(), "bytes");
  EXPECT_THAT(file.documents(), ElementsAre(0, 7, 13));
  EXPECT_EQ(tokenizer->decode(read_all(file)), std::string("fir\0st\xffsecond", 13));
}

/// Stands for tokenizers whose ids depend on what comes before: a text's first id is its number of bytes.
class WholeTextTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "whole"; }
  std::int64_t vocabulary() const override { return std::int64_t{1} << 30; }
  std::vector<std::int32_t> encode(std::string_view text, SpecialText) const override {
    return {static_cast<std::int32_t>(text.size())};
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::string bytes_of(std::int32_t) const override { return {}; }
  std::optional<std::int32_t> find(std::string_view) const override { return {}; }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> begin() const override { return {}; }
  std::optional<std::int32_t> end() const override { return {}; }
};

TEST(Tokenize, CutsTextsOnlyForTokenizersThatAllowIt) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 2'500'000; ++i) text.push_back(static_cast<char>(i * 31 % 253));  // several pieces
  write_text(folder / "a.txt", text);
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenize_text(*tokenizer, {folder / "a.txt"}, folder / "out.h5").tokens, 2'500'000);
  EXPECT_TRUE(tokenizer->decode(read_all(TokenFile(folder / "out.h5"))) == text);
  const auto statistics = tokenize_text(WholeTextTokenizer(), {folder / "a.txt"}, folder / "out.h5");
  EXPECT_EQ(statistics.tokens, 1);
  EXPECT_EQ(statistics.bytes, 2'500'000);
  EXPECT_THAT(read_all(TokenFile(folder / "out.h5")), ElementsAre(2'500'000));
}

TEST(Tokenize, LeavesEmptyFilesOutAndSaysSo) {
  const TemporaryFolder folder;
  write_text(folder / "empty.txt", "");
  write_text(folder / "a.txt", "text");
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const auto tokenizer = make_tokenizer("bytes");
  const auto statistics =
      tokenize_text(*tokenizer, {folder / "empty.txt", folder / "a.txt"}, folder / "out.h5", log);
  EXPECT_EQ(statistics.documents, 1);
  EXPECT_THAT(TokenFile(folder / "out.h5").documents(), ElementsAre(0, 4));
  EXPECT_THAT(lines, ElementsAre("warning: " + (folder / "empty.txt").string() + " is empty and left out"));
}

TEST(Tokenize, ReadsPipes) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::jthread producer([&] { write_text(pipe, "through a pipe"); });
  EXPECT_EQ(tokenize_text(*make_tokenizer("bytes"), {pipe}, folder / "out.h5").tokens, 14);
}

TEST(Tokenize, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "text");
  write_text(folder / "empty.txt", "");
  const auto tokenizer = make_tokenizer("bytes");
  const auto message = [&](const std::vector<std::filesystem::path>& inputs, const std::string& output) {
    return user_error([&] { tokenize_text(*tokenizer, inputs, folder / output); });
  };
  EXPECT_THAT(message({}, "out.h5"), HasSubstr("no input"));
  EXPECT_THAT(message({folder / "a.txt", folder / "missing.txt"}, "out.h5"),
              AllOf(HasSubstr("missing.txt"), HasSubstr("No such file")));
  EXPECT_THAT(message({folder.path()}, "out.h5"), HasSubstr("is a folder"));
  EXPECT_THAT(message({folder / "empty.txt"}, "out.h5"), HasSubstr("all inputs are empty"));
  EXPECT_THAT(message({folder / "a.txt"}, "a.txt"), HasSubstr("both input and output"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.txt", "empty.txt"));
}

}  // namespace
}  // namespace llampi::testing
