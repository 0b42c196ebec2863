// Checkpoints that are cut off or have a bit flipped: refused, or, where it hits the values, read as they
// are; never a crash, a hang, or another state.
#include <gtest/gtest.h>

#include "checkpoint/sample.hpp"
#include "checkpoint/schema.hpp"
#include "checkpoint/shared_folder.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    const auto pieces = small_pieces().fill();
    save_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces(), sample_state(),
                    {std::string(300, 'm'), std::string(70'000, 'r')});  // one in the header, one outside
    whole_ = read_bytes(file());
    test_world().barrier();
  }

  fs::path file() const { return folder_.path() / "step.h5"; }
  const std::string& whole() const { return whole_; }

  static SamplePieces small_pieces() {
    SamplePieces pieces({{"a", {3, 5}}, {"b", {4}}});
    const int rank = test_world().rank(), ranks = test_world().size();
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::int64_t elements = size_of_tensor(pieces.tensors()[tensor]);
      const std::int64_t begin = elements * rank / ranks;
      pieces.add(tensor, begin, elements * (rank + 1) / ranks - begin);
    }
    return pieces;
  }

  /// Number of values that differ; nothing if the file is refused, which it must be on all ranks.
  std::optional<std::int64_t> load(const std::string& bytes) const {
    test_world().barrier();
    on_rank_0([&] { write_bytes(file(), bytes); });
    const auto pieces = small_pieces();
    std::int64_t differences = -1;
    try {
      const auto state =
          load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
      EXPECT_EQ(fields(state), fields(sample_state()));
      differences = pieces.differences();
      test_world().sum(std::span<std::int64_t>(&differences, 1));
    } catch (const UserError&) {  // anything else ends the test
    }
    try {
      read_checkpoint_summary(file());
      identify(file());
    } catch (const UserError&) {
    }
    return differences < 0 ? std::optional<std::int64_t>() : differences;
  }

 private:
  SharedFolder folder_;
  std::string whole_;
};

TEST_F(Damage, None) { EXPECT_EQ(load(whole()), 0); }

TEST_F(Damage, TruncatedAnywhere) {
  for (std::size_t length = 0; length < whole().size(); length += length < 600 ? 29 : 1999) {
    EXPECT_FALSE(load(whole().substr(0, length))) << "cut to " << length << " bytes";
  }
  EXPECT_FALSE(load(whole().substr(0, whole().size() - 1)));
}

TEST_F(Damage, FlippedBits) {
  // Where something is stored (the file has gaps of zeros), a bit in every seventh byte of metadata, fewer in
  // the long text.
  std::mt19937 random(7);
  int refused = 0, tried = 0;
  for (std::size_t byte = 0; byte < whole().size(); byte += 1 + random() % 13) {
    if (whole()[byte] == 0 || (whole()[byte] == 'r' && random() % 400 != 0)) continue;
    std::string damaged = whole();
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << random() % 8));
    const auto differences = load(damaged);
    EXPECT_LE(differences.value_or(0), 1) << "byte " << byte;
    ++tried;
    refused += !differences;
  }
  std::printf("%d of %d refused\n", refused, tried);
  EXPECT_GT(refused, tried / 2);
}

TEST_F(Damage, OtherVersionsAndKinds) {
  const auto changed = [&](const char* attribute, const std::function<void(hid_t)>& write) {
    test_world().barrier();
    on_rank_0([&] {
      write_bytes(file(), whole());
      const Hdf5Lock lock;
      const hdf5::File opened(hdf5::check(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
      hdf5::check(H5Adelete_by_name(opened.id(), ".", attribute, H5P_DEFAULT), "H5Adelete_by_name");
      write(opened.id());
    });
    const auto pieces = small_pieces();
    return message_of<UserError>(
        [&] { load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces()); });
  };
  EXPECT_NE(changed("format_version", [](hid_t id) { hdf5::write_int64(id, "format_version", 2); })
                .find("format 2"),
            std::string::npos);
  EXPECT_NE(changed("format", [](hid_t id) { hdf5::write_string(id, "format", "llampi-tokens"); })
                .find("not a llampi checkpoint"),
            std::string::npos);
  EXPECT_NE(changed("format", [](hid_t) {}).find("not a llampi checkpoint"), std::string::npos);
}

// What h5repack or a user's script may leave: other layouts are read, other types refused.
TEST_F(Damage, RewrittenDatasets) {
  const auto rewritten = [&](hid_t type, bool chunked) {
    test_world().barrier();
    on_rank_0([&] {
      write_bytes(file(), whole());
      const Hdf5Lock lock;
      const hdf5::File opened(hdf5::check(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
      std::vector<float> values(15);
      const char* name = "/model/a";
      hdf5::Dataset old = hdf5::open_dataset(opened.id(), name);
      hdf5::check(H5Dread(old.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                  "H5Dread");
      old.close();
      hdf5::check(H5Ldelete(opened.id(), name, H5P_DEFAULT), "H5Ldelete");
      const hsize_t extents[2] = {3, 5}, chunk[2] = {2, 2};
      const hdf5::Dataspace space(H5Screate_simple(2, extents, nullptr));
      const hdf5::PropertyList properties(H5Pcreate(H5P_DATASET_CREATE));
      if (chunked) hdf5::check(H5Pset_chunk(properties.id(), 2, chunk), "H5Pset_chunk");
      const hdf5::Dataset data(hdf5::check(
          H5Dcreate2(opened.id(), name, type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
          "H5Dcreate2"));
      hdf5::check(H5Dwrite(data.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                  "H5Dwrite");
    });
    const auto pieces = small_pieces();
    load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
    return pieces.differences();
  };
  EXPECT_EQ(rewritten(H5T_IEEE_F32LE, true), 0);
  EXPECT_THROW(rewritten(H5T_IEEE_F64LE, false), UserError);
  EXPECT_THROW(rewritten(H5T_STD_I32LE, false), UserError);
}

}  // namespace
}  // namespace llampi
