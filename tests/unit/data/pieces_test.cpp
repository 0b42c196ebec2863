// SPDX-License-Identifier: Apache-2.0
// What lies between files and token ids: reading in pieces, cutting texts, working in parallel.
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "data/ordered_map.hpp"
#include "data/piece_reader.hpp"
#include "data/text_cutter.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/fake_tokenizers.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

std::size_t behind_last_line_end(std::string_view text, bool) { return text.rfind('\n') + 1; }

TEST(PieceReader, TellsWhetherATextBeginsItsFile) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) write_text(folder / name, std::string(1'000'000, 'x'));
  std::size_t bytes = 0;
  bool begins = true;
  const auto cut = [&](std::string_view text, bool first) {
    EXPECT_EQ(first, begins) << bytes;
    return text.size();
  };
  data::PieceReader reader({folder / "a", folder / "b"}, cut);
  while (const auto piece = reader.next()) {
    bytes += piece->text.size();
    begins = piece->last;
  }
  EXPECT_EQ(bytes, 2'000'000U);
}

TEST(PieceReader, GivesWholeLinesWithTheirNumbers) {
  const TemporaryFolder folder;
  std::string a, b;
  for (int i = 0; i < 100'000; ++i) a += std::to_string(i) + "\n";
  b = std::string(3'000'000, 'x') + "\nshort\nwithout an end";
  write_text(folder / "a", a);
  write_text(folder / "b", b);
  write_text(folder / "empty", "");
  data::PieceReader reader({folder / "a", folder / "empty", folder / "b"}, behind_last_line_end);
  std::vector<std::string> texts(3);
  std::vector<std::int64_t> lines(3, 1);
  std::vector<int> pieces(3, 0);
  bool starts = true;
  while (const auto piece = reader.next()) {
    EXPECT_EQ(piece->first, starts);
    EXPECT_EQ(piece->line, lines[piece->file]);
    if (!piece->last) {
      EXPECT_EQ(piece->text.back(), '\n');
    }
    texts[piece->file] += piece->text;
    lines[piece->file] += std::count(piece->text.begin(), piece->text.end(), '\n');
    ++pieces[piece->file];
    starts = piece->last;
  }
  EXPECT_TRUE(texts[0] == a);
  EXPECT_TRUE(texts[1].empty());
  EXPECT_TRUE(texts[2] == b);
  EXPECT_GT(pieces[0], 1);
  EXPECT_EQ(pieces[1], 1);
  EXPECT_FALSE(reader.next().has_value());
}

/// Prose with lines, indents, blank lines and words of all lengths.
std::string prose(std::size_t bytes) {
  constexpr unsigned kSeed = 5;
  std::mt19937 random(kSeed);
  std::string text;
  while (text.size() < bytes) {
    text.append(1 + random() % 12, static_cast<char>('a' + random() % 26));
    const auto kind = random() % 12;
    text += kind == 0 ? "\n" : kind == 1 ? "\n\n  " : kind == 2 ? "  " : kind == 3 ? "ä\n" : " ";
  }
  return text;
}

/// In pieces of at most 1000 bytes.
void expect_ids_of_the_whole(const tokenizer::Tokenizer& tokenizer, const std::string& text) {
  const data::TextCutter cutter(tokenizer);
  std::vector<std::int32_t> ids;
  int pieces = 0;
  for (std::size_t begin = 0; begin < text.size(); ++pieces) {
    const auto rest = std::string_view(text).substr(begin, 1000);
    const auto bytes = begin + 1000 < text.size() ? cutter.cut(rest) : rest.size();
    ASSERT_GT(bytes, 0U);
    const auto piece = rest.substr(0, bytes);
    const auto more = begin == 0 ? cutter.encode_first(piece) : cutter.encode_next(piece);
    ids.insert(ids.end(), more.begin(), more.end());
    begin += bytes;
  }
  EXPECT_GT(pieces, std::ssize(text) / 1000);
  EXPECT_EQ(ids, tokenizer.encode(text, tokenizer::SpecialText::tokens));
}

TEST(TextCutter, PiecesHaveTheIdsOfTheWhole) {
  for (const auto start : {Words::Start::plain, Words::Start::with_space}) {
    expect_ids_of_the_whole(Words(start), prose(300'000));
  }
}

TEST(TextCutter, PiecesHaveTheIdsOfTheWholeWithRealTokenizers) {
  // Texts of all scripts, with special tokens and white space of all kinds, many times over in other orders.
  const auto folder = std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers";
  std::vector<std::string> texts;
  for (const auto& text : nlohmann::json::parse(read_text(folder / "texts.json"))) {
    if (text.is_string()) texts.push_back(text);
  }
  constexpr unsigned kSeed = 23;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  std::string all;
  while (all.size() < 200'000) all += texts[random() % texts.size()] + (random() % 2 == 0 ? "\n" : " ");
  for (const char* name :
       {"gpt2", "llama2", "llama3", "mistral", "mistral-v3", "qwen", "sentencepiece", "tekken"}) {
    SCOPED_TRACE(name);
    expect_ids_of_the_whole(*tokenizer::make_tokenizer(folder / name), all);
  }
}

/// How a repetition becomes tokens depends on where it begins, further away than what the cutter looks at.
TEST(TextCutter, CutsNoRepetitionWhoseTokensSpanSpacesOrLines) {
  nlohmann::json file = {
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}},
      {"model", {{"type", "BPE"}, {"merges", {"h a", "▁ ha", "▁ha ▁ha", "= \n", "=\n =\n"}}}}};
  for (const char* key : {"pre_tokenizer", "post_processor"}) file[key] = nullptr;
  file["decoder"] = {{"type", "Fuse"}};
  file["added_tokens"] = nlohmann::json::array();
  auto& vocabulary = file["model"]["vocab"];
  for (const char* token : {"ha", "▁ha", "▁ha▁ha", "=\n", "=\n=\n", "\n", "▁", "=", "ä"})
    vocabulary[token] = vocabulary.size();
  for (char c = 'a'; c <= 'z'; ++c) vocabulary[std::string(1, c)] = vocabulary.size();
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", file.dump());
  const auto tokenizer = tokenizer::make_tokenizer((folder / "tokenizer.json").string());
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += prose(300);
    for (int n = 0; n < 50 + i % 7; ++n) text += i % 2 == 0 ? " ha" : "=\n";
  }
  expect_ids_of_the_whole(*tokenizer, text);
  std::string only;
  for (int n = 0; n < 1000; ++n) only += " ha";
  EXPECT_EQ(data::TextCutter(*tokenizer).cut(only), 0U);
}

TEST(TextCutter, CutsNothingWhereTheTokenizerDoesNotAgree) {
  EXPECT_EQ(data::TextCutter(WholeText()).cut(prose(10'000)), 0U);
  EXPECT_EQ(data::TextCutter(Words(Words::Start::plain)).cut(std::string(10'000, 'x')), 0U);
  EXPECT_EQ(data::TextCutter(*tokenizer::make_tokenizer("bytes")).cut("abc"), 3U);
}

TEST(MapInOrder, TakesResultsInOrderAndKeepsFewUnderWay) {
  std::atomic<int> working = 0, most_working = 0, begun = 0;
  int given = 0, taken = 0;
  data::map_in_order<int, int>(
      3,
      [&]() -> std::optional<int> {
        EXPECT_LE(given - taken, 6);
        return given < 200 ? std::optional(given++) : std::nullopt;
      },
      [&](int item) {
        const int now = ++working;
        for (int most = most_working; now > most && !most_working.compare_exchange_weak(most, now);) {
        }
        ++begun;
        if (item % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --working;
        return item * item;
      },
      [&](int result) {
        EXPECT_EQ(result, taken * taken);
        ++taken;
      });
  EXPECT_EQ(taken, 200);
  EXPECT_LE(most_working, 3);
}

TEST(MapInOrder, ThrowsTheFirstFailureInTheOrderOfTheItems) {
  int given = 0, taken = 0;
  const auto run = [&] {
    data::map_in_order<int, int>(
        2, [&]() -> std::optional<int> { return given++; },
        [](int item) {
          if (item == 10) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          if (item >= 10) throw_user_error("item {}", item);
          return item;
        },
        [&](int) { ++taken; });
  };
  EXPECT_EQ(user_error(run), "item 10");
  EXPECT_EQ(taken, 10);
}

}  // namespace
}  // namespace llampi::test
