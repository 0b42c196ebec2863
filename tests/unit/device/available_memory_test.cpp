// SPDX-License-Identifier: Apache-2.0
// Limits of control groups, in file systems that are made up as containers and batch systems have them.
#include <gtest/gtest.h>

#include <fstream>

#include "llampi/device/host_memory.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace device;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() { write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 4096000 kB\n"); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void group_2(const std::string& group, const std::string& limit, std::int64_t used,
               std::int64_t inactive = 0) const {
    const std::string folder = "sys/fs/cgroup" + group;
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", std::to_string(used) + "\n");
    write(folder + "/memory.stat", "anon 7\ninactive_file " + std::to_string(inactive) + "\n");
  }
  std::int64_t available() const { return available_host_memory(root_.path()); }

  TemporaryFolder root_;
};

constexpr const char* kMount2 =
    "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"
    "31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(AvailableMemory, IsThatOfTheMachineWithoutControlGroups) {
  EXPECT_EQ(available(), 4096000 * 1024LL);
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_EQ(available(), std::numeric_limits<std::int64_t>::max());
}

TEST_F(AvailableMemory, IsLimitedByTheJobAroundTheTask) {
  write("proc/self/mountinfo", kMount2);
  write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n");
  const std::string job = "/system.slice/slurmstepd.scope/job_7";
  group_2(job + "/step_0/user/task_1", "max", 100);
  group_2(job + "/step_0", "max", 100);
  group_2(job, std::to_string(500 * kMiB), 300 * kMiB, 50 * kMiB);
  group_2("/system.slice", std::to_string(900 * kMiB), 400 * kMiB);
  EXPECT_EQ(available(), 250 * kMiB) << "files that were only read can be given back";
  group_2(job + "/step_0", std::to_string(40 * kMiB), 30 * kMiB);
  EXPECT_EQ(available(), 10 * kMiB);
  group_2(job + "/step_0", std::to_string(40 * kMiB), 41 * kMiB);
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, IsLimitedByAGroupOfVersion1) {
  write("proc/self/mountinfo",
        "35 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:16 - cgroup cgroup rw,memory\n"
        "37 25 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n");
  write("proc/self/cgroup", "9:memory:/slurm/uid_0/job_7/step_0\n4:cpu,cpuacct:/elsewhere\n0::/init.scope\n");
  const std::string slurm = "sys/fs/cgroup/memory/slurm";
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
  write(slurm + "/uid_0/job_7/memory.limit_in_bytes", std::to_string(60 * kMiB));
  write(slurm + "/uid_0/job_7/memory.usage_in_bytes", std::to_string(20 * kMiB));
  write(slurm + "/uid_0/job_7/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(kMiB) + "\n");
  EXPECT_EQ(available(), 41 * kMiB);
}

// A container sees its group as the root, whether /proc names it so or as the machine does.
TEST_F(AvailableMemory, IsLimitedByTheContainer) {
  write("proc/self/mountinfo", "31 22 0:27 /docker/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  group_2("", std::to_string(80 * kMiB), 10 * kMiB);
  for (const auto* group : {"0::/docker/c1\n", "0::/\n", "0::/../c2\n"}) {
    write("proc/self/cgroup", group);
    EXPECT_EQ(available(), 70 * kMiB) << group;
  }
  write("proc/self/cgroup", "0::/docker/c1/inner\n");
  group_2("/inner", std::to_string(30 * kMiB), 0);
  EXPECT_EQ(available(), 30 * kMiB);
}

}  // namespace
}  // namespace llampi::test
