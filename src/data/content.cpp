// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <sstream>
#include <vector>

#include "llampi/core/text.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::data {
namespace {

constexpr std::string_view kTokenizer = ", tokenizer ";
constexpr std::int64_t kParts = 64, kPart = 4096;

/// Calls visit(begin, count) for the parts of [0, size) that are summed.
template <class Visitor>
void for_each_part(std::int64_t size, const Visitor& visit) {
  if (size <= kParts * kPart) {
    for (std::int64_t begin = 0; begin < size; begin += kPart) visit(begin, std::min(kPart, size - begin));
    return;
  }
  // In floating point, as the product of two such numbers may not fit 64 bits.
  const double step = static_cast<double>(size - kPart) / static_cast<double>(kParts - 1);
  for (std::int64_t i = 0; i < kParts; ++i) {
    const auto begin = static_cast<std::int64_t>(step * static_cast<double>(i));
    visit(std::min(begin, size - kPart), kPart);
  }
}

/// @param files ", of 2 files", or nothing
std::string content_line(std::int64_t tokens, std::int64_t documents, const std::string& files,
                         std::uint32_t sum, const std::string& tokenizer) {
  // Without separators of thousands: this is compared with what checkpoints of older versions hold.
  return fmt::format("{} token{} in {} document{}{}, crc32 {:08x}{}{}", tokens, tokens == 1 ? "" : "s",
                     documents, documents == 1 ? "" : "s", files, sum, tokenizer.empty() ? "" : kTokenizer,
                     tokenizer);
}

}  // namespace

std::string describe_content(const TokenFile& file) {
  std::uint32_t sum = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
  for_each_part(file.tokens(), [&](std::int64_t begin, std::int64_t elements) {
    ids.resize(static_cast<std::size_t>(elements));
    file.read(begin, ids);
    sum = io::crc32_of(std::as_bytes(std::span(ids)), sum);
    if (!file.has_loss_mask()) return;
    mask.resize(static_cast<std::size_t>(elements));
    file.read_mask(begin, mask);
    sum = io::crc32_of(std::as_bytes(std::span(mask)), sum);
  });
  for_each_part(file.documents() + 1, [&](std::int64_t begin, std::int64_t elements) {
    const auto starts = file.read_starts(begin, elements);
    sum = io::crc32_of(std::as_bytes(std::span(starts)), sum);
  });
  return content_line(file.tokens(), file.documents(), "", sum, file.tokenizer());
}

std::string describe_content(const TrainingData& data) {
  const auto& parts = data.parts();
  if (data.is_one_file()) return describe_content(parts.front().file);
  std::int64_t tokens = 0, documents = 0;
  std::uint32_t sum = 0;
  for (const auto& part : parts) {
    const std::string content = describe_content(part.file);
    const std::string summed =
        fmt::format("{} times {}", content.substr(0, content.find(kTokenizer)), part.times);
    sum = io::crc32_of(std::as_bytes(std::span(summed)), sum);
    tokens += part.file.tokens();
    documents += part.file.documents();
  }
  const auto files = fmt::format(" of {}", count(std::ssize(parts), "file"));
  return content_line(tokens, documents, files, sum, data.with_tokenizer().tokenizer());
}

std::string content_in_words(const std::string& content) {
  std::istringstream stream(content);
  std::int64_t tokens = 0, documents = 0;
  std::string token_word, in, rest;
  if (!(stream >> tokens >> token_word >> in >> documents)) return content;
  std::getline(stream, rest);
  return fmt::format("{} {} {} {}{}", with_separators(tokens), token_word, in, with_separators(documents),
                     rest);
}

bool same_content(const std::string& one, const std::string& other) {
  return one.substr(0, one.find(kTokenizer)) == other.substr(0, other.find(kTokenizer));
}

std::string tokenizer_in(const std::string& content) {
  const auto at = content.find(kTokenizer);
  return at == std::string::npos ? "" : content.substr(at + kTokenizer.size());
}

}  // namespace llampi::data
