// SPDX-License-Identifier: Apache-2.0
// Attributes.
#include <hdf5.h>

#include <algorithm>

#include "llampi/io/hdf5.hpp"

namespace llampi::io::hdf5 {
namespace {

void write(hid_t object, const std::string& name, hid_t type, const void* value) {
  const Dataspace scalar(check(H5Screate(H5S_SCALAR), "H5Screate"));
  const Attribute attribute(
      check(H5Acreate2(object, name.c_str(), type, scalar.id(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2"));
  check(H5Awrite(attribute.id(), type, value), "H5Awrite");
}

/// h5py's bool: an enumeration FALSE, TRUE over int8.
Type bool_type() {
  Type type(check(H5Tenum_create(H5T_NATIVE_INT8), "H5Tenum_create"));
  const std::int8_t no = 0;
  const std::int8_t yes = 1;
  check(H5Tenum_insert(type.id(), "FALSE", &no), "H5Tenum_insert");
  check(H5Tenum_insert(type.id(), "TRUE", &yes), "H5Tenum_insert");
  return type;
}

/// An attribute that is there and holds one value.
struct Opened {
  Attribute attribute;
  Type type;
  H5T_class_t kind;
};

Opened open(hid_t object, const std::string& name) {
  if (!has_attribute(object, name)) throw_user_error("{} has no attribute '{}'", file_name(object), name);
  Attribute attribute(check(H5Aopen(object, name.c_str(), H5P_DEFAULT), "H5Aopen"));
  const Dataspace space(check(H5Aget_space(attribute.id()), "H5Aget_space"));
  if (check(H5Sget_simple_extent_npoints(space.id()), "H5Sget_simple_extent_npoints") != 1) {
    throw_user_error("{}: attribute '{}' must hold one value", file_name(object), name);
  }
  Type type(check(H5Aget_type(attribute.id()), "H5Aget_type"));
  const auto kind = H5Tget_class(type.id());
  return {std::move(attribute), std::move(type), kind};
}

[[noreturn]] void refuse(hid_t object, const std::string& name, const char* wanted) {
  throw_user_error("{}: attribute '{}' must be {}", file_name(object), name, wanted);
}

std::string read_variable_string(const Opened& opened) {
  const Type memory(check(H5Tcopy(H5T_C_S1), "H5Tcopy"));
  check(H5Tset_size(memory.id(), H5T_VARIABLE), "H5Tset_size");
  check(H5Tset_cset(memory.id(), H5Tget_cset(opened.type.id())), "H5Tset_cset");
  char* text = nullptr;
  check(H5Aread(opened.attribute.id(), memory.id(), &text), "H5Aread");
  std::string result = text == nullptr ? "" : text;
  check(H5free_memory(text), "H5free_memory");
  return result;
}

std::string read_fixed_string(const Opened& opened) {
  std::string result(H5Tget_size(opened.type.id()), '\0');
  check(H5Aread(opened.attribute.id(), opened.type.id(), result.data()), "H5Aread");
  if (H5Tget_strpad(opened.type.id()) == H5T_STR_SPACEPAD) {
    result.erase(result.find_last_not_of(' ') + 1);
  } else {
    result.erase(std::min(result.find('\0'), result.size()));
  }
  return result;
}

}  // namespace

bool has_attribute(hid_t object, const std::string& name) {
  const Hdf5Lock lock;
  return check(H5Aexists(object, name.c_str()), "H5Aexists") > 0;
}

void write_string(hid_t object, const std::string& name, const std::string& value) {
  const Hdf5Lock lock;
  const Type type(check(H5Tcopy(H5T_C_S1), "H5Tcopy"));
  check(H5Tset_size(type.id(), value.size() + 1), "H5Tset_size");
  check(H5Tset_cset(type.id(), H5T_CSET_UTF8), "H5Tset_cset");
  write(object, name, type.id(), value.c_str());
}

void write_int64(hid_t object, const std::string& name, std::int64_t value) {
  const Hdf5Lock lock;
  write(object, name, H5T_NATIVE_INT64, &value);
}

void write_double(hid_t object, const std::string& name, double value) {
  const Hdf5Lock lock;
  write(object, name, H5T_NATIVE_DOUBLE, &value);
}

void write_bool(hid_t object, const std::string& name, bool value) {
  const Hdf5Lock lock;
  const std::int8_t stored = value ? 1 : 0;
  write(object, name, bool_type().id(), &stored);
}

std::string read_string(hid_t object, const std::string& name) {
  const Hdf5Lock lock;
  const auto opened = open(object, name);
  if (opened.kind != H5T_STRING) refuse(object, name, "a string");
  const bool variable = check(H5Tis_variable_str(opened.type.id()), "H5Tis_variable_str") > 0;
  return variable ? read_variable_string(opened) : read_fixed_string(opened);
}

std::int64_t read_int64(hid_t object, const std::string& name) {
  const Hdf5Lock lock;
  const auto opened = open(object, name);
  if (opened.kind != H5T_INTEGER) refuse(object, name, "an integer");
  std::int64_t value = 0;
  check(H5Aread(opened.attribute.id(), H5T_NATIVE_INT64, &value), "H5Aread");
  return value;
}

double read_double(hid_t object, const std::string& name) {
  const Hdf5Lock lock;
  const auto opened = open(object, name);
  if (opened.kind != H5T_FLOAT && opened.kind != H5T_INTEGER) refuse(object, name, "a number");
  double value = 0;
  check(H5Aread(opened.attribute.id(), H5T_NATIVE_DOUBLE, &value), "H5Aread");
  return value;
}

bool read_bool(hid_t object, const std::string& name) {
  const Hdf5Lock lock;
  const auto opened = open(object, name);
  if (opened.kind != H5T_ENUM && opened.kind != H5T_INTEGER) refuse(object, name, "a boolean");
  std::int8_t value = 0;
  const bool is_enum = opened.kind == H5T_ENUM;
  check(H5Aread(opened.attribute.id(), is_enum ? bool_type().id() : H5T_NATIVE_INT8, &value), "H5Aread");
  return value != 0;
}

void create_uint32s(hid_t object, const std::string& name, std::size_t count) {
  const Hdf5Lock lock;
  const hsize_t extent = count;
  const Dataspace space(check(H5Screate_simple(1, &extent, nullptr), "H5Screate_simple"));
  const Attribute attribute(check(
      H5Acreate2(object, name.c_str(), H5T_STD_U32LE, space.id(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2"));
}

void write_uint32s(hid_t object, const std::string& name, const std::vector<std::uint32_t>& values) {
  const Hdf5Lock lock;
  const Attribute attribute(check(H5Aopen(object, name.c_str(), H5P_DEFAULT), "H5Aopen"));
  check(H5Awrite(attribute.id(), H5T_NATIVE_UINT32, values.data()), "H5Awrite");
}

std::vector<std::uint32_t> read_uint32s(hid_t object, const std::string& name, std::size_t count) {
  const Hdf5Lock lock;
  if (!has_attribute(object, name)) throw_user_error("{} has no attribute '{}'", file_name(object), name);
  const Attribute attribute(check(H5Aopen(object, name.c_str(), H5P_DEFAULT), "H5Aopen"));
  const Dataspace space(check(H5Aget_space(attribute.id()), "H5Aget_space"));
  const Type type(check(H5Aget_type(attribute.id()), "H5Aget_type"));
  const auto values = check(H5Sget_simple_extent_npoints(space.id()), "H5Sget_simple_extent_npoints");
  if (H5Tget_class(type.id()) != H5T_INTEGER || static_cast<std::size_t>(values) != count)
    throw_user_error("{}: attribute '{}' must be {} integers", file_name(object), name, count);
  std::vector<std::uint32_t> result(count);
  check(H5Aread(attribute.id(), H5T_NATIVE_UINT32, result.data()), "H5Aread");
  return result;
}

}  // namespace llampi::io::hdf5
