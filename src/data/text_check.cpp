// SPDX-License-Identifier: Apache-2.0
#include "data/text_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/input_file.hpp"
#include "llampi/tokenizer/utf8.hpp"

namespace llampi::data {
namespace {

using namespace std::string_view_literals;

/// Text in a language with accents, in Latin-1, has a few percent; texts in other encodings, and what is no
/// text, far more.
constexpr double kMostIllFormed = 0.1;

struct Signature {
  std::string_view bytes;
  const char* meaning;
};
constexpr std::array<Signature, 10> kSignatures{{
    {"\x1f\x8b"sv,
     "holds what is compressed with gzip once more: unpack it first"},  // heads are unpacked already
    {"\x28\xb5\x2f\xfd"sv, "holds what is compressed with zstd once more: unpack it first"},
    {"\xfd\x37zXZ\0"sv, "is compressed with xz: unpack it first"},
    {"PK\x03\x04"sv, "is a zip archive: unpack it first"},
    {"PAR1"sv,
     "is a Parquet file: make JSON lines of it first, with Python's datasets: load_dataset(...).to_json(...)"},
    {"ARROW1"sv,
     "is an Arrow file: make JSON lines of it first, with Python's datasets: Dataset.from_file(...).to_json(...)"},
    {"%PDF-"sv, "is a PDF: extract its text first, with pdftotext for example"},
    {"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file and not text"},
    {"\xff\xfe"sv, "is UTF-16 and not UTF-8: convert it with iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff"sv, "is UTF-16 and not UTF-8: convert it with iconv -f UTF-16 -t UTF-8"},
}};

/// Not by "BZh" alone, with which a text may begin: bzip2 has a digit and the number of the first block after it.
bool is_bzip2(std::string_view head) {
  return head.size() >= 10 && head.starts_with("BZh") && '1' <= head[3] && head[3] <= '9' &&
         head.substr(4, 6) == "1AY&SY";
}

bool is_tar(std::string_view head) {
  constexpr std::size_t kMagic = 257;  // its place in the header of the first file
  return head.size() > kMagic && head.substr(kMagic).starts_with("ustar");
}

constexpr std::size_t kLeastUtf16 = 4;  // of fewer characters zero bytes say nothing

/// UTF-16 without a byte order mark, found by its zero bytes: in mostly ASCII text every second byte is one.
const char* utf16_without_mark(std::string_view head) {
  std::array<std::size_t, 2> zeros{};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0' ? 1 : 0;
  const auto half = head.size() / 2;
  if (half < kLeastUtf16) return nullptr;
  if (zeros[1] > half / 2 && zeros[0] <= half / 16)
    return "is UTF-16 and not UTF-8: convert it with iconv -f UTF-16LE -t UTF-8";
  if (zeros[0] > half / 2 && zeros[1] <= half / 16)
    return "is UTF-16 and not UTF-8: convert it with iconv -f UTF-16BE -t UTF-8";
  return nullptr;
}

/// Without a character that was cut off.
std::string_view whole_characters(std::string_view head) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, head.size()); ++back) {
    const auto byte = static_cast<unsigned char>(head[head.size() - back]);
    if (byte < 0x80) break;
    if (byte >= 0xC0)
      return tokenizer::character_bytes(head[head.size() - back]) > back ? head.substr(0, head.size() - back)
                                                                         : head;
  }
  return head;
}

bool is_json_object(std::string_view line) { return nlohmann::json::parse(line, nullptr, false).is_object(); }

/// Whether these bytes can be the beginning of a JSON object that continues after them.
bool begins_json_object(std::string_view line) {
  line = whole_characters(line);
  const auto key = line.find_first_not_of(" \t", 1);
  if (!line.starts_with('{') || key == line.npos || line[key] != '"') return false;
  try {
    const auto whole = nlohmann::json::parse(line);
    return false;
  } catch (const nlohmann::json::parse_error& error) {
    return error.byte > line.size();            // that it ends too early is the only error
  } catch (const nlohmann::json::exception&) {  // a number that is too large
    return false;
  }
}

}  // namespace

std::string read_head(const std::filesystem::path& path) {
  io::InputFile file(path);
  std::string head(kHeadBytes, '\0');
  head.resize(file.read(std::as_writable_bytes(std::span(head))));
  return head;
}

std::size_t count_ill_formed(std::string_view text) {
  if (tokenizer::is_well_formed(text)) return 0;
  constexpr std::string_view kReplacement = "\uFFFD";
  const auto count = [&](std::string_view in) {
    std::size_t found = 0;
    for (auto at = in.find(kReplacement); at != in.npos; at = in.find(kReplacement, at + kReplacement.size()))
      ++found;
    return found;
  };
  std::string storage;
  return count(tokenizer::well_formed(text, storage)) - count(text);  // some may stand there as they are
}

std::string why_no_text(std::string_view head, InputFormat format) {
  for (const auto& [bytes, meaning] : kSignatures) {
    if (head.starts_with(bytes)) return meaning;
  }
  if (is_tar(head)) return "is a tar archive: unpack it first";
  if (is_bzip2(head)) return "is compressed with bzip2: unpack it first";
  if (const char* utf16 = utf16_without_mark(head)) return utf16;
  if (format != InputFormat::text) return {};
  if (head.find('\0') != head.npos) return "is binary, with zero bytes, and not text";
  const auto text = whole_characters(head);
  const auto part = static_cast<double>(count_ill_formed(text)) /
                    static_cast<double>(std::max<std::size_t>(1, text.size()));
  if (part <= kMostIllFormed) return {};
  return fmt::format(
      "is not UTF-8 in {:.0f} % of its first {} bytes: if it is text, convert it from its encoding, "
      "for example with iconv -f LATIN1 -t UTF-8",
      100 * part, text.size());
}

void refuse_json(const std::string& where) {
  throw_user_error(
      "JSON is in {}: give --format jsonl or --format chat for lines of JSON, or --format text to train on "
      "the JSON itself",
      where);
}

bool looks_like_json(const std::filesystem::path& path, std::string_view head) {
  constexpr std::string_view kBlank = " \t\r\n";
  const bool is_cut = head.size() >= kHeadBytes;
  head = without_byte_order_mark(head);
  const auto begin = head.find_first_not_of(kBlank);
  if (begin == head.npos) return false;
  auto extension = path.extension();
  if (extension == ".gz" || extension == ".zst") extension = path.stem().extension();
  if ((extension == ".jsonl" || extension == ".json" || extension == ".ndjson") &&
      (head[begin] == '{' || head[begin] == '['))
    return true;
  // Two lines, as a text may begin with one; the last is perhaps not whole.
  std::string_view rest = head.substr(begin);
  for (int lines = 0; lines < 2; ++lines) {
    const auto end = rest.find('\n');
    if (end == rest.npos && is_cut) return begins_json_object(rest);
    if (!is_json_object(rest.substr(0, end))) return false;
    if (end == rest.npos) return true;
    rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(kBlank, end)));
    if (rest.empty()) return true;  // one line
  }
  return true;
}

}  // namespace llampi::data
