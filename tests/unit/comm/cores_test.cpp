// SPDX-License-Identifier: Apache-2.0
// Cores of a node among its ranks, on nodes that hwloc makes up.
#include "comm/cores.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "comm/near_network.hpp"
#include "comm/node_topology.hpp"

namespace llampi::test {

using namespace comm;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

namespace {

Cpus from_to(int first, int last) { return parse_cpus(fmt::format("{}-{}", first, last)); }

std::vector<RankOnNode> ranks(std::size_t count, int threads, const Cpus& usable) {
  return std::vector<RankOnNode>(count, {.usable = usable, .threads = threads});
}

/// "0-3 4-7", or "none".
std::string divided(const NodeTopology& node, const std::vector<RankOnNode>& ranks) {
  const auto division = divide_cores(node.cores(), ranks);
  if (!division) return "none";
  std::string text;
  for (const Cpus& cpus : division->cpus) text += (text.empty() ? "" : " ") + format_cpus(cpus);
  return text + (division->near_gpus ? " near" : "");
}

/// Two packages of two cores; a GPU with a network device on its switch, and one of each apart, on the second.
constexpr const char* kWithDevices = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f" allowed_cpuset="0x0000000f"
         nodeset="0x00000003" complete_nodeset="0x00000003" allowed_nodeset="0x00000003" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001"
          complete_nodeset="0x00000001" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001"
           complete_nodeset="0x00000001" gp_index="3" local_memory="1048576"/>
   <object type="Core" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001"
           complete_nodeset="0x00000001" gp_index="4">
    <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001"
            complete_nodeset="0x00000001" gp_index="5"/>
   </object>
   <object type="Core" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000001"
           complete_nodeset="0x00000001" gp_index="6">
    <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000001"
            complete_nodeset="0x00000001" gp_index="7"/>
   </object>
   <object type="Bridge" gp_index="8" bridge_type="0-1" depth="0" bridge_pci="0000:[00-0f]">
    <object type="PCIDev" gp_index="9" pci_busid="0000:05:00.0" pci_type="0207 [15b3:1017] [15b3:0007] 00" pci_link_speed="0">
     <object type="OSDev" gp_index="10" name="mlx5_0" osdev_type="3"/>
    </object>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c" nodeset="0x00000002"
          complete_nodeset="0x00000002" gp_index="12">
   <object type="NUMANode" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c" nodeset="0x00000002"
           complete_nodeset="0x00000002" gp_index="13" local_memory="1048576"/>
   <object type="Core" os_index="0" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000002"
           complete_nodeset="0x00000002" gp_index="14">
    <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000002"
            complete_nodeset="0x00000002" gp_index="15"/>
   </object>
   <object type="Core" os_index="1" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x00000002"
           complete_nodeset="0x00000002" gp_index="16">
    <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x00000002"
            complete_nodeset="0x00000002" gp_index="17"/>
   </object>
   <object type="Bridge" gp_index="18" bridge_type="0-1" depth="0" bridge_pci="0000:[10-4f]">
    <object type="Bridge" gp_index="19" bridge_type="1-1" depth="1" bridge_pci="0000:[11-1f]" pci_busid="0000:10:00.0"
            pci_type="0604 [10b5:8747] [0000:0000] 00" pci_link_speed="0">
     <object type="PCIDev" gp_index="20" pci_busid="0000:17:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0"/>
     <object type="PCIDev" gp_index="21" pci_busid="0000:18:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0">
      <object type="OSDev" gp_index="22" name="mlx5_1" osdev_type="3"/>
     </object>
    </object>
    <object type="PCIDev" gp_index="23" pci_busid="0000:3a:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0">
     <object type="OSDev" gp_index="24" name="mlx5_2" osdev_type="3"/>
    </object>
   </object>
  </object>
 </object>
</topology>
)";

}  // namespace

TEST(Cpus, AreWrittenAsRangesAndReadBack) {
  EXPECT_EQ(format_cpus({}), "");
  EXPECT_EQ(format_cpus({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  for (const char* text : {"", "3", "0-63", "1,3-4,200"}) EXPECT_EQ(format_cpus(parse_cpus(text)), text);
}

TEST(DividedCores, LieWithinADomain) {
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:4 pu:1");
  EXPECT_EQ(divided(node, ranks(2, 8, from_to(0, 15))), "0-7 8-15");
  EXPECT_EQ(divided(node, ranks(4, 4, from_to(0, 15))), "0-3 4-7 8-11 12-15");
  EXPECT_EQ(divided(node, ranks(8, 2, from_to(0, 15))), "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15");
}

TEST(DividedCores, AreSpreadOverAllDomainsByFewThreads) {
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:4 pu:1");
  EXPECT_EQ(divided(node, ranks(2, 1, from_to(0, 15))), "0-7 8-15");
  EXPECT_EQ(divided(node, ranks(3, 4, from_to(0, 15))), "0-3 4-7 8-15");
  EXPECT_EQ(divided(node, ranks(5, 2, from_to(0, 15))), "0-1 2-3 4-7 8-11 12-15");
}

TEST(DividedCores, CrossDomainsOnlyWhereThreadsNeedIt) {
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:4 pu:1");
  EXPECT_EQ(divided(node, ranks(3, 5, from_to(0, 15))), "0-4 5-9 10-15");
  EXPECT_EQ(divided(node, ranks(1, 16, from_to(0, 15))), "0-15");
}

TEST(DividedCores, KeepHardwareThreadsOfACoreTogetherWhereTheyCan) {
  const auto node = NodeTopology::synthetic("package:1 numa:1 core:3 pu:2");  // cores 0-1, 2-3, 4-5
  EXPECT_EQ(divided(node, ranks(2, 2, from_to(0, 5))), "0-1 2-5");
  EXPECT_EQ(divided(node, ranks(3, 2, from_to(0, 5))), "0-1 2-3 4-5");
  EXPECT_EQ(divided(node, ranks(2, 3, from_to(0, 5))), "0-2 3-5");
  EXPECT_EQ(divided(node, ranks(6, 1, from_to(0, 5))), "0 1 2 3 4 5");
}

TEST(DividedCores, AreThoseOnlyThatRanksMayUse) {
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:4 pu:1");
  EXPECT_EQ(divided(node, ranks(2, 2, parse_cpus("1-2,9-11"))), "1-2 9-11");
  EXPECT_EQ(divided(node, ranks(2, 1, parse_cpus("3-4"))), "3 4");
}

TEST(DividedCores, AreNoneWhereThreadsAreMore) {
  const auto node = NodeTopology::synthetic("package:1 numa:1 core:4 pu:1");
  EXPECT_EQ(divided(node, ranks(2, 3, from_to(0, 3))), "none");
  EXPECT_EQ(divided(node, ranks(5, 1, from_to(0, 3))), "none");
  EXPECT_EQ(divided(node, ranks(2, 1, from_to(40, 50))), "none") << "not of this node";
}

TEST(DividedCores, HoldAsManyThreadsAsEachRankHas) {
  // Every case: nobody shares, and each has room for its threads.
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:3 pu:2");
  for (std::size_t count = 1; count <= 24; ++count) {
    const int threads = static_cast<int>(24 / count);
    const auto division = divide_cores(node.cores(), ranks(count, threads, from_to(0, 23)));
    ASSERT_TRUE(division) << count;
    std::vector<int> users(24);
    for (const Cpus& cpus : division->cpus) {
      EXPECT_GE(static_cast<int>(cpus.size()), threads) << count;
      for (const int cpu : cpus) ++users.at(static_cast<std::size_t>(cpu));
    }
    EXPECT_THAT(users, ::testing::Each(1)) << count;
  }
}

TEST(DividedCores, AreNearTheGpus) {
  const auto node = NodeTopology::synthetic("package:2 numa:2 core:4 pu:1");
  auto some = ranks(4, 4, from_to(0, 15));
  for (std::size_t r = 0; r < 4; ++r) some[r].near = r % 2 == 0 ? from_to(8, 15) : from_to(0, 7);
  EXPECT_EQ(divided(node, some), "8-11 0-3 12-15 4-7 near");
  for (auto& rank : some) rank.near = from_to(0, 7);
  EXPECT_EQ(divided(node, some), "0-3 4-7 8-11 12-15") << "16 threads do not fit there";
  for (auto& rank : some) rank.threads = 2;
  EXPECT_EQ(divided(node, some), "0-1 2-3 4-5 6-7 near");
  some[0].near = {};
  EXPECT_EQ(divided(node, some), "0-3 4-7 8-11 12-15") << "where one of the GPUs is, is not known";
  some[0].near = from_to(0, 3);
  EXPECT_EQ(divided(node, some), "0-3 4-7 8-11 12-15") << "places of GPUs overlap";
}

TEST(SharedCpus, TellWhatTheLauncherHasBound) {
  std::vector<RankOnNode> some = {{.usable = {0}}, {.usable = {1}}};
  auto groups = shared_cpus(some);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].sharing, Sharing::alone);
  some = ranks(4, 1, from_to(0, 1));  // as --bind-to socket does
  some[2].usable = some[3].usable = from_to(2, 3);
  groups = shared_cpus(some);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_THAT(groups[1].ranks, ElementsAre(2, 3));
  EXPECT_EQ(groups[0].sharing, Sharing::divide);
  some[0].threads = 2;
  EXPECT_EQ(shared_cpus(some)[0].sharing, Sharing::crowded);
  EXPECT_EQ(shared_cpus(some)[1].sharing, Sharing::divide);
  some[0].usable = from_to(1, 3);
  for (const auto& group : shared_cpus(some)) EXPECT_EQ(group.sharing, Sharing::overlaps);
}

TEST(SharedCpus, AreLeftToOpenMPAndToASingleRank) {
  auto some = ranks(2, 1, from_to(0, 3));
  some[1].by_openmp = true;
  EXPECT_EQ(shared_cpus(some)[0].sharing, Sharing::openmp);
  some = ranks(1, 4, from_to(0, 3));
  EXPECT_EQ(shared_cpus(some)[0].sharing, Sharing::alone);
  some[0].has_gpu = true;
  EXPECT_EQ(shared_cpus(some)[0].sharing, Sharing::divide);
  some[0].threads = 5;
  EXPECT_EQ(shared_cpus(some)[0].sharing, Sharing::crowded);
}

TEST(NearNetwork, TheLauncherSaysWhichRankOfTheNodeThisIs) {
  using Variables = std::map<std::string, std::string>;
  const auto place = [](const Variables& variables) -> std::string {
    const auto found = place_on_node([&](const char* name) {
      const auto variable = variables.find(name);
      return variable == variables.end() ? nullptr : variable->second.c_str();
    });
    return found ? fmt::format("{} of {}", found->rank, found->ranks) : "none";
  };
  EXPECT_EQ(place({}), "none");
  EXPECT_EQ(place({{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}}), "3 of 8");
  EXPECT_EQ(place({{"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x64)"}}), "1 of 2");
  EXPECT_EQ(place({{"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}}), "1 of 2");
  for (const char* uneven : {"2,1", "2(x3),1", "2(x3", "", "two", "1"})
    EXPECT_EQ(place({{"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", uneven}}), "none") << uneven;
  EXPECT_EQ(place({{"SLURM_LOCALID", "1"}}), "none");
  EXPECT_EQ(place({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "4"}}), "0 of 4");
}

TEST(NearNetwork, RanksThatNobodyHasBoundStartOnTheCoresThatTheyWillHave) {
  const auto node = NodeTopology::synthetic("package:2 numa:1 core:4 pu:2");
  const auto start = [&](const Cpus& usable, PlaceOnNode place) {
    const auto cores = cores_to_start_on(node, usable, place);
    return cores ? format_cpus(*cores) : "none";
  };
  EXPECT_EQ(start(from_to(0, 15), {0, 2}), "0-7");
  EXPECT_EQ(start(from_to(0, 15), {1, 2}), "8-15");
  EXPECT_EQ(start(from_to(0, 15), {5, 8}), "10-11");
  EXPECT_EQ(start(from_to(0, 15), {0, 1}), "none") << "all are its own";
  EXPECT_EQ(start(from_to(0, 7), {0, 2}), "none") << "the launcher has bound it";
  EXPECT_EQ(start(from_to(0, 15), {0, 17}), "none") << "too few";
}

TEST(NearNetwork, RanksOnBothPackagesAreNearDifferentDevices) {
  const auto node = NodeTopology::from_xml(kWithDevices);
  const auto near = [&](int rank) {
    return node.networks_near(cores_to_start_on(node, from_to(0, 3), {rank, 2}).value());
  };
  EXPECT_THAT(near(0), ElementsAre("mlx5_0"));
  EXPECT_THAT(near(1), ElementsAre("mlx5_1", "mlx5_2"));
}

TEST(NodeTopology, KnowsCoresAndWhatIsNearADevice) {
  const auto node = NodeTopology::from_xml(kWithDevices);
  ASSERT_EQ(node.cores().size(), 4U);
  EXPECT_EQ(node.cores()[2].domain, 1);
  EXPECT_THAT(node.near_device("0000:17:00.0"), ElementsAre(2, 3));
  EXPECT_THAT(node.near_device("0000:99:00.0"), IsEmpty());
  EXPECT_THAT(node.networks_near_device("0000:17:00.0"), ElementsAre("mlx5_1"));
  EXPECT_THAT(node.networks_near_device(""), IsEmpty());
  EXPECT_THAT(node.networks_near({0, 1}), ElementsAre("mlx5_0"));
  EXPECT_THAT(node.networks_near({3}), ElementsAre("mlx5_1", "mlx5_2"));
  EXPECT_THAT(NodeTopology::synthetic("core:2 pu:1").networks_near({0}), IsEmpty());
}

TEST(NodeTopology, OfThisMachineHasTheCoresThatThisProcessMayUse) {
  Cpus all;
  for (const Core& core : NodeTopology().cores()) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  EXPECT_THAT(all, ::testing::Not(IsEmpty()));
}

}  // namespace llampi::test
