// SPDX-License-Identifier: Apache-2.0
// Weights from files into the ranks' pieces.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "checkpoint/tensor_list.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/first_failure.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

/// For each tensor that is wanted, its index in the source.
std::vector<int> places_in(const WeightsSource& source, const std::vector<TensorInfo>& tensors) {
  check_tensors(source, tensors);
  std::map<std::string, int> index;
  for (const auto& tensor : source.tensors()) index.emplace(tensor.name, static_cast<int>(index.size()));
  std::vector<int> places;
  for (const auto& tensor : tensors) places.push_back(index.at(tensor.name));
  return places;
}

void read_pieces(device::Runtime& device, const WeightsSource& source, const std::vector<int>& places,
                 const std::vector<TensorPiece>& pieces, std::vector<io::RangeSum>* sums) {
  Staging staging(device, kTransferElements);
  for (const auto& piece : pieces) {
    staging.in_parts(piece.model, [&](const Tensor& part, std::int64_t begin) {
      float* const values = staging.room_for(part);
      source.read(places[piece.tensor], piece.begin + begin, part.elements(), values);
      if (sums != nullptr) {
        io::add_sums(*sums, piece.tensor, piece.begin + begin,
                     std::span<const float>(values, static_cast<std::size_t>(part.elements())),
                     io::kChecksumBlockElements);
      }
      staging.store(part);
    });
  }
}

/// The next part of a tensor, from rank 0 to all, as float32; comm::bytes_from_rank_0() would copy each part several times more.
/// Collective.
/// @throws on all ranks, as comm::on_rank_0() does, if it could not be read
std::string share_part(comm::World& world, const WeightsSource& source, int tensor, std::int64_t begin,
                       std::int64_t elements) {
  std::string part;
  comm::FirstFailure failure;
  if (world.rank() == 0) {
    failure.of([&] {
      std::vector<float> values(static_cast<std::size_t>(elements));
      source.read(tensor, begin, elements, values.data());
      part.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    });
  }
  part = world.broadcast(part, 0);
  if (part.empty()) comm::on_rank_0(world, [&] { failure.rethrow(); });
  return part;
}

/// All ranks walk over all tensors; each keeps what belongs to its pieces.
void broadcast_pieces(comm::World& world, device::Runtime& device, const WeightsSource& source,
                      const std::vector<int>& places, const std::vector<TensorInfo>& tensors,
                      const std::vector<TensorPiece>& pieces, std::vector<io::RangeSum>* sums) {
  std::optional<Staging> staging;
  comm::agree(world, [&] { staging.emplace(device, kTransferElements); });  // which may find no memory
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const std::int64_t elements = elements_of(tensors[t].shape);
    for (std::int64_t begin = 0; begin < elements; begin += kTransferElements) {
      const std::int64_t end = std::min(begin + kTransferElements, elements);
      const std::string part = share_part(world, source, places[t], begin, end - begin);
      if (sums != nullptr && world.rank() == 0) {
        io::add_sums(*sums, t, begin, std::as_bytes(std::span(part)), sizeof(float),
                     io::kChecksumBlockElements);
      }
      for (const auto& piece : pieces) {
        const std::int64_t from = std::max(begin, piece.begin);
        const std::int64_t to = std::min(end, piece.begin + piece.elements());
        if (piece.tensor != t || from >= to) continue;
        const Tensor target = piece.model.slice(from - piece.begin, to - piece.begin);
        std::memcpy(staging->room_for(target), part.data() + (from - begin) * std::int64_t{sizeof(float)},
                    static_cast<std::size_t>(to - from) * sizeof(float));
        staging->store(target);
      }
    }
  }
}

}  // namespace

void check_tensors(const WeightsSource& source, const std::vector<TensorInfo>& tensors) {
  require_same_tensors(source.path().string(), tensors, source.tensors());
}

void load_weights(comm::World& world, device::Runtime& device, const WeightsSource& source,
                  const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                  WeightsReading reading, std::vector<io::RangeSum>* sums) {
  std::vector<int> places;
  comm::agree(world, [&] {
    require_valid_pieces(tensors, pieces);
    places = places_in(source, tensors);
  });
  if (reading == WeightsReading::broadcast) {
    broadcast_pieces(world, device, source, places, tensors, pieces, sums);
  } else {
    comm::agree(world, [&] { read_pieces(device, source, places, pieces, sums); });
  }
}

}  // namespace llampi::checkpoint
