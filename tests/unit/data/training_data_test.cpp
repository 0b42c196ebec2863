// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/training_data.hpp"

#include <map>

#include "llampi/data/content.hpp"
#include "llampi/data/sampler.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using Parts = std::vector<data::NamedPart>;

class ParseTokenFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const {
    write_tokens(folder_ / name, 10, {{1, 2, 3}});
    return folder_ / name;
  }
  const TemporaryFolder folder_;
};

TEST_F(ParseTokenFiles, ReadsNamesAndTimes) {
  EXPECT_EQ(data::parse_token_files("a.h5"), (Parts{{"a.h5"}}));
  EXPECT_EQ(data::parse_token_files("a.h5:2"), (Parts{{"a.h5", 2}}));
  EXPECT_EQ(data::parse_token_files(" a.h5,b.h5 : 2 , c d.h5:0.25"),
            (Parts{{"a.h5"}, {"b.h5", 2}, {"c d.h5", 0.25}}));
  EXPECT_EQ(data::parse_token_files("host:a.h5"), (Parts{{"host:a.h5"}})) << "no number follows";
}

TEST_F(ParseTokenFiles, TakesWhatExistsAsItIs) {
  EXPECT_EQ(data::parse_token_files(file("a, b.h5")), (Parts{{folder_ / "a, b.h5"}}));
  EXPECT_EQ(data::parse_token_files(file("c:2") + ",d"), (Parts{{folder_ / "c:2"}, {"d"}}));
}

TEST_F(ParseTokenFiles, TakesTheTokenFilesOfAFolder) {
  for (const char* name : {"s10.h5", "s02.h5", "notes.txt", ".s03.h5"}) file(name);
  const std::string folder = folder_.path();
  EXPECT_EQ(data::parse_token_files(folder), (Parts{{folder_ / "s02.h5"}, {folder_ / "s10.h5"}}));
  EXPECT_EQ(data::parse_token_files("x.h5, " + folder + ":3"),
            (Parts{{"x.h5"}, {folder_ / "s02.h5", 3}, {folder_ / "s10.h5", 3}}));
}

TEST_F(ParseTokenFiles, RefusesWhatNamesNothing) {
  const std::string empty = folder_ / "empty";
  std::filesystem::create_directory(empty);
  const auto refusal = [](const std::string& text) {
    return user_error([&] { data::parse_token_files(text); });
  };
  EXPECT_EQ(refusal("a.h5,,b.h5"), "a.h5,,b.h5: a name between commas is empty");
  EXPECT_EQ(refusal("a.h5,"), "a.h5,: a name between commas is empty");
  for (const char* part : {"a.h5:0", "a.h5:-1", "a.h5:nan", "a.h5:inf"}) {
    EXPECT_EQ(refusal(part),
              fmt::format("{}: \"{}\" is not a number above 0: how often an epoch reads the samples of a.h5",
                          part, std::string(part).substr(5)));
  }
  const auto there = file("there.h5");
  for (const char* number : {"x", "", "50%", "+2", "0x10"})
    EXPECT_THAT(refusal(there + ":" + number),
                testing::HasSubstr(fmt::format("\"{}\" is not a number above 0", number)));
  EXPECT_EQ(refusal(empty),
            empty + " is a folder without token files (*.h5); give a file that llampi tokenize wrote");
}

constexpr std::int64_t kTokens = 2;

class TrainingData : public ::testing::Test {
 protected:
  /// A file of `samples` samples, read `times` times.
  data::TrainingData::Part part(std::int64_t samples, double times) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(samples * kTokens + 1));
    for (auto& id : ids) id = next_++ % 250;
    return {.file = data::TokenFile(write_tokens(folder_ / fmt::format("{}.h5", number_++), 250, {ids})),
            .times = times};
  }
  data::TrainingData make(const std::vector<std::pair<std::int64_t, double>>& sizes, bool shuffle = true,
                          std::uint64_t seed = 5) {
    std::vector<data::TrainingData::Part> parts;
    for (const auto& [samples, times] : sizes) parts.push_back(part(samples, times));
    return {std::move(parts), kTokens, seed, shuffle};
  }
  /// How often an epoch, or several, read each sample of each file.
  static std::map<std::pair<const data::TokenFile*, std::int64_t>, int> reads(const data::TrainingData& data,
                                                                              std::int64_t epochs,
                                                                              std::int64_t first = 0) {
    std::map<std::pair<const data::TokenFile*, std::int64_t>, int> times;
    for (std::int64_t epoch = first; epoch < first + epochs; ++epoch) {
      for (std::int64_t s = 0; s < data.samples(); ++s) {
        const auto place = data.place(s, epoch);
        ++times[{place.file, place.sample}];
      }
    }
    return times;
  }

  const TemporaryFolder folder_;
  int number_ = 0;
  std::int32_t next_ = 0;
};

TEST_F(TrainingData, OfOneFileIsThatFile) {
  const auto data = make({{7, 1}});
  EXPECT_TRUE(data.is_one_file());
  EXPECT_EQ(data.samples(), 7);
  EXPECT_EQ(data.tokens(), 15);
  for (std::int64_t s = 0; s < 7; ++s) EXPECT_EQ(data.place(s, s).sample, s) << "in any epoch";
  EXPECT_EQ(data::describe_content(data), data::describe_content(data.parts().front().file));
}

TEST_F(TrainingData, ReadsEachSampleAsOftenAsItsFileSays) {
  const auto data = make({{5, 1}, {3, 2}, {4, 1}});
  EXPECT_EQ(data.samples(), 15);
  EXPECT_EQ(data.tokens(), 31) << "so that they are as many samples";
  EXPECT_FALSE(data.is_one_file());
  const auto times = reads(data, 1, 4);
  EXPECT_EQ(times.size(), 12U);
  for (const auto& [place, count] : times)
    EXPECT_EQ(count, place.first == &data.parts()[1].file ? 2 : 1) << "sample " << place.second;
}

TEST_F(TrainingData, DrawsPartsOfFilesEvenlyOverEpochs) {
  for (const double fraction : {0.3, 0.7, 1.5, 2.7}) {
    const auto data = make({{4, 1}, {10, fraction}});
    const auto& file = data.parts()[1].file;
    const auto drawn = std::llround(10 * fraction);
    EXPECT_EQ(data.samples(), 4 + drawn);
    for (const std::int64_t epochs : {1, 2, 3, 10}) {
      std::int64_t total = 0;
      const auto times = reads(data, epochs);
      for (std::int64_t s = 0; s < 10; ++s) {
        const auto found = times.find({&file, s});
        const int count = found == times.end() ? 0 : found->second;
        EXPECT_GE(count, epochs * drawn / 10) << fraction << ", sample " << s << ", epochs " << epochs;
        EXPECT_LE(count, (epochs * drawn + 9) / 10) << fraction << ", sample " << s << ", epochs " << epochs;
        total += count;
      }
      EXPECT_EQ(total, epochs * drawn);
    }
    for (std::int64_t epoch = 0; epoch < 12; ++epoch) {  // each by itself, too
      const auto times = reads(data, 1, epoch);
      for (std::int64_t s = 0; s < 10; ++s) {
        const auto found = times.find({&file, s});
        const int count = found == times.end() ? 0 : found->second;
        EXPECT_GE(count, drawn / 10) << fraction << ", sample " << s << ", epoch " << epoch;
        EXPECT_LE(count, drawn / 10 + 1) << fraction << ", sample " << s << ", epoch " << epoch;
      }
    }
  }
}

TEST_F(TrainingData, DrawsOtherSamplesWithAnotherSeedAndInOrderWithoutShuffling) {
  const auto drawn = [&](bool shuffle, std::uint64_t seed, std::int64_t epoch) {
    const auto data = make({{100, 0.1}, {1, 1}}, shuffle, seed);
    std::vector<std::int64_t> samples;
    for (std::int64_t s = 0; s < 10; ++s) samples.push_back(data.place(s, epoch).sample);
    return samples;
  };
  EXPECT_EQ(drawn(true, 1, 0), drawn(true, 1, 0));
  EXPECT_NE(drawn(true, 1, 0), drawn(true, 2, 0));
  EXPECT_NE(drawn(true, 1, 0), drawn(true, 1, 1)) << "another part of the file";
  EXPECT_EQ(drawn(false, 1, 2), (std::vector<std::int64_t>{20, 21, 22, 23, 24, 25, 26, 27, 28, 29}));
  EXPECT_EQ(drawn(false, 1, 10), drawn(false, 1, 0));
}

TEST_F(TrainingData, RefusesFilesOfWhichNothingIsRead) {
  const auto message = user_error([&] { make({{5, 1}, {10, 0.04}}); });
  EXPECT_THAT(message,
              testing::HasSubstr("1.h5:0.04 reads none of its 10 samples in an epoch; leave it out"));
  EXPECT_THAT(
      user_error([&] {
        make({{5, 1}, {0, 1}});
      }),
      testing::HasSubstr(".h5 has 1 token, too few for one sample of data.seq_len = 2 + 1; leave it out"));
  for (const double times : {2.4e17, 1e18, 1e300})  // 2.3e17 * 10 samples of 2 tokens are just below 2^62
    EXPECT_THAT(user_error([&] {
                  make({{5, 1}, {10, times}});
                }),
                testing::HasSubstr("too many for an epoch"));
  EXPECT_GT(make({{5, 1}, {10, 2.3e17}}).tokens(), std::int64_t{1} << 61);
  EXPECT_EQ(make({{0, 1}}).samples(), 0) << "of one file, the batch is compared with it";
}

TEST_F(TrainingData, HasTheTokenizerThatIsKnown) {
  std::vector<data::TrainingData::Part> parts;
  for (const char* name : {"", "one", "two"}) {
    const auto path = folder_ / fmt::format("of {}.h5", name);
    data::TokenFileWriter writer(path, 10, name);
    writer.append_document(std::vector<std::int32_t>(5, 1));
    writer.close();
    parts.push_back({.file = data::TokenFile(path)});
  }
  const data::TrainingData data(std::move(parts), kTokens, 0, true);
  EXPECT_EQ(data.with_tokenizer().tokenizer(), "one");
  EXPECT_EQ(data::tokenizer_in(data::describe_content(data)), "one");
}

TEST_F(TrainingData, IsDescribedByFilesOrderAndTimes) {
  const auto described = [&](double first, double second) {
    number_ = next_ = 0;
    return data::describe_content(make({{5, first}, {3, second}}));
  };
  const auto content = described(1, 2);
  EXPECT_THAT(content,
              testing::MatchesRegex("18 tokens in 2 documents of 2 files, crc32 [0-9a-f]+, tokenizer test"));
  EXPECT_EQ(content, described(1, 2));
  EXPECT_FALSE(data::same_content(content, described(1, 3)));
  EXPECT_FALSE(data::same_content(content, described(2, 1)));
  EXPECT_EQ(data::tokenizer_in(content), "test");
  EXPECT_THAT(data::content_in_words("18000 tokens in 2000 documents of 2 files, crc32 0"),
              "18,000 tokens in 2,000 documents of 2 files, crc32 0");
}

}  // namespace
}  // namespace llampi::test
