// SPDX-License-Identifier: Apache-2.0
#include <hdf5.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "llampi/data/token_file.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenFileWriter, WritesWhatTheContractSays) {
  const TemporaryFolder folder;
  struct Case {
    std::int64_t vocabulary;
    const char* type;
  };
  for (const auto& [vocabulary, type] : {Case{1, "uint8"},
                                         {256, "uint8"},
                                         {257, "uint16"},
                                         {65536, "uint16"},
                                         {65537, "uint32"},
                                         {128256, "uint32"}}) {
    const auto largest = static_cast<std::int32_t>(vocabulary - 1);
    write_tokens(folder / "a.h5", vocabulary, {{0, largest, 0}, {}, {largest}});
    {
      const io::Hdf5Lock lock;
      const auto file = io::hdf5::open_file(folder / "a.h5");
      EXPECT_EQ(io::hdf5::read_string(file.id(), "format"), "llampi-tokens");
      EXPECT_EQ(io::hdf5::read_int64(file.id(), "format_version"), 1);
      const auto tokens = io::hdf5::open_dataset(file.id(), "tokens");
      EXPECT_EQ(io::hdf5::element_type(tokens.id()).name(), type) << vocabulary;
      EXPECT_THAT(io::hdf5::shape(tokens.id()), ElementsAre(4));
      EXPECT_TRUE(io::hdf5::contiguous_offset(file.id(), tokens.id()).has_value());
      const auto documents = io::hdf5::open_dataset(file.id(), "documents");
      EXPECT_EQ(io::hdf5::element_type(documents.id()).name(), "uint64");
      // What HDF5 itself reads, not only our own reader.
      std::vector<std::int64_t> values(4);
      io::hdf5::check(H5Dread(tokens.id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                      "H5Dread");
      EXPECT_THAT(values, ElementsAre(0, largest, 0, largest));
    }
    const data::TokenFile file(folder / "a.h5");
    EXPECT_EQ(file.vocabulary(), vocabulary);
    EXPECT_EQ(file.used_vocabulary(), largest + 1);
    EXPECT_EQ(file.tokenizer(), "test");
    EXPECT_FALSE(file.has_loss_mask());
    EXPECT_THAT(all_starts(file), ElementsAre(0, 3, 3, 4));
    EXPECT_THAT(read_all(file), ElementsAre(0, largest, 0, largest));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.h5"));
}

TEST(TokenFileWriter, WritesNoTimes) {
  const TemporaryFolder folder;
  write_tokens(folder / "a.h5", 256, {{1, 2}});
  const io::Hdf5Lock lock;
  const auto file = io::hdf5::open_file(folder / "a.h5");
  for (const char* name : {"/", "tokens", "documents"}) {
    H5O_info_t about;
    io::hdf5::check(H5Oget_info_by_name(file.id(), name, &about, H5P_DEFAULT), "H5Oget_info_by_name");
    EXPECT_EQ(about.atime, 0) << name;
    EXPECT_EQ(about.mtime, 0) << name;
    EXPECT_EQ(about.ctime, 0) << name;
    EXPECT_EQ(about.btime, 0) << name;
  }
}

TEST(TokenFileWriter, WritesMoreThanItBuffers) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> document;
  for (int i = 0; i < 500'001; ++i) document.push_back(static_cast<std::int32_t>(i * 2654435761U % 70'000));
  const data::TokenFile file(
      write_tokens(folder / "a.h5", 70'000, {document, document}));  // 4 MB in pieces of 1 MiB
  ASSERT_EQ(file.tokens(), 1'000'002);
  document.insert(document.end(), document.begin(), document.begin() + 500'001);
  EXPECT_EQ(read_all(file), document);
}

TEST(TokenFileWriter, AppendsPiecesOfADocument) {
  const TemporaryFolder folder;
  data::TokenFileWriter writer(folder / "a.h5", 256, "bytes");
  writer.append(std::vector<std::int32_t>{1, 2});
  writer.append(std::vector<std::int32_t>{3});
  writer.end_document();
  writer.append(std::vector<std::int32_t>{4});
  writer.close();
  EXPECT_THAT(all_starts(data::TokenFile(folder / "a.h5")), ElementsAre(0, 3, 4));
}

TEST(TokenFileWriter, WritesALossMaskOnceOneIsGiven) {
  const TemporaryFolder folder;
  using Ids = std::vector<std::int32_t>;
  using Mask = std::vector<std::uint8_t>;
  Ids many(1'500'000, 7);  // more than is buffered
  {
    data::TokenFileWriter writer(folder / "a.h5", 300, "test");
    writer.append_document(many);
    writer.append(Ids{1, 2, 3}, Mask{0, 1, 0});
    writer.append(Ids{4});
    writer.append(Ids{5, 6}, Mask{0, 0});
    writer.close();
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.h5"));
  const data::TokenFile file(folder / "a.h5");
  ASSERT_TRUE(file.has_loss_mask());
  EXPECT_THAT(all_starts(file), ElementsAre(0, 1'500'000, 1'500'006));
  Mask mask(static_cast<std::size_t>(file.tokens()));
  file.read_mask(0, mask);
  EXPECT_TRUE(std::all_of(mask.begin(), mask.end() - 6, [](auto flag) { return flag == 1; }));
  EXPECT_THAT(Mask(mask.end() - 6, mask.end()), ElementsAre(0, 1, 0, 1, 0, 0));
  many.insert(many.end(), {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(read_all(file), many);
  {
    const io::Hdf5Lock lock;
    const auto stored = io::hdf5::open_file(folder / "a.h5");
    const auto dataset = io::hdf5::open_dataset(stored.id(), "loss_mask");
    EXPECT_EQ(io::hdf5::element_type(dataset.id()).name(), "uint8");
    EXPECT_TRUE(io::hdf5::contiguous_offset(stored.id(), dataset.id()).has_value());
  }
  data::TokenFileWriter writer(folder / "b.h5", 300, "test");
  EXPECT_THROW(writer.append(Ids{1, 2}, Mask{1}), Error);
}

TEST(TokenFileWriter, NotesWhatIsKnownOfTheTokens) {
  const TemporaryFolder folder;
  data::TokenFileWriter writer(folder / "a.h5", 256, "bytes");
  writer.append_document(std::vector<std::int32_t>{1, 2, 3, 0});
  writer.close({.tokenizer_hash = "0a1b2c3d",
                .row_tokens = 3,
                .padding_tokens = 1,
                .padding_documents = 1,
                .loss_tokens = 2});
  const data::TokenFile file(folder / "a.h5");
  EXPECT_EQ(file.row_tokens(), 3);
  EXPECT_EQ(file.notes().tokenizer_hash, "0a1b2c3d");
  EXPECT_EQ(file.notes().padding_tokens, 1);
  EXPECT_EQ(file.notes().padding_documents, 1);
  EXPECT_EQ(file.notes().loss_tokens, 2);
  {
    const io::Hdf5Lock lock;
    EXPECT_EQ(io::hdf5::read_int64(io::hdf5::open_file(folder / "a.h5").id(), "seq_len"), 3);
  }
  const data::TokenFile silent(write_tokens(folder / "b.h5", 256, {{1}}));
  EXPECT_EQ(silent.row_tokens(), 0);
  EXPECT_EQ(silent.notes().tokenizer_hash, "");
  EXPECT_EQ(silent.notes().loss_tokens, std::nullopt);
}

TEST(TokenFileWriter, WritesAFileWithoutTokens) {
  const TemporaryFolder folder;
  const data::TokenFile file(write_tokens(folder / "a.h5", 256, {}));
  EXPECT_EQ(file.tokens(), 0);
  EXPECT_EQ(file.samples(1), 0);
  EXPECT_THAT(all_starts(file), ElementsAre(0));
  EXPECT_TRUE(read_all(file).empty());
}

TEST(TokenFileWriter, LeavesTheOldFileUntilTheNewOneIsComplete) {
  const TemporaryFolder folder;
  write_tokens(folder / "a.h5", 256, {{1, 2, 3}});
  const auto old = read_text(folder / "a.h5");
  {
    data::TokenFileWriter writer(folder / "a.h5", 256, "test");
    writer.append_document(std::vector<std::int32_t>{4, 5});
    EXPECT_EQ(read_text(folder / "a.h5"), old);
  }
  EXPECT_EQ(read_text(folder / "a.h5"), old) << "never closed";
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.h5"));
}

TEST(TokenFileWriter, RefusesIdsOutsideItsVocabulary) {
  const TemporaryFolder folder;
  data::TokenFileWriter writer(folder / "a.h5", 100, "test");
  EXPECT_THROW(writer.append(std::vector<std::int32_t>{100}), Error);
  EXPECT_THROW(writer.append(std::vector<std::int32_t>{-1}), Error);
}

TEST(TokenFileWriter, MakesTheFolderOfTheFile) {
  const TemporaryFolder folder;
  write_tokens(folder / "new/and/deep/a.h5", 256, {{1, 2, 3}});
  EXPECT_EQ(data::TokenFile(folder / "new/and/deep/a.h5").tokens(), 3);
}

TEST(TokenFileWriter, SaysWhyItCannotWrite) {
  const TemporaryFolder folder;
  write_tokens(folder / "file.h5", 256, {{1}});
  EXPECT_EQ(user_error([&] { data::TokenFileWriter(folder / "file.h5/in/a.h5", 256, "test"); }),
            "cannot create the folder " + (folder / "file.h5/in").string() + ": Not a directory");
  EXPECT_THAT(user_error([&] { data::TokenFileWriter(folder.path(), 256, "test"); }),
              HasSubstr("is a folder"));
  const AsNobody nobody(folder.path());
  EXPECT_THAT(user_error([&] { data::TokenFileWriter(folder / "a.h5", 256, "test"); }),
              HasSubstr("Permission denied"));
}

/// For its lifetime no file may grow beyond so many bytes: a full disk without a disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(TokenFileWriter, SaysThatThereIsNoRoom) {
  const TemporaryFolder folder;
  write_tokens(folder / "a.h5", 256, {{1, 2, 3}});
  const auto old = read_text(folder / "a.h5");
  for (const rlim_t bytes : {1, 3000}) {  // for the spool of the tokens; for the file
    std::string message;
    {
      const FileSizeLimit limit(bytes);
      message = user_error([&] { write_tokens(folder / "a.h5", 256, {std::vector<std::int32_t>(2500, 7)}); });
    }
    EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("File too large"), HasSubstr("larger than files may be")))
        << bytes;
    EXPECT_EQ(read_text(folder / "a.h5"), old);
    EXPECT_THAT(names_in(folder.path()), ElementsAre("a.h5"));
  }
}

TEST(TokenFileWriter, ReplacesNothingButTokenFilesOfItsOwn) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name) {
    return user_error([&] { data::TokenFileWriter(folder / name, 256, "test"); });
  };
  write_text(folder / "text", "words");
  write_text(folder / "empty", "");
  std::filesystem::copy_file(fixture("token_files/plain.h5"), folder / "foreign.h5");
  const auto foreign = read_text(folder / "foreign.h5");
  const std::string advice =
      " already exists and is not a token file that llampi wrote: name another file, or "
      "replace it with --overwrite";
  for (const char* name : {"text", "empty", "foreign.h5"})
    EXPECT_EQ(refusal(name), (folder / name).string() + advice);
  EXPECT_THAT(refusal("../" + folder.path().filename().string()), HasSubstr("is a folder"));
  EXPECT_EQ(user_error([&] { data::TokenFileWriter("/dev/null", 256, "test", true); }),
            "/dev/null is not a regular file: name another output");
  EXPECT_EQ(read_text(folder / "text"), "words");
  EXPECT_EQ(read_text(folder / "foreign.h5"), foreign);
  data::TokenFileWriter writer(folder / "text", 256, "test", true);
  writer.append_document(std::vector<std::int32_t>{1, 2});
  writer.close();
  EXPECT_EQ(data::TokenFile(folder / "text").tokens(), 2);
}

TEST(TokenFileWriter, ReplacesNothingThatHasComeMeanwhile) {
  const TemporaryFolder folder;
  data::TokenFileWriter text(folder / "a", 256, "test"), tokens(folder / "b", 256, "test");
  write_text(folder / "a", "words");
  write_tokens(folder / "b", 256, {{1}});
  for (auto* writer : {&text, &tokens}) writer->append_document(std::vector<std::int32_t>{1, 2});
  EXPECT_THAT(user_error([&] { text.close(); }), HasSubstr("a already exists"));
  EXPECT_EQ(read_text(folder / "a"), "words");
  tokens.close();
  EXPECT_EQ(data::TokenFile(folder / "b").tokens(), 2) << "a token file is replaced";
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a", "b"));
}

TEST(TokenFileWriter, MayHaveSeveralOfOneName) {
  const TemporaryFolder folder;
  {
    data::TokenFileWriter first(folder / "a.h5", 256, "test"), second(folder / "a.h5", 256, "test");
    first.append_document(std::vector<std::int32_t>{1, 1});
    second.append_document(std::vector<std::int32_t>{2, 2, 2});
    first.append_document(std::vector<std::int32_t>{1});
    second.close();
    EXPECT_THAT(read_all(data::TokenFile(folder / "a.h5")), ElementsAre(2, 2, 2));
    first.close();
  }
  EXPECT_THAT(read_all(data::TokenFile(folder / "a.h5")), ElementsAre(1, 1, 1));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.h5"));
}

TEST(Leftovers, OfAnotherHostOfThisNameStay) {
  const TemporaryFolder folder;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string start;
  file >> start;
  start = start.substr(0, start.find('-'));
  ASSERT_FALSE(start.empty());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  // As this dead process would have called it, had it run there.
  std::string name = io::temporary_beside(folder / "a.h5");
  const auto own = std::to_string(getpid());
  name.replace(name.rfind("-" + own + "-") + 1, own.size(), std::to_string(child));
  std::string elsewhere = name;
  elsewhere.replace(elsewhere.find("-" + start + "-") + 1, start.size(), std::string(start.size(), 'x'));
  write_text(name, "half");
  write_text(elsewhere, "of a process that may live");
  io::clear_leftovers(folder / "a.h5", {});
  EXPECT_FALSE(std::filesystem::exists(name));
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
}

TEST(FollowLinks, ToFilesThatAreThereOrNot) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "data");
  std::filesystem::create_symlink("data/b.h5", folder / "a.h5");
  std::filesystem::create_symlink(folder / "a.h5", folder / "link.h5");
  EXPECT_EQ(io::follow_links(folder / "link.h5"), folder / "data/b.h5");
  EXPECT_EQ(io::follow_links(folder / "data/b.h5"), folder / "data/b.h5");
  for (int twice = 0; twice < 2; ++twice) {  // as a new file, and in the place of one
    data::TokenFileWriter writer(folder / "link.h5", 256, "bytes");
    writer.append(std::vector<std::int32_t>{1, 2});
    writer.end_document();
    writer.close();
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.h5"));
    EXPECT_TRUE(std::filesystem::is_symlink(folder / "a.h5"));
    EXPECT_EQ(data::TokenFile(folder / "data/b.h5").tokens(), 2);
  }
}

TEST(Leftovers, OfDeadProcessesAreRemoved) {
  const TemporaryFolder folder;
  const auto output = folder / "a.h5";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write_text(io::temporary_beside(output), "half");
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  const auto mine = io::temporary_beside(output);
  write_text(mine, "of a process that lives");
  write_text(folder / "a.h5.llampi-elsewhere-1-2-0a1b2c3d.tmp", "of another host");
  write_text(folder / "b.h5.llampi-x.tmp", "of another output");
  write_text(folder / "a.h5.tmp", "the user's");
  ASSERT_EQ(names_in(folder.path()).size(), 5U);
  std::vector<std::string> warnings;
  const Log log([&](const std::string& line) { warnings.push_back(line); });
  io::clear_leftovers(output, log);
  EXPECT_EQ(names_in(folder.path()).size(), 4U);
  EXPECT_TRUE(std::filesystem::exists(mine));
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  std::filesystem::last_write_time(folder / "a.h5.llampi-elsewhere-1-2-0a1b2c3d.tmp",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  io::clear_leftovers(output, log);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("elsewhere-1-2-0a1b2c3d.tmp was left by a process that ended"));
  EXPECT_EQ(names_in(folder.path()).size(), 4U);
}

}  // namespace
}  // namespace llampi::test
