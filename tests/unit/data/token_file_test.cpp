// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/token_file.hpp"

#include <hdf5.h>

#include <thread>

#include "llampi/io/hdf5.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> fixture_tokens() {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back(7 * i % 331);
  return tokens;
}

class ForeignFile : public ::testing::TestWithParam<const char*> {};

TEST_P(ForeignFile, IsReadWithoutAttributes) {
  const data::TokenFile file(fixture(std::string("token_files/") + GetParam()));
  EXPECT_EQ(file.tokens(), 50);
  EXPECT_EQ(file.vocabulary(), 0);
  EXPECT_EQ(file.used_vocabulary(), 0);
  EXPECT_EQ(file.tokenizer(), "");
  EXPECT_THAT(all_starts(file), ElementsAre(0, 13, 13, 30, 50));
  EXPECT_EQ(read_all(file), fixture_tokens());
  std::vector<std::int32_t> part(5);
  file.read(45, part);
  EXPECT_THAT(part, ElementsAre(7 * 45, 7 * 46, 7 * 47, 7 * 48 - 331, 7 * 49 - 331));
  file.read(50, std::span(part).first(0));
  EXPECT_THROW(file.read(46, part), Error);
  EXPECT_THROW(file.read(-1, part), Error);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ForeignFile,
                         ::testing::Values("plain.h5", "newest_format.h5", "user_block.h5", "gzip.h5",
                                           "big_endian.h5", "compact.h5", "loss_mask.h5", "bool_mask.h5"));

/// More than are checked and indexed at once; every third is empty.
TEST(TokenFile, FindsTheStartsOfDocumentsInARange) {
  const TemporaryFolder folder;
  constexpr std::int64_t kDocuments = 70'000;
  data::TokenFileWriter writer(folder / "many.h5", 10, "test");
  for (std::int64_t d = 0; d < kDocuments; ++d)
    writer.append_document(std::vector<std::int32_t>(static_cast<std::size_t>(d % 3), 1));
  writer.close();
  const data::TokenFile file(folder / "many.h5");
  EXPECT_EQ(file.documents(), kDocuments);
  const auto starts = all_starts(file);
  ASSERT_EQ(std::ssize(starts), kDocuments + 1);
  const auto tokens = file.tokens();
  const std::pair<std::int64_t, std::int64_t> ranges[] = {
      {-1, -1},        {-1, 0},          {0, 0},
      {0, 1},          {1023, 1024},     {2047, 3071},
      {1, tokens},     {65'000, 66'000}, {tokens - 2, tokens},
      {tokens, tokens}};
  for (const auto& [begin, end] : ranges) {
    std::vector<std::uint64_t> expected;
    for (const auto start : starts) {
      if (std::cmp_greater(start, begin) && std::cmp_less_equal(start, end)) expected.push_back(start);
    }
    EXPECT_EQ(file.starts_in(begin, end), expected) << begin << " to " << end;
  }
}

TEST(TokenFile, ReadsTheLossMask) {
  for (const char* name : {"loss_mask.h5", "bool_mask.h5", "gzip.h5"}) {
    const data::TokenFile file(fixture(std::string("token_files/") + name));
    ASSERT_TRUE(file.has_loss_mask()) << name;
    std::vector<std::uint8_t> mask(6);
    file.read_mask(1, mask);
    EXPECT_THAT(mask, ElementsAre(1, 1, 0, 1, 1, 0)) << name;
  }
  const data::TokenFile file(fixture("token_files/plain.h5"));
  EXPECT_FALSE(file.has_loss_mask());
  std::vector<std::uint8_t> mask(3, 7);
  file.read_mask(0, mask);
  EXPECT_THAT(mask, ElementsAre(1, 1, 1));
}

TEST(TokenFile, KeepsValuesOutsideInt32OutOfEveryVocabulary) {
  std::vector<std::int32_t> id(1);
  data::TokenFile(fixture("token_files/huge_token.h5")).read(40, id);
  EXPECT_EQ(id[0], std::numeric_limits<std::int32_t>::max());
  data::TokenFile(fixture("token_files/negative.h5")).read(3, id);
  EXPECT_EQ(id[0], -5) << "the value, for messages";
}

TEST(TokenFile, CountsSamples) {
  const data::TokenFile file(fixture("token_files/plain.h5"));
  EXPECT_EQ(file.samples(1), 49);
  EXPECT_EQ(file.samples(7), 7);
  EXPECT_EQ(file.samples(49), 1);
  EXPECT_EQ(file.samples(50), 0);
}

// Whatever is left of a file: it is refused when opened or read, or every token is right.
TEST(TokenFile, NeverReadsGarbageFromATruncatedFile) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 3000; ++i) tokens.push_back(i * i % 251);
  write_tokens(folder / "own.h5", 256, {tokens, {}, tokens});
  int refused = 0;
  int tried = 0;
  for (const auto& path : {folder / "own.h5", fixture("token_files/plain.h5"), fixture("token_files/gzip.h5"),
                           fixture("token_files/newest_format.h5")}) {
    const auto whole = read_text(path);
    const auto expected = read_all(data::TokenFile(path));
    for (std::size_t bytes = whole.size() - 1; bytes > 0; bytes -= std::min<std::size_t>(bytes, 61)) {
      write_text(folder / "cut.h5", whole.substr(0, bytes));
      ++tried;
      try {
        EXPECT_EQ(read_all(data::TokenFile(folder / "cut.h5")), expected)
            << path << " cut to " << bytes << " bytes";
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("cut.h5"));
        ++refused;
      }
    }
  }
  EXPECT_GT(tried, 300);
  EXPECT_EQ(refused, tried) << "files that end early are expected to be noticed when opened";
}

// An external link leads to ids that lie in another file than the one that is named, which may have others at that place.
TEST(TokenFile, FollowsLinksToOtherFiles) {
  const TemporaryFolder folder;
  write_tokens(folder / "elsewhere.h5", 256, {{1, 2, 3}, {4, 5}});
  const auto path = write_tokens(folder / "a.h5", 256, {{9, 9, 9}, {9, 9}});
  {
    const io::Hdf5Lock lock;
    const io::hdf5::File file(io::hdf5::check(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
    ASSERT_GE(H5Ldelete(file.id(), "tokens", H5P_DEFAULT), 0);
    ASSERT_GE(H5Lcreate_external("elsewhere.h5", "/tokens", file.id(), "tokens", H5P_DEFAULT, H5P_DEFAULT),
              0);
  }
  EXPECT_THAT(read_all(data::TokenFile(path)), ElementsAre(1, 2, 3, 4, 5));
}

TEST(TokenFile, NoticesWhenTheFileShrinksWhileItIsOpen) {
  const TemporaryFolder folder;
  const auto path = write_tokens(folder / "a.h5", 256, {std::vector<std::int32_t>(5000, 1)});
  const data::TokenFile file(path);
  std::filesystem::resize_file(path, 3000);
  EXPECT_THAT(user_error([&] { read_all(file); }), HasSubstr("is truncated"));
}

TEST(TokenFile, CanBeReadFromSeveralThreads) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 20'000; ++i) tokens.push_back(i);
  const data::TokenFile file(write_tokens(folder / "a.h5", 65536, {tokens}));
  std::vector<int> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::int32_t> ids(100);
        for (std::int64_t begin = static_cast<std::int64_t>(t); begin + 100 <= file.tokens(); begin += 97) {
          file.read(begin, ids);
          for (std::int32_t i = 0; i < 100; ++i)
            wrong[t] += ids[static_cast<std::size_t>(i)] != begin + i ? 1 : 0;
        }
      });
    }
  }
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(TokenFile, SaysWhatAnotherFileIs) {
  const auto message = [](const std::filesystem::path& path) {
    return user_error([&] { data::TokenFile file(path); });
  };
  EXPECT_THAT(message(fixture("token_files/other_format.h5")),
              AllOf(HasSubstr("\"llampi-checkpoint\""), HasSubstr("not a token file")));
  EXPECT_THAT(message(fixture("token_files/make_fixtures.py")), HasSubstr("not an HDF5 file"));
  EXPECT_THAT(message(fixture("token_files/missing.h5")), HasSubstr("no such file"));
}

/// By h5py with HDF5 2.0 and libver = "v200".
TEST(TokenFile, SaysThatANewerHdf5WroteAFile) {
  const auto path = fixture("token_files/newer_hdf5.h5");
  if (io::hdf5::library_version() >= "2.") {
    EXPECT_EQ(read_all(data::TokenFile(path)), fixture_tokens());
    return;
  }
  const auto text = user_error([&] { data::TokenFile file(path); });
  EXPECT_THAT(text, HasSubstr("newer_hdf5.h5 was written by a newer HDF5, or is damaged: HDF5 " +
                              io::hdf5::library_version() + " cannot read it (bad version number"));
  EXPECT_THAT(text, HasSubstr("libver=(\"earliest\", \"v110\")"));
}

/// Writes a file with these datasets and opens it.
template <class Token>
std::string message_for(hid_t type, const std::vector<Token>& tokens, const std::vector<hsize_t>& extents,
                        const std::vector<std::int64_t>& documents, std::size_t mask_length = 0) {
  const TemporaryFolder folder;
  const auto write = [](const io::hdf5::File& file, const char* name, hid_t stored, std::vector<hsize_t> dims,
                        const void* data) {
    const io::hdf5::Dataspace space(io::hdf5::check(
        H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), "H5Screate_simple"));
    const io::hdf5::Dataset dataset(io::hdf5::check(
        H5Dcreate2(file.id(), name, stored, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        "H5Dcreate2"));
    io::hdf5::check(H5Dwrite(dataset.id(), stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "H5Dwrite");
  };
  {
    const io::Hdf5Lock lock;
    const auto file = io::hdf5::create_file(folder / "a.h5", io::hdf5::file_access().id());
    if (!tokens.empty()) write(file, "tokens", type, extents, tokens.data());
    if (!documents.empty()) write(file, "documents", H5T_NATIVE_INT64, {documents.size()}, documents.data());
    const std::vector<std::uint8_t> mask(mask_length, 1);
    if (mask_length > 0) write(file, "loss_mask", H5T_NATIVE_UINT8, {mask_length}, mask.data());
  }
  const auto text = user_error([&] { data::TokenFile file(folder / "a.h5"); });
  EXPECT_THAT(text, HasSubstr("a.h5"));
  return text;
}

TEST(TokenFile, RefusesDatasetsThatAreNotAsTheyShouldBe) {
  const std::vector<std::int32_t> six{1, 2, 3, 4, 5, 6};
  EXPECT_THAT(message_for<std::int32_t>(H5T_NATIVE_INT, {}, {}, {0, 6}), HasSubstr("has no '/tokens'"));
  EXPECT_THAT(message_for(H5T_NATIVE_INT, six, {6}, {}), HasSubstr("has no '/documents'"));
  EXPECT_THAT(message_for(H5T_NATIVE_INT, six, {2, 3}, {0, 6}), HasSubstr("has 2 dimensions"));
  EXPECT_THAT(message_for(H5T_NATIVE_FLOAT, std::vector<float>(6), {6}, {0, 6}), HasSubstr("type float32"));
  EXPECT_THAT(message_for(H5T_NATIVE_INT, six, {6}, {0, 6}, 5), HasSubstr("'/loss_mask' has 5 entries"));
  for (const auto& documents :
       std::vector<std::vector<std::int64_t>>{{1, 6}, {0, 5}, {0, 7}, {0, 4, 3, 6}, {0, -1, 6}, {6}, {0}}) {
    EXPECT_THAT(message_for(H5T_NATIVE_INT, six, {6}, documents), HasSubstr("'/documents' must hold"));
  }
}

}  // namespace
}  // namespace llampi::test
