// SPDX-License-Identifier: Apache-2.0
// What a run trains on: one token file, or several, each read as often as the user asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llampi/data/token_file.hpp"

namespace llampi::data {

/// A token file by name.
struct NamedPart {
  std::filesystem::path path;
  double times = 1;  ///< how often an epoch reads each of its samples, on average

  bool operator==(const NamedPart&) const = default;
};

/// The files of data.train, or of data.eval: names separated by commas, each perhaps with ":TIMES"; a folder stands for its *.h5, in the
/// order of their names. What names an existing file or folder as it stands is that, whatever characters it has.
/// Whether files exist is not checked. @throws UserError for an empty name, a folder without such files, or times that are not above 0
std::vector<NamedPart> parse_token_files(const std::string& text);

/// Where a sample lies.
struct SamplePlace {
  const TokenFile* file = nullptr;
  std::int64_t sample = 0;  ///< of that file
};

/// The samples of an epoch: those of the parts, one part after the other; the sampler puts them in the epoch's order. A
/// part with a fractional `times` is read as often as whole passes fit, and what is left is drawn from its samples in an order
/// that is the same in all epochs; each goes on where the last one ended. So an epoch reads no sample two times more than
/// another, and neither do several.
class TrainingData {
 public:
  struct Part {
    TokenFile file;
    double times = 1;
    std::int64_t samples = 0;  ///< of the file, of seq_len tokens
    std::int64_t drawn = 0;    ///< in an epoch: times * samples, rounded
  };

  /// @param parts at least one; their `samples` and `drawn` are set here
  /// @param seed, shuffle as the sampler's
  /// @throws UserError that begins with the file's path if an epoch would draw no sample of it
  TrainingData(std::vector<Part> parts, std::int64_t seq_len, std::uint64_t seed, bool shuffle);

  const std::vector<Part>& parts() const { return parts_; }
  std::int64_t samples() const { return ends_.back(); }  ///< of an epoch
  /// Sample `sample` of those of epoch `epoch`. May be called from any thread.
  SamplePlace place(std::int64_t sample, std::int64_t epoch) const;

  bool is_one_file() const { return parts_.size() == 1 && parts_.front().times == 1; }
  /// Tokens that a file would have with as many samples; of one file, its own.
  std::int64_t tokens() const;
  bool has_loss_mask() const;
  /// Whether a file has more than one document.
  bool has_documents() const;
  /// The first file whose tokenizer is known; where none is, the first.
  const TokenFile& with_tokenizer() const;
  /// Of the first file that was made with one; empty: none was, or it is unknown.
  std::string chat_template() const;

 private:
  std::vector<Part> parts_;
  std::vector<std::int64_t> ends_;  // of the parts' samples in an epoch
  std::int64_t seq_len_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace llampi::data
