// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/fields.hpp"

#include <algorithm>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::tokenizer {

using nlohmann::json;

json parse_object(std::string_view text, const std::string& source) {
  try {
    json value = json::parse(text);
    if (!value.is_object()) throw_user_error("{}: this is not a JSON object", source);
    return value;
  } catch (const json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    const auto words = what.find("] ");
    throw_user_error("{}: this is not JSON: {}", source,
                     words == std::string_view::npos ? what : what.substr(words + 2, 200));
  }
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  if (text.size() <= kLongest) return '"' + std::string(text) + '"';
  std::size_t end = kLongest;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;  // not within a character
  return '"' + std::string(text.substr(0, end)) + "...\"";
}

Fields::Fields(const json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value.is_object()) throw_user_error("{} must be an object", where_);
}

void Fields::refuse(const std::string& what) const { throw_user_error("{}: {}", where_, what); }

const json* Fields::find(const char* name) {
  known_.emplace_back(name);
  const auto found = value_.find(name);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

const json& Fields::get(const char* name) {
  const json* value = find(name);
  if (!value) refuse(fmt::format("\"{}\" is missing", name));
  return *value;
}

std::string Fields::text(const char* name) {
  const json& value = get(name);
  if (!value.is_string()) refuse(fmt::format("\"{}\" must be a string", name));
  return value.get<std::string>();
}

std::string Fields::text(const char* name, std::string_view otherwise) {
  return find(name) ? text(name) : std::string(otherwise);
}

bool Fields::flag(const char* name) {
  const json& value = get(name);
  if (!value.is_boolean()) refuse(fmt::format("\"{}\" must be true or false", name));
  return value.get<bool>();
}

bool Fields::flag(const char* name, bool otherwise) { return find(name) ? flag(name) : otherwise; }

std::int64_t Fields::count(const char* name) {
  const json& value = get(name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX) {
    refuse(fmt::format("\"{}\" must be an integer from 0 to {}", name, INT32_MAX));
  }
  return value.get<std::int64_t>();
}

const json& Fields::list(const char* name) {
  const json& value = get(name);
  if (!value.is_array()) refuse(fmt::format("\"{}\" must be a list", name));
  return value;
}

const json& Fields::object(const char* name) {
  const json& value = get(name);
  if (!value.is_object()) refuse(fmt::format("\"{}\" must be an object", name));
  return value;
}

void Fields::done() const {
  for (const auto& [name, value] : value_.items()) {
    if (std::ranges::find(known_, name) == known_.end()) {
      refuse(fmt::format("{} is not supported", in_quotes(name)));
    }
  }
}

}  // namespace llampi::tokenizer
