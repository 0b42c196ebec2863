// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/convert.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "checkpoint/chat_export.hpp"
#include "checkpoint/finite_weights.hpp"
#include "checkpoint/peft_names.hpp"
#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/newest.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The files of a Hugging Face folder that are neither weights nor config.json, as transformers names them.
constexpr std::array kCompanions{"tokenizer.json",          "tokenizer.model",   "tokenizer_config.json",
                                 "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                                 "generation_config.json"};

std::vector<TensorInfo> tensors_of(const model::LlamaConfig& config) {
  const auto model = model::make_llama(config);
  std::vector<TensorInfo> tensors;
  for (const auto& parameter : model->parameters())
    tensors.push_back({parameter.name, parameter.shape, false});
  return tensors;
}

/// Also of a link that leads nowhere.
bool is_path_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// One of kCompanions. What is there under its name is another model's, also where the source has no such
/// file.
void copy_companion(const fs::path& source, const fs::path& target) {
  std::error_code error;
  if (fs::equivalent(source, target, error)) return;
  const bool is_given = fs::exists(source, error);
  if (error) throw_user_error("cannot read {}: {}", source.string(), error.message());
  if (is_given) return io::write_whole(target, io::read_whole(source));
  fs::remove(target, error);
  if (error) throw_user_error("{} cannot be removed: {}", target.string(), error.message());
}

void copy_tokenizer(const ExportRequest& request, const Log& log) {
  for (const auto& folder : request.tokenizers) {
    if (!tokenizer::holds_tokenizer(folder)) continue;
    for (const auto* name : kCompanions) copy_companion(folder / name, request.output / name);
    log.info("tokenizer: from {}", folder.string());
    return;
  }
  if (tokenizer::holds_tokenizer(request.output)) {
    log.warning(
        "no tokenizer was found for the model: the one already in {} is kept; replace it with --tokenizer "
        "FOLDER",
        request.output.string());
    return;
  }
  if (request.is_over_bytes) return log.info("tokenizer: none, the tokens of the model are bytes");
  log.warning(
      "no tokenizer was found for the model: copy its files into {}, or name their folder with --tokenizer",
      request.output.string());
}

/// What others load must give the ids that the model was trained with.
void warn_of_class(const fs::path& folder, const std::string& model_type, const Log& log) {
  const auto name = tokenizer::class_that_overrides(folder, model_type);
  if (name.empty()) return;
  log.warning(
      "transformers 5 reads this tokenizer.json as {}, which has steps of its own and gives other ids for some texts than in "
      "training: {}",
      name,
      model_type == "qwen2"
          ? "load it with PreTrainedTokenizerFast"
          : "set \"tokenizer_class\" to \"PreTrainedTokenizerFast\" in tokenizer_config.json");
}

/// The same for tokens that only the files next to it name.
void warn_of_added_tokens(const fs::path& folder, const Log& log) {
  const auto names = tokenizer::tokens_that_transformers_adds(folder);
  if (names.empty()) return;
  log.warning(
      "transformers 5 adds {} to this tokenizer.json, as \"pad_token\" or the like in the files next to it names {}, and "
      "texts with {} get other ids than in training: name only tokens there that \"added_tokens\" of tokenizer.json lists",
      fmt::join(names, ", "), names.size() == 1 ? "it" : "them",
      names.size() == 1 ? "this name" : "these names");
}

/// The folder of an export, held: two at once would leave a mixture. What was made for it goes again where nothing is in it at the
/// end, as of an export that was refused.
class Output {
 public:
  Output() = default;
  Output(const fs::path& folder, std::vector<fs::path> made)
      : held_(io::PosixFile::open_for_reading(folder)), made_(std::move(made)) {}
  ~Output() {
    std::error_code ignored;  // where something is in it
    for (const auto& path : made_) fs::remove(path, ignored);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  Output(Output&&) = default;
  Output& operator=(Output&&) = default;

  io::Lock lock() {
    const io::Lock lock = held_.lock();
    if (lock != io::Lock::locked) made_.clear();  // it may be another export's
    return lock;
  }

 private:
  io::PosixFile held_;
  std::vector<fs::path> made_;  ///< the innermost first
};

Output hold_output(const ExportRequest& request, const Log& log) {
  // Whatever may be replaced: who reads the folder would take the model, and not the newest checkpoint.
  if (is_run_folder(request.output))
    throw_user_error(
        "{} is the folder of a run, and what is exported needs a folder of its own; choose another folder",
        request.output.string());
  std::error_code ignored;
  const auto is_checkpoint = [](const fs::path& entry) { return checkpoint_step(entry).has_value(); };
  if (std::ranges::any_of(io::entries_of(request.output, ignored), is_checkpoint))
    throw_user_error(
        "{} holds the checkpoints of a run, and what is exported needs a folder of its own; choose another folder",
        request.output.string());
  auto made = io::missing_paths(request.output);
  io::create_folder(request.output);
  Output folder(request.output, std::move(made));
  const io::Lock lock = folder.lock();
  if (lock == io::Lock::taken)
    throw_user_error("another export is writing to {}; wait until it has finished", request.output.string());
  if (lock == io::Lock::unsupported) {
    log.warning("the file system of {} has no locks for folders: let no other export write there meanwhile",
                request.output.string());
  }
  io::clear_leftovers_in(request.output, log);
  return folder;
}

/// hold_output(); then what is in it is looked at.
Output open_output(const ExportRequest& request, const Log& log) {
  std::error_code ignored;
  // Whatever may be replaced: the adapter belongs to no other model.
  if (!request.base.empty() && fs::equivalent(request.output, request.base, ignored))
    throw_user_error("{} is the model that the adapters belong to; choose another folder",
                     request.output.string());
  Output folder = hold_output(request, log);
  // Whatever may be replaced: who reads the folder would take the adapter, and not the model.
  if (is_path_there(request.output / kPeftConfig))
    throw_user_error("{} holds an adapter ({}), and a model needs a folder of its own; choose another folder",
                     request.output.string(), kPeftConfig);
  if (request.overwrite) return folder;
  if (is_path_there(request.output / "config.json"))
    throw_user_error(
        "{} already holds a model (config.json); choose another folder, or replace it with --overwrite",
        request.output.string());
  for (const auto* name : kCompanions) {
    if (is_path_there(request.output / name))
      throw_user_error("{} already holds {}; choose another folder, or replace it with --overwrite",
                       request.output.string(), name);
  }
  return folder;
}

void report(const Log& log, const fs::path& written, const std::vector<TensorInfo>& tensors, DType dtype,
            double seconds) {
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += elements_of(tensor.shape);
  log.info("{}: {} parameters as {}, {}, in {:.1f} s", written.string(), elements, to_string(dtype),
           format_bytes(elements * size_of(dtype)), seconds);
}

/// What is exported: a model, with the adapter that is merged into it, if there is one.
struct Exported {
  model::LlamaConfig config;
  std::string chat_template;
  std::unique_ptr<WeightsSource> source;
  std::optional<Adapter> adapter;
};

/// Weights of a whole model. @throws UserError
void open_base(const fs::path& base, const fs::path& adapter, Exported& exported) {
  if (base.empty()) {
    throw_user_error(
        "{} holds adapters; name the model that they belong to with --base, or write them alone with --adapter",
        adapter.string());
  }
  switch (identify(base)) {
    case FileKind::huggingface_folder:
      exported.config = model::LlamaConfig::read(base);
      exported.source = open_safetensors(base, exported.config.tie_word_embeddings);
      return;
    case FileKind::checkpoint: {
      exported.config = llama_of(read_checkpoint_summary(base).texts, base);
      exported.source = open_checkpoint_weights(base);
      return;
    }
    case FileKind::tokens:
      throw_user_error("--base {} is a token file; give the model that the adapters belong to",
                       base.string());
  }
}

Exported open_exported(const ExportRequest& request) {
  Exported exported;
  if (holds_adapter(request.checkpoint)) {
    open_base(request.base, request.checkpoint, exported);
    exported.adapter = open_adapter(request.checkpoint);
  } else {
    if (identify(request.checkpoint) != FileKind::checkpoint)
      throw_user_error("{} is not a checkpoint; export writes a Hugging Face folder from a checkpoint",
                       request.checkpoint.string());
    exported.config = llama_of(read_checkpoint_summary(request.checkpoint).texts, request.checkpoint);
    exported.source = open_checkpoint_weights(request.checkpoint);
  }
  exported.chat_template = trained_template(request.base, request.checkpoint).text;
  check_tensors(*exported.source, tensors_of(exported.config));
  return exported;
}

/// A file of PEFT's folder. @param named the tensors as the file names them
void write_safetensors(const fs::path& file, const WeightsSource& source,
                       const std::vector<TensorInfo>& named) {
  const auto out = io::PosixFile::create(file);
  const std::string beginning = safetensors_beginning(named, DType::float32);
  out.write_at(0, std::as_bytes(std::span(beginning)));
  auto offset = static_cast<std::int64_t>(beginning.size());
  std::vector<float> values(static_cast<std::size_t>(kTransferElements));
  TensorParts parts(0, 1, kTransferElements);
  for (int t = 0; t < static_cast<int>(named.size()); ++t) {
    parts.next(elements_of(named[static_cast<std::size_t>(t)].shape),
               [&](std::int64_t begin, std::int64_t count) {
                 source.read(t, begin, count, values.data());
                 const auto bytes = std::as_bytes(std::span(values).first(static_cast<std::size_t>(count)));
                 out.write_at(offset, bytes);
                 offset += std::ssize(bytes);
               });
  }
  out.sync();
}

}  // namespace

void export_folder(comm::World& world, const ExportRequest& request, const Log& log) {
  const double begin = steady_seconds();
  Exported exported;
  comm::agree(world, [&] { exported = open_exported(request); });
  Output held;  // by rank 0
  comm::on_rank_0(world, [&] { held = open_output(request, log); });
  std::string name = exported.source->path().string();
  if (exported.adapter) {
    name += fmt::format(" with the adapters of {}", request.checkpoint.string());
    exported.source = merge_checked(world, std::move(exported.source), std::move(*exported.adapter));
  }
  const FiniteWeights weights(std::move(exported.source));
  export_weights(world, weights, request.output, {request.dtype, request.max_shard_bytes, request.overwrite});
  comm::on_rank_0(world, [&] {
    copy_tokenizer(request, log);
    const auto text = export_chat(request.output, exported.chat_template,
                                  model::config_text(exported.config, request.dtype), log);
    io::write_whole(request.output / "config.json", text);
    warn_of_class(request.output, exported.config.family().model_type, log);
    warn_of_added_tokens(request.output, log);
  });
  weights.warn(world, name, log);
  report(log, request.output, weights.tensors(), request.dtype, steady_seconds() - begin);
}

void export_adapter(comm::World& world, const ExportRequest& request, const Log& log) {
  const double begin = steady_seconds();
  comm::on_rank_0(world, [&] {
    if (fs::is_regular_file(request.checkpoint) && identify(request.checkpoint) == FileKind::checkpoint &&
        read_checkpoint_summary(request.checkpoint).texts.adapter.empty())
      throw_user_error("{} holds a whole model and no adapter; leave out --adapter",
                       request.checkpoint.string());
    const Adapter adapter = open_adapter(request.checkpoint);
    if (adapter.info.base_sums.empty())
      throw_user_error("{} is a folder of an adapter already; give a checkpoint of a run with lora.rank",
                       request.checkpoint.string());
    const auto texts = read_checkpoint_summary(request.checkpoint).texts;
    const auto config = llama_of(texts, request.checkpoint);
    const Output held = hold_output(request, log);
    // Whatever may be replaced: who reads the folder would take the adapter, and not the model.
    if (is_path_there(request.output / "config.json"))
      throw_user_error(
          "{} holds a model (config.json), and adapters need a folder of their own; choose another folder",
          request.output.string());
    const fs::path config_file = request.output / kPeftConfig, weights_file = request.output / kPeftWeights,
                   template_file = request.output / "chat_template.jinja";
    for (const auto& file : {config_file, weights_file, template_file}) {
      if (!request.overwrite && is_path_there(file))
        throw_user_error("{} is there already; choose another folder, or replace it with --overwrite",
                         file.string());
    }
    std::vector<TensorInfo> named = adapter.weights->tensors();
    for (auto& tensor : named) tensor.name = kPeftPrefix + tensor.name;
    const io::TemporaryFile new_weights(io::temporary_beside(weights_file)),
        new_config(io::temporary_beside(config_file)), new_template(io::temporary_beside(template_file));
    write_safetensors(new_weights.path(), *adapter.weights, named);
    io::write_whole(new_config.path(), adapter_config_text(adapter.info, config.layers));
    if (!texts.chat_template.empty()) io::write_whole(new_template.path(), texts.chat_template);
    for (const auto& file : {config_file, template_file}) {  // a folder without the first is no adapter
      std::error_code error;
      fs::remove(file, error);
      if (error) throw_user_error("{} cannot be replaced: {}", file.string(), error.message());
    }
    io::rename_into_place(new_weights.path(), weights_file);
    if (!texts.chat_template.empty()) io::rename_into_place(new_template.path(), template_file);
    io::rename_into_place(new_config.path(), config_file);
    report(log, request.output, named, DType::float32, steady_seconds() - begin);
  });
}

/// Whatever may be replaced: what is imported stays. A checkpoint in the folder is not part of its model.
void refuse_input(const fs::path& checkpoint, const fs::path& folder) {
  std::error_code ignored;
  const auto entries = io::entries_of(folder, ignored);
  const auto is_it = [&](const fs::path& entry) {
    return fs::equivalent(checkpoint, entry, ignored);  // through links
  };
  if (std::ranges::none_of(entries, is_it)) return;
  try {
    if (identify(checkpoint) == FileKind::checkpoint) return;
  } catch (const UserError&) {  // it is something else
  }
  throw_user_error("the output {} is a file of the model that is imported; name another --output",
                   checkpoint.string());
}

void import_folder(comm::World& world, const fs::path& folder, const fs::path& checkpoint, bool overwrite,
                   const Log& log) {
  const double begin = steady_seconds();
  model::LlamaConfig config;
  std::unique_ptr<WeightsSource> source;
  comm::agree(world, [&] {
    if (identify(folder) != FileKind::huggingface_folder)
      throw_user_error("{} is not a Hugging Face folder; import writes a checkpoint from one",
                       folder.string());
    config = model::LlamaConfig::read(folder);
    source = open_safetensors(folder, config.tie_word_embeddings);
    check_tensors(*source, tensors_of(config));
    refuse_input(checkpoint, folder);
  });
  comm::on_rank_0(world, [&] { io::clear_leftovers(io::follow_links(checkpoint), log); });
  const FiniteWeights weights(std::move(source));
  import_weights(world, weights, checkpoint, {config.json, ""}, overwrite);
  weights.warn(world, weights.path().string(), log);
  report(log, checkpoint, weights.tensors(), DType::float32, steady_seconds() - begin);
}

}  // namespace llampi::checkpoint
