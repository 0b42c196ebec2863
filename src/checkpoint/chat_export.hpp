// SPDX-License-Identifier: Apache-2.0
// What makes an exported folder chat as the model was trained: the template, and the tokens that end a text.
#pragma once

#include <filesystem>
#include <string>

#include "llampi/core/log.hpp"

namespace llampi::checkpoint {

/// Writes the template where transformers looks for it, tokenizer_config.json (and chat_template.jinja where
/// there is one, which would count more), and the ids of all tokens that end a text or an answer, a
/// list where there are several, into generation_config.json. For the tokenizer that is in the folder;
/// without one chat_template.jinja is written, and with one that lacks the template's tokens nothing but a
/// warning.
/// @param chat_template Jinja; empty: nothing is written
/// @param config of the model, the text of config.json
/// @returns config with the same "eos_token_id"
std::string export_chat(const std::filesystem::path& folder, const std::string& chat_template,
                        const std::string& config, const Log& log);

}  // namespace llampi::checkpoint
