// SPDX-License-Identifier: Apache-2.0
// Access to the JSON files of tokenizers. Private to the library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace llampi::tokenizer {

/// @throws UserError if `text` is not JSON or no object
nlohmann::json parse_object(std::string_view text, const std::string& source);

/// In quotes, and cut where it is long.
std::string in_quotes(std::string_view text);

/// The fields of one object. Complaints are UserErrors that start with `where` ("tokenizer.json: decoder").
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  /// nullptr if it is missing or null.
  const nlohmann::json* find(const char* name);
  const nlohmann::json& get(const char* name);
  std::string text(const char* name);
  std::string text(const char* name, std::string_view otherwise);
  bool flag(const char* name);
  bool flag(const char* name, bool otherwise);
  std::int64_t count(const char* name);  ///< 0 to 2^31 - 1
  const nlohmann::json& list(const char* name);
  const nlohmann::json& object(const char* name);
  /// Known, and without meaning here.
  void ignore(const char* name) { known_.emplace_back(name); }
  /// Refuses fields that were not asked for: they may change what the rest means.
  void done() const;

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
  std::vector<std::string_view> known_;
};

}  // namespace llampi::tokenizer
