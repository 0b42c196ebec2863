// SPDX-License-Identifier: Apache-2.0
// Every collective in every dtype, under every order of work, against what each rank computes by itself. The
// numbers are such that sums are exact, so everything is compared bit by bit. By ours and by NCCL's reduction.
#include <algorithm>
#include <array>

#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::array<std::int64_t, 5> kSizes = {0, 1, 5, 1000, 5003};
constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16,
                            DType::float64, DType::int64,    DType::int32};

bool is_narrow(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }
bool is_added(DType dtype) { return is_narrow(dtype) || dtype == DType::float32; }
/// What sums of `dtype` can become.
std::vector<DType> results_of(DType dtype) {
  if (is_narrow(dtype)) return {dtype, DType::float32};
  return {dtype};
}

struct Way {
  const char* name;
  comm::Reduction reduction;
  std::int64_t exchange_bytes = comm::kExchangeBytes;
};

class NcclCollectives : public NcclTest, public ::testing::WithParamInterface<Way> {
 protected:
  comm::NcclOptions options() const override {
    auto options = NcclTest::options();
    options.reduction = GetParam().reduction;
    options.exchange_bytes = GetParam().exchange_bytes;
    return options;
  }
  /// Calls `body(dtype, elements)` for everything there is.
  template <class Body>
  void for_all(Body body) {
    for (const auto& order : compared_orders()) {
      order.set();
      for (const DType dtype : kTypes) {
        for (const std::int64_t elements : kSizes) {
          SCOPED_TRACE(fmt::format("{}, {} {}", order.name, elements, to_string(dtype)));
          body(dtype, elements);
        }
      }
    }
  }

  Buffer own(DType dtype, std::int64_t elements) {
    Buffer buffer(device(), world(), dtype, elements);
    buffer.set(numbers(mpi.rank(), elements));
    return buffer;
  }

  void gather(comm::Group& group, DType dtype, std::int64_t elements) {
    const Buffer shard = own(dtype, elements), whole(device(), world(), dtype, elements * group.size());
    group.all_gather(shard.view(), whole.view(), kUnshard)->wait(device::Stream::compute);
    EXPECT_EQ(whole.get(), gathered(group, elements));
  }
  static std::vector<double> gathered(const comm::Group& group, std::int64_t elements) {
    std::vector<double> values;
    for (const int rank : group.members()) {
      const auto theirs = numbers(rank, elements);
      values.insert(values.end(), theirs.begin(), theirs.end());
    }
    return values;
  }

  static std::vector<double> sums(const comm::Group& group, std::int64_t begin, std::int64_t end,
                                  double before) {
    std::vector<double> values;
    for (std::int64_t i = begin; i < end; ++i) values.push_back(before + sum_over(group.members(), i));
    return values;
  }

  void reduce_scatter(comm::Group& group, DType dtype, DType result, std::int64_t elements,
                      Accumulate accumulate) {
    const Buffer whole = own(dtype, elements * group.size());
    Buffer shard(device(), world(), result, elements);
    const bool adds = accumulate == Accumulate::yes;
    if (adds) shard.set(std::vector<double>(static_cast<std::size_t>(elements), 3));
    const Buffer room = scatter_room(group, whole.view().elements(), dtype);
    group.reduce_scatter(whole.view(), shard.view(), accumulate, room.view(), kReduce)
        ->wait(device::Stream::compute);
    const std::int64_t begin = group.rank() * elements;
    EXPECT_EQ(shard.get(), sums(group, begin, begin + elements, adds ? 3 : 0));
    whole.get();  // undefined but for the element behind
    room.get();
  }

  void all_reduce(comm::Group& group, DType dtype, DType result, std::int64_t elements,
                  Accumulate accumulate) {
    const Buffer values = own(dtype, elements);
    Buffer total(device(), world(), result, elements);
    const bool adds = accumulate == Accumulate::yes;
    if (adds) total.set(std::vector<double>(static_cast<std::size_t>(elements), 3));
    const Buffer room = reduce_room(group, elements, dtype);
    group.all_reduce(values.view(), total.view(), comm::ReduceOp::sum, accumulate, room.view(), kReduce)
        ->wait(device::Stream::compute);
    EXPECT_EQ(total.get(), sums(group, 0, elements, adds ? 3 : 0));
    values.get();
    room.get();
  }
};
INSTANTIATE_TEST_SUITE_P(Of, NcclCollectives,
                         ::testing::Values(Way{"Tree", comm::Reduction::tree},
                                           Way{"TreeInPieces", comm::Reduction::tree, 4096},
                                           Way{"Nccl", comm::Reduction::nccl}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(NcclCollectives, AllGatherBringsEveryShard) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) { gather(*group, dtype, elements); });
}

TEST_P(NcclCollectives, AllGatherFromItsPlaceInTheWhole) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    Buffer whole(device(), world(), dtype, elements * group->size());
    std::vector<double> values(static_cast<std::size_t>(elements * group->size()), -7);
    const auto mine = numbers(mpi.rank(), elements);
    std::copy(mine.begin(), mine.end(), values.begin() + group->rank() * elements);
    whole.set(values);
    const Tensor place = whole.view().slice(group->rank() * elements, (group->rank() + 1) * elements);
    group->all_gather(place, whole.view(), kUnshard)->wait(device::Stream::compute);
    EXPECT_EQ(whole.get(), gathered(*group, elements));
  });
}

TEST_P(NcclCollectives, ReduceScatterSumsOverRanks) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    for (const DType result : results_of(dtype))
      reduce_scatter(*group, dtype, result, elements, Accumulate::no);
  });
}

TEST_P(NcclCollectives, ReduceScatterMayAdd) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    if (!is_added(dtype)) return;
    for (const DType result : results_of(dtype))
      reduce_scatter(*group, dtype, result, elements, Accumulate::yes);
  });
}

TEST_P(NcclCollectives, ReduceScatterMayGoIntoItsPlaceInTheWhole) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    const Buffer whole = own(dtype, elements * group->size());
    const Buffer room = scatter_room(*group, whole.view().elements(), dtype);
    const std::int64_t begin = group->rank() * elements;
    group
        ->reduce_scatter(whole.view(), whole.view().slice(begin, begin + elements), Accumulate::no,
                         room.view(), kReduce)
        ->wait(device::Stream::compute);
    const auto values = whole.get();
    EXPECT_EQ(std::vector<double>(values.begin() + begin, values.begin() + begin + elements),
              sums(*group, begin, begin + elements, 0));
  });
}

TEST_P(NcclCollectives, AllReduceSumsOverRanks) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    for (const DType result : results_of(dtype)) all_reduce(*group, dtype, result, elements, Accumulate::no);
  });
}

TEST_P(NcclCollectives, AllReduceMayAdd) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    if (!is_added(dtype)) return;
    for (const DType result : results_of(dtype)) all_reduce(*group, dtype, result, elements, Accumulate::yes);
  });
}

// What the gradient norm needs: the maximum and the sum in place, then more with their result, on one stream.
TEST_P(NcclCollectives, AllReduceMayBeInPlaceAndAMaximum) {
  const auto group = group_of_all();
  for_all([&](DType dtype, std::int64_t elements) {
    const Buffer sum = own(dtype, elements), largest = own(dtype, elements);
    const Buffer room = reduce_room(*group, elements, dtype);
    for (const auto& [buffer, op] :
         {std::pair{&sum, comm::ReduceOp::sum}, std::pair{&largest, comm::ReduceOp::max}}) {
      group->all_reduce(buffer->view(), buffer->view(), op, Accumulate::no, room.view(), kReduce)
          ->wait(device::Stream::compute);
    }
    EXPECT_EQ(sum.get(), sums(*group, 0, elements, 0));
    std::vector<double> expected;
    for (std::int64_t i = 0; i < elements; ++i) {
      double most = number(0, i);
      for (const int rank : all) most = std::max(most, number(rank, i));
      expected.push_back(most);
    }
    EXPECT_EQ(largest.get(), expected);
  });
}

// Even and odd ranks, in falling order: two groups at the same time, whose ranks are not the world's.
TEST_P(NcclCollectives, GroupsOfSomeRanksInAnyOrder) {
  std::vector<int> members;
  for (int rank = mpi.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == mpi.rank() % 2) members.push_back(rank);
  }
  const auto group = world().group(members);
  EXPECT_EQ(group->members(), members);
  EXPECT_EQ(members[static_cast<std::size_t>(group->rank())], mpi.rank());
  for (const auto& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    for (const std::int64_t elements : {5, 1000}) {
      gather(*group, DType::bfloat16, elements);
      reduce_scatter(*group, DType::bfloat16, DType::float32, elements, Accumulate::yes);
      reduce_scatter(*group, DType::float32, DType::float32, elements, Accumulate::no);
      all_reduce(*group, DType::int64, DType::int64, elements, Accumulate::no);
    }
  }
}

std::vector<std::uint8_t> bytes_of(int rank, std::int64_t count) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < count; ++i)
    bytes.push_back(static_cast<std::uint8_t>(i + i / 256 + 37 * rank));
  return bytes;
}

// All 256 of them, those that are not numbers, too.
TEST_P(NcclCollectives, AllGatherOf8BitsBringsEveryByte) {
  const auto group = group_of_all();
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    for (const std::int64_t elements : kSizes) {
      const device::Memory room_of_shard = world().allocate(elements + 1),
                           room = world().allocate(elements * mpi.size() + 1);
      const Tensor shard{room_of_shard.data(), dtype, 1, elements},
          whole{room.data(), dtype, 1, elements * mpi.size()};
      const std::vector<std::uint8_t> mine = bytes_of(mpi.rank(), elements);
      device().upload(shard, mine.data(), device::Stream::compute);
      device().synchronize(device::Stream::compute);
      group->all_gather(shard, whole, kUnshard)->wait(device::Stream::compute);
      std::vector<std::uint8_t> expected, gathered(static_cast<std::size_t>(whole.elements()));
      for (int rank = 0; rank < mpi.size(); ++rank) {
        const auto theirs = bytes_of(rank, elements);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      device().download(gathered.data(), whole, device::Stream::compute);
      device().synchronize(device::Stream::compute);
      EXPECT_EQ(gathered, expected);
      EXPECT_THROW(group->all_reduce(shard, shard, comm::ReduceOp::sum, Accumulate::no, {}, kReduce), Error);
      EXPECT_THROW(group->reduce_scatter(whole, shard, Accumulate::no, {}, kReduce), Error);
    }
  }
}

TEST_P(NcclCollectives, RefusesWhatDoesNotFit) {
  const auto group = group_of_all();
  const Buffer four(device(), world(), DType::float32, 4),
      more(device(), world(), DType::float32, 4 * mpi.size() + 1),
      doubles(device(), world(), DType::float64, 4),
      integers(device(), world(), DType::int64, 4 * mpi.size());
  const Buffer room(device(), world(), DType::float32, 4 * mpi.size());
  const Tensor fitting = more.view().slice(0, 4 * mpi.size());
  const Tensor narrow{four.view().data, DType::bfloat16, 1, 4};
  const auto scatter = [&](Tensor whole, Tensor shard, Accumulate accumulate) {
    group->reduce_scatter(whole, shard, accumulate, room.view(), kReduce);
  };
  const auto reduce = [&](Tensor values, Tensor result, Accumulate accumulate) {
    group->all_reduce(values, result, comm::ReduceOp::sum, accumulate, room.view(), kReduce);
  };
  EXPECT_THROW(group->all_gather(four.view(), more.view(), kUnshard), Error);
  EXPECT_THROW(group->all_gather(four.view(), fitting, device::Stream::host), Error);
  EXPECT_THROW(scatter(more.view(), four.view(), Accumulate::no), Error);
  EXPECT_THROW(scatter(fitting, narrow, Accumulate::no), Error);
  EXPECT_THROW(scatter(integers.view(), integers.view().slice(0, 4), Accumulate::yes), Error);
  EXPECT_THROW(reduce(doubles.view(), four.view(), Accumulate::no), Error);
  EXPECT_THROW(reduce(four.view(), four.view(), Accumulate::yes), Error);
  EXPECT_THROW(reduce(narrow, four.view(), Accumulate::no), Error);
  EXPECT_THROW(reduce(integers.view(), integers.view(), Accumulate::yes), Error);
  if (mpi.size() > 1 && GetParam().reduction == comm::Reduction::tree) {
    EXPECT_THROW(group->reduce_scatter(fitting, four.view(), Accumulate::no, Tensor(), kReduce), Error);
    EXPECT_THROW(
        group->all_reduce(four.view(), four.view(), comm::ReduceOp::sum, Accumulate::no, Tensor(), kReduce),
        Error);
  }
  gather(*group, DType::float32, 4);  // and goes on
}

}  // namespace
}  // namespace llampi::test
