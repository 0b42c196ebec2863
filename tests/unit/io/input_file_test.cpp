// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/input_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/compressed.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;

/// That hardly gets smaller.
std::string varied(std::size_t bytes) {
  std::mt19937 random(7);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>('!' + random() % 90);
  return text;
}

std::string read_all(const std::filesystem::path& path, std::size_t at_once) {
  io::InputFile file(path);
  std::string text;
  for (;;) {
    std::string part(at_once, '\0');
    part.resize(file.read(std::as_writable_bytes(std::span(part))));
    text += part;
    if (part.size() < at_once) break;
  }
  std::byte more{};
  EXPECT_EQ(file.read({&more, 1}), 0U) << "the end stays the end";
  EXPECT_EQ(file.file_bytes(), static_cast<std::int64_t>(std::filesystem::file_size(path)));
  return text;
}

class InputFile : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& content) const {
    write_text(folder_ / "file", content);
    return folder_ / "file";
  }
  std::string problem(const std::string& content) const {
    try {
      read_all(file(content), 1000);
    } catch (const io::UnpackError& error) {
      EXPECT_EQ(std::string(error.what()), (folder_ / "file").string() + " " + error.problem());
      return error.problem();
    }
    return "";
  }
  const TemporaryFolder folder_;
};

TEST_F(InputFile, GivesWhatIsInIt) {
  for (const std::string& text :
       {std::string(), std::string("a"), varied(70'000), std::string(5'000'000, 'a'),
        varied(300'000) + std::string(3'000'000, 'b')}) {
    for (const std::string& content : {text, gzip(text), zstd(text), gzip(text) + gzip("") + gzip("end"),
                                       zstd(text) + zstd("end"), gzip(text) + std::string(600, '\0'),
                                       std::string("\x50\x2a\x4d\x18\x03\0\0\0abc", 11) + zstd(text)}) {
      for (const std::size_t at_once : {std::size_t{1} << 23, std::size_t{65'536}, std::size_t{4'001}}) {
        const std::string found = read_all(file(content), at_once);
        const bool same = found == text || found == text + "end";
        EXPECT_TRUE(same) << found.size() << " bytes of " << text.size() << ", " << at_once << " at once";
      }
    }
    EXPECT_EQ(read_all(file(gzip(text) + gzip("end")), 5000), text + "end");
    EXPECT_EQ(read_all(file(zstd(text) + zstd("end")), 5000), text + "end");
    EXPECT_EQ(read_all(file(zstd(text)), 5000), text);
    EXPECT_EQ(read_all(file(gzip(text)), 5000), text);
  }
}

TEST_F(InputFile, ReadsByteByByte) {
  for (const auto& pack : {gzip, zstd}) EXPECT_EQ(read_all(file(pack("some text")), 1), "some text");
}

TEST_F(InputFile, ReadsPipes) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string text = varied(200'000);
  std::thread writer([&] { write_text(pipe, gzip(text)); });
  io::InputFile file(pipe);
  std::string found(text.size() + 1, '\0');
  found.resize(file.read(std::as_writable_bytes(std::span(found))));
  writer.join();
  EXPECT_EQ(found, text);
}

TEST_F(InputFile, RefusesWhatIsDamagedOrTruncated) {
  const std::string text = varied(200'000);
  for (const auto& pack : {gzip, zstd}) {
    const std::string packed = pack(text);
    for (const std::size_t kept : {packed.size() - 1, packed.size() / 2, std::size_t{7}})
      EXPECT_EQ(problem(packed.substr(0, kept)), "is truncated: its compressed data end too early") << kept;
    EXPECT_EQ(problem(packed + packed.substr(0, 100)), "is truncated: its compressed data end too early");
  }
  std::string damaged = gzip(text);
  damaged[damaged.size() - 6] ^= 1;  // of the checksum
  EXPECT_EQ(problem(damaged), "cannot be unpacked (gzip: incorrect data check)");
  EXPECT_EQ(problem(gzip(text) + "more"), "cannot be unpacked (gzip: incorrect header check)");
  std::string frame = zstd(text);
  frame[4] ^= 0x08;  // a bit of its header that must be 0
  EXPECT_THAT(problem(frame), HasSubstr("cannot be unpacked (zstd: "));
  EXPECT_THAT(problem(zstd(text) + "more"), HasSubstr("cannot be unpacked (zstd: Unknown frame descriptor)"));
  EXPECT_THROW(io::InputFile(folder_ / "none"), UserError);
}

}  // namespace
}  // namespace llampi::test
