// SPDX-License-Identifier: Apache-2.0
// Another operation is a constant, an action with operands, and a handler. Live ranges, memory, waits,
// reports and what is printed follow from the operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fsdp/runtime/executor.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "llampi/fsdp/placement.hpp"
#include "llampi/fsdp/streams.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

constexpr Op kDouble{"double"};          // output = 2 input
constexpr Op kSumOverRanks{"rank_sum"};  // output = input, summed
constexpr Purpose kDoubled{"doubled values", Category::other};
constexpr std::int64_t kElements = 100;  // 400 bytes, 512 in an arena

Buffer values(Purpose purpose, const std::string& name, bool persistent) {
  return {
      .purpose = purpose, .name = name, .cols = kElements, .bytes = 4 * kElements, .persistent = persistent};
}

Action from_to(Op op, BufferId from, BufferId to) {
  return {.op = op, .operands = {{from, Slot::input, Access::read}, {to, Slot::output, Access::write}}};
}

/// result = the sum over ranks of 8 start, through two rooms: the third value may lie where the first did.
struct Doubling {
  Program program;
  BufferId start, result, first, second, third, workspace;

  explicit Doubling(int ranks) {
    start = program.add(values(Purpose::inputs, "start", true));
    result = program.add(values(Purpose::logits, "result", true));
    first = program.add(values(kDoubled, "first", false));
    second = program.add(values(kDoubled, "second", false));
    third = program.add(values(kDoubled, "third", false));
    const std::int64_t bytes = comm::all_reduce_workspace(kElements, ranks, DType::float32);
    workspace = program.add({.purpose = Purpose::collective_workspace,
                             .dtype = DType::int32,
                             .cols = bytes / 4,
                             .bytes = bytes,
                             .persistent = true});
    program.actions = {from_to(kDouble, start, first), from_to(kDouble, first, second),
                       from_to(kDouble, second, third)};
    Action sum = from_to(kSumOverRanks, third, result);
    sum.operands.front().access = Access::both;  // it is left undefined
    sum.operands.push_back({workspace, Slot::workspace, Access::write});
    sum.stream = kReduceStream;
    sum.ranks = Ranks::shard_group;
    sum.waits = {2};
    program.actions.push_back(sum);
    program.actions.push_back(from_to(kDouble, start, second));  // does not wait for it
    place(program);
  }
};

TEST(AnotherOperation, HasItsBuffersPlaced) {
  const Doubling doubling(test_world().size());
  const Program& program = doubling.program;
  EXPECT_EQ(program[doubling.first].live, (std::vector<LiveRange>{{0, 1}}));
  EXPECT_EQ(program[doubling.second].live, (std::vector<LiveRange>{{1, 2}, {4, 4}}));
  EXPECT_EQ(program[doubling.third].live, (std::vector<LiveRange>{{2, 4}})) << "nothing waits for the sum";
  EXPECT_EQ(program[doubling.second].offset, program[doubling.first].offset + 512);
  EXPECT_EQ(program[doubling.third].offset, program[doubling.first].offset) << "it is needed no more";
  EXPECT_TRUE(program[doubling.start].live.empty()) << "it is kept";
}

TEST(AnotherOperation, IsRun) {
  comm::World& world = test_world();
  const auto device = device::make_cpu_device(1);
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto group = world.group(all);
  const Doubling doubling(world.size());
  const Program& program = doubling.program;
  Arenas arenas(world, *device, program.arena_bytes);
  HandlerTable handlers;
  handlers.add(kDouble, [](Call& call) -> std::unique_ptr<comm::Work> {
    const float* from = call[Slot::input].as<float>();
    std::transform(from, from + kElements, call[Slot::output].as<float>(), [](float x) { return 2 * x; });
    return nullptr;
  });
  handlers.add(kSumOverRanks, [&](Call& call) {
    call.announce();
    return group->all_reduce(call[Slot::input], call[Slot::output], comm::ReduceOp::sum, Accumulate::no,
                             call[Slot::workspace], call.action.stream);
  });
  const std::vector<Unit> units;
  const std::vector<model::LayerSpec> layers;
  const BoundProgram bound = bind(program, arenas, {world.rank(), world.size()}, handlers, {units, layers});

  float* start = arenas.at(program[doubling.start]).as<float>();
  std::iota(start, start + kElements, static_cast<float>(world.rank()));
  health::FlightRecord record;
  Executor executor(*device, world, arenas, record);
  std::vector<std::string> seen;
  executor.observe([&](const Action& action, int, Moment moment, double) {
    if (moment == Moment::end) seen.emplace_back(to_string(action.op));
  });
  EXPECT_TRUE(executor.run(bound, {}));

  const float* result = arenas.at(program[doubling.result]).as<float>();
  const int ranks = world.size();
  for (int i = 0; i < kElements; ++i) {
    const int sum_of_starts = ranks * i + ranks * (ranks - 1) / 2;
    ASSERT_EQ(result[i], static_cast<float>(8 * sum_of_starts)) << i;
  }
  EXPECT_EQ(arenas.used(), program.arena_bytes);
  EXPECT_EQ(seen.size(), program.actions.size());
  ASSERT_EQ(record.entries().size(), 1U);
  EXPECT_STREQ(record.entries().front().what.operation, "rank_sum");
}

TEST(AnotherOperation, IsReportedAndPrinted) {
  const Doubling doubling(test_world().size());
  const auto rows = bytes_by_purpose(doubling.program);
  const auto row =
      std::find_if(rows.begin(), rows.end(), [](const auto& r) { return r.purpose == kDoubled; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->buffers, 3);
  EXPECT_EQ(row->bytes, 3 * 4 * kElements);
  const std::string text = format_actions(doubling.program, {}, {});
  EXPECT_NE(text.find("     1  compute     double\n"
                      "        read    input              doubled values #2 first, 400 B\n"
                      "        write   output             doubled values #3 second, 400 B\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("     3  reduce      rank_sum, after 2\n"), std::string::npos) << text;
}

TEST(AnotherOperation, NeedsAHandler) {
  const Doubling doubling(1);
  const auto device = device::make_cpu_device(1);
  Arenas arenas(test_world(), *device, doubling.program.arena_bytes);
  EXPECT_THROW(bind(doubling.program, arenas, {}, HandlerTable(), {{}, {}}), Error);
}

TEST(LiveRanges, OfWhatIsReadBeforeItIsWrittenThereAreNone) {
  Program program;
  const BufferId buffer = program.add(values(kDoubled, "", false));
  program.actions.push_back({.op = kDouble, .operands = {{buffer, Slot::input, Access::read}}});
  EXPECT_THROW(place(program), Error);
}

TEST(LiveRanges, PartsThatAreWrittenOneAfterAnotherAreOneRange) {
  Program program;
  const BufferId buffer = program.add(values(kDoubled, "", false));
  const auto write = [&](std::int64_t offset) {
    program.actions.push_back(
        {.op = kDouble, .operands = {{buffer, Slot::output, Access::write, {offset, 1, kElements / 2}}}});
  };
  write(0);
  write(kElements / 2);
  program.actions.push_back({.op = kDouble, .operands = {{buffer, Slot::input, Access::read}}});
  write(kElements / 2);
  write(0);
  place(program);
  EXPECT_EQ(program[buffer].live, (std::vector<LiveRange>{{0, 2}, {3, 4}}));
}

TEST(LiveRanges, InPlaceIsNoNewRange) {
  Program program;
  const BufferId buffer = program.add(values(kDoubled, "", false));
  program.actions = {{.op = kDouble, .operands = {{buffer, Slot::reserved, Access::reserve}}},
                     {.op = kDouble, .operands = {{buffer, Slot::output, Access::write}}},
                     from_to(kDouble, buffer, buffer)};
  place(program);
  EXPECT_EQ(program[buffer].live, (std::vector<LiveRange>{{0, 2}}));
}

}  // namespace
}  // namespace llampi::test
