// SPDX-License-Identifier: Apache-2.0
#include "report/line_reader.hpp"

#include <algorithm>
#include <span>

#include "llampi/io/posix_file.hpp"

namespace llampi::report {
namespace {

constexpr std::size_t kTailBytes = 512;  // of metrics.jsonl more than a line, with its time

std::string read_text(const io::PosixFile& file, std::int64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  text.resize(file.read_at(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace

void LineReader::read(const std::function<void()>& restart,
                      const std::function<void(std::string_view)>& visit) {
  const auto file = io::PosixFile::open_for_reading(file_);
  const auto tail_bytes = static_cast<std::int64_t>(tail_.size());
  if (read_text(file, bytes_ - tail_bytes, tail_.size()) != tail_) {
    bytes_ = 0;
    tail_.clear();
    restart();
  }
  for (;;) {
    const std::string text = read_text(file, bytes_, piece_bytes_);
    std::size_t done = text.rfind('\n') + 1;                           // npos + 1 is 0
    if (done == 0 && text.size() == piece_bytes_) done = text.size();  // no file of a run has such a line
    if (done == 0) return;
    std::string_view lines = std::string_view(text).substr(0, done);
    bytes_ += static_cast<std::int64_t>(done);
    tail_ += lines.substr(done - std::min(done, kTailBytes));
    tail_.erase(0, tail_.size() - std::min(tail_.size(), kTailBytes));
    while (!lines.empty()) {
      const auto end = std::min(lines.find('\n'), lines.size());
      visit(lines.substr(0, end));
      lines.remove_prefix(std::min(end + 1, lines.size()));
    }
  }
}

}  // namespace llampi::report
