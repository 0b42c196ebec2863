#include "llampi/data/tokenize.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "data/document_output.hpp"
#include "data/ordered_map.hpp"
#include "data/piece_encoder.hpp"
#include "data/token_format.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/philox.hpp"

namespace llampi {
namespace {

constexpr std::int64_t kDefectsToShow = 10;

bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) || a.lexically_normal() == b.lexically_normal();
}

/// A name that is there and stands for no token file: with the extension of an input, it may be one itself,
/// as in --output *.txt.
void check_output(const TokenizeOptions& options, const std::filesystem::path& output) {
  const auto is_alike = [&](const auto& input) { return input.extension() == output.extension(); };
  const bool forgotten = std::any_of(options.inputs.begin(), options.inputs.end(), is_alike);
  std::error_code ignored;
  if (!options.overwrite && forgotten && std::filesystem::is_regular_file(output, ignored) &&
      !is_llampi_token_file(output)) {
    throw_user_error(
        "the output {} already exists and looks like an input, not like a token file: give the output's name "
        "before the inputs, or replace the file with --overwrite",
        output.string());
  }
  token_file_output(output, options.overwrite).check();
}

/// Found before the first of many large inputs is read.
void check_files(const TokenizeOptions& options, const Log& log) {
  if (options.inputs.empty()) throw_user_error("no input given: name the files to tokenize");
  for (const auto& input : options.inputs) {
    std::error_code error;
    if (std::filesystem::is_directory(input, error)) {
      throw_user_error("{} is a folder: name the files in it", input.string());
    }
    const bool is_pipe = std::filesystem::is_fifo(input, error);  // whoever writes it expects one reader
    if (!is_pipe) PosixFile::open_for_reading(input);
    for (const auto& output : {options.output, options.held_out_output}) {
      if (!output.empty() && is_same_file(input, output)) {
        throw_user_error("{} is both input and output: give the output another name", input.string());
      }
    }
  }
  if (is_same_file(options.output, options.held_out_output)) {
    throw_user_error("{} is the output for both parts: give the held-out part another name",
                     options.output.string());
  }
  for (const auto& output : {options.output, options.held_out_output}) {
    if (output.empty()) continue;
    check_output(options, output);
    clear_leftovers(output, log);
  }
}

/// Takes the encoded pieces in order.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, const TokenizeOptions& options, const Log& log)
      : options_(options),
        log_(log),
        draws_(options.seed, "held-out documents"),
        output_(options.output, tokenizer, options) {
    if (options.held_out > 0) held_out_.emplace(options.held_out_output, tokenizer, options);
  }

  void add(const EncodedPiece& piece) {
    std::size_t begin = 0;
    for (const auto end : piece.ends) {
      append(piece, begin, end);
      output_of_document().end_document();
      ++documents_;
      begin = end;
    }
    append(piece, begin, piece.ids.size());
    if (!piece.empty_file.empty()) log_.warning("{} is empty and left out", piece.empty_file);
    for (const auto& defect : piece.defects) {
      if (statistics_.skipped++ < kDefectsToShow) log_.warning("{}; the line is left out", defect);
    }
    statistics_.bytes += piece.text_bytes;
    statistics_.input_bytes += piece.input_bytes;
    statistics_.dropped += piece.dropped;
  }

  std::int64_t input_bytes() const { return statistics_.input_bytes; }

  TokenizeStatistics finish() {
    if (statistics_.skipped > kDefectsToShow) {
      log_.warning("{} lines are left out, the first {} of them are named above", statistics_.skipped,
                   kDefectsToShow);
    }
    refuse_empty_outputs();
    statistics_.files = std::ssize(options_.inputs);
    statistics_.output = output_.close();
    if (held_out_) statistics_.held_out = held_out_->close();
    return statistics_;
  }

 private:
  /// By the number of the document, not by the thread or the file that it comes from.
  DocumentOutput& output_of_document() {
    if (!held_out_) return output_;
    const auto drawn =
        std::ldexp(static_cast<double>(draws_.bits(static_cast<std::uint64_t>(documents_)) >> 11), -53);
    return drawn < options_.held_out ? *held_out_ : output_;
  }

  void append(const EncodedPiece& piece, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    const auto mask = std::span(piece.mask);
    output_of_document().append(std::span(piece.ids).subspan(begin, end - begin),
                                mask.empty() ? mask : mask.subspan(begin, end - begin));
  }

  void refuse_empty_outputs() const {
    const auto& first = options_.inputs.front().string();
    if (statistics_.input_bytes == 0) throw_user_error("all inputs are empty (the first is {})", first);
    if (documents_ == 0) {
      throw_user_error(
          "no document is left of the inputs (the first is {}): {} lines could not be used, {} "
          "conversations were too long",
          first, statistics_.skipped, statistics_.dropped);
    }
    if (!held_out_ || (output_.documents() > 0 && held_out_->documents() > 0)) return;
    throw_user_error(
        "all of the {} documents fell into the {} part; choose another part than {}, or another seed",
        documents_, output_.documents() > 0 ? "training" : "held-out", options_.held_out);
  }

  const TokenizeOptions& options_;
  const Log& log_;
  const RandomStream draws_;
  DocumentOutput output_;
  std::optional<DocumentOutput> held_out_;
  std::int64_t documents_ = 0;  // complete, of both outputs
  TokenizeStatistics statistics_;
};

}  // namespace

TokenizeStatistics tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options, const Log& log,
                            const TokenizeProgress& progress) {
  check_files(options, log);
  const PieceEncoder encoder(tokenizer, options);
  PieceReader reader(options.inputs, [&](std::string_view text) { return encoder.cut(text); });
  Collector collector(tokenizer, options, log);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  map_in_order<Piece, EncodedPiece>(
      options.threads > 0 ? options.threads : cores, [&] { return reader.next(); },
      [&](const Piece& piece) { return encoder(piece); },
      [&](const EncodedPiece& piece) {
        collector.add(piece);
        if (progress) progress(collector.input_bytes());
      });
  return collector.finish();
}

}  // namespace llampi
