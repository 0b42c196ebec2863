#include "cli/text_options.hpp"

#include "cli/options.hpp"
#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi::cli {

namespace fs = std::filesystem;

Option tokenizer_option(TextOptions& text) {
  return {"tokenizer",
          &text.tokenizer,
          "tokenizer.json, tokenizer.model, the folder of one, or bytes; default: that of the weights' "
          "folder, or "
          "of the model.weights or model.config of the run",
          {.name = "NAME"}};
}

Option template_option(TextOptions& text) {
  return {"template",
          &text.chat_template,
          "of conversations; auto: by the tokenizer's special tokens",
          {.one_of = {"auto", "llama2", "llama3"}}};
}

std::vector<fs::path> folders_of_run(const fs::path& checkpoint) {
  if (identify(checkpoint) != FileKind::checkpoint) return {};
  const std::string text = read_checkpoint_summary(checkpoint).texts.run_config;
  if (text.empty()) return {};
  const Config config = parse_ini(text, "the configuration in " + checkpoint.string());
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const fs::path path : {config.model.weights, config.model.config}) {
    if (fs::is_directory(path, ignored)) {
      folders.push_back(path);
    } else if (path.filename() == "config.json") {
      folders.push_back(path.has_parent_path() ? path.parent_path() : ".");
    }
  }
  return folders;
}

}  // namespace llampi::cli
