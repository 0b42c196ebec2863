// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llampi {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< what `--tokenizer` was given: "bytes"
  virtual std::int64_t vocabulary() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Whether a text may be cut anywhere and encoded piece by piece, with the same ids.
  virtual bool encodes_piecewise() const { return false; }
  /// @throws UserError for an id outside the vocabulary
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// "bytes" (ids are byte values, vocabulary 256). @throws UserError for anything else: not built yet.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace llampi
