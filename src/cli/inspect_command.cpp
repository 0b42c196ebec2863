// SPDX-License-Identifier: Apache-2.0
// llampi inspect
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/launch.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/text.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/fsdp/wrap.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/plan/report.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/run_text.hpp"

namespace llampi::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kInspectUsage = R"(Usage: llampi inspect FILE|FOLDER [--units] [--verify] [--json]

Describes a checkpoint, a token file, a Hugging Face folder, or the newest checkpoint of a run folder.
With --verify: reads the whole checkpoint and compares it with its checksums; names the first tensor
that does not match and exits with status 2.
With --units: lists the FSDP units of the model in a checkpoint, a Hugging Face folder or a
config.json for fsdp.wrap = transformer and one shard. For other wrap policies and numbers of ranks:
llampi plan --units --model.config=FOLDER --fsdp.wrap=... --ranks N.
)";

struct InspectRequest {
  std::string file;
  bool units = false;
  bool json = false;
  bool verify = false;
};

std::vector<Option> options_of(InspectRequest& r) {
  return {
      {"units", &r.units, "list the FSDP units instead of the description", {}, true},
      {"json", &r.json, "print a JSON object", {}, true},
      {"verify", &r.verify, "read the whole checkpoint and compare it with its checksums", {}, true},
  };
}

InspectRequest parse_inspection(const Arguments& arguments) {
  InspectRequest request;
  const auto files =
      assign_command_line(arguments, options_of(request), 1, console_log(true, stderr)).positional;
  if (files.empty()) throw_user_error("inspect needs a file; see llampi inspect --help");
  request.file = files[0];
  if (request.units && request.verify) throw_user_error("--units and --verify cannot be combined");
  return request;
}

/// Null where it cannot be told.
Json file_bytes(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  return error ? Json() : Json(bytes);
}

Json describe_model(const model::LlamaConfig& config) {
  const auto& windows = config.windows;
  const auto slides = [](std::int64_t window) { return window > 0; };
  const auto window = std::ranges::find_if(windows, slides);
  return {{"model_type", config.family().model_type},
          {"parameters", model::make_llama(config)->parameter_elements()},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.query_heads},
          {"num_key_value_heads", config.key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rope_theta", config.rope_theta},
          {"rope_scaling", config.rope_scaling ? "llama3" : "none"},
          {"sliding_window", window == windows.end() ? Json("none") : Json(*window)},
          {"sliding_window_layers", std::ranges::count_if(windows, slides)},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

Json describe_state(const checkpoint::TrainingState& state) {
  return {{"step", state.step},
          {"optimizer_steps", state.optimizer_steps},
          {"epoch", state.epoch},
          {"tokens_seen", state.tokens_seen},
          {"samples_consumed", state.samples_consumed},
          {"seed", state.seed},
          {"seq_len", state.seq_len},
          {"global_batch", state.global_batch},
          {"data_tokens", state.data_tokens},
          {"shuffle", state.shuffle}};
}

Json describe_tensors(const checkpoint::CheckpointSummary& summary) {
  std::int64_t parameters = 0, with_moments = 0;
  for (const auto& tensor : summary.tensors) {
    const std::int64_t elements = checkpoint::elements_of(tensor.shape);
    parameters += elements;
    if (tensor.optimizer) with_moments += elements;
  }
  return {{"count", summary.tensors.size()},
          {"parameters", parameters},
          {"optimizer", summary.has_optimizer},
          {"trained_parameters", with_moments},  // those with the two moments of AdamW
          {"optimizer_dtype", summary.has_optimizer ? Json(to_string(summary.moments)) : Json()},
          {"bytes", parameters * size_of(DType::float32) + 2 * with_moments * size_of(summary.moments)}};
}

/// Of a checkpoint of adapters; null for one of a whole model.
Json describe_adapter(const checkpoint::CheckpointSummary& summary, const fs::path& file) {
  if (summary.texts.adapter.empty()) return {};
  const auto info = checkpoint::parse_adapter(summary.texts.adapter, file.string());
  return {{"rank", info.config.rank},
          {"alpha", info.config.alpha},
          {"scaling", word_of(info.config.scaling)},
          {"base", info.base},
          {"base_dtype", train::read_run_text(summary.texts.run_config).value("lora.base_dtype")}};
}

/// The template's name; null: there is none, or nothing says which.
Json describe_template(const std::string& text) {
  if (text.empty()) return {};
  const auto known = tokenizer::recognise_template(text);
  return known ? known->name : "one that llampi does not know";
}

Json describe_checkpoint(const fs::path& file) {
  const checkpoint::CheckpointSummary summary = checkpoint::read_checkpoint_summary(file);
  const std::string& config = summary.texts.model_config;
  Json json{
      {"kind", "checkpoint"},
      {"file_bytes", file_bytes(file)},
      {"created", summary.created},
      {"program_version", summary.program_version},
      {"git_sha", summary.git_sha},
      {"checksums", summary.has_checksums},
      {"state", describe_state(summary.state)},
      {"tensors", describe_tensors(summary)},
      {"model", config.empty() ? Json() : describe_model(model::LlamaConfig::parse(config, file.string()))}};
  if (const Json chat = describe_template(summary.texts.chat_template); !chat.is_null())
    json["chat_template"] = chat;
  if (const Json adapter = describe_adapter(summary, file); !adapter.empty()) json["adapter"] = adapter;
  return json;
}

/// Tokens that are labels: all but the first of each document, where the mask is not 0.
std::int64_t count_labels(const data::TokenFile& file) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<std::uint8_t> mask;
  std::int64_t labels = 0;
  for (std::int64_t begin = 0; begin < file.tokens(); begin += kPiece) {
    const auto end = std::min(begin + kPiece, file.tokens());
    mask.resize(static_cast<std::size_t>(end - begin));
    file.read_mask(begin, mask);
    for (const auto start : file.starts_in(begin - 1, end - 1))
      mask[static_cast<std::size_t>(start) - static_cast<std::size_t>(begin)] = 0;
    labels += std::count(mask.begin(), mask.end(), std::uint8_t{1});
  }
  return labels;
}

/// Counts as `tokenize` does: without what only fills rows.
Json describe_tokens(const fs::path& path) {
  const data::TokenFile file(path);
  const auto vocabulary = file.vocabulary();
  const auto tokenizer = file.tokenizer();
  const auto& notes = file.notes();
  Json json{{"kind", "tokens"},
            {"file_bytes", file_bytes(path)},
            {"tokens", file.tokens() - notes.padding_tokens},
            {"documents", file.documents() - notes.padding_documents},
            {"loss_tokens", notes.loss_tokens ? *notes.loss_tokens : count_labels(file)}};
  if (notes.row_tokens > 0) {
    json["sequences"] = file.samples(notes.row_tokens);
    json["seq_len"] = notes.row_tokens;
    json["padding_tokens"] = notes.padding_tokens;
  }
  json["vocab_size"] = vocabulary == 0 ? Json() : Json(vocabulary);
  json["tokenizer"] = tokenizer.empty() ? Json() : Json(tokenizer);
  json["tokenizer_hash"] = notes.tokenizer_hash.empty() ? Json() : Json(notes.tokenizer_hash);
  if (const Json chat = describe_template(notes.chat_template); !chat.is_null()) json["chat_template"] = chat;
  json["loss_mask"] = file.has_loss_mask();
  return json;
}

/// Of the safetensors files that are read, without their index; null where one is missing, with a warning that names those which an
/// index has. Without one a folder may be meant as a configuration alone.
Json weights_bytes(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::vector<std::string> missing;
  bool has_index = false;
  for (const auto& file : checkpoint::weights_files(folder)) {
    if (file.extension() == ".json") {
      has_index = true;
      continue;
    }
    const Json more = file_bytes(file);
    if (more.is_null()) {
      missing.push_back(file.filename().string());
    } else {
      bytes += more.get<std::uintmax_t>();
    }
  }
  if (missing.empty()) return bytes;
  if (!has_index) return {};
  console_log(true, stderr)
      .warning("{} is incomplete: {}{} not there; fetch the folder again", folder.string(), missing.front(),
               missing.size() == 1
                   ? " is"
                   : fmt::format(" and {} are", count(std::ssize(missing) - 1, "other file")));
  return {};
}

Json describe_folder(const fs::path& folder) {
  const Json model = describe_model(model::LlamaConfig::read(folder));  // first: it may be none
  return {{"kind", "Hugging Face folder"}, {"weights_bytes", weights_bytes(folder)}, {"model", model}};
}

/// Throws if a file is not as it was written, or if nothing can tell.
Json verify(const fs::path& path) {
  if (checkpoint::identify(path) != checkpoint::FileKind::checkpoint) {
    throw_user_error("{} is not a checkpoint, and other files have no checksums; leave --verify out",
                     path.string());
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t bytes = checkpoint::verify_checkpoint(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {{"compared_bytes", bytes}, {"seconds", seconds.count()}};
}

Json describe(const fs::path& path) {
  switch (checkpoint::identify(path)) {
    case checkpoint::FileKind::checkpoint:
      return describe_checkpoint(path);
    case checkpoint::FileKind::tokens:
      return describe_tokens(path);
    case checkpoint::FileKind::huggingface_folder:
      return describe_folder(path);
  }
  throw Error("internal error: a kind of file that inspect does not know");
}

void print_units(const fs::path& path, bool json) {
  std::error_code ignored;
  const bool config_alone = path.extension() == ".json" && fs::is_regular_file(path, ignored);
  const auto model =
      model::make_llama(config_alone ? model::LlamaConfig::read(path) : checkpoint::config_of_weights(path));
  std::vector<model::LayerSpec> specs;
  for (const auto& layer : model->layers())
    specs.push_back(layer->spec({1, 1}, DType::float32, *device::make_cpu_sizes(1)));
  const auto units = fsdp::wrap(*model, specs, {}, 1);
  print(json ? "{\"units\":" + plan::to_json(plan::report_units(*model, units, fsdp::Precision{})) + "}\n"
             : fsdp::format_units(*model, units));
}

/// Of a value for people, what its key does not say.
const char* remark_on(const std::string& key) {
  if (key == "tokens_seen") return " (labels)";
  return key == "data_tokens" ? " (with padding)" : "";
}

/// One line per value, inner objects indented.
std::string for_people(const Json& object, int indent) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    const std::string margin(static_cast<std::size_t>(indent), ' ');
    if (value.is_object()) {
      text += fmt::format("{}{}\n{}", margin, key, for_people(value, indent + 2));
      continue;
    }
    std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_null())
      shown = key == "optimizer_dtype" ? "none" : key == "weights_bytes" ? "not there" : "unknown";
    if (value.is_number_integer() && key != "seed") shown = with_separators(value.get<std::int64_t>());
    if (key.ends_with("bytes") && value.is_number()) shown += fmt::format(" ({})", format_bytes(value));
    text += fmt::format("{}{:<{}} {}{}\n", margin, key, 26 - indent, shown, remark_on(key));
  }
  return text;
}

}  // namespace

Manual inspect_manual() {
  Manual manual = manual_of<InspectRequest>(kInspectUsage);
  manual.takes_files = true;
  return manual;
}

int inspect_command(const Arguments& arguments) {
  if (!works_alone("inspect", environment_variable)) return kDone;
  InspectRequest request = parse_inspection(arguments);
  request.file = train::resolve_weights(request.file, console_log(true, stderr)).string();
  if (request.units) {
    print_units(request.file, request.json);
    return kDone;
  }
  const Json verified = request.verify ? verify(request.file) : Json();
  Json description = describe(request.file);
  if (request.json) {
    if (request.verify) description["verified"] = verified;
    print(json_text(description) + "\n");
    return kDone;
  }
  print(request.file + "\n" + for_people(description, 2));
  if (request.verify) {
    print(fmt::format(
        "every checksum of what llampi reads is right: {} of values, and names, shapes, state and texts; {:.1f} s\n",
        format_bytes(verified["compared_bytes"]), verified["seconds"].get<double>()));
  }
  return kDone;
}

}  // namespace llampi::cli
