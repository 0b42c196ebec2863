// SPDX-License-Identifier: Apache-2.0
// Token files (HDF5): /tokens, /documents, optionally /loss_mask, as the contract in docs describes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace llampi::data {

/// What a token file says about its tokens besides the datasets. Files of other programs, and older ones, say
/// nothing of it.
struct TokenFileNotes {
  std::string tokenizer_hash = {};     ///< vocabulary_hash() of the tokenizer; empty: unknown
  std::string ordinary_hash = {};      ///< likewise ordinary_hash()
  std::int64_t row_tokens = 0;         ///< rows of so many tokens, each a sample; 0: none, or unknown
  std::int64_t padding_tokens = 0;     ///< tokens that only fill rows
  std::int64_t padding_documents = 0;  ///< documents that consist of them
  std::optional<std::int64_t> loss_tokens = {};  ///< tokens that are labels, wherever samples begin
  /// Jinja: that conversations were written with; empty: unknown, or there are none.
  std::string chat_template = {};
};

/// Writes a token file piece by piece, under a temporary name; it gets its own name in close().
class TokenFileWriter {
 public:
  /// @param vocabulary decides the stored width (uint8, uint16 or uint32)
  /// Makes the folder of the file, too.
  /// @param overwrite a file that is there may be replaced whatever it is; if not, only a token file that
  /// llampi wrote
  /// @throws UserError if they cannot be created
  TokenFileWriter(const std::filesystem::path& path, std::int64_t vocabulary, const std::string& tokenizer,
                  bool overwrite = false);
  ~TokenFileWriter();  ///< without close() no file is written
  TokenFileWriter(TokenFileWriter&&) noexcept;
  TokenFileWriter& operator=(TokenFileWriter&&) noexcept;

  /// Appends to the document under way; ids must be in [0, vocabulary). @throws UserError if the disk is full
  void append(std::span<const std::int32_t> tokens);
  /// The same with a loss mask, as long as the tokens; 0: never a label. A file that was given a mask has
  /// `/loss_mask`, in which tokens without one count as 1.
  void append(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask);
  void end_document();
  /// A whole document.
  void append_document(std::span<const std::int32_t> tokens) {
    append(tokens);
    end_document();
  }
  /// Ends a document under way and writes the whole file, on disk, under a temporary name. Nothing is appended
  /// after it. @throws UserError if the disk is full
  void complete(const TokenFileNotes& notes = {});
  /// Gives the complete file its name. @throws UserError if something else than a token file has got that name
  /// meanwhile
  void place();
  /// Both.
  void close(const TokenFileNotes& notes = {}) {
    complete(notes);
    place();
  }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// An open token file. All that reads may be called from any thread: it reads at the dataset's offset in the file,
/// not through HDF5. Of the documents' starts, which may be a billion, it keeps one of every 1024 in memory. Datasets that have no such offset (chunked, compressed, big-endian) are read whole into
/// memory when opened.
class TokenFile {
 public:
  /// @throws UserError if it is missing, no HDF5 file, truncated, or not a token file
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const std::filesystem::path& path() const;
  std::int64_t tokens() const;
  std::int64_t vocabulary() const;  ///< attribute vocab_size; 0 if missing
  /// Its ids are smaller than this: by the attribute largest_id; if that is missing, vocabulary().
  std::int64_t used_vocabulary() const;
  std::string tokenizer() const;  ///< attribute; empty if missing
  const TokenFileNotes& notes() const;
  /// Length of the rows that conversations were packed into: the data.seq_len to train with. 0: not recorded in the
  /// file, or its texts fit any sequence length.
  std::int64_t row_tokens() const { return notes().row_tokens; }
  bool has_loss_mask() const;
  std::int64_t documents() const;  ///< their number
  /// Where documents [first, first + count) start. After the last document, number documents(), stands the total length.
  std::vector<std::uint64_t> read_starts(std::int64_t first, std::int64_t count) const;
  /// The starts in (begin, end], one of number documents() included. Empty documents share theirs with the next.
  std::vector<std::uint64_t> starts_in(std::int64_t begin, std::int64_t end) const;
  /// floor((tokens - 1) / seq_len)
  std::int64_t samples(std::int64_t seq_len) const;

  /// Tokens [begin, begin + ids.size()). Values that no int32 holds become the nearest: ids no vocabulary
  /// has.
  /// @throws UserError if the file has become shorter since it was opened
  void read(std::int64_t begin, std::span<std::int32_t> ids) const;
  /// The loss mask of the same positions; all ones if the file has none.
  void read_mask(std::int64_t begin, std::span<std::uint8_t> mask) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llampi::data
