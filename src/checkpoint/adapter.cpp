// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/adapter.hpp"

#include <set>
#include <utility>

#include "checkpoint/peft_names.hpp"
#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The names of the linear maps that the tensors are adapters of.
std::vector<std::string> modules_of(const std::vector<TensorInfo>& tensors, const std::string& source) {
  std::set<std::string> modules;
  for (const auto& tensor : tensors) {
    const auto module = module_of_adapter(tensor.name);
    for (const char* of_base : {".base_layer.weight", "embed_tokens.weight", "lm_head.weight"}) {
      if (tensor.name.ends_with(of_base))
        throw_user_error(
            "{} has the tensor {}, which is of the base model; save the adapter in Python with "
            "save_pretrained(FOLDER, save_embedding_layers=False)",
            source, tensor.name);
    }
    if (module.empty())
      throw_user_error(
          "{} has the tensor {}, but the names of a LoRA adapter's tensors end in .lora_A.weight or .lora_B.weight; "
          "give a LoRA adapter",
          source, tensor.name);
    modules.insert(module);
  }
  if (modules.empty()) throw_user_error("{} holds no adapter", source);
  return {modules.begin(), modules.end()};
}

/// adapter_model.safetensors, without what PEFT puts before each name.
class PeftWeights final : public WeightsSource {
 public:
  explicit PeftWeights(const fs::path& folder) : file_(folder / kPeftWeights) {
    for (const auto& [name, entry] : file_.tensors()) {
      const std::string inner = without_peft_prefix(name);
      if (inner.empty()) {
        throw_user_error(
            "{} has the tensor {}, whose name does not begin with {}; give an adapter of a causal language model, as "
            "PEFT saves it",
            file_.path().string(), name, kPeftPrefix);
      }
      tensors_.push_back({inner, entry.shape, false});
      names_.push_back(name);
    }
  }
  fs::path path() const override { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    file_.read(names_[static_cast<std::size_t>(tensor)], begin, elements, values);
  }

 private:
  SafetensorsFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> names_;  ///< in the file
};

bool is_peft_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kPeftConfig, ignored);
}

tokenizer::ChatTemplateText template_of_run(const fs::path& trained) {
  if (trained.empty() || identify(trained) != FileKind::checkpoint) return {};
  return {read_checkpoint_summary(trained).texts.chat_template, trained.string()};
}

}  // namespace

std::string without_peft_prefix(const std::string& name) {
  constexpr std::string_view kBefore = kPeftPrefix;
  return name.starts_with(kBefore) ? name.substr(kBefore.size()) : "";
}

std::string module_of_adapter(const std::string& name) {
  for (const std::string_view end : {".lora_A.weight", ".lora_B.weight"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return "";
}

bool holds_adapter(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return is_peft_folder(path);
  return identify(path) == FileKind::checkpoint && !read_checkpoint_summary(path).texts.adapter.empty();
}

tokenizer::ChatTemplateText trained_template(const fs::path& weights, const fs::path& adapter) {
  std::error_code ignored;
  auto of_adapter =
      fs::is_directory(adapter, ignored) ? tokenizer::chat_template_in(adapter) : template_of_run(adapter);
  return of_adapter.text.empty() ? template_of_run(weights) : of_adapter;
}

std::vector<fs::path> adapter_files(const fs::path& path) {
  const auto type = io::type_of(path);
  if (type == fs::file_type::not_found)
    throw_user_error("{}: no such file or folder{}", path.string(), seen_from(path));
  if (type != fs::file_type::directory) return {path};
  return {path / kPeftConfig, path / kPeftWeights};
}

Adapter open_adapter(const fs::path& path) {
  Adapter adapter{path, {}, nullptr};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (!is_peft_folder(path)) {
      throw_user_error(
          "there is no {} in {}; give the folder of a LoRA adapter, or a checkpoint of a run with lora.rank",
          kPeftConfig, path.string());
    }
    const fs::path config = path / kPeftConfig;
    adapter.info = parse_adapter(io::read_whole(config), config.string());
    if (!fs::exists(path / kPeftWeights, ignored))
      throw_user_error("there is no {} in {}; adapters in other files are not read", kPeftWeights,
                       path.string());
    adapter.weights = std::make_unique<PeftWeights>(path);
  } else {
    if (identify(path) != FileKind::checkpoint)
      throw_user_error("{} holds no adapter; give the folder of one, or a checkpoint of a run with lora.rank",
                       path.string());
    const auto texts = read_checkpoint_summary(path).texts;
    if (texts.adapter.empty()) {
      throw_user_error("{} holds a whole model and no adapter; give it as weights", path.string());
    }
    adapter.info = parse_adapter(texts.adapter, path.string());
    adapter.weights = open_checkpoint_weights(path);
  }
  adapter.info.config.modules = modules_of(adapter.weights->tensors(), path.string());
  return adapter;
}

}  // namespace llampi::checkpoint
