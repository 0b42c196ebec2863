// SPDX-License-Identifier: Apache-2.0
// HDF5: the lock, owned handles, errors, and small readers and writers. Identifiers are plain numbers here, so that this header
// needs none of HDF5; who calls the library directly includes <hdf5.h>.
//
// Every function here takes the lock itself. Code that calls HDF5 directly holds a Hdf5Lock around it:
//
//   const Hdf5Lock lock;
//   const auto file = hdf5::open_file(path);
//   const hdf5::Dataset tokens(hdf5::check(H5Dopen2(file.id(), "/tokens", H5P_DEFAULT), "H5Dopen2"));
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llampi/core/error.hpp"

namespace llampi::io {

/// The gate to HDF5: a scoped lock of the one mutex that every use of the library takes, because the library
/// is not thread-safe. A thread may take it again while it holds it. The first one switches HDF5's own
/// printing of errors off. Never hold it while waiting for training communication.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

namespace hdf5 {

/// A failed HDF5 call, with the library's innermost description of it.
class Failure : public CallError {
 public:
  Failure(const std::string& call, const std::string& reason, std::string storage_problem,
          SourceLocation where)
      : CallError(call, reason, where), reason_(reason), storage_problem_(std::move(storage_problem)) {}

  const std::string& reason() const { return reason_; }  ///< without the call and its place
  /// "no space left on the device", "permission denied", ... if that is what made the call fail, so that it
  /// can be reported as the user's; else empty.
  const std::string& storage_problem() const { return storage_problem_; }
  /// The operating system's words for the error that made a read fail ("Input/output error"), where it did: the file may be whole. Else empty.
  std::string system_error() const;

 private:
  std::string reason_, storage_problem_;
};

/// Throws CallError where the operating system could not read the file, which says nothing about what is in it.
void throw_if_unreadable(const Failure& failure, const std::filesystem::path& path);

/// A file that HDF5 does not open because it was cut off or changed.
class DamagedFile : public UserError {
 public:
  using UserError::UserError;
};

/// Throws Failure from HDF5's error stack.
[[noreturn]] void fail(const char* call, SourceLocation where);

/// `result` if it is not negative, which is how every HDF5 call reports failure. @throws Failure
template <std::signed_integral T>
T check(T result, const char* call, SourceLocation where = SourceLocation::current()) {
  if (result < 0) fail(call, where);
  return result;
}

/// HDF5's hid_t.
using Id = std::int64_t;
inline constexpr Id kNoId = -1;        ///< H5I_INVALID_HID
inline constexpr Id kDefaultList = 0;  ///< H5P_DEFAULT

enum class Object : std::uint8_t {
  file,
  group,
  dataset,
  dataspace,
  property_list,
  attribute,
  type,
  object
};  ///< object: of any kind

/// Closes an identifier of this kind. @return what HDF5 returns: negative on failure
int close(Object kind, Id id) noexcept;

/// Owns an identifier; the destructor closes it under the lock and ignores failures: call close() where they
/// matter.
template <Object kKind>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Id id) : id_(id) {}
  ~Handle() { release(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, kNoId)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      release();
      id_ = std::exchange(other.id_, kNoId);
    }
    return *this;
  }

  Id id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// @throws Failure
  void close(SourceLocation where = SourceLocation::current()) {
    const Hdf5Lock lock;
    if (id_ >= 0) check(hdf5::close(kKind, std::exchange(id_, kNoId)), "closing an HDF5 handle", where);
  }

 private:
  void release() noexcept {
    if (id_ < 0) return;
    const Hdf5Lock lock;
    hdf5::close(kKind, std::exchange(id_, kNoId));
  }
  Id id_ = kNoId;
};

using File = Handle<Object::file>;
using Group = Handle<Object::group>;
using Dataset = Handle<Object::dataset>;
using Dataspace = Handle<Object::dataspace>;
using PropertyList = Handle<Object::property_list>;
using Attribute = Handle<Object::attribute>;
using Type = Handle<Object::type>;

/// "1.10.8", of the library that is loaded.
std::string library_version();

/// File access properties with the format of HDF5 1.10, whose metadata carries checksums; for files that are
/// created. They are not locked, which some parallel file systems cannot do: no other program knows a file
/// before it has its final name.
PropertyList file_access();

/// Opens a file for reading.
/// @throws UserError, one sentence that names the file: missing, not readable; DamagedFile: no HDF5 file,
/// truncated
File open_file(const std::filesystem::path& path);

/// Creates or replaces a file. @param access file access properties, from file_access()
/// @param creation file creation properties
/// @throws UserError: the folder is missing, permission denied, no space left
File create_file(const std::filesystem::path& path, Id access, Id creation = kDefaultList);

/// Name of the file in which an object lies, and its path in there, for messages.
std::string file_name(Id object);
std::string object_name(Id object);

// Scalar attributes. Strings are written with fixed length in UTF-8 and read with fixed or variable length; a
// bool is written as h5py does and read from that or an integer. Readers throw UserError, naming file and
// attribute, if it is missing or of another kind.
bool has_attribute(Id object, const std::string& name);
void write_string(Id object, const std::string& name, const std::string& value);
void write_int64(Id object, const std::string& name, std::int64_t value);
void write_double(Id object, const std::string& name, double value);
void write_bool(Id object, const std::string& name, bool value);
std::string read_string(Id object, const std::string& name);
std::int64_t read_int64(Id object, const std::string& name);
double read_double(Id object, const std::string& name);
bool read_bool(Id object, const std::string& name);

// One-dimensional attributes of uint32, which are created before their values are known: writing these takes
// no more room in the file.
void create_uint32s(Id object, const std::string& name, std::size_t count);
void write_uint32s(Id object, const std::string& name, const std::vector<std::uint32_t>& values);
/// @throws UserError also if it has another number of values than `count`
std::vector<std::uint32_t> read_uint32s(Id object, const std::string& name, std::size_t count);

/// Names of the links of a group (file: of its root group), in alphabetical order.
std::vector<std::string> links(Id group);
/// Whether a path such as "model/a.weight" leads to something; false, without an error, if a step on the way is missing.
bool has_link(Id group, const std::string& path);
/// @throws UserError, naming file and path, if there is no such dataset or group
Dataset open_dataset(Id group, const std::string& path);
Group open_group(Id group, const std::string& path);

/// A dataset of one piece, whose place in the file is taken at once: who creates it writes all of it. Without times: of the same
/// content, all bytes are the same.
Dataset create_contiguous_dataset(Id group, const std::string& name, Id type,
                                  std::span<const std::int64_t> shape);

/// Extents of a dataset; empty for a scalar.
std::vector<std::int64_t> shape(Id dataset);

/// What the elements of a dataset are in the file.
struct ElementType {
  int kind = -1;  ///< HDF5's H5T_class_t
  int bytes = 0;
  bool is_signed = false;  ///< integers
  bool is_native = false;  ///< one of this machine's own numbers, byte order included, so that it can be read
                           ///< as it lies in the file

  bool is_bfloat16 = false;  ///< HDF5 has no name for it: the upper half of a little-endian float32

  std::string name() const;  ///< "uint16", "float32 (other byte order)", "string", ...
  bool is_float32() const;
};
ElementType element_type(Id dataset);

/// bfloat16 in little-endian order, in files and in memory. HDF5 converts it to other types as it does its own.
Type bfloat16_type();

/// Elements [begin, begin + elements) of a flattened dataset, of any number of dimensions.
struct ElementRange {
  std::int64_t begin = 0, elements = 0;
};
/// To or from memory of the given type (H5T_NATIVE_FLOAT, ...), where the elements of one range lie after those of another.
/// In a transfer together every rank calls it, without ranges if it has none.
/// @param ranges in order, without overlaps
/// @param transfer from collective_transfer(), or the default: this process alone
void read_elements(Id dataset, std::span<const ElementRange> ranges, void* values, Id type,
                   Id transfer = kDefaultList);
void write_elements(Id dataset, std::span<const ElementRange> ranges, const void* values, Id type,
                    Id transfer = kDefaultList);

/// Whether the library is parallel HDF5, which the functions below need.
bool is_parallel();
enum class OpenFor : std::uint8_t { reading, writing };
/// An existing file, opened by all ranks of a communicator through MPI-IO. Opening, closing and all use of it are
/// collective: if one rank does not take part, the others hang and keep the lock.
/// @param communicator World::communicator_number() @throws Failure
File open_together(const std::filesystem::path& path, int communicator, OpenFor purpose);
/// Transfers by all ranks of the file at once.
PropertyList collective_transfer();

/// Where the bytes of a dataset begin in this file if they lie there as one piece, in order, and unfiltered;
/// else nothing; also nothing where an external link led to a dataset of another file.
std::optional<std::uint64_t> contiguous_offset(Id file, Id dataset);

}  // namespace hdf5
}  // namespace llampi::io
