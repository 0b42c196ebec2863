// Options of commands that read and write text: the tokenizer and the chat template.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/option.hpp"
#include "llampi/train/generate.hpp"

namespace llampi::cli {

Option tokenizer_option(TextOptions& text);
Option template_option(TextOptions& text);

/// Where the run of a checkpoint had its model from: the folders of model.weights and model.config. None for
/// what is no checkpoint.
std::vector<std::filesystem::path> folders_of_run(const std::filesystem::path& checkpoint);

}  // namespace llampi::cli
