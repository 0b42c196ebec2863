#include "llampi/data/tokenizer.hpp"

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 256; }
  bool encodes_piecewise() const override { return true; }

  std::vector<std::int32_t> encode(std::string_view text, SpecialText) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const auto id : ids) {
      if (id < 0 || id >= vocabulary()) {
        throw_user_error("token {} cannot be turned into text: the tokenizer \"bytes\" has the ids 0 to 255",
                         id);
      }
      text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::string bytes_of(std::int32_t id) const override { return decode({&id, 1}); }
  std::optional<std::int32_t> find(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> begin() const override { return std::nullopt; }
  std::optional<std::int32_t> end() const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  throw_user_error("the tokenizer \"{}\" is not supported: only \"bytes\" is built so far", name);
}

}  // namespace llampi
