// SPDX-License-Identifier: Apache-2.0
// The text of a run's configuration, as config.ini and the checkpoints' run_config hold it: an ini file that
// the command line wrote, with notes on what was read. It is read without knowing its keys, so texts of older
// and newer programs can be read too.
#pragma once

#include <map>
#include <string>

namespace llampi::train {

struct RunText {
  std::map<std::string, std::string> values;  ///< by key: "train.steps"
  /// By key, the lines `# data.train: 3000 tokens in ...`: what a file held that a key names.
  std::map<std::string, std::string> notes;

  /// Empty where there is none.
  std::string value(const std::string& key) const;
  std::string note(const std::string& key) const;
};

/// Lines that are not a section, `key = value` or a note are ignored. Values have their current names (renamed_values.hpp).
RunText read_run_text(const std::string& text);

/// `text` with another value of a key that it holds; unchanged where it does not.
std::string with_value(const std::string& text, const std::string& key, const std::string& value);
/// `text` with a note at its end. Line ends and other control characters of the note become spaces.
std::string with_note(const std::string& text, const std::string& key, const std::string& note);

}  // namespace llampi::train
