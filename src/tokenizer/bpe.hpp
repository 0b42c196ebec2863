// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: words to ids by merges. Private to the library.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llampi::tokenizer {

/// U+2581, which stands for a space.
inline constexpr std::string_view kMetaSpace = "\xE2\x96\x81";

/// (left id, right id) -> what becomes of them. Open addressing: merges are looked up for every pair of
/// neighbours.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;  ///< lower ones first
    std::int32_t id;
  };
  explicit MergeTable(std::size_t merges);
  /// Of a pair that is put twice the last counts.
  void put(std::int32_t left, std::int32_t right, Merge merge);
  /// nullptr if these two are not merged.
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const Slot& slot = slots_[slot_of(left, right)];
    return slot.pair == kEmpty ? nullptr : &slot.merge;
  }

 private:
  struct Slot {
    std::uint64_t pair;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are not negative, so no pair is this
  std::size_t slot_of(std::int32_t left, std::int32_t right) const;
  std::vector<Slot> slots_;
  int shift_;
};

/// The ids of short words seen lately: most of a text. Bounded; a word takes the place of another.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 30;
  static constexpr std::size_t kMaxIds = 8;
  struct Word {
    std::uint8_t bytes = 0;  // 0: empty
    std::uint8_t count = 0;
    std::array<char, kMaxBytes> text;
    std::array<std::int32_t, kMaxIds> ids;
  };
  WordCache();
  /// Where `word` is or may be put.
  Word& place(std::string_view word);
  static bool holds(const Word& place, std::string_view word) {
    return place.bytes == word.size() && std::string_view(place.text.data(), place.bytes) == word;
  }
  static void put(Word& place, std::string_view word, const std::int32_t* ids, std::size_t count);

 private:
  std::vector<Word> words_;
};

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

/// What tokenizer.json says of the model. Words are bytes or UTF-8; so are the vocabulary's entries.
struct BpeModel {
  Vocabulary vocabulary;
  MergeTable merges{0};
  bool words_are_bytes = false;  ///< a word starts as its bytes; otherwise as its characters
  bool ignore_merges = false;    ///< a word of the vocabulary is its token, whatever merges make of it
  bool fuse_unknown = false;
  std::optional<std::int32_t> unknown;
  std::optional<std::array<std::int32_t, 256>>
      byte_tokens;            ///< byte fallback: "<0x00>" to "<0xFF>"; -1: absent
  std::vector<bool> special;  ///< by id; what a user's text must not become
};

/// Immutable, but for the Workspace that each thread brings.
class Bpe {
 public:
  explicit Bpe(BpeModel model);

  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
    bool gone;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t id;
  };
  struct Workspace {
    WordCache cache;
    std::vector<std::int32_t> ids;
    std::vector<MergeTable::Merge> ranks;
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  /// Appends the ids of a word, which is not empty. With `special_is_text` none is a special token's, but the
  /// one for what is unknown.
  void encode(std::string_view word, bool special_is_text, Workspace& workspace,
              std::vector<std::int32_t>& ids) const;
  /// The same for a text without words: it is cut where no merge can cross.
  void encode_text(std::string_view text, bool special_is_text, Workspace& workspace,
                   std::vector<std::int32_t>& ids) const;

  /// The parts of such a text, or of a word, that no merge crosses.
  void append_parts(std::string_view text, std::vector<std::string>& parts) const;

  const BpeModel& model() const { return model_; }
  void mark_special(std::int32_t id, bool special = true);

 private:
  void merge_word(std::string_view word, bool no_special, Workspace& workspace) const;
  void start(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_short(bool no_special, Workspace& workspace) const;
  void merge_long(bool no_special, Workspace& workspace) const;
  const MergeTable::Merge* find(std::int32_t left, std::int32_t right, bool no_special) const {
    const auto* merge = model_.merges.find(left, right);
    return merge && no_special && model_.special[static_cast<std::size_t>(merge->id)] ? nullptr : merge;
  }
  std::int32_t id_of(std::string_view entry) const;  // -1: absent
  bool may_cut_before_spaces() const;
  bool may_cut_at_newlines() const;
  std::size_t word_end(std::string_view text, std::size_t at) const;
  std::size_t symbol_bytes(char first) const;
  void find_joined();
  bool may_join(std::string_view left, std::string_view right) const;

  BpeModel model_;
  std::array<std::int32_t, 256> byte_ids_{};  // of entries of one byte
  bool cut_before_spaces_ = false;
  bool cut_at_newlines_ = false;
  std::set<std::string, std::less<>>
      joined_;  // two symbols in a row in a token, the first a newline or the second a space
};

}  // namespace llampi::tokenizer
