// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::io {
namespace {

// One mutex for the whole process is the accepted exception to "no global state": the library that it guards
// is one per process and has global state of its own. Recursive, so that functions that lock can be composed.
std::recursive_mutex& gate() {
  struct Gate {
    Gate() {
      H5dont_atexit();  // a file that could not be closed would crash the end of the program
      H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are thrown, not printed
    }
    std::recursive_mutex mutex;
  };
  static Gate instance;
  return instance.mutex;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(gate()) {}

namespace hdf5 {

static_assert(std::is_same_v<Id, hid_t> && kNoId == H5I_INVALID_HID && kDefaultList == H5P_DEFAULT);

int close(Object kind, Id id) noexcept {
  switch (kind) {
    case Object::file:
      return H5Fclose(id);
    case Object::group:
      return H5Gclose(id);
    case Object::dataset:
      return H5Dclose(id);
    case Object::dataspace:
      return H5Sclose(id);
    case Object::property_list:
      return H5Pclose(id);
    case Object::attribute:
      return H5Aclose(id);
    case Object::type:
      return H5Tclose(id);
    case Object::object:
      return H5Oclose(id);
  }
  return -1;
}

bool ElementType::is_float32() const { return kind == H5T_FLOAT && bytes == 4; }

namespace {

struct ErrorStack {
  std::string innermost;
  std::string all;
};

herr_t collect(unsigned index, const H5E_error2_t* error, void* target) {
  auto& stack = *static_cast<ErrorStack*>(target);
  const std::string text = error->desc == nullptr ? "" : error->desc;
  if (index == 0) stack.innermost = text;
  stack.all += text + '\n';
  return 0;
}

/// HDF5 keeps the cause only as strerror's text.
std::string find_storage_problem(const std::string& text) {
  struct Pattern {
    std::string_view text;
    const char* meaning;
  };
  static constexpr std::array<Pattern, 7> kPatterns{{{"No space left", "no space left on the device"},
                                                     {"uota exceeded", "the disk quota is exceeded"},
                                                     {"ermission denied", "permission denied"},
                                                     {"ead-only file system", "the file system is read-only"},
                                                     {"No such file", "the folder does not exist"},
                                                     {"File too large", "larger than files may be there"},
                                                     {"Not a directory", "its folder is a file"}}};
  for (const auto& pattern : kPatterns) {
    if (text.find(pattern.text) != std::string::npos) return pattern.meaning;
  }
  return {};
}

/// What a file is that is no HDF5 file, as far as its first bytes tell. @throws Error if these cannot be read, or are those of one
std::string kind_by_head(const std::filesystem::path& path) {
  std::array<char, 9> head{};
  const std::size_t count =
      PosixFile::open_for_reading(path).read_at(0, std::as_writable_bytes(std::span(head)));
  const std::string_view text(head.data(), count);
  if (text.starts_with("\x89HDF\r\n\x1a\n"))
    throw CallError("H5Fis_hdf5", fmt::format("{} could not be read a moment ago", path.string()));
  if (text.starts_with("GGUF")) return "is a GGUF file, which llampi does not read";
  // A length in 64 bits, little-endian, and JSON.
  if (text.size() == 9 && text[8] == '{' && text[6] == 0 && text[7] == 0)
    return "is a safetensors file, and an HDF5 file is expected";
  const bool is_text = std::ranges::all_of(
      text, [](unsigned char c) { return c >= ' ' || c == '\n' || c == '\t' || c == '\r'; });
  return is_text ? "is not an HDF5 file, but text" : "is not an HDF5 file, or is damaged at its beginning";
}

/// @throws CallError if it cannot be read, which says nothing about what is in it
bool is_hdf5(const std::filesystem::path& path) {
  try {
    return check(H5Fis_hdf5(path.c_str()), "H5Fis_hdf5") > 0;
  } catch (const Failure& failure) {
    throw_if_unreadable(failure, path);
    throw CallError("H5Fis_hdf5", fmt::format("{} cannot be read: {}", path.string(), failure.reason()));
  }
}

/// A folder, a text file and a missing file each get their own sentence.
void refuse_what_is_no_hdf5_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw_user_error("{}: no such file", path.string());
  }
  if (std::filesystem::is_directory(status)) {
    const auto checkpoints = path / "checkpoints";
    throw_user_error("{} is a folder; an HDF5 file is expected{}", path.string(),
                     std::filesystem::is_directory(checkpoints, error)
                         ? fmt::format(", such as one of {}", checkpoints.string())
                         : "");
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw_user_error("{} is {}, and HDF5 needs a file", path.string(),
                     std::filesystem::is_fifo(status) ? "a pipe" : "not a regular file");
  }
  if (faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0) {
    throw_user_error("{} cannot be read: permission denied", path.string());
  }
  if (std::filesystem::is_regular_file(status) && std::filesystem::file_size(path, error) == 0) {
    throw DamagedFile(fmt::format("{} is empty; an HDF5 file is expected", path.string()));
  }
  if (!is_hdf5(path)) throw DamagedFile(fmt::format("{} {}", path.string(), kind_by_head(path)));
}

std::string name_of(hid_t object, ssize_t (*get_name)(hid_t, char*, std::size_t), const char* unnamed) {
  const Hdf5Lock lock;
  const auto length = get_name(object, nullptr, 0);
  if (length <= 0) return unnamed;
  std::string name(static_cast<std::size_t>(length) + 1, '\0');
  if (get_name(object, name.data(), name.size()) < 0) return unnamed;
  name.pop_back();
  return name;
}

}  // namespace

void fail(const char* call, SourceLocation where) {
  ErrorStack stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &stack);
  if (stack.innermost.empty()) stack.innermost = "HDF5 gives no reason";
  throw Failure(call, stack.innermost, find_storage_problem(stack.all), where);
}

std::string Failure::system_error() const {
  constexpr std::string_view kNumber = "errno = ", kOfMpi = "MPI error string is ";
  if (const auto at = reason_.find(kNumber); at != std::string::npos)
    return std::generic_category().message(std::atoi(reason_.c_str() + at + kNumber.size()));
  if (const auto at = reason_.find(kOfMpi); at != std::string::npos)
    return reason_.substr(at + kOfMpi.size());
  return "";
}

void throw_if_unreadable(const Failure& failure, const std::filesystem::path& path) {
  if (const auto error = failure.system_error(); !error.empty())
    throw CallError("HDF5", fmt::format("{} cannot be read: {}", path.string(), error));
}

std::string library_version() {
  const Hdf5Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  check(H5get_libversion(&major, &minor, &release), "H5get_libversion");
  return fmt::format("{}.{}.{}", major, minor, release);
}

PropertyList file_access() {
  const Hdf5Lock lock;
  PropertyList properties(check(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate"));
  // Not H5F_LIBVER_LATEST: newer libraries would write what those of 1.10 cannot read.
  check(H5Pset_libver_bounds(properties.id(), H5F_LIBVER_V110, H5F_LIBVER_V110), "H5Pset_libver_bounds");
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  check(H5Pset_file_locking(properties.id(), false, true), "H5Pset_file_locking");
#endif
  return properties;
}

File open_file(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  refuse_what_is_no_hdf5_file(path);
  try {
    return File(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "H5Fopen"));
  } catch (const Failure& failure) {
    if (failure.reason().find("lock file") != std::string::npos) {
      throw_user_error(
          "{} cannot be locked for reading ({}); wait until no other program writes it, or set "
          "HDF5_USE_FILE_LOCKING=FALSE where the file system has no locks",
          path.string(), failure.reason());
    }
    throw_if_unreadable(failure, path);
    throw DamagedFile(
        fmt::format("{} is truncated or damaged and cannot be read ({})", path.string(), failure.reason()));
  }
}

File create_file(const std::filesystem::path& path, hid_t access_properties, hid_t creation_properties) {
  const Hdf5Lock lock;
  try {
    return File(
        check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation_properties, access_properties), "H5Fcreate"));
  } catch (const Failure& failure) {
    const auto& problem = failure.storage_problem();
    throw_user_error("{} cannot be created: {}", output_of(path).string(),
                     problem.empty() ? failure.reason() : problem);
  }
}

Dataset create_contiguous_dataset(hid_t group, const std::string& name, hid_t type,
                                  std::span<const std::int64_t> shape) {
  const Hdf5Lock lock;
  const PropertyList properties(check(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate"));
  check(H5Pset_obj_track_times(properties.id(), false), "H5Pset_obj_track_times");
  check(H5Pset_layout(properties.id(), H5D_CONTIGUOUS), "H5Pset_layout");
  check(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  check(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Dataspace space(
      check(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple"));
  return Dataset(
      check(H5Dcreate2(group, name.c_str(), type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
            "H5Dcreate2"));
}

std::string file_name(hid_t object) { return name_of(object, H5Fget_name, "HDF5 file"); }

std::string object_name(hid_t object) { return name_of(object, H5Iget_name, "object"); }

std::vector<std::string> links(hid_t group) {
  const Hdf5Lock lock;
  // One pass: asked for one by one, by index, HDF5 sorts all names for each.
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* names) -> herr_t {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  };
  std::vector<std::string> names;
  check(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names), "H5Literate");
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

/// Kind of the object that a path leads to. By opening it: H5Oget_info has other arguments in each version of
/// HDF5.
H5I_type_t kind_of(hid_t group, const std::string& path) {
  const Handle<Object::object> object(check(H5Oopen(group, path.c_str(), H5P_DEFAULT), "H5Oopen"));
  return H5Iget_type(object.id());
}

void require_object(hid_t group, const std::string& path, H5I_type_t wanted, const char* word) {
  if (has_link(group, path) && kind_of(group, path) == wanted) return;
  throw_user_error("{} has no {} '{}'", file_name(group), word, path);
}

}  // namespace

bool has_link(hid_t group, const std::string& path) {
  const Hdf5Lock lock;
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const auto step = path.substr(0, end);
    if (check(H5Lexists(group, step.c_str(), H5P_DEFAULT), "H5Lexists") == 0) return false;
    if (check(H5Oexists_by_name(group, step.c_str(), H5P_DEFAULT), "H5Oexists_by_name") == 0) return false;
    if (end == std::string::npos) return true;
    if (kind_of(group, step) != H5I_GROUP) return false;  // nothing lies below a dataset
  }
}

namespace {

/// Tries only once: after an error of the operating system, HDF5 may keep the part of the object's header that it has read, and would
/// then open an object that seems to lack the rest. What is missing is looked for only where it cannot be opened: that takes
/// longer than opening.
/// @param call its name
hid_t open_object(hid_t group, const std::string& path, decltype(H5Dopen2)* open, const char* call,
                  H5I_type_t wanted, const char* word) {
  const hid_t opened = open(group, path.c_str(), H5P_DEFAULT);
  if (opened >= 0) return opened;
  try {
    fail(call, SourceLocation::current());
  } catch (const Failure& failure) {
    if (failure.system_error().empty()) require_object(group, path, wanted, word);
    throw;
  }
}

}  // namespace

Dataset open_dataset(hid_t group, const std::string& path) {
  const Hdf5Lock lock;
  return Dataset(open_object(group, path, H5Dopen2, "H5Dopen2", H5I_DATASET, "dataset"));
}

Group open_group(hid_t group, const std::string& path) {
  const Hdf5Lock lock;
  return Group(open_object(group, path, H5Gopen2, "H5Gopen2", H5I_GROUP, "group"));
}

std::vector<std::int64_t> shape(hid_t dataset) {
  const Hdf5Lock lock;
  const Dataspace space(check(H5Dget_space(dataset), "H5Dget_space"));
  const int rank = check(H5Sget_simple_extent_ndims(space.id()), "H5Sget_simple_extent_ndims");
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  check(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr), "H5Sget_simple_extent_dims");
  return {extents.begin(), extents.end()};
}

ElementType element_type(hid_t dataset) {
  const Hdf5Lock lock;
  const Type type(check(H5Dget_type(dataset), "H5Dget_type"));
  ElementType result;
  result.kind = H5Tget_class(type.id());
  result.bytes = static_cast<int>(H5Tget_size(type.id()));
  if (result.kind != H5T_INTEGER && result.kind != H5T_FLOAT) return result;
  result.is_signed = result.kind == H5T_INTEGER && H5Tget_sign(type.id()) == H5T_SGN_2;
  // Equality covers precision, offset and order, so that an odd type (12 bits in 16) is not taken for a plain
  // one.
  const std::array natives{H5T_NATIVE_FLOAT, H5T_NATIVE_DOUBLE, H5T_NATIVE_INT8,  H5T_NATIVE_UINT8,
                           H5T_NATIVE_INT16, H5T_NATIVE_UINT16, H5T_NATIVE_INT32, H5T_NATIVE_UINT32,
                           H5T_NATIVE_INT64, H5T_NATIVE_UINT64};
  result.is_native = std::any_of(natives.begin(), natives.end(), [&](hid_t native) {
    return check(H5Tequal(type.id(), native), "H5Tequal") > 0;
  });
  result.is_bfloat16 = result.bytes == 2 && check(H5Tequal(type.id(), bfloat16_type().id()), "H5Tequal") > 0;
  return result;
}

std::string ElementType::name() const {
  if (is_bfloat16) return "bfloat16";
  if (kind == H5T_INTEGER || kind == H5T_FLOAT) {
    const char* word = kind == H5T_FLOAT ? "float" : is_signed ? "int" : "uint";
    return fmt::format("{}{}{}", word, 8 * bytes, is_native ? "" : " in another byte order or layout");
  }
  switch (kind) {
    case H5T_STRING:
      return "string";
    case H5T_ENUM:
      return "enumeration";
    case H5T_COMPOUND:
      return "compound";
    default:
      return "another kind";
  }
}

std::optional<std::uint64_t> contiguous_offset(hid_t file, hid_t dataset) {
  const Hdf5Lock lock;
  // By name, as each was opened: the numbers of files are told by another call in each version of HDF5.
  if (file_name(dataset) != file_name(file)) return {};
  const PropertyList properties(check(H5Dget_create_plist(dataset), "H5Dget_create_plist"));
  if (H5Pget_layout(properties.id()) != H5D_CONTIGUOUS) return {};
  if (check(H5Pget_external_count(properties.id()), "H5Pget_external_count") > 0) return {};
  const haddr_t offset = H5Dget_offset(dataset);  // the size of a user block is included
  if (offset == HADDR_UNDEF) return {};           // nothing was ever written
  return offset;
}

}  // namespace hdf5
}  // namespace llampi::io
