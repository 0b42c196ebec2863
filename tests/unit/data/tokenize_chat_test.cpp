// SPDX-License-Identifier: Apache-2.0
// Conversations to rows, and what a training run reads of them.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "llampi/data/json_lines.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/data/tokenize.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/fake_tokenizers.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kRow = 512;

class TokenizeChat : public ::testing::Test {
 protected:
  /// A conversation of about `bytes` bytes that no other number has.
  static std::string line(int number, std::size_t bytes) {
    const auto count = std::to_string(number);
    return nlohmann::json{{"messages",
                           {{{"role", "user"}, {"content", "Number " + count + "?"}},
                            {{"role", "assistant"}, {"content", count + std::string(bytes / 2, 'a')}},
                            {{"role", "user"}, {"content", "More."}},
                            {{"role", "assistant"}, {"content", std::string(bytes - bytes / 2, 'b')}}}}}
               .dump() +
           "\n";
  }
  /// Log-normal lengths, as conversations have; a few are longer than a row.
  static std::string lines(int count) {
    constexpr unsigned kSeed = 3;
    std::mt19937 random(kSeed);
    std::lognormal_distribution<double> draw(std::log(90.0), 0.9);
    std::string all;
    for (int i = 0; i < count; ++i)
      all += line(i, 2 + static_cast<std::size_t>(std::min(draw(random), 3000.0)));
    return all;
  }
  data::TokenizeOptions options() const {
    data::TokenizeOptions given;
    given.format = data::InputFormat::chat;
    given.inputs = {folder_ / "chat.jsonl"};
    given.output = folder_ / "out.h5";
    given.seq_len = kRow;
    return given;
  }
  std::vector<tokenizer::EncodedChat> encoded(const std::string& text) const {
    std::vector<tokenizer::EncodedChat> all;
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = text.find('\n', begin);
      all.push_back(
          tokenizer::encode_chat(tokenizer_, {}, data::parse_conversation(text.substr(begin, end - begin))));
      begin = end + 1;
    }
    return all;
  }

  TemporaryFolder folder_;
  const BytesAndSpecials tokenizer_ = BytesAndSpecials::llama3();
};

/// What a token file says of itself, document by document.
struct Contents {
  explicit Contents(const std::filesystem::path& path) : file(path), ids(read_all(file)), mask(ids.size()) {
    file.read_mask(0, mask);
    for (const auto start : all_starts(file)) starts.push_back(static_cast<std::int64_t>(start));
  }
  data::TokenFile file;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> starts;
};

TEST_F(TokenizeChat, PacksEachConversationOnceAndCutsNoneThatFits) {
  const auto text = lines(3000);
  write_text(folder_ / "chat.jsonl", text);
  const auto done = data::tokenize(tokenizer_, options());
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("chat.jsonl", "out.h5"));
  const auto known = encoded(text);
  const Contents out(folder_ / "out.h5");
  ASSERT_TRUE(out.file.has_loss_mask());
  EXPECT_EQ(out.file.tokens(), done.output.rows * kRow + 1);
  EXPECT_EQ(out.file.samples(kRow), done.output.rows);

  std::map<std::vector<std::int32_t>, const tokenizer::EncodedChat*> missing;
  std::int64_t tokens = 0, trained = 0, cut = 0;
  for (const auto& chat : known) {
    missing[chat.ids] = &chat;
    tokens += std::ssize(chat.ids);
    trained += std::count(chat.mask.begin(), chat.mask.end(), 1);
    cut += std::ssize(chat.ids) > kRow ? 1 : 0;
  }
  ASSERT_EQ(missing.size(), known.size());
  ASSERT_GT(cut, 10);
  std::int64_t padding = 0, padding_documents = 0;
  for (std::size_t i = 0; i + 1 < out.starts.size(); ++i) {
    const auto begin = out.starts[i], end = out.starts[i + 1];
    const std::vector<std::int32_t> ids(out.ids.begin() + begin, out.ids.begin() + end);
    const std::vector<std::uint8_t> mask(out.mask.begin() + begin, out.mask.begin() + end);
    if (ids.front() == *tokenizer_.end()) {
      EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [&](auto id) { return id == *tokenizer_.end(); }));
      EXPECT_TRUE(std::all_of(mask.begin(), mask.end(), [](auto flag) { return flag == 0; }));
      EXPECT_EQ(end == out.file.tokens() ? 0 : end % kRow, 0) << "padding is at the end of a row";
      padding += end - begin;
      ++padding_documents;
      continue;
    }
    const auto found = missing.find(ids);
    ASSERT_TRUE(found != missing.end())
        << "document " << i << " is no conversation, or one for the second time";
    EXPECT_EQ(mask, found->second->mask);
    const bool is_long = std::ssize(ids) > kRow;
    EXPECT_TRUE(is_long ? begin % kRow == 0 : begin / kRow == (end - 1) / kRow) << "document " << i;
    missing.erase(found);
  }
  EXPECT_TRUE(missing.empty());
  EXPECT_EQ(done.output.documents, 3000);
  EXPECT_EQ(done.output.tokens, tokens);
  EXPECT_EQ(done.output.trained, trained);
  EXPECT_EQ(done.output.cut, cut);
  EXPECT_EQ(done.output.padding + 1, padding);
  EXPECT_EQ(tokens + done.output.padding, done.output.rows * kRow);
  EXPECT_EQ(out.file.row_tokens(), kRow);
  EXPECT_EQ(out.file.notes().tokenizer_hash, tokenizer::vocabulary_hash(tokenizer_));
  EXPECT_EQ(out.file.notes().ordinary_hash, tokenizer::ordinary_hash(tokenizer_));
  EXPECT_EQ(out.file.notes().padding_tokens, padding);
  EXPECT_EQ(out.file.notes().padding_documents, padding_documents);
  EXPECT_EQ(out.file.notes().loss_tokens, trained);
  EXPECT_GT(static_cast<double>(tokens), 0.97 * static_cast<double>(done.output.rows * kRow));
}

TEST_F(TokenizeChat, RefusesConversationsWithNothingToLearn) {
  for (const char* line : {R"({"messages": [{"role": "user", "content": "a"}]})",
                           R"({"prompt": "a", "completion": "b", "weight": 0})"}) {
    write_text(folder_ / "chat.jsonl", line);
    auto given = options();
    given.loss = data::LossOn::assistant;
    EXPECT_THAT(user_error([&] { data::tokenize(tokenizer_, given); }),
                HasSubstr("chat.jsonl:1: there is no assistant message to learn from"));
    given.loss = data::LossOn::all;
    const auto done = data::tokenize(tokenizer_, given);
    EXPECT_EQ(done.output.trained, done.output.tokens - 1);  // but the first
  }
}

TEST_F(TokenizeChat, LabelsAreWhatTheAssistantSays) {
  const auto text = lines(400);
  write_text(folder_ / "chat.jsonl", text);
  const auto done = data::tokenize(tokenizer_, options());
  const Contents out(folder_ / "out.h5");
  std::int64_t valid = 0;
  for (std::int64_t row = 0; row < done.output.rows; ++row) {
    auto batch = data::make_batch(
        out.file, {.seq_len = kRow, .micro_batch = 1, .document_mask = true, .vocabulary = 261}, {row});
    std::vector<std::int32_t> wanted(kRow), got(batch.labels().begin(), batch.labels().end());
    std::vector<std::int32_t> documents{0};
    for (std::int64_t i = 0; i < kRow; ++i) {
      const auto next = row * kRow + i + 1;
      const bool starts = std::binary_search(out.starts.begin(), out.starts.end(), next);
      wanted[static_cast<std::size_t>(i)] = !starts && out.mask[static_cast<std::size_t>(next)] == 1
                                                ? out.ids[static_cast<std::size_t>(next)]
                                                : -1;
      if (starts && i + 1 < kRow) documents.push_back(static_cast<std::int32_t>(i + 1));
    }
    documents.push_back(kRow);
    EXPECT_EQ(got, wanted);
    EXPECT_THAT(batch.cu_seqlens().first(static_cast<std::size_t>(batch.documents + 1)),
                ::testing::ElementsAreArray(documents));
    valid += batch.valid_labels;
  }
  // All that is learnt is a label of some row: also what follows the end of a row in a conversation that is
  // cut.
  EXPECT_EQ(valid, done.output.trained);
}

TEST_F(TokenizeChat, TrainsOnEverythingWhereAsked) {
  write_text(folder_ / "chat.jsonl", line(1, 20));
  auto given = options();
  given.loss = data::LossOn::all;
  const auto done = data::tokenize(tokenizer_, given);
  EXPECT_EQ(done.output.trained, done.output.tokens - 1);
  const Contents out(folder_ / "out.h5");
  EXPECT_EQ(out.mask[0], 0) << "nothing predicts the first token";
  EXPECT_EQ(std::count(out.mask.begin(), out.mask.end(), 1), done.output.trained);
}

TEST_F(TokenizeChat, DoesWithLongConversationsAsAsked) {
  write_text(folder_ / "chat.jsonl", line(0, 20) + line(1, 600) + line(2, 20));
  auto given = options();
  auto done = data::tokenize(tokenizer_, given);
  EXPECT_EQ(done.output.cut, 1);
  EXPECT_EQ(done.output.documents, 3);
  EXPECT_EQ(done.output.rows, 2);
  EXPECT_EQ(done.output.longest, std::ssize(encoded(line(1, 600))[0].ids));
  given.too_long = data::TooLong::drop;
  done = data::tokenize(tokenizer_, given);
  EXPECT_EQ(done.output.cut, 0);
  EXPECT_EQ(done.dropped, 1);
  EXPECT_EQ(done.output.documents, 2);
  EXPECT_EQ(done.output.rows, 1);
  given.too_long = data::TooLong::refuse;
  given.on_error = data::OnError::skip;
  EXPECT_EQ(user_error([&] { data::tokenize(tokenizer_, given); }),
            (folder_ / "chat.jsonl").string() + ":2: the conversation has " +
                std::to_string(encoded(line(1, 600))[0].ids.size()) +
                " tokens, but a sequence has 512; give a larger --seq-len, or --too-long cut or drop");
}

TEST_F(TokenizeChat, FillsTheLastRowExactly) {
  std::size_t bytes = 1;
  while (encoded(line(7, bytes))[0].ids.size() < kRow) ++bytes;
  write_text(folder_ / "chat.jsonl", line(7, bytes));
  const auto done = data::tokenize(tokenizer_, options());
  EXPECT_EQ(done.output.rows, 1);
  EXPECT_EQ(done.output.padding, 0);
  EXPECT_EQ(done.output.cut, 0);
  const data::TokenFile file(folder_ / "out.h5");
  EXPECT_THAT(all_starts(file), ElementsAre(0, kRow, kRow + 1));
  EXPECT_EQ(file.samples(kRow), 1);
}

TEST_F(TokenizeChat, ReportsConversationsWithFileAndLine) {
  write_text(folder_ / "chat.jsonl",
             line(0, 20) + R"({"messages": [{"role": "bot", "content": "a"}]})" + "\n");
  auto given = options();
  EXPECT_THAT(user_error([&] { data::tokenize(tokenizer_, given); }),
              HasSubstr("chat.jsonl:2: message 1: the role \"bot\" is not known"));
  given.on_error = data::OnError::skip;
  EXPECT_EQ(data::tokenize(tokenizer_, given).skipped, 1);
  // What a template cannot say is such a line as well.
  write_text(folder_ / "chat.jsonl",
             line(0, 20) + R"({"messages": [{"role": "assistant", "content": "a"}]})" + "\n");
  given.chat_template = {.format = tokenizer::ChatFormat::llama2, .name = "llama2"};
  EXPECT_EQ(data::tokenize(BytesAndSpecials::llama2(), given).skipped, 1);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("chat.jsonl", "out.h5"));
}

TEST_F(TokenizeChat, KeepsTheTemplateInTheFile) {
  write_text(folder_ / "chat.jsonl", line(0, 20));
  auto given = options();
  given.chat_template.text = "{{ messages }}";
  data::tokenize(tokenizer_, given);
  EXPECT_EQ(data::TokenFile(folder_ / "out.h5").notes().chat_template, "{{ messages }}");
  write_text(folder_ / "text.txt", "text");
  given.format = data::InputFormat::text;
  given.inputs = {folder_ / "text.txt"};
  given.output = folder_ / "text.h5";
  data::tokenize(tokenizer_, given);
  EXPECT_EQ(data::TokenFile(folder_ / "text.h5").notes().chat_template, "");
}

/// The conversations of a token file, by their ids.
std::set<std::vector<std::int32_t>> conversations(const std::filesystem::path& path, std::int32_t padding) {
  const Contents contents(path);
  std::set<std::vector<std::int32_t>> all;
  for (std::size_t i = 0; i + 1 < contents.starts.size(); ++i) {
    std::vector<std::int32_t> ids(contents.ids.begin() + contents.starts[i],
                                  contents.ids.begin() + contents.starts[i + 1]);
    if (ids.front() != padding) all.insert(std::move(ids));
  }
  return all;
}

TEST_F(TokenizeChat, HoldsOutTheSameWhateverIsLeftOut) {
  write_text(folder_ / "chat.jsonl", lines(1000));
  auto given = options();
  given.held_out = 0.2;
  given.held_out_output = folder_ / "eval.h5";
  const auto parts = [&] {
    return std::pair{conversations(given.output, *tokenizer_.end()),
                     conversations(given.held_out_output, *tokenizer_.end())};
  };
  data::tokenize(tokenizer_, given);
  auto wanted = parts();
  const auto is_long = [](const auto& ids) { return std::ssize(ids) > kRow; };
  const auto dropped = std::erase_if(wanted.first, is_long) + std::erase_if(wanted.second, is_long);
  ASSERT_GT(dropped, 3U);

  given.too_long = data::TooLong::drop;
  EXPECT_EQ(data::tokenize(tokenizer_, given).dropped, static_cast<std::int64_t>(dropped));
  EXPECT_EQ(parts(), wanted);

  // A line that cannot be used in the place of one that was held out, and blank ones, which have no number.
  const auto text = lines(1000);
  auto end = text.find('\n');
  std::string others = "\n{}\n \n" + text.substr(end + 1);
  const auto first = encoded(text.substr(0, end + 1))[0].ids;
  wanted.first.erase(first);
  wanted.second.erase(first);
  write_text(folder_ / "chat.jsonl", others);
  given.on_error = data::OnError::skip;
  EXPECT_EQ(data::tokenize(tokenizer_, given).skipped, 1);
  EXPECT_EQ(parts(), wanted);
}

TEST_F(TokenizeChat, GivesTheSameFileWithAnyNumberOfThreads) {
  write_text(folder_ / "chat.jsonl", lines(3000));
  auto given = options();
  given.held_out = 0.2;
  given.held_out_output = folder_ / "eval.h5";
  given.threads = 1;
  data::tokenize(tokenizer_, given);
  const Contents train(given.output), eval(given.held_out_output);
  EXPECT_GT(eval.starts.size(), 400U);
  given.output = folder_ / "n.h5";
  given.held_out_output = folder_ / "m.h5";
  for (const int threads : {2, 3}) {
    given.threads = threads;
    data::tokenize(tokenizer_, given);
    for (const auto& [one, path] : {std::pair{&train, given.output}, {&eval, given.held_out_output}}) {
      const Contents other(path);
      EXPECT_EQ(other.ids, one->ids);
      EXPECT_EQ(other.mask, one->mask);
      EXPECT_EQ(other.starts, one->starts);
    }
  }
}

}  // namespace
}  // namespace llampi::test
