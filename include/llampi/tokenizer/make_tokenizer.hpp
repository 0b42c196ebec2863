// SPDX-License-Identifier: Apache-2.0
// Tokenizers by name, and what the files of a model say of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::tokenizer {

/// "bytes" (ids are byte values, vocabulary 256); a file tokenizer.json (byte-level BPE, or the BPE with byte
/// fallback into which Llama 2's was converted) or tokenizer.model (SentencePiece); or a folder that holds
/// one of them, tokenizer.json first. Files next to it (tokenizer_config.json, special_tokens_map.json,
/// generation_config.json, config.json) give the begin and end tokens; chat_template.jinja and tokenizer_config.json may
/// have a chat template.
/// @throws UserError for anything else, and for malformed files, by name of what is wrong in them
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// CRC-32, in eight hexadecimal digits, of what the first `ids` ids mean: of each in turn the number of its
/// bytes in decimal digits, ":" and its bytes. The same for a tokenizer.model and the tokenizer.json it was
/// converted to, and where more tokens were added behind those.
/// @param ids at most vocabulary(); 0: all
std::string vocabulary_hash(const Tokenizer& tokenizer, std::int64_t ids = 0);
/// The same without added tokens, each after its id in decimal digits and ":". Where reserved tokens were renamed it is
/// still the same.
std::string ordinary_hash(const Tokenizer& tokenizer, std::int64_t ids = 0);
/// The ids that end a text as "eos_token_id" of generation_config.json and config.json in a folder have them:
/// numbers or lists, without doubles. Files that are missing say nothing. @throws UserError
std::vector<std::int32_t> end_ids_of(const std::filesystem::path& folder);
/// The same in the text of one such file. @param source its name, for messages
std::vector<std::int32_t> end_ids_in(const std::string& text, const std::string& source);

/// The class with which transformers 5 reads the tokenizer.json of a folder, if that class has a normalizer and pre-tokenizer of
/// its own that are not those of the file, so that some texts have other ids there. Empty: it follows the file, or there is none, or a
/// malformed one, which make_tokenizer() refuses.
/// @param model_type of config.json
std::string class_that_overrides(const std::filesystem::path& folder, const std::string& model_type);

/// Names of tokens that transformers 5 adds to the tokenizer.json of a folder, as "pad_token" and the like in the files next to
/// it name them: texts with these names have other ids there. Empty also for malformed files.
std::vector<std::string> tokens_that_transformers_adds(const std::filesystem::path& folder);

/// Whether the folder holds tokenizer.json or tokenizer.model.
bool holds_tokenizer(const std::filesystem::path& folder);

/// The chat template in a folder: chat_template.jinja, else "chat_template" of tokenizer_config.json; empty if there is none.
/// @throws UserError
ChatTemplateText chat_template_in(const std::filesystem::path& folder);

}  // namespace llampi::tokenizer
