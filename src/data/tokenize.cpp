// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/tokenize.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "data/document_output.hpp"
#include "data/ordered_map.hpp"
#include "data/piece_encoder.hpp"
#include "data/text_check.hpp"
#include "data/token_format.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/input_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::data {
namespace {

constexpr std::int64_t kDefectsToShow = 10;

/// Also where there is none yet.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (a.empty() || b.empty()) return false;
  const auto whole = [&](const fs::path& path) {
    return fs::weakly_canonical(io::follow_links(fs::absolute(path, error)), error);
  };
  const fs::path of_a = whole(a);  // empty where it cannot be told
  return fs::equivalent(a, b, error) || (!of_a.empty() && of_a == whole(b));
}

/// Refuses to replace what may be an input: with --output *.txt the shell makes the first text the output. So a file that is not a
/// token file, and has the extension of an input, gets its own message.
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
    if (!is_pipe) io::PosixFile::open_for_reading(input);
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
    io::clear_leftovers(io::follow_links(output), log);
  }
}

/// What is not text cannot be used, but by a tokenizer of bytes. Returns how many inputs are left out of
/// `options`.
std::int64_t leave_out_what_is_no_text(TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer,
                                       const Log& log) {
  std::int64_t skipped = 0, json = 0;
  std::string first_json;
  std::erase_if(options.inputs, [&](const std::filesystem::path& input) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(input, ignored)) return false;  // pipes: when they are read
    std::string head, problem;
    bool is_damaged = false;
    try {
      head = read_head(input);
      problem = why_no_text(head, options.format);
    } catch (const io::UnpackError& error) {
      problem = error.problem();
      is_damaged = true;
    }
    if (options.format == InputFormat::text && looks_like_json(input, head) && json++ == 0)
      first_json = input.string();
    if (problem.empty()) return false;
    if (tokenizer.takes_any_bytes() && !is_damaged) {
      log.warning("{} {}; its bytes are taken as they are", input.string(), problem);
      return false;
    }
    if (options.on_error == OnError::refuse)
      throw_user_error("{} {}; or skip such files with --on-error skip", input.string(), problem);
    if (skipped++ < kDefectsToShow) log.warning("{} {}; the file is skipped", input.string(), problem);
    return true;
  });
  if (options.inputs.empty()) throw_user_error("none of the inputs is text");
  if (json == 0) return skipped;
  const auto where =
      fmt::format("{} of {} (the first is {})", json, count(std::ssize(options.inputs), "input"), first_json);
  if (options.json_as_text == JsonAsText::refuse) refuse_json(where);
  log.warning("JSON is in {}: --format text takes it as it is", where);
  return skipped;
}

/// Takes the encoded pieces in order.
class Collector {
 public:
  Collector(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options, const Log& log)
      : tokenizer_(tokenizer),
        options_(options),
        log_(log),
        draws_(options.seed, "held-out documents"),
        output_(options.output, tokenizer, options) {
    if (options.held_out > 0) held_out_.emplace(options.held_out_output, tokenizer, options);
  }

  void add(const EncodedPiece& piece) {
    std::size_t begin = 0;
    for (const auto& document : piece.documents) {
      append(piece, begin, document.end);
      if (document.kept) output_of_document().end_document();
      ++number_;
      begin = document.end;
    }
    append(piece, begin, piece.ids.size());
    count_left_out(piece);
    count_ill_formed(piece);
    if (piece.json_in_pipe) log_.warning("JSON is in {}: --format text takes it as it is", piece.file);
    for (const auto& defect : piece.defects) {
      if (statistics_.skipped++ < kDefectsToShow) log_.warning("{}; the line is skipped", defect);
    }
    statistics_.bytes += piece.text_bytes;
    statistics_.input_bytes += piece.input_bytes;
    file_bytes_ += piece.file_bytes;
    statistics_.dropped += piece.dropped;
  }

  std::int64_t file_bytes() const { return file_bytes_; }

  /// @param skipped inputs that were left out before
  TokenizeStatistics finish(std::int64_t skipped) {
    if (statistics_.skipped > kDefectsToShow) {
      log_.warning("{} lines were skipped; the first {} are listed above", statistics_.skipped,
                   kDefectsToShow);
    }
    statistics_.skipped += skipped;
    warn_of_blanks();
    warn_of_ill_formed();
    refuse_empty_outputs();
    statistics_.files = std::ssize(options_.inputs);
    statistics_.output = output_.complete();
    if (held_out_) statistics_.held_out = held_out_->complete();
    output_.place();  // once both are on disk: the two are of one draw
    if (held_out_) held_out_->place();
    return statistics_;
  }

 private:
  void count_left_out(const EncodedPiece& piece) {
    if (statistics_.empty == 0) first_empty_ = piece.first_empty;
    statistics_.empty += piece.empty;
  }

  void count_ill_formed(const EncodedPiece& piece) {
    if (piece.ill_formed == 0) return;
    if (statistics_.ill_formed == 0) first_ill_formed_ = piece.file;
    statistics_.ill_formed += piece.ill_formed;
    if (piece.file != last_ill_formed_) ++statistics_.ill_formed_documents;
    last_ill_formed_ = piece.file;
  }

  void warn_of_blanks() const {
    if (statistics_.empty == 0) return;
    log_.warning("{} skipped that {} no text (the first is {})",
                 statistics_.empty == 1 ? "1 file or line is"
                                        : fmt::format("{} files or lines are", statistics_.empty),
                 statistics_.empty == 1 ? "has" : "have", first_empty_);
  }

  void warn_of_ill_formed() const {
    if (statistics_.ill_formed == 0) return;
    log_.warning(
        "{} not UTF-8 in {} (the first is {}): {}",
        statistics_.ill_formed == 1 ? "1 place is" : fmt::format("{} places are", statistics_.ill_formed),
        count(statistics_.ill_formed_documents, "document"), first_ill_formed_,
        tokenizer_.takes_any_bytes() ? "the bytes are taken as they are"
                                     : "each was replaced by U+FFFD; convert the files with iconv");
  }

  /// By the number of the document in the inputs, not by the thread or the file that it comes from.
  DocumentOutput& output_of_document() {
    if (!held_out_) return output_;
    const auto drawn =
        std::ldexp(static_cast<double>(draws_.bits(static_cast<std::uint64_t>(number_)) >> 11), -53);
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
    const auto documents = output_.documents() + (held_out_ ? held_out_->documents() : 0);
    if (documents == 0) {
      throw_user_error(
          "no document is left of the inputs (the first is {}). Files or lines without text: {}, lines that could not be "
          "used: {}, conversations that were too long: {}",
          first, statistics_.empty, statistics_.skipped, statistics_.dropped);
    }
    if (!held_out_ || (output_.documents() > 0 && held_out_->documents() > 0)) return;
    const bool lacks_training = output_.documents() == 0;
    throw_user_error("the {} part is empty: {} of {}; use a {} --held-out, another --seed or more documents",
                     lacks_training ? "training" : "held-out",
                     lacks_training ? 1 - options_.held_out : options_.held_out, count(documents, "document"),
                     lacks_training ? "smaller" : "larger");
  }

  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const Log& log_;
  const RandomStream draws_;
  DocumentOutput output_;
  std::optional<DocumentOutput> held_out_;
  std::int64_t number_ = 0;  // of the document under way; those that are not kept count, blank ones do not
  TokenizeStatistics statistics_;
  std::int64_t file_bytes_ = 0;
  std::string first_empty_, first_ill_formed_, last_ill_formed_;
};

}  // namespace

TokenizeStatistics tokenize(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& given,
                            const Log& log, const TokenizeProgress& progress) {
  check_files(given, log);
  TokenizeOptions options = given;
  const auto skipped = leave_out_what_is_no_text(options, tokenizer, log);
  const PieceEncoder encoder(tokenizer, options);
  PieceReader reader(options.inputs,
                     [&](std::string_view text, bool first) { return encoder.cut(text, first); });
  Collector collector(tokenizer, options, log);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  map_in_order<Piece, EncodedPiece>(
      options.threads > 0 ? options.threads : cores, [&] { return reader.next(); },
      [&](const Piece& piece) { return encoder(piece); },
      [&](const EncodedPiece& piece) {
        collector.add(piece);
        if (progress) progress(collector.file_bytes());
      });
  return collector.finish(skipped);
}

}  // namespace llampi::data
