// SPDX-License-Identifier: Apache-2.0
#include "cli/text_options.hpp"

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/tokenizer/chat.hpp"

namespace llampi::cli {

namespace fs = std::filesystem;

Option tokenizer_option(infer::TextOptions& text) {
  return {"tokenizer",
          &text.tokenizer,
          "tokenizer.json, tokenizer.model, the folder of one, or bytes. Default: the tokenizer in the "
          "weights' folder, otherwise in model.weights or model.config of the run",
          {.name = "bytes|FILE|FOLDER"}};
}

Option template_option(std::string& name, const std::string& only_for) {
  auto names = tokenizer::template_names();
  names.insert(names.begin(), "auto");
  return {
      "template",
      &name,
      only_for +
          "chat template. auto: the one the checkpoint or adapter was trained with, otherwise the chat_template "
          "of the tokenizer's folder",
      {.one_of = names}};
}

Option template_date_option(std::string& date, const std::string& only_for) {
  return {"template-date",
          &date,
          only_for +
              "today's date in the templates llama3.1, llama3.2 and llama3.3. auto: 26 Jul 2024, and the "
              "current date for llama3.2",
          {.name = "DATE"}};
}

train::RunText run_of(const fs::path& checkpoint) {
  std::error_code ignored;
  if (fs::is_directory(checkpoint, ignored)) return {};
  if (checkpoint::identify(checkpoint) != checkpoint::FileKind::checkpoint) return {};
  return train::read_run_text(checkpoint::read_checkpoint_summary(checkpoint).texts.run_config);
}

std::vector<fs::path> folders_of_run(const fs::path& checkpoint, const Log& log) {
  std::error_code ignored;
  const train::RunText run = run_of(checkpoint);  // it may be of an older llampi, with other keys
  std::vector<fs::path> folders;
  const std::string weights = run.value("model.weights");
  if (!weights.empty() && weights != "random" && !fs::exists(weights, ignored)) {
    log.warning(
        "{}, which the run of {} started from, no longer exists: looking for its tokenizer next to model.config = {}",
        weights, checkpoint.string(), run.value("model.config"));
  }
  for (const fs::path path : {run.value("model.weights"), run.value("model.config")}) {
    if (fs::is_directory(path, ignored)) {
      folders.push_back(path);
    } else if (path.filename() == "config.json") {
      folders.push_back(path.has_parent_path() ? path.parent_path() : ".");
    }
  }
  return folders;
}

}  // namespace llampi::cli
