// SPDX-License-Identifier: Apache-2.0
#include "data/piece_reader.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace llampi::data {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

}  // namespace

PieceReader::PieceReader(std::vector<std::filesystem::path> inputs, Cut cut)
    : inputs_(std::move(inputs)), cut_(std::move(cut)) {}

bool PieceReader::read_more(std::size_t bytes) {
  const std::size_t before = rest_.size();
  rest_.resize(before + bytes);
  const std::size_t count = file_->read(std::as_writable_bytes(std::span(rest_)).subspan(before));
  rest_.resize(before + count);
  return count == bytes;
}

Piece PieceReader::take(std::size_t bytes) {
  Piece piece{.file = number_, .line = line_, .first = first_, .last = false, .text = rest_.substr(0, bytes)};
  rest_.erase(0, bytes);
  line_ += std::count(piece.text.begin(), piece.text.end(), '\n');
  first_ = false;
  piece.file_bytes = file_->file_bytes() - counted_;
  counted_ += piece.file_bytes;
  return piece;
}

std::optional<Piece> PieceReader::next() {
  if (number_ == inputs_.size()) return std::nullopt;
  if (!file_) {
    file_.emplace(inputs_[number_]);
    line_ = 1;
    counted_ = 0;
    first_ = true;
  }
  // Where there is no place to cut, twice as much is looked at each time, so that all of it together is
  // linear.
  for (std::size_t wanted = kPieceBytes; read_more(wanted - std::min(wanted, rest_.size())); wanted *= 2) {
    if (const auto bytes = cut_(rest_, first_); bytes > 0) return take(bytes);
    wanted = std::max(wanted, rest_.size());
  }
  Piece piece = take(rest_.size());
  piece.last = true;
  file_.reset();
  ++number_;
  return piece;
}

}  // namespace llampi::data
