// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/training_data.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/sampler.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 62;
constexpr std::string_view kBlank = " \t";

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// "code.h5:2"
NamedPart parse_part(const std::string& text) {
  const auto colon = text.rfind(':');
  if (exists(text) || colon == text.npos) return {text};
  const std::string path(trimmed(std::string_view(text).substr(0, colon), kBlank)),
      number(trimmed(std::string_view(text).substr(colon + 1), kBlank));
  const auto times = parse_number<double>(number);
  if (times && *times > 0 && std::isfinite(*times)) return {path, *times};
  if (!times && !exists(path)) return {text};
  throw_user_error("{}: \"{}\" is not a number above 0: how often an epoch reads the samples of {}", text,
                   number, path);
}

/// Of a folder its token files, else the file itself.
std::vector<NamedPart> files_of(const NamedPart& part) {
  std::error_code ignored;
  if (!fs::is_directory(part.path, ignored)) return {part};
  std::error_code error;
  std::vector<NamedPart> files;
  for (const auto& file : io::entries_of(part.path, error)) {
    if (file.extension() == ".h5" && !file.filename().string().starts_with('.') &&
        !fs::is_directory(file, ignored))
      files.push_back({file, part.times});
  }
  if (error) throw_user_error("{} cannot be read: {}", part.path.string(), error.message());
  if (files.empty())
    throw_user_error("{} is a folder without token files (*.h5); give a file that llampi tokenize wrote",
                     part.path.string());
  std::ranges::sort(files, {}, &NamedPart::path);
  return files;
}

}  // namespace

std::vector<NamedPart> parse_token_files(const std::string& text) {
  if (exists(text)) return files_of({text});
  std::vector<NamedPart> parts;
  auto names = split(text, ',');
  if (text.empty() || text.ends_with(',')) names.emplace_back();  // which split() leaves out
  for (const auto& name : names) {
    const auto part = parse_part(std::string(trimmed(name, kBlank)));
    if (part.path.empty()) throw_user_error("{}: a name between commas is empty", text);
    const auto files = files_of(part);
    parts.insert(parts.end(), files.begin(), files.end());
  }
  return parts;
}

TrainingData::TrainingData(std::vector<Part> parts, std::int64_t seq_len, std::uint64_t seed, bool shuffle)
    : parts_(std::move(parts)), seq_len_(seq_len), seed_(seed), shuffle_(shuffle) {
  require(!parts_.empty() && seq_len > 0, "files of training data");
  std::int64_t end = 0;
  const bool is_one = parts_.size() == 1;  // whose samples are compared with the batch
  for (auto& part : parts_) {
    part.samples = part.file.samples(seq_len);
    const double drawn = std::round(part.times * static_cast<double>(part.samples));
    const std::string name = part.file.path().string();
    const std::int64_t most = kMostTokens / seq_len - end;
    if (drawn >= static_cast<double>(most))
      throw_user_error("{}: {} times {} are too many for an epoch", name, part.times,
                       count(part.samples, "sample"));
    part.drawn = part.times == 1 ? part.samples : static_cast<std::int64_t>(drawn);
    if (part.samples < 1 && !is_one)
      throw_user_error("{} has {}, too few for one sample of data.seq_len = {} + 1; leave it out", name,
                       count(part.file.tokens(), "token"), seq_len);
    if (part.drawn < 1 && !is_one)
      throw_user_error("{}:{} reads none of its {} in an epoch; leave it out, or give a larger number", name,
                       part.times, count(part.samples, "sample"));
    ends_.push_back(end += part.drawn);
  }
}

SamplePlace TrainingData::place(std::int64_t sample, std::int64_t epoch) const {
  require(sample >= 0 && sample < samples(), "a sample beyond the training data");
  const auto number = std::ranges::upper_bound(ends_, sample) - ends_.begin();
  const Part& part = parts_[static_cast<std::size_t>(number)];
  const std::int64_t first = ends_[static_cast<std::size_t>(number)] - part.drawn;
  const std::int64_t index = sample - first, in_whole_passes = part.drawn - part.drawn % part.samples;
  if (index < in_whole_passes) return {&part.file, index % part.samples};
  const std::int64_t left = part.drawn - in_whole_passes;
  const std::int64_t draw = (epoch * left + index - in_whole_passes) % part.samples;
  if (!shuffle_) return {&part.file, draw};
  const std::uint64_t seed = RandomStream(seed_, "order of parts").bits(static_cast<std::uint64_t>(number));
  return {&part.file, Permutation(part.samples, seed, 0)(draw)};
}

std::int64_t TrainingData::tokens() const {
  return is_one_file() ? parts_.front().file.tokens() : samples() * seq_len_ + 1;
}

bool TrainingData::has_loss_mask() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.file.has_loss_mask(); });
}

bool TrainingData::has_documents() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.file.documents() > 1; });
}

const TokenFile& TrainingData::with_tokenizer() const {
  const auto known = [](const Part& part) { return !part.file.tokenizer().empty(); };
  const auto found = std::ranges::find_if(parts_, known);
  return found == parts_.end() ? parts_.front().file : found->file;
}

std::string TrainingData::chat_template() const {
  for (const auto& part : parts_) {
    if (!part.file.notes().chat_template.empty()) return part.file.notes().chat_template;
  }
  return "";
}

}  // namespace llampi::data
