// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi::checkpoint {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::int64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // of the reference implementation

/// Bits per element of the specification's dtypes, also of those that read() refuses.
std::int64_t element_bits(const std::string& name, const std::string& dtype) {
  static const std::map<std::string, std::int64_t> kBits{
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"I64", 64},    {"U64", 64}, {"F64", 64}, {"C64", 64}};
  const auto found = kBits.find(dtype);
  if (found == kBits.end())
    throw MalformedSafetensors{fmt::format("{} is of the unknown dtype {}", name, dtype)};
  return found->second;
}

/// The header as JSON; a name that occurs twice is refused (JSON parsers silently keep one of them), also within an entry.
json parse_json(std::string_view text) {
  // The JSON library takes it for the end, whatever follows.
  if (text.find('\0') != std::string_view::npos) throw MalformedSafetensors{"the header holds a null byte"};
  std::string tensor;
  std::set<std::string> names, keys;
  const auto callback = [&](int depth, json::parse_event_t event, json& value) {
    if (event != json::parse_event_t::key || depth > 2) return true;
    const auto name = value.get<std::string>();
    if (depth == 1) tensor = name, keys.clear();
    if ((depth == 1 ? names : keys).insert(name).second) return true;
    throw MalformedSafetensors{depth == 1 ? fmt::format("the name {} occurs twice in the header", name)
                                          : fmt::format("{} of {} occurs twice", name, tensor)};
  };
  try {
    json header = json::parse(text, callback);
    if (!header.is_object()) throw MalformedSafetensors{"the header is not a JSON object"};
    return header;
  } catch (const json::exception&) {
    throw MalformedSafetensors{"the header is not valid JSON"};
  }
}

std::vector<std::int64_t> integers(const json& entry, const std::string& name, const char* key) {
  const auto member = entry.find(key);
  std::vector<std::int64_t> values;
  const bool is_list = member != entry.end() && member->is_array();
  if (is_list) {
    for (const auto& value : *member) {
      // Unsigned in the parser's sense: not negative, no fraction. The comparison refuses what int64 cannot
      // hold.
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) break;
      values.push_back(value.get<std::int64_t>());
    }
  }
  if (!is_list || values.size() != member->size())
    throw MalformedSafetensors{fmt::format("{} of {} is malformed", key, name)};
  return values;
}

/// An entry, and where its data end.
std::pair<SafetensorsEntry, std::int64_t> parse_entry(const std::string& name, const json& value) {
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string()) {
    throw MalformedSafetensors{fmt::format("the entry of {} is malformed", name)};
  }
  SafetensorsEntry entry{value["dtype"].get<std::string>(), integers(value, name, "shape"), 0};
  const auto offsets = integers(value, name, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw MalformedSafetensors{fmt::format("data_offsets of {} is malformed", name)};
  }
  std::int64_t expected = element_bits(name, entry.dtype);
  for (const auto extent : entry.shape) {
    if (__builtin_mul_overflow(expected, extent, &expected))
      throw MalformedSafetensors{fmt::format("shape of {} is malformed", name)};
  }
  if (expected % 8 != 0) throw MalformedSafetensors{fmt::format("{} does not fill whole bytes", name)};
  expected /= 8;
  if (expected != offsets[1] - offsets[0]) {
    throw MalformedSafetensors{fmt::format("{} has {} bytes where {} {} takes {}", name,
                                           offsets[1] - offsets[0], entry.dtype, shape_text(entry.shape),
                                           expected)};
  }
  entry.begin = offsets[0];
  return {std::move(entry), offsets[1]};
}

/// The data are one tensor after another, in some order.
void check_places(std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::string>> places,
                  std::int64_t data_bytes) {
  std::sort(places.begin(), places.end());
  std::int64_t end = 0;
  std::string before;
  for (const auto& [place, name] : places) {
    if (place.first < end)
      throw MalformedSafetensors{fmt::format("the data of {} and {} overlap", before, name)};
    if (place.first > end)
      throw MalformedSafetensors{fmt::format("there is a gap before the data of {}", name)};
    if (place.second > data_bytes) {
      throw MalformedSafetensors{fmt::format("{} reaches beyond the end of the file, it is truncated", name)};
    }
    end = place.second;
    before = name;
  }
  if (end != data_bytes) throw MalformedSafetensors{"there are bytes after the last tensor"};
}

const char* dtype_name(DType dtype) { return dtype == DType::bfloat16 ? "BF16" : "F32"; }

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes) {
  SafetensorsHeader header;
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::string>> places;
  const json object = parse_json(text);
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") continue;
    auto [entry, end] = parse_entry(name, value);
    places.push_back({{entry.begin, end}, name});
    header.emplace(name, std::move(entry));
  }
  check_places(std::move(places), data_bytes);
  return header;
}

std::string safetensors_beginning(const std::vector<TensorInfo>& tensors, DType dtype) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers asks for it
  std::int64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::int64_t end = offset + elements_of(tensor.shape) * size_of(dtype);
    header[tensor.name] = {
        {"dtype", dtype_name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored))
    throw_user_error("{} cannot be read: it is not a file", path_.string());
  file_ = io::PosixFile::open_for_reading(path_);
  try {
    parse();
  } catch (const MalformedSafetensors& malformed) {
    throw_user_error("{} is not a whole safetensors file: {}; fetch it again", path_.string(),
                     malformed.what);
  }
}

void SafetensorsFile::parse() {
  const std::int64_t bytes = file_.size();
  std::uint64_t length = 0;
  if (bytes < kLengthBytes ||
      file_.read_at(0, std::as_writable_bytes(std::span(&length, 1))) != sizeof length)
    throw MalformedSafetensors{"it is too short to have a header"};
  if (std::memcmp(&length, "version ", sizeof length) == 0)
    throw MalformedSafetensors{"it is only a Git LFS pointer to one, which `git lfs pull` replaces"};
  if (length > kMaxHeaderBytes) throw MalformedSafetensors{"it does not begin with the length of a header"};
  data_ = kLengthBytes + static_cast<std::int64_t>(length);
  std::string text;
  if (data_ <= bytes) text.resize(length);
  if (data_ > bytes || file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text))) != length)
    throw MalformedSafetensors{"it ends inside its header, it is truncated"};
  header_ = parse_safetensors_header(text, bytes - data_);
}

void SafetensorsFile::read(const std::string& name, std::int64_t begin, std::int64_t elements,
                           float* destination) const {
  const SafetensorsEntry& entry = header_.at(name);
  const auto fetch = [&](std::int64_t width, void* target) {
    const std::span bytes(static_cast<std::byte*>(target), static_cast<std::size_t>(elements * width));
    if (file_.read_at(data_ + entry.begin + begin * width, bytes) != bytes.size())
      throw_user_error("{} has become shorter while it was read; fetch it again", path_.string());
  };
  if (entry.dtype == "F32") return fetch(4, destination);
  const bool is_bfloat16 = entry.dtype == "BF16";
  if (!is_bfloat16 && entry.dtype != "F16") {
    throw_user_error("{}: {} is {}, and only F32, BF16 and F16 can be read; convert it first", path_.string(),
                     name, entry.dtype);
  }
  // In the upper half of the destination: element i is widened into bytes that hold no element behind it.
  auto* const bits = reinterpret_cast<std::byte*>(destination) + elements * 2;
  fetch(2, bits);
  for (std::int64_t i = 0; i < elements; ++i) {
    std::uint16_t narrow;
    std::memcpy(&narrow, bits + i * 2, 2);
    destination[i] = is_bfloat16 ? from_bfloat16(narrow) : from_float16(narrow);
  }
}

}  // namespace llampi::checkpoint
