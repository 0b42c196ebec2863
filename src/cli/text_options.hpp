// SPDX-License-Identifier: Apache-2.0
// Options of commands that read and write text: the tokenizer and the chat template.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/option.hpp"
#include "llampi/infer/generate.hpp"

namespace llampi::cli {

Option tokenizer_option(infer::TextOptions& text);
/// `--template` and `--template-date`. @param only_for what has a template, for the help: "chat: "
Option template_option(std::string& name, const std::string& only_for = "");
Option template_date_option(std::string& date, const std::string& only_for = "");

/// Where the run of a checkpoint had its model from: the folders of model.weights and model.config. None for
/// what is no checkpoint.
std::vector<std::filesystem::path> folders_of_run(const std::filesystem::path& checkpoint, const Log& log);

}  // namespace llampi::cli
