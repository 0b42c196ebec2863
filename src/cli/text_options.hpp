// SPDX-License-Identifier: Apache-2.0
// Options of commands that read and write text: the tokenizer and the chat template.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/option.hpp"
#include "llampi/infer/generate.hpp"
#include "llampi/train/run_text.hpp"

namespace llampi::cli {

Option tokenizer_option(infer::TextOptions& text);
/// `--template` and `--template-date`. @param only_for what has a template, for the help: "chat: "
Option template_option(std::string& name, const std::string& only_for = "");
Option template_date_option(std::string& date, const std::string& only_for = "");

/// The text of the run that wrote a checkpoint; an empty one for what is none, or was imported.
train::RunText run_of(const std::filesystem::path& checkpoint);

/// Where that run had its model from: the folders of model.weights and model.config.
std::vector<std::filesystem::path> folders_of_run(const std::filesystem::path& checkpoint, const Log& log);

}  // namespace llampi::cli
