// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja_outline.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "llampi/core/error.hpp"

namespace llampi::tokenizer {
namespace {

constexpr std::string_view kDefaultSystemBegins = "<|im_start|>system\n";
constexpr std::string_view kDefaultSystemEnds = "<|im_end|>\n";

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

class Outliner {
 public:
  explicit Outliner(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {  // line ends as Jinja has them
      const bool pair = text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
      if (!pair) text_ += text[i] == '\r' ? '\n' : text[i];
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  JinjaOutline run() {
    while (at_ < text_.size()) {
      const auto tag = next_tag();
      add_data(tag);
      if (tag == std::string::npos) break;
      add_tag(tag);
    }
    end_data();
    return std::move(result_);
  }

 private:
  std::size_t next_tag() const {
    for (auto tag = text_.find('{', at_); tag != std::string::npos; tag = text_.find('{', tag + 1)) {
      if (tag + 1 < text_.size() && std::string_view("{%#").find(text_[tag + 1]) != std::string::npos)
        return tag;
    }
    return std::string::npos;
  }

  void add_data(std::size_t tag) {
    std::string data = text_.substr(at_, tag == std::string::npos ? tag : tag - at_);
    if (trims_) data.erase(0, data.find_first_not_of(" \t\n\v\f"));
    if (tag != std::string::npos && tag + 2 < text_.size()) {
      if (text_[tag + 2] == '-') {
        data.erase(data.find_last_not_of(" \t\n\v\f") + 1);
      } else if (text_[tag + 1] != '{' && text_[tag + 2] != '+') {
        strip_line(data, at_ == 0 || text_[at_ - 1] == '\n');
      }
    }
    data_ += data;
  }

  /// The white space between the beginning of a line and a tag.
  static void strip_line(std::string& data, bool begins_line) {
    const auto last = data.find_last_not_of(" \t");
    if (last == std::string::npos ? begins_line : data[last] == '\n')
      data.erase(last == std::string::npos ? 0 : last + 1);
  }

  void add_tag(std::size_t tag) {
    const char kind = text_[tag + 1];
    at_ = tag + 2;
    if (kind == '#') {
      const auto end = text_.find("#}", at_);
      at_ = end == std::string::npos ? text_.size() : end;
    } else {
      end_data();
      add(kind == '{' ? "{{" : "{%");
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      add_words(kind == '{' ? "}}" : "%}");
    }
    if (at_ == text_.size()) return;
    trims_ = text_[at_ - 1] == '-';
    at_ += 2;
    if (kind != '{' && !trims_ && text_[at_ < text_.size() ? at_ : 0] == '\n' && at_ < text_.size()) ++at_;
  }

  /// The words of a tag up to `end`, where at_ is then.
  void add_words(std::string_view end) {
    while (at_ < text_.size()) {
      const std::string_view rest = std::string_view(text_).substr(at_);
      if (rest.starts_with(end)) return;
      if (rest.front() == '-' && rest.substr(1).starts_with(end)) {
        ++at_;
        return;
      }
      if (is_space(rest.front())) {
        ++at_;
      } else if (rest.front() == '\'' || rest.front() == '"') {
        add_string(read_string());
      } else {
        std::size_t length = 1;
        while (is_word(rest.front()) && length < rest.size() && is_word(rest[length])) ++length;
        add(rest.substr(0, length));
        at_ += length;
      }
    }
  }

  std::string read_string() {
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        if (c == 'n')
          c = '\n';
        else if (c == 't')
          c = '\t';
        else if (c != '\\' && c != '\'' && c != '"')
          value += '\\';  // kept as it stands
      }
      value += c;
    }
    if (at_ < text_.size()) ++at_;
    return value;
  }

  void add_string(std::string value) {
    static constexpr std::array<std::string_view, 3> kSetsDate{"set", "date_string", "="};
    const bool is_date =
        words_.size() >= 3 && std::equal(kSetsDate.begin(), kSetsDate.end(), words_.end() - 3);
    const auto fixed = kDefaultSystemBegins.size() + kDefaultSystemEnds.size();
    const bool is_system =
        value.size() > fixed && value.starts_with(kDefaultSystemBegins) &&
        value.ends_with(kDefaultSystemEnds) &&
        value.find("<|im_", kDefaultSystemBegins.size()) == value.size() - kDefaultSystemEnds.size();
    if (is_date && result_.date.empty()) {
      result_.date = std::exchange(value, "date");
    } else if (is_system && result_.default_system.empty()) {
      result_.default_system = value.substr(kDefaultSystemBegins.size(), value.size() - fixed);
      value = "default system";
    }
    add("'" + value);
  }

  void end_data() {
    if (!data_.empty()) add("=" + data_);
    data_.clear();
  }

  void add(std::string_view word) {
    constexpr std::uint64_t kPrime = 0x100000001b3;
    const std::string item = fmt::format("{}:{}", word.size(), word);
    for (const char c : item) {
      result_.fingerprint = (result_.fingerprint ^ static_cast<unsigned char>(c)) * kPrime;
    }
    words_.emplace_back(word);
  }

  std::string text_;
  std::size_t at_ = 0;  // up to here it was read
  bool trims_ = false;  // the last tag takes the white space behind it along
  std::string data_;    // between tags, since the last one that is no comment
  std::vector<std::string> words_;
  JinjaOutline result_{.fingerprint = 0xcbf29ce484222325};
};

}  // namespace

JinjaOutline outline_of(std::string_view text) { return Outliner(text).run(); }

}  // namespace llampi::tokenizer
