// SPDX-License-Identifier: Apache-2.0
#include <hdf5.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "data/token_format.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/spool.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::data {
namespace {

std::size_t stored_width(std::int64_t vocabulary) {
  if (vocabulary <= 256) return 1;
  return vocabulary <= 65536 ? 2 : 4;
}

hid_t stored_type(std::size_t width) {
  if (width == 1) return H5T_NATIVE_UINT8;
  return width == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
}

/// Returns the place of a new dataset in the file (0 if it is empty).
std::int64_t reserve_dataset(const io::hdf5::File& file, const char* name, hid_t type, std::int64_t length) {
  const auto dataset = io::hdf5::create_contiguous_dataset(file.id(), name, type, std::span(&length, 1));
  const auto offset = io::hdf5::contiguous_offset(file.id(), dataset.id());
  require(offset.has_value() || length == 0, "a contiguous dataset without a place");
  return static_cast<std::int64_t>(offset.value_or(0));
}

/// Only what is known.
void write_notes(hid_t file, const TokenFileNotes& notes) {
  if (!notes.tokenizer_hash.empty())
    io::hdf5::write_string(file, token_format::kTokenizerHash, notes.tokenizer_hash);
  if (!notes.ordinary_hash.empty())
    io::hdf5::write_string(file, token_format::kOrdinaryHash, notes.ordinary_hash);
  if (!notes.chat_template.empty())
    io::hdf5::write_string(file, token_format::kChatTemplate, notes.chat_template);
  if (notes.loss_tokens) io::hdf5::write_int64(file, token_format::kLossTokens, *notes.loss_tokens);
  if (notes.row_tokens == 0) return;
  io::hdf5::write_int64(file, token_format::kRowTokens, notes.row_tokens);
  io::hdf5::write_int64(file, token_format::kPaddingTokens, notes.padding_tokens);
  io::hdf5::write_int64(file, token_format::kPaddingDocuments, notes.padding_documents);
}

}  // namespace

// The number of tokens is known only at the end, but a dataset that can grow is chunked and has no single
// place in the file. So tokens go to a plain file beside it first, and at the end HDF5 lays out the file and
// the tokens are copied to their place. HDF5 itself writes only a few kilobytes of metadata: a full disk
// shows in our own writes, where it can be reported.
class TokenFileWriter::Impl {
 public:
  Impl(const std::filesystem::path& path, std::int64_t vocabulary, const std::string& tokenizer,
       bool overwrite)
      : path_(with_its_folder(io::follow_links(path))),
        output_(token_file_output(path, overwrite)),
        vocabulary_(vocabulary),
        tokenizer_(tokenizer),
        width_(stored_width(vocabulary)),
        token_spool_(path_) {
    output_.check();
    require(vocabulary > 0 && vocabulary <= std::numeric_limits<std::int32_t>::max(),
            "vocabulary of a token file");
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void append(std::span<const std::int32_t> tokens) {
    append_tokens(tokens);
    if (mask_spool_) mask_spool_->append_ones(tokens.size());
  }

  void append(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
    require(tokens.size() == mask.size(), "a loss mask of another length than its tokens");
    if (!mask_spool_) {
      mask_spool_.emplace(path_);
      mask_spool_->append_ones(static_cast<std::size_t>(tokens_));
    }
    mask_spool_->append(mask);
    append_tokens(tokens);
  }

  void end_document() { documents_.push_back(static_cast<std::uint64_t>(tokens_)); }

  void complete(const TokenFileNotes& notes) {
    if (documents_.back() != static_cast<std::uint64_t>(tokens_)) end_document();
    temporary_.emplace(io::temporary_beside(path_));
    const auto places = lay_out(temporary_->path(), notes);
    const auto file = io::PosixFile::open_for_writing(temporary_->path());
    token_spool_->copy_to(file, places.tokens);
    token_spool_.reset();  // its disk space
    file.write_at(places.documents, std::as_bytes(std::span(documents_)));
    if (mask_spool_) mask_spool_->copy_to(file, places.mask);
    mask_spool_.reset();
    file.sync();
  }

  void place() const { output_.place(temporary_->path()); }

 private:
  struct Places {
    std::int64_t tokens = 0, documents = 0, mask = 0;
  };

  void append_tokens(std::span<const std::int32_t> tokens) {
    for (const auto id : tokens) {
      require(id >= 0 && id < vocabulary_, "a token outside the vocabulary of its file");
      largest_id_ = std::max(largest_id_, id);
    }
    token_spool_->append(tokens, width_);
    tokens_ += static_cast<std::int64_t>(tokens.size());
  }

  /// Makes it.
  static const std::filesystem::path& with_its_folder(const std::filesystem::path& path) {
    io::create_folder(path.parent_path());
    return path;
  }

  /// Fails where HDF5 would: a write of its own that fails can crash it when the program ends.
  static void require_room(const std::filesystem::path& temporary) {
    constexpr std::size_t kMetadataBytes = 1 << 16;  // many times what a few attributes and datasets take
    io::PosixFile::create(temporary).write_at(0, std::vector<std::byte>(kMetadataBytes));
  }

  /// The file without its data; where the data belong.
  Places lay_out(const std::filesystem::path& temporary, const TokenFileNotes& notes) const {
    require_room(temporary);
    const io::Hdf5Lock lock;
    try {
      // Without the time at which it was made: of the same input, all bytes are the same.
      const io::hdf5::PropertyList creation(io::hdf5::check(H5Pcreate(H5P_FILE_CREATE), "H5Pcreate"));
      io::hdf5::check(H5Pset_obj_track_times(creation.id(), false), "H5Pset_obj_track_times");
      auto file = io::hdf5::create_file(temporary, io::hdf5::file_access().id(), creation.id());
      io::hdf5::write_string(file.id(), "format", token_format::kFormat);
      io::hdf5::write_int64(file.id(), "format_version", token_format::kVersion);
      io::hdf5::write_int64(file.id(), "vocab_size", vocabulary_);
      if (largest_id_ >= 0) io::hdf5::write_int64(file.id(), "largest_id", largest_id_);
      io::hdf5::write_string(file.id(), "tokenizer", tokenizer_);
      write_notes(file.id(), notes);
      Places places;
      places.tokens = reserve_dataset(file, "tokens", stored_type(width_), tokens_);
      places.documents =
          reserve_dataset(file, "documents", H5T_NATIVE_UINT64, static_cast<std::int64_t>(documents_.size()));
      if (mask_spool_) places.mask = reserve_dataset(file, "loss_mask", H5T_NATIVE_UINT8, tokens_);
      file.close();
      return places;
    } catch (const io::hdf5::Failure& failure) {
      if (failure.storage_problem().empty()) throw;
      throw_user_error("{} cannot be written: {}", path_.string(), failure.storage_problem());
    }
  }

  const std::filesystem::path path_;
  const io::OutputFile output_;
  const std::int64_t vocabulary_;
  const std::string tokenizer_;
  const std::size_t width_;  // bytes of a stored token
  std::optional<io::Spool> token_spool_;
  std::optional<io::Spool> mask_spool_;
  std::optional<io::TemporaryFile> temporary_;  ///< once it is complete
  std::int64_t tokens_ = 0;
  std::int32_t largest_id_ = -1;
  std::vector<std::uint64_t> documents_{0};
};

io::OutputFile token_file_output(const std::filesystem::path& path, bool overwrite) {
  return {.path = io::follow_links(path),
          .kind = "a token file that llampi wrote",
          .is_own = is_llampi_token_file,
          .overwrite = overwrite,
          .makes_folder = true};
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, std::int64_t vocabulary,
                                 const std::string& tokenizer, bool overwrite)
    : impl_(std::make_unique<Impl>(path, vocabulary, tokenizer, overwrite)) {}
TokenFileWriter::~TokenFileWriter() = default;
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;

void TokenFileWriter::append(std::span<const std::int32_t> tokens) { impl_->append(tokens); }
void TokenFileWriter::append(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
  impl_->append(tokens, mask);
}
void TokenFileWriter::end_document() { impl_->end_document(); }
void TokenFileWriter::complete(const TokenFileNotes& notes) { impl_->complete(notes); }
void TokenFileWriter::place() { std::exchange(impl_, nullptr)->place(); }

}  // namespace llampi::data
