#include <array>
#include <limits>

#include "data/hdf5.hpp"
#include "data/posix_file.hpp"
#include "data/token_format.hpp"
#include "llampi/data/token_file.hpp"

namespace llampi {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

std::size_t stored_width(std::int64_t vocabulary) {
  if (vocabulary <= 256) return 1;
  return vocabulary <= 65536 ? 2 : 4;
}

hid_t stored_type(std::size_t width) {
  if (width == 1) return H5T_NATIVE_UINT8;
  return width == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
}

/// Creates a contiguous dataset whose place in the file is reserved at once; returns the place (0 if it is
/// empty).
std::int64_t reserve_dataset(const hdf5::File& file, const char* name, hid_t type, std::int64_t length) {
  const hdf5::PropertyList properties(hdf5::check(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate"));
  hdf5::check(H5Pset_layout(properties.id(), H5D_CONTIGUOUS), "H5Pset_layout");
  hdf5::check(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  hdf5::check(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  const auto extent = static_cast<hsize_t>(length);
  const hdf5::Dataspace space(hdf5::check(H5Screate_simple(1, &extent, nullptr), "H5Screate_simple"));
  const hdf5::Dataset dataset(
      hdf5::check(H5Dcreate2(file.id(), name, type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                  "H5Dcreate2"));
  const auto offset = hdf5::contiguous_offset(dataset.id());
  require(offset.has_value() || length == 0, "a contiguous dataset without a place");
  return static_cast<std::int64_t>(offset.value_or(0));
}

}  // namespace

// The number of tokens is known only at the end, but a dataset that can grow is chunked and has no single
// place in the file. So tokens go to a plain file beside it first, and at the end HDF5 lays out the file and
// the tokens are copied to their place. HDF5 itself writes only a few kilobytes of metadata: a full disk
// shows in our own writes, where it can be reported.
class TokenFileWriter::Impl {
 public:
  Impl(const std::filesystem::path& path, std::int64_t vocabulary, const std::string& tokenizer)
      : path_(path), vocabulary_(vocabulary), tokenizer_(tokenizer), width_(stored_width(vocabulary)) {
    require(vocabulary > 0 && vocabulary <= std::numeric_limits<std::int32_t>::max(),
            "vocabulary of a token file");
    std::error_code unknown;  // what cannot be looked at cannot be created either, which says why
    if (std::filesystem::is_directory(path, unknown))
      throw_user_error("{} is a folder: give the name of a file", path.string());
    spool_ = PosixFile::create(spool_path());
    buffer_.reserve(kBufferBytes);
  }

  ~Impl() {
    std::error_code ignored;  // nothing to do about a temporary file that cannot be removed
    std::filesystem::remove(spool_path(), ignored);
    std::filesystem::remove(temporary_path(), ignored);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void append(std::span<const std::int32_t> tokens) {
    for (const auto id : tokens) {
      require(id >= 0 && id < vocabulary_, "a token outside the vocabulary of its file");
      for (std::size_t byte = 0; byte < width_; ++byte) {  // little-endian, as are the machines we run on
        buffer_.push_back(static_cast<std::byte>(static_cast<std::uint32_t>(id) >> (8 * byte)));
      }
      if (buffer_.size() == kBufferBytes) flush();
    }
    tokens_ += static_cast<std::int64_t>(tokens.size());
  }

  void end_document() { documents_.push_back(static_cast<std::uint64_t>(tokens_)); }

  void close() {
    if (documents_.back() != static_cast<std::uint64_t>(tokens_)) end_document();
    flush();
    const auto places = lay_out();
    const auto file = PosixFile::open_for_writing(temporary_path());
    copy_tokens(file, places[0]);
    file.write_at(places[1], std::as_bytes(std::span(documents_)));
    file.sync();
    rename_into_place(temporary_path(), path_);
  }

 private:
  std::filesystem::path spool_path() const { return path_.string() + ".tokens.tmp"; }
  std::filesystem::path temporary_path() const { return path_.string() + ".tmp"; }

  void flush() {
    spool_.write_at(spooled_, buffer_);
    spooled_ += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
  }

  /// The file without its data; where tokens and documents belong.
  std::array<std::int64_t, 2> lay_out() const {
    const Hdf5Lock lock;
    try {
      auto file = hdf5::create_file(temporary_path(), hdf5::file_access().id());
      hdf5::write_string(file.id(), "format", token_format::kFormat);
      hdf5::write_int64(file.id(), "format_version", token_format::kVersion);
      hdf5::write_int64(file.id(), "vocab_size", vocabulary_);
      hdf5::write_string(file.id(), "tokenizer", tokenizer_);
      const std::array places{reserve_dataset(file, "tokens", stored_type(width_), tokens_),
                              reserve_dataset(file, "documents", H5T_NATIVE_UINT64,
                                              static_cast<std::int64_t>(documents_.size()))};
      file.close();
      return places;
    } catch (const hdf5::Failure& failure) {
      if (failure.storage_problem().empty()) throw;
      throw_user_error("{} cannot be written: {}", path_.string(), failure.storage_problem());
    }
  }

  void copy_tokens(const PosixFile& file, std::int64_t place) const {
    std::vector<std::byte> piece(kBufferBytes);
    for (std::int64_t done = 0; done < spooled_;) {
      const auto bytes = std::span(piece).first(spool_.read_at(done, piece));
      if (bytes.empty()) throw Error(fmt::format("{} was cut short by someone else", spool_path().string()));
      file.write_at(place + done, bytes);
      done += static_cast<std::int64_t>(bytes.size());
    }
  }

  const std::filesystem::path path_;
  const std::int64_t vocabulary_;
  const std::string tokenizer_;
  const std::size_t width_;  // bytes of a stored token
  PosixFile spool_;
  std::int64_t spooled_ = 0;  // bytes in the spool file
  std::vector<std::byte> buffer_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint64_t> documents_{0};
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, std::int64_t vocabulary,
                                 const std::string& tokenizer)
    : impl_(std::make_unique<Impl>(path, vocabulary, tokenizer)) {}
TokenFileWriter::~TokenFileWriter() = default;
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;

void TokenFileWriter::append(std::span<const std::int32_t> tokens) { impl_->append(tokens); }
void TokenFileWriter::end_document() { impl_->end_document(); }
void TokenFileWriter::close() {
  impl_->close();
  impl_.reset();
}

}  // namespace llampi
