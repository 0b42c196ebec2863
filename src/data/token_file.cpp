// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/token_file.hpp"

#include <hdf5.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "data/token_format.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::data {
namespace {

/// A one-dimensional dataset of integers that any thread can read without HDF5: in the file, or a copy in
/// memory where the file's bytes are not the elements themselves.
class Column {
 public:
  Column(const io::hdf5::File& file, const std::filesystem::path& path, const char* name);

  std::int64_t size() const { return size_; }
  /// Calls convert(i, element) for elements [begin, begin + count).
  template <class Convert>
  void read(const io::PosixFile& file, std::int64_t begin, std::int64_t count, Convert convert) const;
  void require_inside(std::int64_t file_bytes) const {
    if (copy_.empty() && size_ > 0 && size_ > (file_bytes - offset_) / width_) refuse_truncated();
  }

 private:
  [[noreturn]] void refuse_truncated() const {
    throw_user_error("{} is truncated: it ends inside '/{}'; write it again", path_.string(), name_);
  }
  void read_copy(const io::hdf5::Dataset& dataset);
  template <class T, class Convert>
  void read_as(const io::PosixFile& file, std::int64_t begin, std::int64_t count, Convert convert) const;

  std::filesystem::path path_;
  std::string name_;
  std::int64_t size_ = 0;
  std::int64_t width_ = 0;  // bytes of an element
  bool is_signed_ = false;
  std::int64_t offset_ = 0;
  std::vector<std::byte> copy_;
};

Column::Column(const io::hdf5::File& file, const std::filesystem::path& path, const char* name)
    : path_(path), name_(name) {
  const auto dataset = io::hdf5::open_dataset(file.id(), name);
  const auto shape = io::hdf5::shape(dataset.id());
  if (shape.size() != 1) {
    throw_user_error("{}: '/{}' has {} dimensions; a token file has one there", path.string(), name,
                     shape.size());
  }
  const auto type = io::hdf5::element_type(dataset.id());
  const bool is_flag = type.kind == H5T_ENUM && type.bytes == 1;  // h5py's bool
  const bool has_integer_size = type.bytes == 1 || type.bytes == 2 || type.bytes == 4 || type.bytes == 8;
  if (!is_flag && (type.kind != H5T_INTEGER || !has_integer_size)) {
    throw_user_error("{}: '/{}' holds elements of type {}; a token file has unsigned integers there",
                     path.string(), name, type.name());
  }
  size_ = shape[0];
  width_ = type.bytes;
  is_signed_ = type.is_signed;
  const auto offset = io::hdf5::contiguous_offset(file.id(), dataset.id());
  if (offset && (type.is_native || is_flag)) {
    offset_ = static_cast<std::int64_t>(*offset);
  } else {
    read_copy(dataset);
  }
}

void Column::read_copy(const io::hdf5::Dataset& dataset) {
  const io::hdf5::Type stored(io::hdf5::check(H5Dget_type(dataset.id()), "H5Dget_type"));
  const io::hdf5::Type native(
      io::hdf5::check(H5Tget_native_type(stored.id(), H5T_DIR_DEFAULT), "H5Tget_native_type"));
  require(static_cast<std::int64_t>(H5Tget_size(native.id())) == width_, "a native type of another width");
  if (size_ == 0) return;
  try {
    copy_.resize(static_cast<std::size_t>(size_) * static_cast<std::size_t>(width_));
    io::hdf5::check(H5Dread(dataset.id(), native.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, copy_.data()),
                    "H5Dread");
  } catch (const io::hdf5::Failure& failure) {
    io::hdf5::throw_if_unreadable(failure, path_);
    throw_user_error("{}: '/{}' cannot be read ({})", path_.string(), name_, failure.reason());
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw_user_error(
        "{}: '/{}' is chunked or compressed and too large to be held in memory: store it contiguous, "
        "little-endian and uncompressed",
        path_.string(), name_);
  }
}

/// As many as there are. Of a file that could be opened a failure is the system's.
std::size_t read_opened(const io::PosixFile& file, std::int64_t offset, std::span<std::byte> bytes) try {
  return file.read_at(offset, bytes);
} catch (const io::FileError& error) {
  throw Error(error.what());
}

template <class T, class Convert>
void Column::read_as(const io::PosixFile& file, std::int64_t begin, std::int64_t count,
                     Convert convert) const {
  std::vector<T> elements(static_cast<std::size_t>(count));
  const auto bytes = std::as_writable_bytes(std::span(elements));
  if (copy_.empty()) {
    if (read_opened(file, offset_ + begin * width_, bytes) != bytes.size()) refuse_truncated();
  } else {
    std::copy_n(copy_.begin() + begin * width_, bytes.size(), bytes.begin());
  }
  for (std::size_t i = 0; i < elements.size(); ++i) convert(i, elements[i]);
}

template <class Convert>
void Column::read(const io::PosixFile& file, std::int64_t begin, std::int64_t count, Convert convert) const {
  require(begin >= 0 && count >= 0 && begin <= size_ - count, "a read beyond the end of a token file");
  switch (width_) {
    case 1:
      return is_signed_ ? read_as<std::int8_t>(file, begin, count, convert)
                        : read_as<std::uint8_t>(file, begin, count, convert);
    case 2:
      return is_signed_ ? read_as<std::int16_t>(file, begin, count, convert)
                        : read_as<std::uint16_t>(file, begin, count, convert);
    case 4:
      return is_signed_ ? read_as<std::int32_t>(file, begin, count, convert)
                        : read_as<std::uint32_t>(file, begin, count, convert);
    default:
      return is_signed_ ? read_as<std::int64_t>(file, begin, count, convert)
                        : read_as<std::uint64_t>(file, begin, count, convert);
  }
}

/// Metadata of versions that this HDF5 does not know are those of a newer one, or damaged.
[[noreturn]] void refuse_unreadable(const std::filesystem::path& path, const io::hdf5::Failure& failure) {
  io::hdf5::throw_if_unreadable(failure, path);
  if (failure.reason().find("version number") == std::string::npos)
    throw_user_error("{} is damaged and cannot be read ({})", path.string(), failure.reason());
  throw_user_error(
      "{} was written by a newer HDF5, or is damaged: HDF5 {} cannot read it ({}). Write it so that older ones can: "
      "libver=(\"earliest\", \"v110\") of h5py.File, or H5Pset_libver_bounds",
      path.string(), io::hdf5::library_version(), failure.reason());
}

/// What is given for a token file is often the text itself.
io::hdf5::File open_token_file(const std::filesystem::path& path) {
  try {
    return io::hdf5::open_file(path);
  } catch (const io::hdf5::DamagedFile& error) {
    throw_user_error("{}; make a token file with `llampi tokenize`", error.what());
  }
}

}  // namespace

class TokenFile::Impl {
 public:
  explicit Impl(const std::filesystem::path& path);

  std::filesystem::path path;
  std::int64_t vocabulary = 0;
  std::optional<std::int64_t> largest_id;
  std::string tokenizer;
  TokenFileNotes notes;
  io::PosixFile file;
  std::optional<Column> tokens, mask, starts;
  std::vector<std::uint64_t> start_index;  ///< every kIndexed-th of the starts

  std::vector<std::uint64_t> read_starts(std::int64_t first, std::int64_t count) const;

 private:
  void refuse_other_formats(const io::hdf5::File& hdf5_file) const;
  void read_notes(hid_t hdf5_file);
  void check_starts();
};

constexpr std::int64_t kIndexed = 1024, kCheckedAtOnce = kIndexed * 64;

TokenFile::Impl::Impl(const std::filesystem::path& name) : path(name) {
  const io::Hdf5Lock lock;
  const auto hdf5_file = open_token_file(path);
  try {
    refuse_other_formats(hdf5_file);
    if (io::hdf5::has_attribute(hdf5_file.id(), "vocab_size")) {
      vocabulary = io::hdf5::read_int64(hdf5_file.id(), "vocab_size");
    }
    if (io::hdf5::has_attribute(hdf5_file.id(), "largest_id"))
      largest_id = io::hdf5::read_int64(hdf5_file.id(), "largest_id");
    if (io::hdf5::has_attribute(hdf5_file.id(), "tokenizer"))
      tokenizer = io::hdf5::read_string(hdf5_file.id(), "tokenizer");
    file = io::PosixFile::open_for_reading(path);
    tokens.emplace(hdf5_file, path, "tokens");
    tokens->require_inside(file.size());
    if (io::hdf5::has_attribute(hdf5_file.id(), "format")) read_notes(hdf5_file.id());
    starts.emplace(hdf5_file, path, "documents");
    starts->require_inside(file.size());
    check_starts();
    if (!io::hdf5::has_link(hdf5_file.id(), "loss_mask")) return;
    mask.emplace(hdf5_file, path, "loss_mask");
    mask->require_inside(file.size());
  } catch (const io::hdf5::Failure& failure) {
    refuse_unreadable(path, failure);
  }
  if (mask->size() != tokens->size()) {
    throw_user_error("{}: '/loss_mask' has {} entries but '/tokens' has {}; both must have the same length",
                     path.string(), mask->size(), tokens->size());
  }
}

void TokenFile::Impl::refuse_other_formats(const io::hdf5::File& hdf5_file) const {
  if (io::hdf5::has_attribute(hdf5_file.id(), "format")) {
    const auto format = io::hdf5::read_string(hdf5_file.id(), "format");
    if (format != token_format::kFormat) {
      throw_user_error("{} is a file of format \"{}\", not a token file: make one with `llampi tokenize`",
                       path.string(), format);
    }
  }
  if (io::hdf5::has_attribute(hdf5_file.id(), "format_version")) {
    const auto version = io::hdf5::read_int64(hdf5_file.id(), "format_version");
    if (version != token_format::kVersion) {
      throw_user_error(
          "{} has version {} of the token file format, and this program reads version {}: tokenize again",
          path.string(), version, token_format::kVersion);
    }
  }
  for (const char* name : {"tokens", "documents"}) {
    if (!io::hdf5::has_link(hdf5_file.id(), name)) {
      throw_user_error(
          "{} is an HDF5 file but not a token file: it has no '/{}'; make one with `llampi tokenize`",
          path.string(), name);
    }
  }
}

void TokenFile::Impl::read_notes(hid_t hdf5_file) {
  const auto number = [&](const char* name) -> std::int64_t {
    if (!io::hdf5::has_attribute(hdf5_file, name)) return 0;
    const auto value = io::hdf5::read_int64(hdf5_file, name);
    if (value < 0) throw_user_error("{}: the attribute '{}' is {}", path.string(), name, value);
    return value;
  };
  if (io::hdf5::has_attribute(hdf5_file, token_format::kTokenizerHash))
    notes.tokenizer_hash = io::hdf5::read_string(hdf5_file, token_format::kTokenizerHash);
  if (io::hdf5::has_attribute(hdf5_file, token_format::kOrdinaryHash))
    notes.ordinary_hash = io::hdf5::read_string(hdf5_file, token_format::kOrdinaryHash);
  notes.row_tokens = number(token_format::kRowTokens);
  notes.padding_tokens = number(token_format::kPaddingTokens);
  notes.padding_documents = number(token_format::kPaddingDocuments);
  if (notes.padding_tokens > tokens->size())
    throw_user_error("{}: the attribute '{}' is {}, and the file has {}", path.string(),
                     token_format::kPaddingTokens, notes.padding_tokens, count(tokens->size(), "token"));
  if (io::hdf5::has_attribute(hdf5_file, token_format::kLossTokens))
    notes.loss_tokens = number(token_format::kLossTokens);
  if (io::hdf5::has_attribute(hdf5_file, token_format::kChatTemplate))
    notes.chat_template = io::hdf5::read_string(hdf5_file, token_format::kChatTemplate);
}

std::vector<std::uint64_t> TokenFile::Impl::read_starts(std::int64_t first, std::int64_t count) const {
  std::vector<std::uint64_t> read(static_cast<std::size_t>(count));
  starts->read(file, first, count,
               [&](std::size_t i, auto start) { read[i] = static_cast<std::uint64_t>(start); });
  return read;
}

void TokenFile::Impl::check_starts() {
  const std::int64_t size = starts->size();
  std::uint64_t last = 0;
  bool is_wrong = size == 0;
  for (std::int64_t first = 0; first < size && !is_wrong; first += kCheckedAtOnce) {
    const auto read = read_starts(first, std::min(kCheckedAtOnce, size - first));
    // A negative one is larger than any position now.
    is_wrong =
        (first == 0 && read.front() != 0) || read.front() < last || !std::is_sorted(read.begin(), read.end());
    last = read.back();
    for (std::size_t i = 0; i < read.size(); i += kIndexed) start_index.push_back(read[i]);
  }
  if (is_wrong || std::cmp_not_equal(last, tokens->size())) {
    throw_user_error(
        "{}: '/documents' must hold the start of each document in rising order, from 0, and last the number "
        "of tokens, {}",
        path.string(), tokens->size());
  }
}

bool is_llampi_token_file(const std::filesystem::path& path) {
  const io::Hdf5Lock lock;
  try {
    const auto file = io::hdf5::open_file(path);
    return io::hdf5::has_attribute(file.id(), "format") &&
           io::hdf5::read_string(file.id(), "format") == token_format::kFormat;
  } catch (const Error&) {  // no HDF5 file, damaged, not to be read
    return false;
  }
}

TokenFile::TokenFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;

const std::filesystem::path& TokenFile::path() const { return impl_->path; }
std::int64_t TokenFile::tokens() const { return impl_->tokens->size(); }
std::int64_t TokenFile::vocabulary() const { return impl_->vocabulary; }
std::int64_t TokenFile::used_vocabulary() const {
  return impl_->largest_id ? *impl_->largest_id + 1 : impl_->vocabulary;
}
std::string TokenFile::tokenizer() const { return impl_->tokenizer; }
const TokenFileNotes& TokenFile::notes() const { return impl_->notes; }
bool TokenFile::has_loss_mask() const { return impl_->mask.has_value(); }
std::int64_t TokenFile::documents() const { return impl_->starts->size() - 1; }

std::vector<std::uint64_t> TokenFile::read_starts(std::int64_t first, std::int64_t count) const {
  return impl_->read_starts(first, count);
}

std::vector<std::uint64_t> TokenFile::starts_in(std::int64_t begin, std::int64_t end) const {
  const auto& index = impl_->start_index;
  const auto after =
      std::upper_bound(index.begin(), index.end(), begin,
                       [](std::int64_t value, std::uint64_t start) { return std::cmp_less(value, start); });
  std::int64_t next = std::max<std::int64_t>(after - index.begin() - 1, 0) * kIndexed;
  std::vector<std::uint64_t> found;
  for (; next < impl_->starts->size(); next += kIndexed) {
    for (const auto start : read_starts(next, std::min(kIndexed, impl_->starts->size() - next))) {
      if (std::cmp_greater(start, end)) return found;
      if (std::cmp_greater(start, begin)) found.push_back(start);
    }
  }
  return found;
}

std::int64_t TokenFile::samples(std::int64_t seq_len) const {
  require(seq_len > 0, "sequence length");
  return std::max<std::int64_t>(tokens() - 1, 0) / seq_len;
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> ids) const {
  using Limits = std::numeric_limits<std::int32_t>;
  impl_->tokens->read(impl_->file, begin, static_cast<std::int64_t>(ids.size()), [&](std::size_t i, auto id) {
    ids[i] = std::cmp_less(id, Limits::min())      ? Limits::min()
             : std::cmp_greater(id, Limits::max()) ? Limits::max()
                                                   : static_cast<std::int32_t>(id);
  });
}

void TokenFile::read_mask(std::int64_t begin, std::span<std::uint8_t> mask) const {
  if (!impl_->mask) {
    std::fill(mask.begin(), mask.end(), std::uint8_t{1});
    return;
  }
  impl_->mask->read(impl_->file, begin, static_cast<std::int64_t>(mask.size()),
                    [&](std::size_t i, auto flag) { mask[i] = flag != 0 ? 1 : 0; });
}

}  // namespace llampi::data
