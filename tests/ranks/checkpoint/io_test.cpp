// SPDX-License-Identifier: Apache-2.0
// The two ways between ranks and a file, and what writes for a node: the same bytes, and each reads what the other wrote, and
// what h5repack would make of it.
#include <hdf5.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <cstdlib>

#include "checkpoint/checksums.hpp"
#include "checkpoint/node_ranks.hpp"
#include "checkpoint/save.hpp"
#include "checkpoint/write_values.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"
#include "support/world_over.hpp"

namespace {

bool clock_stands_still = false;

time_t seconds_now() {
  timespec now{};
  if (!clock_stands_still) clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec;
}

}  // namespace

// Two files can only have the same bytes if they have the same times, so the clocks that HDF5 and llampi read can be stopped.
extern "C" {
time_t time(time_t* result) noexcept {
  const time_t now = seconds_now();
  if (result != nullptr) *result = now;
  return now;
}
int gettimeofday(timeval* result, void* /*zone*/) noexcept {
  *result = {.tv_sec = seconds_now(), .tv_usec = 0};
  return 0;
}
}

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

#define PARALLEL_OR_SKIP() \
  if (!io::hdf5::is_parallel()) GTEST_SKIP() << "this HDF5 is not parallel"

/// What the file system says of its blocks.
blksize_t block_size_of(const fs::path& file) {
  struct stat status {};
  EXPECT_EQ(::stat(file.c_str(), &status), 0);
  return status.st_blksize;
}

constexpr FileIo kBoth[] = {FileIo::direct, FileIo::hdf5};

class Io : public ::testing::Test {
 protected:
  fs::path file(const std::string& name) const { return folder_.path() / name; }
  const fs::path& folder() const { return folder_.path(); }

  static SaveOptions options(FileIo io) {
    SaveOptions options;
    options.block_elements = 1000;
    options.file.io = io;
    options.file.transfer_elements = 700;  // several rounds
    return options;
  }
  static void save(const fs::path& file, const SamplePieces& pieces, const SaveOptions& options) {
    save_checkpoint(test_world(), sample_device(), file,
                    {pieces.tensors(), pieces.pieces(), sample_state(), {"{}", "[run]\n"}}, options);
    wait_for_all_ranks();
  }
  static void expect_loads(const fs::path& file, FileIo io, const SampleOptions& saved = {},
                           const SampleOptions& read = {}, const Log& log = {}) {
    const auto pieces = SamplePieces::even(3, test_rank(), test_ranks(), read);
    const auto state = load_checkpoint(test_world(), sample_device(), file, pieces.tensors(), pieces.pieces(),
                                       {.io = io, .log = log});
    EXPECT_EQ(fields(state), fields(sample_state()));
    EXPECT_EQ(pieces.differences(saved), 0);
    wait_for_all_ranks();
  }
  void expect_same_bytes(const SamplePieces& pieces, const SaveOptions& a, const SaveOptions& b) const {
    clock_stands_still = true;
    save(file("a.h5"), pieces, a);
    save(file("b.h5"), pieces, b);
    clock_stands_still = false;
    EXPECT_TRUE(read_text(file("a.h5")) == read_text(file("b.h5")));
    wait_for_all_ranks();
  }

 private:
  SharedFolder folder_;
};

TEST_F(Io, BothWriteTheSameBytes) {
  PARALLEL_OR_SKIP();
  expect_same_bytes(SamplePieces::random(7, test_rank(), test_ranks()).fill(), options(FileIo::direct),
                    options(FileIo::hdf5));
  SampleOptions narrow{.model = DType::bfloat16, .moment = DType::bfloat16};
  narrow.tensors[4].optimizer = false;
  for (const DType moments : {DType::float32, DType::bfloat16}) {
    auto direct = options(FileIo::direct), hdf5 = options(FileIo::hdf5);
    direct.file.moments = hdf5.file.moments = moments;
    expect_same_bytes(SamplePieces::even(5, test_rank(), test_ranks(), narrow).fill(), direct, hdf5);
  }
}

// In one window, in many, and in such as end within an element, which belongs to the window that it begins in.
TEST_F(Io, WritersForOthersWriteTheSameBytes) {
  auto alone = options(FileIo::direct);
  alone.file.writers_per_node = test_ranks();
  for (const std::int64_t stripe : {8'000'000, 4096, 1001}) {
    auto some = options(FileIo::direct);
    some.file.writers_per_node = stripe == 4096 ? 2 : 1;
    some.file.stripe_bytes = stripe;
    some.window_bytes = 1;
    some.file.moments = alone.file.moments = stripe == 1001 ? DType::bfloat16 : DType::float32;
    expect_same_bytes(SamplePieces::random(8, test_rank(), test_ranks()).fill(), alone, some);
    expect_same_bytes(SamplePieces::even(7, test_rank(), test_ranks()).fill(), alone, some);
  }
}

TEST_F(Io, EachReadsWhatTheOtherWrote) {
  PARALLEL_OR_SKIP();
  for (const FileIo writes : kBoth) {
    save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(writes));
    for (const FileIo reads : kBoth) {
      expect_loads(file("step.h5"), reads);
      expect_loads(file("step.h5"), reads, {}, {.moments = false, .model = DType::bfloat16});
    }
  }
}

// All ranks are in one collective call, and HDF5 does not turn it into calls of its own for each.
TEST_F(Io, Hdf5MovesTogether) {
  PARALLEL_OR_SKIP();
  if (test_ranks() == 1) GTEST_SKIP() << "HDF5 says so only of several ranks";
  save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(FileIo::direct));
  const auto opened = io::hdf5::open_together(file("step.h5"), test_world().communicator_number(),
                                              io::hdf5::OpenFor::reading);
  const auto transfer = io::hdf5::collective_transfer();
  auto dataset = io::hdf5::open_dataset(opened.id(), "/model/model.embed_tokens.weight");
  std::vector<float> values(1000);
  const io::hdf5::ElementRange range{77 + 1000 * test_rank(), 1000};
  io::hdf5::read_elements(dataset.id(), {&range, 1}, values.data(), H5T_NATIVE_FLOAT, transfer.id());
  H5D_mpio_actual_io_mode_t mode{};
  ASSERT_GE(H5Pget_mpio_actual_io_mode(transfer.id(), &mode), 0);
  EXPECT_EQ(mode, H5D_MPIO_CONTIGUOUS_COLLECTIVE);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(values[0]), sample_bits(0, 0, 77 + 1000 * test_rank()));
}

/// What h5repack makes of a file with -f SHUF -f GZIP=1 and small chunks, or in big-endian numbers.
void repack(const fs::path& from, const fs::path& to, bool big_endian = false) {
  const io::Hdf5Lock lock;
  fs::copy_file(from, to);
  const io::hdf5::File file(io::hdf5::check(H5Fopen(to.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
  for (const std::string group : {"/model", "/optimizer/exp_avg", "/optimizer/exp_avg_sq"}) {
    for (const auto& name : io::hdf5::links(io::hdf5::open_group(file.id(), group).id())) {
      const std::string path = group + "/" + name, aside = "/aside";
      ASSERT_GE(H5Lmove(file.id(), path.c_str(), file.id(), aside.c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
      const auto old = io::hdf5::open_dataset(file.id(), aside);
      const io::hdf5::Type type(big_endian ? H5Tcopy(H5T_IEEE_F32BE) : H5Dget_type(old.id()));
      const io::hdf5::Dataspace space(H5Dget_space(old.id()));
      const io::hdf5::PropertyList properties(H5Pcreate(H5P_DATASET_CREATE));
      std::vector<hsize_t> chunk;
      for (const auto extent : io::hdf5::shape(old.id())) chunk.push_back(std::min<hsize_t>(extent, 13));
      if (!big_endian) {
        ASSERT_GE(H5Pset_chunk(properties.id(), static_cast<int>(chunk.size()), chunk.data()), 0);
        ASSERT_GE(H5Pset_shuffle(properties.id()), 0);
        ASSERT_GE(H5Pset_deflate(properties.id(), 1), 0);
      }
      const io::hdf5::Dataset fresh(io::hdf5::check(H5Dcreate2(file.id(), path.c_str(), type.id(), space.id(),
                                                               H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                                                    "H5Dcreate2"));
      const auto elements = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.id()));
      const io::hdf5::Type memory(H5Dget_type(old.id()));
      std::vector<std::uint32_t> values(elements);
      ASSERT_GE(H5Dread(old.id(), memory.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
      ASSERT_GE(H5Dwrite(fresh.id(), memory.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
      const auto blocks = static_cast<std::size_t>(io::blocks_of(static_cast<std::int64_t>(elements), 1000));
      const auto sums = io::hdf5::read_uint32s(old.id(), "crc32", blocks);
      io::hdf5::create_uint32s(fresh.id(), "crc32", blocks);
      io::hdf5::write_uint32s(fresh.id(), "crc32", sums);
      ASSERT_GE(H5Ldelete(file.id(), aside.c_str(), H5P_DEFAULT), 0);
    }
  }
}

TEST_F(Io, ReadsChunkedAndCompressedFiles) {
  for (const DType moments : {DType::float32, DType::bfloat16}) {
    const SampleOptions saved{.moment = moments};
    auto options = Io::options(FileIo::direct);
    options.file.moments = moments;
    save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks(), saved).fill(), options);
    const auto repacked = file(moments == DType::float32 ? "wide.h5" : "narrow.h5");
    on_rank_0([&] { repack(file("step.h5"), repacked); });

    std::vector<std::string> lines;
    expect_loads(repacked, FileIo::direct, saved, {},
                 Log([&](const std::string& line) { lines.push_back(line); }));
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_THAT(lines[0], AllOf(HasSubstr(repacked.string()), HasSubstr("checkpoint.io = hdf5")));
    if (io::hdf5::is_parallel()) expect_loads(repacked, FileIo::hdf5, saved);
    if (test_rank() == 0) {
      EXPECT_GT(verify_checkpoint(repacked), 0);
      float value = 0;
      open_checkpoint_weights(repacked)->read(0, 3, 1, &value);  // "column": in alphabetical order
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value), sample_bits(0, 3, 3));
    }
    wait_for_all_ranks();
  }
}

TEST_F(Io, ReadsNumbersInAnotherByteOrder) {
  save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(FileIo::direct));
  on_rank_0([&] { repack(file("step.h5"), file("big.h5"), true); });
  expect_loads(file("big.h5"), FileIo::direct);
  if (io::hdf5::is_parallel()) expect_loads(file("big.h5"), FileIo::hdf5);
}

// An external link leads to values that lie in another file than the one that is named, which may have others at that place.
TEST_F(Io, FollowsLinksToOtherFiles) {
  save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(FileIo::direct));
  on_rank_0([&] {
    const std::string path = "/model/model.embed_tokens.weight";
    auto bytes = read_text(file("step.h5"));
    const io::Hdf5Lock lock;
    {
      const auto opened = io::hdf5::open_file(file("step.h5"));
      const auto dataset = io::hdf5::open_dataset(opened.id(), path);
      bytes[io::hdf5::contiguous_offset(opened.id(), dataset.id()).value()] ^= 1;
    }
    write_bytes(file("linked.h5"), bytes);
    const io::hdf5::File linked(
        io::hdf5::check(H5Fopen(file("linked.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
    ASSERT_GE(H5Ldelete(linked.id(), path.c_str(), H5P_DEFAULT), 0);
    ASSERT_GE(
        H5Lcreate_external("step.h5", path.c_str(), linked.id(), path.c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
  });
  expect_loads(file("linked.h5"), FileIo::direct);
  if (io::hdf5::is_parallel()) expect_loads(file("linked.h5"), FileIo::hdf5);
  on_rank_0([&] { EXPECT_GT(verify_checkpoint(file("linked.h5")), 0); });
}

TEST_F(Io, DamageIsFoundEitherWay) {
  PARALLEL_OR_SKIP();
  save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(FileIo::hdf5));
  on_rank_0([&] {
    auto bytes = read_text(file("step.h5"));
    const io::Hdf5Lock lock;
    const auto opened = io::hdf5::open_file(file("step.h5"));
    const auto dataset = io::hdf5::open_dataset(opened.id(), "/model/model.layers.0.mlp.down_proj.weight");
    bytes[io::hdf5::contiguous_offset(opened.id(), dataset.id()).value() + 4 * 1500] ^= 1;
    write_bytes(file("damaged.h5"), bytes);
  });
  for (const FileIo reads : kBoth) {
    EXPECT_THAT(message_of<DamagedCheckpoint>([&] { expect_loads(file("damaged.h5"), reads); }),
                HasSubstr("elements 1000 to 1999 of /model/model.layers.0.mlp.down_proj.weight"));
  }
}

// What is stored narrow is what was saved, rounded once; the file is smaller by two bytes for each moment.
TEST_F(Io, StoresMomentsInBfloat16) {
  const SampleOptions wide, narrow{.moment = DType::bfloat16};
  const auto pieces = SamplePieces::even(4, test_rank(), test_ranks()).fill();
  auto halved = options(FileIo::direct);
  halved.file.moments = DType::bfloat16;
  save(file("wide.h5"), pieces, options(FileIo::direct));
  save(file("narrow.h5"), pieces, halved);
  std::int64_t moments = 0;
  for (const auto& tensor : wide.tensors) moments += 2 * size_of_tensor(tensor);
  const auto bytes = [&](const char* name) { return static_cast<std::int64_t>(fs::file_size(file(name))); };
  EXPECT_LE(std::abs(bytes("wide.h5") - bytes("narrow.h5") - 2 * moments),
            12 * 4096);  // pages of twelve datasets
  EXPECT_EQ(read_checkpoint_summary(file("narrow.h5")).moments, DType::bfloat16);
  EXPECT_EQ(read_checkpoint_summary(file("wide.h5")).moments, DType::float32);

  // The sample has NaNs with payloads, of which rounding keeps what fits.
  const auto read = SamplePieces::even(3, test_rank(), test_ranks(), narrow);
  load_checkpoint(test_world(), sample_device(), file("narrow.h5"), read.tensors(), read.pieces());
  EXPECT_EQ(read.differences(wide), 0);
  const auto widened = SamplePieces::even(3, test_rank(), test_ranks());
  load_checkpoint(test_world(), sample_device(), file("narrow.h5"), widened.tensors(), widened.pieces());
  EXPECT_EQ(widened.differences(narrow), 0);
  wait_for_all_ranks();
  if (test_rank() == 0) {
    EXPECT_EQ(verify_checkpoint(file("narrow.h5")), 2 * moments + 2 * moments);
  }
  wait_for_all_ranks();
}

TEST_F(Io, WindowsEndAtStripes) {
  save(file("step.h5"), SamplePieces::even(4, test_rank(), test_ranks()).fill(), options(FileIo::direct));
  EXPECT_EQ(window_bytes(file("step.h5"), 3000, 8192), 9000);
  EXPECT_EQ(window_bytes(file("step.h5"), 1 << 20, 8192), 1 << 20);
  EXPECT_EQ(window_bytes(file("step.h5"), 0, 1), static_cast<std::int64_t>(block_size_of(file("step.h5"))));
  EXPECT_EQ(window_bytes("/nowhere", 0, 8192), 8192);
  wait_for_all_ranks();
}

TEST_F(Io, WritersAreKeptFromSaveToSave) {
  const auto pieces = SamplePieces::even(4, test_rank(), test_ranks()).fill();
  auto settings = options(FileIo::direct);
  settings.file.writers = std::make_shared<Writers>();
  save(file("first.h5"), pieces, settings);
  const NodeRanks* const ranks = &settings.file.writers->of(test_world(), settings.file);
  const int communicator = ranks->group().communicator_number();
  save(file("second.h5"), pieces, settings);
  EXPECT_EQ(&settings.file.writers->of(test_world(), settings.file), ranks);
  EXPECT_EQ(ranks->group().communicator_number(), communicator);
  for (const char* const name : {"first.h5", "second.h5"}) expect_loads(file(name), FileIo::direct);
  const auto other = test_world().split(0);
  EXPECT_THROW(settings.file.writers->of(*other, settings.file), Error);
  wait_for_all_ranks();
}

TEST(NodeRanks, AreAFewOfEachNode) {
  const auto groups = [](int wanted, int nodes, int local) {
    comm::Topology topology;
    topology.nodes = nodes;
    topology.local_ranks = local;
    return groups_per_node(wanted, 32, topology);
  };
  EXPECT_EQ(groups(0, 1, 4), 4);
  EXPECT_EQ(groups(0, 1, 64), 32);
  EXPECT_EQ(groups(0, 4, 64), 32);
  EXPECT_EQ(groups(0, 16, 64), 16);
  EXPECT_EQ(groups(0, 128, 8), 2);
  EXPECT_EQ(groups(0, 1000, 8), 1);
  EXPECT_EQ(groups(3, 1000, 8), 3);
  EXPECT_EQ(groups(100, 1, 8), 8);
}

}  // namespace
}  // namespace llampi::test
