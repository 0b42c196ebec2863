// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/tokenize.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

#include <sys/stat.h>

#include <array>
#include <thread>

#include "support/compressed.hpp"
#include "support/fake_tokenizers.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

data::TokenizeOptions options(const std::vector<fs::path>& inputs, const fs::path& output,
                              data::InputFormat format = data::InputFormat::text) {
  data::TokenizeOptions result;
  result.format = format;
  result.inputs = inputs;
  result.output = output;
  return result;
}

std::vector<std::string> documents(const tokenizer::Tokenizer& tokenizer, const fs::path& path) {
  const data::TokenFile file(path);
  const auto ids = read_all(file);
  const auto starts = all_starts(file);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    texts.push_back(tokenizer.decode(std::span(ids).subspan(starts[i], starts[i + 1] - starts[i])));
  }
  return texts;
}

TEST(Tokenize, MakesOneDocumentOfEachFile) {
  const TemporaryFolder folder;
  write_text(folder / "b.txt", "second");
  write_text(folder / "a.txt", std::string("fir\0st\xff", 7));
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  const auto statistics =
      data::tokenize(*tokenizer, options({folder / "a.txt", folder / "b.txt"}, folder / "out.h5"));
  EXPECT_EQ(statistics.output.documents, 2);
  EXPECT_EQ(statistics.output.tokens, 13);
  EXPECT_EQ(statistics.output.trained, 11);
  EXPECT_EQ(statistics.output.longest, 7);
  EXPECT_EQ(statistics.bytes, 13);
  EXPECT_EQ(statistics.input_bytes, 13);
  EXPECT_EQ(statistics.files, 2);
  const data::TokenFile file(folder / "out.h5");
  EXPECT_EQ(file.vocabulary(), 256);
  EXPECT_EQ(file.tokenizer(), "bytes");
  EXPECT_FALSE(file.has_loss_mask());
  EXPECT_THAT(documents(*tokenizer, folder / "out.h5"), ElementsAre(std::string("fir\0st\xff", 7), "second"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.txt", "b.txt", "out.h5"));
}

TEST(Tokenize, PutsBeginAndEndAroundDocuments) {
  const TemporaryFolder folder;
  write_text(folder / "a", "one <|eot_id|>");
  write_text(folder / "lines", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  const auto tokenizer = BytesAndSpecials::llama3();
  auto given = options({folder / "a"}, folder / "out.h5");
  EXPECT_EQ(data::tokenize(tokenizer, given).output.tokens, 7);
  EXPECT_THAT(documents(tokenizer, given.output),
              ElementsAre("<|begin_of_text|>one <|eot_id|><|end_of_text|>"));
  given = options({folder / "lines"}, folder / "out.h5", data::InputFormat::jsonl);
  data::tokenize(tokenizer, given);
  EXPECT_THAT(documents(tokenizer, given.output),
              ElementsAre("<|begin_of_text|>two<|end_of_text|>", "<|begin_of_text|>three<|end_of_text|>"));
  given.begin = false;
  data::tokenize(tokenizer, given);
  EXPECT_THAT(documents(tokenizer, given.output), ElementsAre("two<|end_of_text|>", "three<|end_of_text|>"));
  given.end = false;
  data::tokenize(tokenizer, given);
  EXPECT_THAT(documents(tokenizer, given.output), ElementsAre("two", "three"));
}

TEST(Tokenize, LeavesByteOrderMarksOut) {
  const TemporaryFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  write_text(folder / "a", mark + "one " + mark);
  write_text(folder / "mark", mark);
  const auto given = options({folder / "a", folder / "mark"}, folder / "out.h5");
  const auto tokenizer = BytesAndSpecials::llama3();
  EXPECT_EQ(data::tokenize(tokenizer, given).empty, 1);
  EXPECT_THAT(documents(tokenizer, given.output),
              ElementsAre("<|begin_of_text|>one " + mark + "<|end_of_text|>"));
  const auto bytes = tokenizer::make_tokenizer("bytes");
  data::tokenize(*bytes, given);
  EXPECT_THAT(documents(*bytes, given.output), ElementsAre(mark + "one " + mark, mark)) << "of any bytes";
}

TEST(Tokenize, CutsTextsOnlyWhereIdsStayTheSame) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1'500'000; ++i) text.push_back(i % 9 == 8 ? ' ' : static_cast<char>('a' + i * 31 % 26));
  write_text(folder / "a.txt", text);  // several pieces
  const auto given = options({folder / "a.txt"}, folder / "out.h5");
  const auto bytes = tokenizer::make_tokenizer("bytes");
  EXPECT_EQ(data::tokenize(*bytes, given).output.tokens, 1'500'000);
  EXPECT_TRUE(bytes->decode(read_all(data::TokenFile(given.output))) == text);
  for (const auto start : {Words::Start::plain, Words::Start::with_space}) {
    const Words words(start);
    EXPECT_EQ(data::tokenize(words, given).output.documents, 1);
    EXPECT_EQ(read_all(data::TokenFile(given.output)), words.encode(text, tokenizer::SpecialText::tokens));
  }
  EXPECT_EQ(data::tokenize(WholeText(), given).bytes, 1'500'000);
  EXPECT_THAT(read_all(data::TokenFile(given.output)), ElementsAre(1'500'000));
}

TEST(Tokenize, LeavesEmptyFilesOutAndSaysSo) {
  const TemporaryFolder folder;
  write_text(folder / "empty.txt", "");
  write_text(folder / "a.txt", "text");
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  const auto statistics =
      data::tokenize(*tokenizer, options({folder / "empty.txt", folder / "a.txt"}, folder / "out.h5"), log);
  EXPECT_EQ(statistics.output.documents, 1);
  EXPECT_THAT(all_starts(data::TokenFile(folder / "out.h5")), ElementsAre(0, 4));
  EXPECT_EQ(statistics.empty, 1);
  EXPECT_THAT(lines, ElementsAre("warning: 1 file or line is skipped that has no text (the first is " +
                                 (folder / "empty.txt").string() + ")"));
}

/// Of any size, also where a piece ends within a character. Blanks at either end of a text stay.
TEST(Tokenize, LeavesLargeBlankFilesOut) {
  const TemporaryFolder folder;
  std::string wide, begins;
  while (wide.size() < 600'000) wide += "\u3000";
  begins = std::string(300'000, '\n') + "text" + std::string(300'000, ' ');
  write_text(folder / "blank.txt", std::string(2'000'000, ' '));
  write_text(folder / "wide.txt", wide);
  write_text(folder / "begins.txt", begins);
  const Words words(Words::Start::plain);
  const auto bytes = tokenizer::make_tokenizer("bytes");
  for (const auto* tokenizer : std::array<const tokenizer::Tokenizer*, 2>{&words, bytes.get()}) {
    auto given =
        options({folder / "blank.txt", folder / "begins.txt", folder / "wide.txt"}, folder / "out.h5");
    given.overwrite = true;
    const auto done = data::tokenize(*tokenizer, given);
    EXPECT_EQ(done.empty, 2) << tokenizer->name();
    EXPECT_EQ(done.output.documents, 1);
    EXPECT_EQ(read_all(data::TokenFile(given.output)),
              tokenizer->encode(begins, tokenizer::SpecialText::tokens));
  }
}

TEST(Tokenize, RefusesWhatIsNoText) {
  const TemporaryFolder folder;
  std::string utf16, big_endian, cyrillic;
  for (const char c : std::string("text in two bytes per letter, ")) {
    utf16 += {c, '\0'};
    big_endian += {'\0', c};
    cyrillic += static_cast<char>(0xc0 + c % 32);  // KOI8-R
  }
  write_text(folder / "good", "text");
  write_text(folder / "marked", "\xff\xfe" + utf16);
  write_text(folder / "little", utf16);
  write_text(folder / "big", big_endian);
  write_text(folder / "gzip", "\x1f\x8b and so on");
  write_text(folder / "xz", std::string("\xfd\x37zXZ\0", 6));
  write_text(folder / "bzip2", "BZh91AY&SY and so on");
  write_text(folder / "BZh", "BZh is how a text may begin");
  write_text(folder / "binary", std::string("ab\0cd\1\2", 7));
  write_text(folder / "short", std::string("a\0b", 3));
  write_text(folder / "koi8", cyrillic);
  const Words tokenizer(Words::Start::plain);
  const auto message = [&](const std::string& name, data::InputFormat format = data::InputFormat::text) {
    return user_error([&] {
      data::tokenize(tokenizer, options({folder / "good", folder / name}, folder / "out.h5", format));
    });
  };
  const std::string skip = "; or skip such files with --on-error skip";
  const auto says = [&](const std::string& name, const std::string& what) {
    return (folder / name).string() + " " + what + skip;
  };
  EXPECT_EQ(message("marked"),
            says("marked", "is UTF-16 and not UTF-8: convert it with iconv -f UTF-16 -t UTF-8"));
  EXPECT_EQ(message("marked", data::InputFormat::jsonl), message("marked"));
  EXPECT_THAT(message("little"), HasSubstr("iconv -f UTF-16LE"));
  EXPECT_THAT(message("big"), HasSubstr("iconv -f UTF-16BE"));
  EXPECT_EQ(message("gzip"), says("gzip", "cannot be unpacked (gzip: unknown compression method)"));
  EXPECT_EQ(message("xz"), says("xz", "is compressed with xz: unpack it first"));
  EXPECT_EQ(message("bzip2"), says("bzip2", "is compressed with bzip2: unpack it first"));
  EXPECT_EQ(message("binary"), says("binary", "is binary, with zero bytes, and not text"));
  EXPECT_EQ(message("short"), says("short", "is binary, with zero bytes, and not text"));
  EXPECT_THAT(message("koi8"), HasSubstr("koi8 is not UTF-8 in "));
  EXPECT_FALSE(fs::exists(folder / "out.h5"));
  EXPECT_EQ(data::tokenize(tokenizer, options({folder / "BZh"}, folder / "out.h5")).output.documents, 1);

  // Of lines, those that are bad.
  write_text(folder / "lines", "{\"text\": \"good\"}\n{\"text\": \"a" + std::string(1, '\0') + "b\"}\n");
  auto lines = options({folder / "lines"}, folder / "out.h5", data::InputFormat::jsonl);
  EXPECT_THAT(user_error([&] { data::tokenize(tokenizer, lines); }), HasSubstr("lines:2: "));
  lines.on_error = data::OnError::skip;
  EXPECT_EQ(data::tokenize(tokenizer, lines).output.documents, 1);

  std::vector<std::string> warnings;
  const Log log([&](const std::string& line) { warnings.push_back(line); });
  auto given = options({folder / "gzip", folder / "good"}, folder / "out.h5");
  given.on_error = data::OnError::skip;
  const auto done = data::tokenize(tokenizer, given, log);
  EXPECT_EQ(done.output.documents, 1);
  EXPECT_EQ(done.skipped, 1);
  EXPECT_THAT(warnings,
              ElementsAre("warning: " + (folder / "gzip").string() +
                          " cannot be unpacked (gzip: unknown compression method); the file is skipped"));
  given.inputs = {folder / "gzip"};
  EXPECT_THAT(user_error([&] { data::tokenize(tokenizer, given); }), HasSubstr("none of the inputs is text"));
}

TEST(Tokenize, ReadsCompressedFiles) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += fmt::format("{{\"text\": \"line {} of several pieces\"}}\n", i);
  write_text(folder / "plain.jsonl", lines);
  write_text(folder / "packed.jsonl.gz", gzip(lines));
  const Words tokenizer(Words::Start::plain);
  std::vector<std::vector<std::int32_t>> ids;
  for (const char* name : {"plain.jsonl", "packed.jsonl.gz"}) {
    std::int64_t told = 0;
    const auto done =
        data::tokenize(tokenizer, options({folder / name}, folder / "out.h5", data::InputFormat::jsonl), {},
                       [&](std::int64_t bytes) { told = bytes; });
    EXPECT_EQ(done.output.documents, 20'000);
    EXPECT_EQ(done.input_bytes, std::ssize(lines));
    EXPECT_EQ(told, static_cast<std::int64_t>(fs::file_size(folder / name)));
    ids.push_back(read_all(data::TokenFile(folder / "out.h5")));
  }
  EXPECT_EQ(ids[0], ids[1]);
  // What is unpacked is looked at as any other file.
  write_text(folder / "zero.gz", gzip(std::string("a\0b", 3)));
  write_text(folder / "twice.gz", gzip(gzip("text")));
  write_text(folder / "archive.tar.gz", gzip(std::string(257, 'a') + "ustar" + std::string(300, 'b')));
  write_text(folder / "json.gz", gzip("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
  write_text(folder / "bad.jsonl.gz", gzip("{\"text\": \"a\"}\n{\n"));
  const auto refusal = [&](const std::string& name, data::InputFormat format) {
    auto given = options({folder / name}, folder / "no.h5", format);
    given.json_as_text = data::JsonAsText::refuse;
    return user_error([&] { data::tokenize(tokenizer, given); });
  };
  EXPECT_THAT(refusal("zero.gz", data::InputFormat::text), HasSubstr("zero.gz is binary"));
  EXPECT_THAT(refusal("twice.gz", data::InputFormat::jsonl), HasSubstr("compressed with gzip once more"));
  EXPECT_THAT(refusal("archive.tar.gz", data::InputFormat::jsonl),
              HasSubstr("archive.tar.gz is a tar archive"));
  EXPECT_THAT(refusal("json.gz", data::InputFormat::text), HasSubstr("JSON is in 1 of 1 input"));
  EXPECT_THAT(refusal("packed.jsonl.gz", data::InputFormat::text), HasSubstr("JSON is in 1 of 1 input"));
  EXPECT_THAT(refusal("bad.jsonl.gz", data::InputFormat::jsonl), HasSubstr("bad.jsonl.gz:2: "));
  const std::string packed = gzip(lines);
  write_text(folder / "cut.jsonl.gz", packed.substr(0, packed.size() / 2));
  EXPECT_THAT(refusal("cut.jsonl.gz", data::InputFormat::jsonl), HasSubstr("cut.jsonl.gz is truncated"));
}

TEST(Tokenize, CountsWhatIsNotUtf8) {
  const TemporaryFolder folder;
  std::string latin1;
  for (int i = 0; i < 30'000; ++i) latin1 += "a plain line and a caf\xe9\n";  // several pieces
  write_text(folder / "latin1", latin1);
  write_text(folder / "good", "caf\u00e9, \uFFFD");
  write_text(folder / "one", "only one \xe9 in a longer text");
  std::vector<std::string> warnings;
  const Log log([&](const std::string& line) { warnings.push_back(line); });
  const auto given = options({folder / "good", folder / "latin1", folder / "one"}, folder / "out.h5");
  const auto done = data::tokenize(Words(Words::Start::plain), given, log);
  EXPECT_EQ(done.ill_formed, 30'001);
  EXPECT_EQ(done.ill_formed_documents, 2);
  EXPECT_THAT(warnings, ElementsAre("warning: 30001 places are not UTF-8 in 2 documents (the first is " +
                                    (folder / "latin1").string() +
                                    "): each was replaced by U+FFFD; convert the files with iconv"));
  warnings.clear();
  std::string accents;
  for (int i = 0; i < 200'000; ++i) accents += "\u00e9\u20ac\U0001F600"[i % 9];
  write_text(folder / "good", accents);  // no character is cut
  EXPECT_EQ(data::tokenize(*tokenizer::make_tokenizer("bytes"), given, log).ill_formed, 30'001);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("the bytes are taken as they are")));
}

TEST(Tokenize, SaysThatATextIsJson) {
  const TemporaryFolder folder;
  write_text(folder / "lines", "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n{\"te");
  write_text(folder / "one.jsonl", "{\"text\": \"one\"}");
  write_text(folder / "pretty.json", "[\n  1\n]\n");
  write_text(folder / "brace", "{\"text\": \"one\"}\nis how a line begins\n");
  write_text(folder / "plain.jsonl", "no JSON\n");
  write_text(folder / "good", "text");
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  std::vector<fs::path> inputs;
  for (const char* name : {"good", "brace", "plain.jsonl", "lines", "one.jsonl", "pretty.json"})
    inputs.push_back(folder / name);
  auto given = options(inputs, folder / "out.h5");
  given.json_as_text = data::JsonAsText::refuse;
  EXPECT_EQ(
      user_error([&] { data::tokenize(*tokenizer, given); }),
      "JSON is in 3 of 6 inputs (the first is " + (folder / "lines").string() +
          "): give --format jsonl or --format chat for lines of JSON, or --format text to train on the JSON "
          "itself");
  std::vector<std::string> warnings;
  const Log log([&](const std::string& line) { warnings.push_back(line); });
  given.json_as_text = data::JsonAsText::warn;
  EXPECT_EQ(data::tokenize(*tokenizer, given, log).output.documents, 6);
  EXPECT_THAT(warnings, ElementsAre("warning: JSON is in 3 of 6 inputs (the first is " +
                                    (folder / "lines").string() + "): --format text takes it as it is"));
  given.inputs.resize(3);
  given.json_as_text = data::JsonAsText::refuse;
  EXPECT_EQ(data::tokenize(*tokenizer, given).output.documents, 3);
  const std::string words(100'000, 'x');
  write_text(folder / "long", "{ \"text\": \"" + words);
  write_text(folder / "one", "{\"text\": \"without an end of line\"}");
  write_text(folder / "braces", "{\"text\" " + words);
  for (const char* name : {"long", "one", "pretty.json"}) {  // with a byte order mark
    write_text(folder / fmt::format("marked {}", name), "\xEF\xBB\xBF" + read_text(folder / name));
  }
  for (const char* name : {"long", "one", "marked long", "marked one", "marked pretty.json"}) {
    given.inputs = {folder / name};
    EXPECT_THAT(user_error([&] { data::tokenize(*tokenizer, given); }), HasSubstr("JSON is in 1 of 1 input "))
        << name;
  }
  given.inputs = {folder / "braces"};
  EXPECT_EQ(data::tokenize(*tokenizer, given).output.documents, 1);
}

TEST(Tokenize, ReadsPipes) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::jthread producer([&] { write_text(pipe, "through a pipe"); });
  EXPECT_EQ(
      data::tokenize(*tokenizer::make_tokenizer("bytes"), options({pipe}, folder / "out.h5")).output.tokens,
      14);
}

TEST(Tokenize, SaysThatAPipeIsJson) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  auto given = options({pipe}, folder / "out.h5");
  std::vector<std::string> warnings;
  const Log log([&](const std::string& line) { warnings.push_back(line); });
  const auto through_the_pipe = [&] {
    const std::jthread producer([&] { write_text(pipe, "{\"text\": \"one\"}\n"); });
    data::tokenize(*tokenizer::make_tokenizer("bytes"), given, log);
  };
  given.json_as_text = data::JsonAsText::refuse;
  EXPECT_THAT(user_error(through_the_pipe),
              HasSubstr("JSON is in " + pipe.string() + ": give --format jsonl"));
  EXPECT_THAT(warnings, ElementsAre());
  given.json_as_text = data::JsonAsText::warn;
  through_the_pipe();
  EXPECT_THAT(warnings,
              ElementsAre("warning: JSON is in " + pipe.string() + ": --format text takes it as it is"));
}

TEST(Tokenize, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "text");
  write_text(folder / "empty.txt", "");
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  const auto message = [&](const std::vector<fs::path>& inputs, const std::string& output) {
    return user_error([&] { data::tokenize(*tokenizer, options(inputs, folder / output)); });
  };
  EXPECT_THAT(message({}, "out.h5"), HasSubstr("no input"));
  EXPECT_THAT(message({folder / "a.txt", folder / "missing.txt"}, "out.h5"),
              AllOf(HasSubstr("missing.txt"), HasSubstr("No such file")));
  EXPECT_THAT(message({folder.path()}, "out.h5"), HasSubstr("is a folder"));
  EXPECT_THAT(message({folder / "empty.txt"}, "out.h5"), HasSubstr("all inputs are empty"));
  EXPECT_THAT(message({folder / "a.txt"}, "a.txt"), HasSubstr("both input and output"));
  auto split = options({folder / "a.txt"}, folder / "out.h5");
  split.held_out = 0.5;
  split.held_out_output = folder / "out.h5";
  EXPECT_THAT(user_error([&] { data::tokenize(*tokenizer, split); }), HasSubstr("the output for both parts"));
  fs::create_directory_symlink(folder.path(), folder / "link");
  fs::create_symlink(folder / "out.h5", folder / "dangling.h5");
  for (const auto& other :
       {folder / "link" / "out.h5", folder / "dangling.h5", fs::relative(folder / "out.h5")}) {
    split.held_out_output = other;
    EXPECT_THAT(user_error([&] { data::tokenize(*tokenizer, split); }),
                HasSubstr("the output for both parts"));
  }
  fs::remove(folder / "link");
  fs::remove(folder / "dangling.h5");
  split.held_out_output = folder / "a.txt";
  EXPECT_THAT(user_error([&] { data::tokenize(*tokenizer, split); }), HasSubstr("both input and output"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.txt", "empty.txt"));
}

// As a shell makes of --output *.txt.
TEST(Tokenize, RefusesAnInputInThePlaceOfAForgottenOutput) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "text");
  write_text(folder / "b.txt", "more");
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  auto given = options({folder / "b.txt"}, folder / "a.txt");
  EXPECT_EQ(
      user_error([&] { data::tokenize(*tokenizer, given); }),
      "the output " + (folder / "a.txt").string() +
          " already exists and looks like an input, not like a token file: give the output's name before "
          "the inputs, or replace the file with --overwrite");
  EXPECT_EQ(read_text(folder / "a.txt"), "text");
  given.output = folder / "out.h5";
  given.held_out = 0.5;
  given.held_out_output = folder / "a.txt";
  EXPECT_THAT(user_error([&] { data::tokenize(*tokenizer, given); }), HasSubstr("a.txt already exists"));
  EXPECT_EQ(read_text(folder / "a.txt"), "text");
  given = options({folder / "b.txt"}, folder / "a.txt");
  given.overwrite = true;
  data::tokenize(*tokenizer, given);
  EXPECT_EQ(data::TokenFile(folder / "a.txt").tokens(), 4);
  write_text(folder / "b.txt", "longer");
  given.overwrite = false;
  data::tokenize(*tokenizer, given);
  EXPECT_EQ(data::TokenFile(folder / "a.txt").tokens(), 6)
      << "now it is a token file, whatever its name says";
}

class TokenizeLines : public ::testing::Test {
 protected:
  data::TokenizeStatistics run(const data::TokenizeOptions& given) {
    warnings_.clear();
    return data::tokenize(*tokenizer_, given,
                          Log([&](const std::string& line) { warnings_.push_back(line); }));
  }
  std::string place(const std::string& name, int line) const {
    return (folder_ / name).string() + ":" + std::to_string(line) + ": ";
  }

  TemporaryFolder folder_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = tokenizer::make_tokenizer("bytes");
  std::vector<std::string> warnings_;
};

TEST_F(TokenizeLines, MakeOneDocumentEach) {
  write_text(folder_ / "a", "{\"text\": \"one\"}\r\n\n{\"id\": 2, \"text\": \"tw\\u00f6\"}\n  \n");
  write_text(folder_ / "b", "{\"text\": \"last\"}");
  const auto given = options({folder_ / "a", folder_ / "b"}, folder_ / "out.h5", data::InputFormat::jsonl);
  const auto done = run(given);
  EXPECT_EQ(done.output.documents, 3);
  EXPECT_EQ(done.bytes, 11);
  EXPECT_EQ(done.input_bytes, 67);
  EXPECT_THAT(documents(*tokenizer_, given.output), ElementsAre("one", "twö", "last"));
}

TEST_F(TokenizeLines, WithoutTextAreLeftOutAndCounted) {
  write_text(folder_ / "a", "{\"text\": \"one\"}\n{\"text\": \"\"}\n\n{\"text\": \"\\n \\u3000\"}\n\u00a0\n");
  write_text(folder_ / "b", "\n");
  write_text(folder_ / "c", "{\"text\": \"two\"}\n");
  const auto given =
      options({folder_ / "a", folder_ / "b", folder_ / "c"}, folder_ / "out.h5", data::InputFormat::jsonl);
  const auto done = run(given);
  EXPECT_THAT(documents(*tokenizer_, given.output), ElementsAre("one", "two"));
  EXPECT_EQ(done.empty, 5);
  EXPECT_EQ(done.skipped, 0);
  EXPECT_THAT(warnings_,
              ElementsAre("warning: 5 files or lines are skipped that have no text (the first is " +
                          (folder_ / "a").string() + ":2)"));
}

TEST_F(TokenizeLines, AreRefusedWithFileAndLine) {
  write_text(folder_ / "good", "{\"text\": \"one\"}\n");
  // The bad line is far behind the first piece.
  std::string lines;
  for (int i = 1; i <= 40'000; ++i)
    lines += i == 30'001 ? "{\"txt\": 1}\n" : "{\"text\": \"a line of text\"}\n";
  write_text(folder_ / "missing", lines);
  write_text(folder_ / "broken", "\n{\"text\": \"one\"}\n{\"text\" \"two\"}\n");
  write_text(folder_ / "truncated", "{\"text\": \"one\"}\n{\"text\": \"tw");
  write_text(folder_ / "latin1", "{\"text\": \"one\"}\n{\"text\": \"sch\xf6n\"}\n");
  const auto message = [&](const std::string& name) {
    return user_error([&] {
      run(options({folder_ / "good", folder_ / name}, folder_ / "out.h5", data::InputFormat::jsonl));
    });
  };
  const std::string advice = "; fix the line, or skip bad lines with --on-error skip";
  EXPECT_EQ(message("missing"),
            place("missing", 30'001) + "\"text\" is missing; the only key is \"txt\"" + advice);
  EXPECT_EQ(message("broken"), place("broken", 3) + "the line is not valid JSON at byte 13" + advice);
  EXPECT_EQ(message("truncated"),
            place("truncated", 2) +
                "the line breaks off within its JSON, after 12 bytes; the file may be truncated" + advice);
  EXPECT_EQ(message("latin1"),
            place("latin1", 2) + "the text is not valid UTF-8 at byte 14 of the line" + advice);
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("broken", "good", "latin1", "missing", "truncated"));
}

TEST_F(TokenizeLines, AreSkippedAndNamed) {
  std::string lines = "{\"text\": \"one\"}\n{\"text\": \"cut\n";
  write_text(folder_ / "a", lines);
  lines = "{}\n{\"text\": \"two\"}\n";
  for (int i = 0; i < 20; ++i) lines += "no JSON\n";
  write_text(folder_ / "b", lines);
  auto given = options({folder_ / "a", folder_ / "b"}, folder_ / "out.h5", data::InputFormat::jsonl);
  given.on_error = data::OnError::skip;
  const auto done = run(given);
  EXPECT_EQ(done.skipped, 22);
  EXPECT_EQ(done.bytes, 6);
  EXPECT_THAT(documents(*tokenizer_, given.output), ElementsAre("one", "two"));
  ASSERT_EQ(warnings_.size(), 11U);
  EXPECT_EQ(warnings_[0], "warning: " + place("a", 2) +
                              "the line breaks off within its JSON, after 13 bytes; the file may be "
                              "truncated; the line is skipped");
  EXPECT_EQ(warnings_[1],
            "warning: " + place("b", 1) + "\"text\" is missing; the object is empty; the line is skipped");
  EXPECT_EQ(warnings_[10], "warning: 22 lines were skipped; the first 10 are listed above");
  write_text(folder_ / "a", "{}\n");
  given.inputs = {folder_ / "a"};
  EXPECT_THAT(user_error([&] { run(given); }), HasSubstr("no document is left"));
}

TEST_F(TokenizeLines, GiveTheSameFileWithAnyNumberOfThreads) {
  std::string lines;
  for (int i = 0; i < 60'000; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i % 37 + 1), 'x') + std::to_string(i) +
             "\"}\n";
  write_text(folder_ / "a", lines);
  auto given = options({folder_ / "a"}, folder_ / "1.h5", data::InputFormat::jsonl);
  given.threads = 1;
  run(given);
  const data::TokenFile one(given.output);
  ASSERT_EQ(all_starts(one).size(), 60'001U);
  for (const int threads : {2, 3, 0}) {
    given.threads = threads;
    given.output = folder_ / "n.h5";
    run(given);
    const data::TokenFile other(given.output);
    EXPECT_EQ(all_starts(other), all_starts(one));
    EXPECT_EQ(read_all(other), read_all(one));
  }
}

class HeldOut : public TokenizeLines {
 protected:
  HeldOut() {
    std::string all;
    for (int i = 0; i < kDocuments; ++i) {
      const auto line = "{\"text\": \"" + std::to_string(i) + "\"}\n";
      (i < 123 ? first_ : rest_) += line;
    }
    write_text(folder_ / "all", first_ + rest_);
    write_text(folder_ / "first", first_);
    write_text(folder_ / "rest", rest_);
  }
  data::TokenizeOptions split(const std::vector<std::string>& names) const {
    auto given = options({}, folder_ / "train.h5", data::InputFormat::jsonl);
    for (const auto& name : names) given.inputs.push_back(folder_ / name);
    given.held_out = 0.1;
    given.held_out_output = folder_ / "eval.h5";
    return given;
  }
  std::vector<std::string> held_out(const data::TokenizeOptions& given) {
    run(given);
    return documents(*tokenizer_, given.held_out_output);
  }

  static constexpr int kDocuments = 5000;
  std::string first_, rest_;
};

TEST_F(HeldOut, IsAPartAndTheRestIsTheOther) {
  const auto given = split({"all"});
  const auto done = run(given);
  EXPECT_EQ(done.output.documents + done.held_out.documents, kDocuments);
  // Five standard deviations of 5000 draws of 0.1: 106.
  EXPECT_NEAR(static_cast<double>(done.held_out.documents), 500, 106);
  auto train = documents(*tokenizer_, given.output), eval = documents(*tokenizer_, given.held_out_output);
  EXPECT_EQ(std::ssize(eval), done.held_out.documents);
  const auto by_number = [](const auto& a, const auto& b) { return std::stoi(a) < std::stoi(b); };
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end(), by_number));
  EXPECT_TRUE(std::is_sorted(eval.begin(), eval.end(), by_number));
  std::vector<std::string> both;
  std::merge(train.begin(), train.end(), eval.begin(), eval.end(), std::back_inserter(both), by_number);
  ASSERT_EQ(std::ssize(both), kDocuments);
  for (int i = 0; i < kDocuments; ++i) ASSERT_EQ(both[static_cast<std::size_t>(i)], std::to_string(i));
}

TEST_F(HeldOut, DependsOnTheSeedOnly) {
  auto given = split({"all"});
  const auto chosen = held_out(given);
  given.threads = 3;
  EXPECT_EQ(held_out(given), chosen);
  given = split({"first", "rest"});
  EXPECT_EQ(held_out(given), chosen);
  given.seed = 1;
  EXPECT_NE(held_out(given), chosen);
}

TEST_F(HeldOut, IsNotEmpty) {
  write_text(folder_ / "two", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  auto given = split({"two"});
  given.held_out = 1e-9;
  EXPECT_THAT(user_error([&] { run(given); }),
              HasSubstr("the held-out part is empty: 1e-09 of 2 documents; use a larger --held-out"));
  given.held_out = 1 - 1e-9;
  EXPECT_THAT(user_error([&] { run(given); }), HasSubstr("the training part is empty: "));
  EXPECT_FALSE(fs::exists(given.output));
  EXPECT_FALSE(fs::exists(given.held_out_output));
}

}  // namespace
}  // namespace llampi::test
