#include "llampi/data/tokenize.hpp"

#include <cstddef>
#include <string>

#include "data/posix_file.hpp"
#include "llampi/core/error.hpp"
#include "llampi/data/token_file.hpp"

namespace llampi {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// Found before the first of many large inputs is read.
void check_inputs(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output) {
  if (inputs.empty()) throw_user_error("no input given: name the text files to tokenize");
  for (const auto& input : inputs) {
    std::error_code error;
    if (std::filesystem::is_directory(input, error)) {
      throw_user_error("{} is a folder: name the text files in it", input.string());
    }
    const bool is_pipe = std::filesystem::is_fifo(input, error);  // whoever writes it expects one reader
    if (!is_pipe) PosixFile::open_for_reading(input);
    if (std::filesystem::equivalent(input, output, error)) {
      throw_user_error("{} is both input and output: give the output another name", input.string());
    }
  }
}

/// Appends one text; the number of bytes in it.
std::int64_t append_text(const Tokenizer& tokenizer, const std::filesystem::path& input,
                         TokenFileWriter& writer, std::int64_t& tokens) {
  const auto file = PosixFile::open_for_reading(input);
  std::string text;
  const auto encode = [&] {
    const auto ids = tokenizer.encode(text);
    writer.append(ids);
    tokens += static_cast<std::int64_t>(ids.size());
    text.clear();
  };
  std::int64_t bytes = 0;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + kPieceBytes);
    const std::size_t count = file.read(std::as_writable_bytes(std::span(text)).subspan(before));
    text.resize(before + count);
    bytes += static_cast<std::int64_t>(count);
    if (count == 0) break;
    if (tokenizer.encodes_piecewise()) encode();
  }
  if (!text.empty()) encode();
  return bytes;
}

}  // namespace

TokenizeStatistics tokenize_text(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& inputs,
                                 const std::filesystem::path& output, const Log& log) {
  check_inputs(inputs, output);
  TokenFileWriter writer(output, tokenizer.vocabulary(), tokenizer.name());
  TokenizeStatistics statistics;
  for (const auto& input : inputs) {
    const auto bytes = append_text(tokenizer, input, writer, statistics.tokens);
    if (bytes == 0) {
      log.warning("{} is empty and left out", input.string());
      continue;
    }
    writer.end_document();
    statistics.bytes += bytes;
    ++statistics.documents;
  }
  if (statistics.documents == 0)
    throw_user_error("all inputs are empty (the first is {})", inputs.front().string());
  writer.close();
  return statistics;
}

}  // namespace llampi
