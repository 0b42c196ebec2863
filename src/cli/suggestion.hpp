// SPDX-License-Identifier: Apache-2.0
// What a user may have meant by a name that no option has.
#pragma once

#include <string>
#include <vector>

namespace llampi::cli {

/// "train" of "train.steps"; nothing of "max-tokens".
std::string section_of(const std::string& key);

/// The options of `known` that a mistyped or half remembered `word` stands for, best first; none where
/// nothing is near. Found are: the name of a key without its section ("lr": optimizer.lr), the name that
/// Hugging Face's and PyTorch's trainers have for it ("optimizer.learning_rate", "max-steps"), else what
/// differs by few letters, in the section that is named if there is one.
std::vector<std::string> suggestions(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean --optimizer.lr?", each suggestion after `prefix`; where there is none, "; see " and
/// `help`.
std::string did_you_mean(const std::vector<std::string>& suggested, const std::string& prefix,
                         const std::string& help);

}  // namespace llampi::cli
