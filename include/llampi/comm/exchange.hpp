// SPDX-License-Identifier: Apache-2.0
// Values between all ranks. What travels is a number, a structure of numbers, a text, a path, a vector of
// these, or a structure that lists its members, which are any of these:
//
//   struct Seat {
//     int gpus = 0;
//     std::string host;
//     auto members() { return std::tie(gpus, host); }
//   };
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/error.hpp"

namespace llampi::comm {

template <class T>
concept ListsMembers = requires(T value) {
  value.members();
};

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;

/// Numbers as they lie in memory; texts and vectors begin with their length.
class Packer {
 public:
  template <class T>
  void put(T& value) {
    if constexpr (ListsMembers<T>) {
      std::apply([this](auto&... member) { (put(member), ...); }, value.members());
    } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
      std::string text = value.string();
      put(text);
    } else if constexpr (std::is_same_v<T, std::string>) {
      put_bytes(value);
    } else if constexpr (kIsVector<T>) {
      put_vector(value);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    }
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void put_length(std::uint64_t length) { put(length); }
  void put_bytes(const std::string& text) {
    put_length(text.size());
    bytes_ += text;
  }
  template <class T>
  void put_vector(std::vector<T>& values) {
    put_length(values.size());
    if constexpr (std::is_trivially_copyable_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    } else {
      for (auto& value : values) put(value);
    }
  }

  std::string bytes_;
};

/// Takes the values in the order in which they were put. @throws Error if there are none left
class Unpacker {
 public:
  /// @param bytes must outlive this
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}

  template <class T>
  void take(T& value) {
    if constexpr (ListsMembers<T>) {
      std::apply([this](auto&... member) { (take(member), ...); }, value.members());
    } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
      std::string text;
      take(text);
      value = text;
    } else if constexpr (std::is_same_v<T, std::string>) {
      const std::size_t length = take_length();
      value.assign(next(length), length);
    } else if constexpr (kIsVector<T>) {
      take_vector(value);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      std::memcpy(&value, next(sizeof(T)), sizeof(T));
    }
  }

 private:
  const char* next(std::size_t length) {
    require(length <= bytes_.size() - position_, "a message between ranks is too short");
    const char* const begin = bytes_.data() + position_;
    position_ += length;
    return begin;
  }
  std::size_t take_length() {
    std::uint64_t length = 0;
    take(length);
    require(length <= bytes_.size(), "a message between ranks is too short");
    return static_cast<std::size_t>(length);
  }
  template <class T>
  void take_vector(std::vector<T>& values) {
    values.assign(take_length(), T{});
    if constexpr (std::is_trivially_copyable_v<T>) {
      const std::size_t length = values.size() * sizeof(T);
      if (length > 0) std::memcpy(values.data(), next(length), length);
    } else {
      for (auto& value : values) take(value);
    }
  }

  const std::string& bytes_;
  std::size_t position_ = 0;
};

template <class T>
std::string packed(T value) {
  Packer packer;
  packer.put(value);
  return packer.bytes();
}

template <class T>
T unpacked(const std::string& bytes) {
  T value{};
  Unpacker(bytes).take(value);
  return value;
}

// What the templates below call, so that this header does without comm.hpp. All are collective.
std::string broadcast_bytes_of_rank_0(World& world, const std::string& bytes);
std::vector<std::string> all_gather_bytes(World& world, const std::string& bytes);
std::vector<std::string> gather_bytes_on_rank_0(World& world, const std::string& bytes);
/// Every one of `values` becomes the sum, or the maximum, over the ranks.
void reduce_each(World& world, const std::vector<std::int64_t*>& values, ReduceOp op);

/// Collective. The largest over the ranks.
std::int64_t max_over_ranks(World& world, std::int64_t value);
double max_over_ranks(World& world, double value);
/// Collective. The sum over the ranks, of float64 in the order of tree_left().
std::int64_t sum_over_ranks(World& world, std::int64_t value);
double sum_over_ranks(World& world, double value);
/// Collective. Each value becomes the smallest of it over the ranks.
void min_over_ranks(World& world, std::span<std::int64_t> values);
/// Collective. Whether it is so on some rank.
bool on_any_rank(World& world, bool here);

/// Collective. Rank 0's value, on every rank.
template <class T>
T broadcast_value(World& world, const T& value) {
  return unpacked<T>(broadcast_bytes_of_rank_0(world, packed(value)));
}

/// Collective. Every rank's value, by rank, on every rank.
template <class T>
std::vector<T> all_gather_value(World& world, const T& value) {
  std::vector<T> all;
  for (const auto& bytes : all_gather_bytes(world, packed(value))) all.push_back(unpacked<T>(bytes));
  return all;
}

/// Collective. On rank 0 all values, those of one rank after those of another; on the others nothing.
template <class T>
std::vector<T> gather_values(World& world, const std::vector<T>& values) {
  std::vector<T> all;
  for (const auto& bytes : gather_bytes_on_rank_0(world, packed(values))) {
    const auto some = unpacked<std::vector<T>>(bytes);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// The std::int64_t that a structure, with the structures in it, is made of.
template <ListsMembers Counts>
void list_counts(Counts& counts, std::vector<std::int64_t*>& list) {
  const auto add = [&](auto& member) {
    if constexpr (ListsMembers<std::decay_t<decltype(member)>>) {
      list_counts(member, list);
    } else {
      static_assert(std::is_same_v<decltype(member), std::int64_t&>);
      list.push_back(&member);
    }
  };
  std::apply([&](auto&... member) { (add(member), ...); }, counts.members());
}

/// Collective. Every member of a structure of std::int64_t summed over the ranks.
template <ListsMembers Counts>
void sum_members(World& world, Counts& counts) {
  std::vector<std::int64_t*> members;
  list_counts(counts, members);
  reduce_each(world, members, ReduceOp::sum);
}

/// Collective. The largest of every member over the ranks.
template <ListsMembers Counts>
void max_members(World& world, Counts& counts) {
  std::vector<std::int64_t*> members;
  list_counts(counts, members);
  reduce_each(world, members, ReduceOp::max);
}

}  // namespace llampi::comm
