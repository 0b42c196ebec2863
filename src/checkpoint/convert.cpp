// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/convert.hpp"

#include <array>

#include "checkpoint/chat_export.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
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
  fs::remove(target, error);  // it may be a link, to a file that is not the folder's
  if (!error && is_given) fs::copy_file(source, target, error);
  if (error) throw_user_error("cannot copy {} to {}: {}", source.string(), target.string(), error.message());
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
        "no tokenizer is known for the model: the one that {} held stays there; name the folder of another "
        "with --tokenizer",
        request.output.string());
    return;
  }
  log.warning("no tokenizer is in the folder: copy its files into it, or name their folder with --tokenizer");
}

/// The folder is made and held: two exports at once would leave a mixture. Then what is in it is looked at.
io::PosixFile open_output(const ExportRequest& request, const Log& log) {
  std::error_code error;
  fs::create_directories(request.output, error);
  if (error) throw_user_error("cannot create the folder {}: {}", request.output.string(), error.message());
  io::PosixFile folder = io::PosixFile::open_for_reading(request.output);
  const io::Lock lock = folder.lock();
  if (lock == io::Lock::taken)
    throw_user_error("another export is writing to {}; wait until it has finished", request.output.string());
  if (lock == io::Lock::unsupported) {
    log.warning("the file system of {} has no locks for folders: let no other export write there meanwhile",
                request.output.string());
  }
  io::clear_leftovers_in(request.output, log);
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
  for (const auto& tensor : tensors) {
    std::int64_t n = 1;
    for (const auto extent : tensor.shape) n *= extent;
    elements += n;
  }
  log.info("{}: {} parameters as {}, {}, in {:.1f} s", written.string(), elements, to_string(dtype),
           format_bytes(elements * size_of(dtype)), seconds);
}

}  // namespace

void export_folder(comm::World& world, const ExportRequest& request, const Log& log) {
  const double begin = steady_seconds();
  model::LlamaConfig config;
  std::string chat_template;
  std::unique_ptr<WeightsSource> source;
  comm::agree(world, [&] {
    if (identify(request.checkpoint) != FileKind::checkpoint)
      throw_user_error("{} is not a checkpoint; export writes a Hugging Face folder from a checkpoint",
                       request.checkpoint.string());
    const auto texts = read_checkpoint_summary(request.checkpoint).texts;
    config = llama_of(texts, request.checkpoint);
    chat_template = texts.chat_template;
    source = open_checkpoint_weights(request.checkpoint);
    check_tensors(*source, tensors_of(config));
  });
  io::PosixFile held;
  comm::on_rank_0(world, [&] { held = open_output(request, log); });
  export_weights(world, *source, request.output, {request.dtype, request.max_shard_bytes, request.overwrite});
  comm::on_rank_0(world, [&] {
    copy_tokenizer(request, log);
    const auto text =
        export_chat(request.output, chat_template, model::config_text(config, request.dtype), log);
    io::write_whole(request.output / "config.json", text);
  });
  report(log, request.output, source->tensors(), request.dtype, steady_seconds() - begin);
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
  });
  comm::on_rank_0(world, [&] { io::clear_leftovers(io::follow_links(checkpoint), log); });
  import_weights(world, *source, checkpoint, {config.json, ""}, overwrite);
  report(log, checkpoint, source->tensors(), DType::float32, steady_seconds() - begin);
}

}  // namespace llampi::checkpoint
