#include "checkpoint/safetensors_file.hpp"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // of the reference implementation

/// Thrown with what is wrong; the caller adds the file.
struct Malformed {
  std::string what;
};

/// Bytes per element of the specification's dtypes; 0 for one that is not known.
std::int64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> kBytes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

/// The header as JSON; a name that occurs twice is refused (JSON parsers silently keep one of them).
json parse_header(std::string_view text) {
  std::set<std::string> names;
  const auto callback = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
      throw Malformed{fmt::format("the name {} occurs twice in the header", value.get<std::string>())};
    }
    return true;
  };
  try {
    json header = json::parse(text, callback);
    if (!header.is_object()) throw Malformed{"the header is not a JSON object"};
    return header;
  } catch (const json::exception&) {
    throw Malformed{"the header is not valid JSON"};
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
    throw Malformed{fmt::format("{} of {} is malformed", key, name)};
  return values;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)), file_(path_) {
  try {
    parse();
  } catch (const Malformed& malformed) {
    throw_user_error("{} is not a whole safetensors file: {}; fetch it again", path_.string(),
                     malformed.what);
  }
}

void SafetensorsFile::parse() {
  const auto bytes = file_.bytes();
  std::uint64_t header_bytes = 0;
  if (bytes.size() < kLengthBytes) throw Malformed{"it is too short to have a header"};
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) throw Malformed{"it does not begin with the length of a header"};
  if (header_bytes > bytes.size() - kLengthBytes)
    throw Malformed{"it ends inside its header, it is truncated"};
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  const json header = parse_header(
      {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<std::size_t>(header_bytes)});

  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string()) {
      throw Malformed{fmt::format("the entry of {} is malformed", name)};
    }
    Entry entry{value["dtype"].get<std::string>(), integers(value, name, "shape"), nullptr};
    const auto offsets = integers(value, name, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      throw Malformed{fmt::format("data_offsets of {} is malformed", name)};
    }
    if (static_cast<std::uint64_t>(offsets[1]) > data.size()) {
      throw Malformed{fmt::format("{} reaches beyond the end of the file, it is truncated", name)};
    }
    const std::int64_t bytes_each = element_bytes(entry.dtype);
    std::int64_t expected = bytes_each;
    for (const auto extent : entry.shape) {
      if (__builtin_mul_overflow(expected, extent, &expected))
        throw Malformed{fmt::format("shape of {} is malformed", name)};
    }
    if (bytes_each != 0 && expected != offsets[1] - offsets[0]) {
      throw Malformed{fmt::format("{} has {} bytes where {} {} takes {}", name, offsets[1] - offsets[0],
                                  entry.dtype, shape_text(entry.shape), expected)};
    }
    entry.data = data.data() + offsets[0];
    entries_.emplace(name, std::move(entry));
  }
}

std::vector<TensorInfo> SafetensorsFile::tensors() const {
  std::vector<TensorInfo> list;
  for (const auto& [name, entry] : entries_) list.push_back({name, entry.shape});
  return list;
}

void SafetensorsFile::read(const std::string& name, std::int64_t begin, std::int64_t elements,
                           float* destination) const {
  const Entry& entry = entries_.at(name);
  const std::byte* source = entry.data + begin * element_bytes(entry.dtype);
  if (entry.dtype == "F32") {
    std::memcpy(destination, source, static_cast<std::size_t>(elements) * sizeof(float));
    return;
  }
  const bool is_bfloat16 = entry.dtype == "BF16";
  if (!is_bfloat16 && entry.dtype != "F16") {
    throw_user_error("{}: {} is {}, and only F32, BF16 and F16 can be read; convert it first", path_.string(),
                     name, entry.dtype);
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    std::uint16_t bits;  // the data need not be aligned
    std::memcpy(&bits, source + i * 2, 2);
    destination[i] = is_bfloat16 ? from_bfloat16(bits) : from_float16(bits);
  }
}

}  // namespace llampi
