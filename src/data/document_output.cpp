// SPDX-License-Identifier: Apache-2.0
#include "data/document_output.hpp"

#include <algorithm>

#include "llampi/tokenizer/make_tokenizer.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::data {

DocumentOutput::DocumentOutput(const std::filesystem::path& path, const tokenizer::Tokenizer& tokenizer,
                               const TokenizeOptions& options)
    : writer_(path, tokenizer.vocabulary(), tokenizer.name(), options.overwrite) {
  notes_.tokenizer_hash = tokenizer::vocabulary_hash(tokenizer);
  notes_.ordinary_hash = tokenizer::ordinary_hash(tokenizer);
  if (options.format != InputFormat::chat) return;
  packer_.emplace(path, options.seq_len, tokenizer.end().value_or(0));
  notes_.row_tokens = options.seq_len;
  notes_.chat_template = options.chat_template.text;
}

void DocumentOutput::append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
  if (packer_) {
    packer_->add(ids, mask);
    statistics_.trained += std::count(mask.begin(), mask.end(), std::uint8_t{1});
  } else {
    writer_.append(ids);
  }
  length_ += static_cast<std::int64_t>(ids.size());
}

void DocumentOutput::end_document() {
  if (!packer_) {
    writer_.end_document();
    statistics_.trained += std::max<std::int64_t>(length_ - 1, 0);
  }
  ++statistics_.documents;
  statistics_.tokens += length_;
  statistics_.longest = std::max(statistics_.longest, length_);
  length_ = 0;
}

OutputStatistics DocumentOutput::complete() {
  if (packer_) {
    const auto rows = packer_->write(writer_);
    statistics_.rows = rows.rows;
    statistics_.padding = rows.padding;
    statistics_.cut = rows.cut;
    notes_.padding_tokens = rows.padding + (rows.rows > 0 ? 1 : 0);  // behind the last
    notes_.padding_documents = rows.padding_documents;
  }
  notes_.loss_tokens = statistics_.trained;
  writer_.complete(notes_);
  return statistics_;
}

void DocumentOutput::place() { writer_.place(); }

}  // namespace llampi::data
