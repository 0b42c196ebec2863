// SPDX-License-Identifier: Apache-2.0
// Typed access to the fields of a JSON object that a user wrote: a wrong type or size is a UserError that
// names the source and the field. A field that is null counts as missing, as in Hugging Face's files.
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"

namespace llampi::model {

class JsonFields {
 public:
  /// @param object must outlive this
  /// @param source what errors begin with: the file
  /// @param prefix of field names in errors: "rope_scaling." for an inner object
  JsonFields(const nlohmann::json& object, std::string source, std::string prefix = "")
      : object_(&object), source_(std::move(source)), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      throw_user_error("{}: {} is {} where a JSON object is needed.", source_,
                       prefix_.empty() ? "the text" : prefix_.substr(0, prefix_.size() - 1), shown(object));
    }
  }

  const nlohmann::json& object() const { return *object_; }

  /// Null if the field is missing.
  const nlohmann::json* find(const char* name) const {
    const auto it = object_->find(name);
    return it == object_->end() || it->is_null() ? nullptr : &*it;
  }

  /// It is there, though perhaps null.
  bool has(const char* name) const { return object_->contains(name); }

  JsonFields inner(const char* name) const { return {at(name), source_, path(name) + "."}; }

  std::int64_t size(const char* name) const { return to_size(name, at(name)); }
  std::int64_t size_or(const char* name, std::int64_t fallback) const {
    const auto* value = find(name);
    return value ? to_size(name, *value) : fallback;
  }

  /// A whole number from 0 on.
  std::int64_t whole_or(const char* name, std::int64_t fallback) const {
    const auto* value = find(name);
    return value && value->is_number_unsigned() && value->get<std::uint64_t>() == 0 ? 0
                                                                                    : size_or(name, fallback);
  }

  double number(const char* name) const { return to_number(name, at(name)); }
  double number_or(const char* name, double fallback) const {
    const auto* value = find(name);
    return value ? to_number(name, *value) : fallback;
  }
  double positive_or(const char* name, double fallback) const {
    const double value = number_or(name, fallback);
    if (!(value > 0)) refuse(name, "a number above 0 is needed");
    return value;
  }

  bool flag_or(const char* name, bool fallback) const {
    const auto* value = find(name);
    if (!value) return fallback;
    if (!value->is_boolean()) refuse(name, "true or false is needed");
    return value->get<bool>();
  }

  std::string text_or(const char* name, const std::string& fallback) const {
    const auto* value = find(name);
    if (!value) return fallback;
    if (!value->is_string()) refuse(name, "a string is needed");
    return value->get<std::string>();
  }

  /// Throws "<source>: <field> is <value>; <reason>."
  [[noreturn]] void refuse(const char* name, const std::string& reason) const {
    const auto* value = find(name);
    throw_user_error("{}: {} is {}; {}.", source_, path(name), value ? shown(*value) : "missing", reason);
  }

 private:
  std::string path(const char* name) const { return prefix_ + name; }

  /// The value's text, cut where it would bury the sentence.
  static std::string shown(const nlohmann::json& value) {
    constexpr std::size_t kLongest = 60;
    const std::string text = json_text(value);
    return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  }

  const nlohmann::json& at(const char* name) const {
    const auto* value = find(name);
    if (!value) throw_user_error("{}: {} is missing.", source_, path(name));
    return *value;
  }

  std::int64_t to_size(const char* name, const nlohmann::json& value) const {
    constexpr std::uint64_t kLargest = std::numeric_limits<std::int32_t>::max();
    // A non-negative integer is "unsigned" to the parser, whatever its size.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
        value.get<std::uint64_t>() > kLargest) {
      refuse(name, fmt::format("a whole number from 1 to {} is needed", kLargest));
    }
    return value.get<std::int64_t>();
  }

  double to_number(const char* name, const nlohmann::json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(name, "a number is needed");
    return value.get<double>();
  }

  const nlohmann::json* object_;
  std::string source_;
  std::string prefix_;
};

}  // namespace llampi::model
