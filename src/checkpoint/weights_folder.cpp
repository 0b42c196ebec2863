// SPDX-License-Identifier: Apache-2.0
// The tensors of a Hugging Face folder: one safetensors file, or several with an index
//   {"metadata": {...}, "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors", ...}}
#include "checkpoint/weights_folder.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool holds_file(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

SafetensorsIndex read_index(const fs::path& folder) {
  const fs::path file = folder / kWeightsIndex;
  return parse_safetensors_index(io::read_whole(file), file.string());
}

std::set<std::string> files_in(const SafetensorsIndex& index) {
  std::set<std::string> names;
  for (const auto& [tensor, name] : index) names.insert(name);
  return names;
}

constexpr const char *kEmbedding = "model.embed_tokens.weight", *kHead = "lm_head.weight";

/// Also of numbers that are none.
bool is_same(float a, float b) {
  return a == b || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// What transformers does not load either.
bool is_left_out(const std::string& name, bool tied_head) {
  return (tied_head && name == kHead) || name.ends_with(".rotary_emb.inv_freq");
}

class WeightsFolder final : public WeightsSource {
 public:
  WeightsFolder(fs::path path, bool tied_head) : path_(std::move(path)) {
    std::error_code ignored;
    if (!fs::is_directory(path_, ignored)) {
      throw_user_error("{}: no such folder; give the Hugging Face folder that holds {}", path_.string(),
                       kWholeWeights);
    }
    if (holds_file(path_ / kWholeWeights)) {
      add_file(kWholeWeights, nullptr, tied_head);
    } else if (holds_file(path_ / kWeightsIndex)) {
      add_files_of_index(tied_head);
    } else {
      refuse_folder();
    }
    refuse_other_head();
  }

  fs::path path() const override { return files_.size() == 1 ? files_.front().path() : path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    files_[file_of_[tensor]].read(tensors_[tensor].name, begin, elements, values);
  }

 private:
  [[noreturn]] void refuse_folder() const {
    for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (!holds_file(path_ / name)) continue;
      throw_user_error(
          "{} holds {} but no {}, and .bin files are not read: convert it in Python with transformers, "
          "AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(FOLDER)",
          path_.string(), name, kWholeWeights, path_.string());
    }
    throw_user_error("there is no {} in {}; give the Hugging Face folder that holds it", kWholeWeights,
                     path_.string());
  }

  /// @param map of the index; null: the file is the only one
  void add_file(const std::string& name, const SafetensorsIndex* map, bool tied_head) {
    const auto& file = files_.emplace_back(path_ / name);
    for (const auto& [tensor, entry] : file.tensors()) {
      if (tensor == kHead && tied_head) head_ = {{tensor, entry.shape}, files_.size() - 1};
      if (is_left_out(tensor, tied_head)) continue;
      if (map != nullptr) {
        const auto expected = map->find(tensor);
        if (expected == map->end() || expected->second != name) {
          throw_user_error("{} holds {}, which {} {}; fetch the folder again", file.path().string(), tensor,
                           (path_ / kWeightsIndex).string(),
                           expected == map->end() ? "does not name" : "has in " + expected->second);
        }
      }
      tensors_.push_back({tensor, entry.shape});
      file_of_.push_back(files_.size() - 1);
    }
  }

  void add_files_of_index(bool tied_head) {
    const fs::path file = path_ / kWeightsIndex;
    const auto map = read_index(path_);
    const auto names = files_in(map);
    std::set<std::string> found;
    files_.reserve(names.size());
    for (const auto& name : names) {
      if (!holds_file(path_ / name))
        throw_user_error("{} names {}, which is not there; fetch it too", file.string(), name);
    }
    for (const auto& name : names) add_file(name, &map, tied_head);
    for (const auto& tensor : tensors_) found.insert(tensor.name);
    for (const auto& [tensor, name] : map) {
      if (found.contains(tensor) || is_left_out(tensor, tied_head)) continue;
      throw_user_error("{} has {} in {}, but it is not there; fetch the folder again", file.string(), tensor,
                       name);
    }
  }

  /// transformers computes with both where a tied head differs from the embedding. Compared where the matrices are likely to
  /// differ, if they do: in many places.
  void refuse_other_head() const {
    constexpr std::int64_t kPlaces = 64, kElements = 256;
    const auto embedding = std::ranges::find(tensors_, kEmbedding, &TensorInfo::name);
    if (!head_ || embedding == tensors_.end() || embedding->shape != head_->first.shape) return;
    const std::int64_t all = elements_of(embedding->shape), count = std::min(kElements, all);
    std::vector<float> values(static_cast<std::size_t>(count)), head = values;
    for (std::int64_t place = 0; place < kPlaces; ++place) {
      const std::int64_t begin = (all - count) / (kPlaces - 1) * place;
      read(static_cast<int>(embedding - tensors_.begin()), begin, count, values.data());
      files_[head_->second].read(kHead, begin, count, head.data());
      if (std::ranges::equal(values, head, is_same)) continue;
      throw_user_error(
          "{} says that {} and {} are one matrix (tie_word_embeddings), but they differ; set tie_word_embeddings to "
          "false in its config.json, or remove {}",
          path_.string(), kEmbedding, kHead, kHead);
    }
  }

  fs::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> file_of_;                             ///< per tensor
  std::optional<std::pair<TensorInfo, std::size_t>> head_ = {};  ///< left out, with its file
};

}  // namespace

SafetensorsIndex parse_safetensors_index(const std::string& text, const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    throw_user_error("{} is not a safetensors index: {}; download it again", source, what);
  };
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception&) {
    refuse("it is not JSON");
  }
  if (!object.is_object() || !object.contains("weight_map") || !object["weight_map"].is_object())
    refuse("it has no weight_map");
  SafetensorsIndex map;
  for (const auto& [tensor, value] : object["weight_map"].items()) {
    if (!value.is_string()) refuse(fmt::format("the file of {} is not a name", tensor));
    const auto name = value.get<std::string>();
    // Of this folder and nowhere else, whoever wrote the index.
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != name.npos)
      refuse(fmt::format("{} would be in {}, which is not a file of this folder", tensor,
                         value.dump(-1, ' ', true, json::error_handler_t::replace)));
    map.emplace(tensor, name);
  }
  if (map.empty()) refuse("its weight_map is empty");
  return map;
}

std::vector<fs::path> weights_files(const fs::path& weights) {
  std::error_code ignored;
  if (!fs::is_directory(weights, ignored)) return {weights};
  if (holds_file(weights / kWholeWeights) || !holds_file(weights / kWeightsIndex))
    return {weights / kWholeWeights};
  std::vector<fs::path> files = {weights / kWeightsIndex};
  for (const auto& name : files_in(read_index(weights))) files.push_back(weights / name);
  return files;
}

std::unique_ptr<WeightsSource> open_safetensors(const fs::path& folder, bool tied_head) {
  return std::make_unique<WeightsFolder>(folder, tied_head);
}

}  // namespace llampi::checkpoint
