// SPDX-License-Identifier: Apache-2.0
// A small model's tensors with known values, cut into pieces in many ways.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/device/device.hpp"
#include "support/read_text.hpp"

namespace llampi::test {

/// Odd shapes: a prime number of rows, one column, one row, vectors, one element.
inline std::vector<checkpoint::TensorInfo> sample_tensors() {
  return {{"model.embed_tokens.weight", {331, 80}},
          {"model.layers.0.input_layernorm.weight", {80}},
          {"model.layers.0.mlp.down_proj.weight", {80, 176}},
          {"column", {7, 1}},
          {"row", {1, 5}},
          {"scalar", {1}}};
}

inline std::int64_t size_of_tensor(const checkpoint::TensorInfo& tensor) {
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

inline checkpoint::TrainingState sample_state() {
  checkpoint::TrainingState state;
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
  state.loss_scale = 0x1.8p-20;
  state.loss_scale_good_steps = 1999;
  return state;
}

inline std::vector<std::int64_t> fields(const checkpoint::TrainingState& s) {
  return {s.step,
          s.optimizer_steps,
          s.tokens_seen,
          s.samples_consumed,
          s.epoch,
          s.seed,
          s.seq_len,
          s.global_batch,
          s.data_tokens,
          s.shuffle ? 1 : 0,
          std::bit_cast<std::int64_t>(s.loss_scale),
          s.loss_scale_good_steps};
}

/// The device whose memory the pieces are in.
inline device::Device& sample_device() {
  static const auto device = device::make_reference_device();
  return *device;
}

/// `value` as a tensor of that type has it in memory; the upper half is 0 if it has 16 bits.
inline std::uint32_t bits_in(DType dtype, float value) {
  if (dtype == DType::bfloat16) return to_bfloat16(value);
  if (dtype == DType::float16) return to_float16(value);
  return std::bit_cast<std::uint32_t>(value);
}
inline float value_of(DType dtype, std::uint32_t bits) {
  if (dtype == DType::bfloat16) return from_bfloat16(static_cast<std::uint16_t>(bits));
  if (dtype == DType::float16) return from_float16(static_cast<std::uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

struct SampleOptions {
  std::vector<checkpoint::TensorInfo> tensors = sample_tensors();
  bool moments = true;  ///< of those tensors whose `optimizer` is true
  DType model = DType::float32;
  DType moment = DType::float32;

  DType dtype(int role) const { return role == 0 ? model : moment; }
};

/// Pieces and their memory.
class SamplePieces {
 public:
  explicit SamplePieces(SampleOptions options) : options_(std::move(options)) {}
  explicit SamplePieces(std::vector<checkpoint::TensorInfo> tensors)
      : SamplePieces(SampleOptions{.tensors = std::move(tensors)}) {}
  SamplePieces(SamplePieces&&) = default;  // a copy's pieces would point into the original

  void add(int tensor, std::int64_t begin, std::int64_t elements) {
    checkpoint::TensorPiece piece{
        .tensor = tensor, .begin = begin, .model = memory(options_.model, elements)};
    if (options_.moments && tensors()[tensor].optimizer) {
      piece.exp_avg = memory(options_.moment, elements);
      piece.exp_avg_sq = memory(options_.moment, elements);
    }
    pieces_.push_back(piece);
  }

  /// Cuts each tensor at `parts - 1` even places and keeps the parts with part % ranks == rank.
  static SamplePieces even(int parts, int rank, int ranks, const SampleOptions& options = {}) {
    SamplePieces pieces(options);
    for (int t = 0; t < static_cast<int>(pieces.tensors().size()); ++t) {
      const std::int64_t elements = size_of_tensor(pieces.tensors()[t]);
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
    for (int t = 0; t < static_cast<int>(pieces.tensors().size()); ++t) {
      const std::int64_t elements = size_of_tensor(pieces.tensors()[t]);
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
    for_each([&](int role, int tensor, std::int64_t element, std::byte* memory) {
      write(options_.dtype(role), sample_in(options_, role, tensor, element), memory);
    });
    return std::move(*this);
  }

  /// Values that differ, in bits, from those in a file that pieces like `saved` were filled and written to,
  /// and elements behind a piece's end that were written to.
  std::int64_t differences(const SampleOptions& saved) const {
    std::int64_t count = 0;
    for_each([&](int role, int tensor, std::int64_t element, const std::byte* memory) {
      const DType dtype = options_.dtype(role);
      const bool is_stored = role == 0 || (saved.moments && saved.tensors[tensor].optimizer);
      std::uint32_t expected = is_stored ? sample_in(saved, role, tensor, element) : 0;
      if (saved.dtype(role) != dtype) expected = bits_in(dtype, value_of(saved.dtype(role), expected));
      count += read(dtype, memory) != expected;
    });
    for (const auto& memory : memory_) {
      for (std::size_t i = memory.size() - kGuard; i < memory.size(); ++i) count += memory[i] != kUntouched;
    }
    return count;
  }
  std::int64_t differences() const { return differences(options_); }

  const std::vector<checkpoint::TensorInfo>& tensors() const { return options_.tensors; }
  const std::vector<checkpoint::TensorPiece>& pieces() const { return pieces_; }
  std::vector<checkpoint::TensorPiece>& pieces() { return pieces_; }

 private:
  static constexpr std::byte kUntouched{0x5A};
  static constexpr std::size_t kGuard = 4;

  Tensor memory(DType dtype, std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(elements * size_of(dtype));
    return {memory_.emplace_back(bytes + kGuard, kUntouched).data(), dtype, 1, elements};
  }

  static std::uint32_t sample_in(const SampleOptions& options, int role, int tensor, std::int64_t element) {
    return bits_in(options.dtype(role), std::bit_cast<float>(sample_bits(role, tensor, element)));
  }
  static std::uint32_t read(DType dtype, const std::byte* memory) {
    std::uint32_t bits = 0;  // little-endian
    std::memcpy(&bits, memory, static_cast<std::size_t>(size_of(dtype)));
    return bits;
  }
  static void write(DType dtype, std::uint32_t bits, std::byte* memory) {
    std::memcpy(memory, &bits, static_cast<std::size_t>(size_of(dtype)));
  }

  /// Calls visit(role, tensor, element, memory of the element).
  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (const auto& piece : pieces_) {
      const Tensor values[3] = {piece.model, piece.exp_avg, piece.exp_avg_sq};
      for (int role = 0; role < 3; ++role) {
        for (std::int64_t i = 0; i < values[role].elements(); ++i) {
          visit(role, piece.tensor, piece.begin + i,
                static_cast<std::byte*>(values[role].data) + i * size_of(values[role].dtype));
        }
      }
    }
  }

  SampleOptions options_;
  std::vector<checkpoint::TensorPiece> pieces_;
  std::vector<std::vector<std::byte>> memory_;
};

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace llampi::test
