// SPDX-License-Identifier: Apache-2.0
// llampi export, llampi import
#include <cctype>
#include <charconv>

#include "cli/adapter_option.hpp"
#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/options.hpp"
#include "cli/ranks.hpp"
#include "cli/text_options.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/convert.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/dtype_words.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/data/content.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "llampi/train/run_checkpoints.hpp"

namespace llampi::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExportUsage =
    R"(Usage: [mpirun -n RANKS] llampi export --checkpoint FILE|FOLDER --output FOLDER [OPTIONS]

Writes a Hugging Face folder: safetensors, config.json and the tokenizer's files. Ranks share the
work; each needs only a few MiB of memory. LoRA adapters are merged into the model that they belong
to or, with --adapter, written alone, as a folder that PEFT loads.
)";
constexpr const char* kImportUsage = R"(Usage: [mpirun -n RANKS] llampi import --weights FOLDER --output FILE

Writes a checkpoint (step 0, no optimizer state) from a Hugging Face folder. Training can also start
from the folder itself: model.weights = FOLDER.
)";

struct ExportArguments {
  std::string checkpoint, output, base, tokenizer;
  bool adapter = false;
  DType dtype = DType::float32;
  std::string max_shard_size = "5GB";
  bool overwrite = false;
};

std::vector<Option> options_of(ExportArguments& a) {
  return {
      {"checkpoint",
       &a.checkpoint,
       "checkpoint to export, a run folder (its newest checkpoint), or the folder of a LoRA adapter to merge",
       {.name = "FILE|FOLDER"}},
      {"output", &a.output, "folder to write, created if missing", {.name = "FOLDER"}},
      {"adapter",
       &a.adapter,
       "write the adapters of a run with lora.rank alone: adapter_model.safetensors, adapter_config.json, and chat_template.jinja if the data have a chat template",
       {},
       true},
      {"base",
       &a.base,
       "model that adapters are merged into: a Hugging Face folder or a checkpoint; default: where it was when they were "
       "trained",
       {.name = "FOLDER|FILE"}},
      {"dtype", one_of(a.dtype, {DType::float32, DType::bfloat16}), "dtype of the exported weights"},
      {"max-shard-size",
       &a.max_shard_size,
       "maximum size of a safetensors file: bytes, or a number with KB, MB, GB, KiB, MiB or GiB",
       {.name = "SIZE"}},
      {"tokenizer",
       &a.tokenizer,
       "folder to copy tokenizer files from; default: the run's model.weights or model.config, if they "
       "are there",
       {.name = "FOLDER"}},
      {"overwrite", &a.overwrite, "replace the model in the output folder; other files are kept", {}, true},
  };
}

struct ImportArguments {
  std::string weights, output;
  bool overwrite = false;
};

std::vector<Option> options_of(ImportArguments& a) {
  return {
      {"weights", &a.weights, "Hugging Face folder", {.name = "FOLDER"}},
      {"output", &a.output, "checkpoint to write", {.name = "FILE"}},
      {"overwrite",
       &a.overwrite,
       "allow the output to replace a file that was not written by import",
       {},
       true},
  };
}

/// "5GB", "500MiB", "1000000": bytes.
std::int64_t parse_size(const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},         {"B", 1},           {"KB", 1e3},
                             {"MB", 1e6},     {"GB", 1e9},        {"TB", 1e12},
                             {"KIB", 1024.0}, {"MIB", 1048576.0}, {"GIB", 1073741824.0}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const auto& known : kUnits) {
    const double bytes = value * known.bytes;
    if (error == std::errc() && unit == known.name && bytes >= 1 && bytes < 9e18)
      return static_cast<std::int64_t>(bytes);
  }
  throw_user_error("--max-shard-size = {} is not a size; write for example 5GB or 500MiB", text);
}

void refuse_options_of_models(const ExportArguments& a) {
  if (!a.tokenizer.empty()) throw_user_error("--tokenizer cannot be used with --adapter; remove it");
  if (a.dtype != DType::float32)
    throw_user_error("--dtype cannot be used with --adapter, which writes float32; remove it");
  if (a.max_shard_size != ExportArguments().max_shard_size)
    throw_user_error("--max-shard-size cannot be used with --adapter, which writes one file; remove it");
}

/// The model that adapters are merged into, as a path; empty where nothing is merged.
std::string find_base(const ExportArguments& a, const Log& log) {
  const bool merges = !a.adapter && with_source("--checkpoint ", a.checkpoint,
                                                [&] { return checkpoint::holds_adapter(a.checkpoint); });
  if (!merges) {
    if (!a.base.empty()) throw_user_error("--base {} is for adapters that are merged; remove it", a.base);
    return "";
  }
  const std::string base = a.base.empty() ? base_of(a.checkpoint) : a.base;
  if (!base.empty()) return train::resolve_weights(base, log).string();
  throw_user_error(
      "--checkpoint {} holds adapters, and the model that they belong to is not where it was ({}); name it "
      "with --base{}",
      a.checkpoint, checkpoint::open_adapter(a.checkpoint).info.base,
      std::filesystem::is_directory(a.checkpoint) ? "" : ", or write them alone with --adapter");
}

/// Where the tokenizer's files come from.
void name_tokenizers(const ExportArguments& a, checkpoint::ExportRequest& request, const Log& log) {
  if (!a.tokenizer.empty()) {
    if (!tokenizer::holds_tokenizer(a.tokenizer))
      throw_user_error("--tokenizer {} is not a folder with a tokenizer (tokenizer.json or tokenizer.model)",
                       a.tokenizer);
    request.tokenizers = {a.tokenizer};
    return;
  }
  request.tokenizers =
      with_source("--checkpoint ", a.checkpoint, [&] { return folders_of_run(a.checkpoint, log); });
  if (!a.base.empty()) request.tokenizers.insert(request.tokenizers.begin(), a.base);
  request.is_over_bytes = data::tokenizer_in(run_of(a.checkpoint).note("data.train")) == "bytes";
}

}  // namespace

Manual export_manual() { return manual_of<ExportArguments>(kExportUsage); }

int export_command(const Arguments& arguments) {
  ExportArguments a;
  return run_on_ranks([&](comm::World& world) {
    const Log log = console_log(world.rank() == 0, stdout);
    comm::agree(world, [&] {
      assign_command_line(arguments, options_of(a), 0, log);
      require_option(!a.checkpoint.empty(), "export", "checkpoint");
      require_option(!a.output.empty(), "export", "output");
    });
    a.checkpoint =
        comm::from_rank_0(world, [&] { return train::resolve_weights(a.checkpoint, log).string(); });
    a.base = comm::from_rank_0(world, [&] { return find_base(a, log); });
    checkpoint::ExportRequest request;
    comm::agree(world, [&] {
      request = {.checkpoint = a.checkpoint,
                 .output = a.output,
                 .base = a.base,
                 .dtype = a.dtype,
                 .max_shard_bytes = parse_size(a.max_shard_size),
                 .overwrite = a.overwrite};
      a.adapter ? refuse_options_of_models(a) : name_tokenizers(a, request, log);
    });
    with_source("--checkpoint ", request.checkpoint, [&] {
      a.adapter ? checkpoint::export_adapter(world, request, log)
                : checkpoint::export_folder(world, request, log);
    });
    return kDone;
  });
}

Manual import_manual() { return manual_of<ImportArguments>(kImportUsage); }

int import_command(const Arguments& arguments) {
  ImportArguments a;
  return run_on_ranks([&](comm::World& world) {
    const Log log = console_log(world.rank() == 0, stdout);
    comm::agree(world, [&] {
      assign_command_line(arguments, options_of(a), 0, log);
      require_option(!a.weights.empty(), "import", "weights");
      require_option(!a.output.empty(), "import", "output");
    });
    with_source("--weights ", a.weights,
                [&] { checkpoint::import_folder(world, a.weights, a.output, a.overwrite, log); });
    return kDone;
  });
}

}  // namespace llampi::cli
