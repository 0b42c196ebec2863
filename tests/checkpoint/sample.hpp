// A small model's tensors with known values, cut into pieces in many ways; and a folder that all ranks see.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/philox.hpp"

namespace llampi {

/// Odd shapes: a prime number of rows, one column, one row, vectors, one element.
inline std::vector<TensorInfo> sample_tensors() {
  return {{"model.embed_tokens.weight", {331, 80}},
          {"model.layers.0.input_layernorm.weight", {80}},
          {"model.layers.0.mlp.down_proj.weight", {80, 176}},
          {"column", {7, 1}},
          {"row", {1, 5}},
          {"scalar", {1}}};
}

inline std::int64_t size_of_tensor(const TensorInfo& tensor) {
  std::int64_t elements = 1;
  for (const auto extent : tensor.shape) elements *= extent;
  return elements;
}

/// Arbitrary bits, so that NaNs with payloads, infinities and subnormals occur. role: 0 model, 1 and 2 the
/// moments.
inline std::uint32_t sample_bits(int role, int tensor, std::int64_t element) {
  const auto key = (static_cast<std::uint64_t>(role) << 56) | (static_cast<std::uint64_t>(tensor) << 40);
  return philox({static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(key >> 32), 1, 2},
                {3, 4})[0];
}

inline TrainingState sample_state() {
  TrainingState state;
  state.step = 1234;
  state.optimizer_steps = 1230;
  state.tokens_seen = 3'000'000'000'000;
  state.samples_consumed = 9'871;
  state.epoch = 3;
  state.seed = -5;
  state.seq_len = 257;
  state.global_batch = 12;
  state.data_tokens = 5'000'000'001;
  state.shuffle = false;
  return state;
}

inline std::vector<std::int64_t> fields(const TrainingState& s) {
  return {s.step, s.optimizer_steps, s.tokens_seen,  s.samples_consumed, s.epoch,
          s.seed, s.seq_len,         s.global_batch, s.data_tokens,      s.shuffle ? 1 : 0};
}

/// Pieces and their memory.
class SamplePieces {
 public:
  explicit SamplePieces(std::vector<TensorInfo> tensors, bool moments = true)
      : tensors_(std::move(tensors)), moments_(moments) {}
  SamplePieces(SamplePieces&&) = default;  // a copy's pieces would point into the original

  void add(int tensor, std::int64_t begin, std::int64_t elements) {
    TensorPiece piece{tensor, begin, elements, nullptr, nullptr, nullptr};
    piece.model = memory(elements);
    if (moments_) {
      piece.exp_avg = memory(elements);
      piece.exp_avg_sq = memory(elements);
    }
    pieces_.push_back(piece);
  }

  /// Cuts each tensor at `parts - 1` even places and keeps the parts with part % ranks == rank.
  static SamplePieces even(int parts, int rank, int ranks, bool moments = true) {
    SamplePieces pieces(sample_tensors(), moments);
    for (int t = 0; t < static_cast<int>(pieces.tensors_.size()); ++t) {
      const std::int64_t elements = size_of_tensor(pieces.tensors_[t]);
      for (int part = 0; part < parts; ++part) {
        if (part % ranks != rank) continue;
        const std::int64_t begin = elements * part / parts;
        pieces.add(t, begin, elements * (part + 1) / parts - begin);
      }
    }
    return pieces;
  }

  /// Cuts at random places and deals the parts at random, in random order.
  static SamplePieces random(std::uint64_t seed, int rank, int ranks) {
    std::mt19937_64 random(seed);  // the same on every rank
    SamplePieces pieces(sample_tensors());
    for (int t = 0; t < static_cast<int>(pieces.tensors_.size()); ++t) {
      const std::int64_t elements = size_of_tensor(pieces.tensors_[t]);
      std::vector<std::int64_t> cuts{0, elements};
      for (int i = 0; i < 6; ++i)
        cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(elements + 1)));
      std::sort(cuts.begin(), cuts.end());
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        if (static_cast<int>(random() % static_cast<std::uint64_t>(ranks)) == rank) {
          pieces.add(t, cuts[i], cuts[i + 1] - cuts[i]);
        }
      }
    }
    std::shuffle(pieces.pieces_.begin(), pieces.pieces_.end(), random);
    return pieces;
  }

  SamplePieces fill() && {
    for_each([](float& value, std::uint32_t bits) { std::memcpy(&value, &bits, sizeof bits); });
    return std::move(*this);
  }

  /// Values that differ from the sample's, in bits.
  std::int64_t differences() const {
    std::int64_t count = 0;
    for_each([&](const float& value, std::uint32_t bits) {
      count += std::memcmp(&value, &bits, sizeof bits) != 0;
    });
    return count;
  }

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<TensorPiece>& pieces() const { return pieces_; }
  std::vector<TensorPiece>& pieces() { return pieces_; }

 private:
  float* memory(std::int64_t elements) {
    return memory_.emplace_back(static_cast<std::size_t>(elements) + 1, 12345.0F).data();
  }

  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (const auto& piece : pieces_) {
      float* const values[3] = {piece.model, piece.exp_avg, piece.exp_avg_sq};
      for (int role = 0; role < 3; ++role) {
        for (std::int64_t i = 0; values[role] != nullptr && i < piece.elements; ++i) {
          visit(values[role][i], sample_bits(role, piece.tensor, piece.begin + i));
        }
      }
    }
  }

  std::vector<TensorInfo> tensors_;
  std::vector<TensorPiece> pieces_;
  std::vector<std::vector<float>> memory_;
  bool moments_;
};

inline std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

/// An empty folder, removed at the end; made by one process.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "llampi-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace llampi
