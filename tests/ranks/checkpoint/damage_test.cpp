// SPDX-License-Identifier: Apache-2.0
// Checkpoints that were cut off, changed, or mixed with another: refused on all ranks, naming the dataset
// where it is the values; never loaded as something else, never a crash or a hang.
#include <hdf5.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checksums.hpp"
#include "checkpoint/save.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "support/checkpoint_sample.hpp"
#include "support/shared_folder.hpp"

namespace llampi::test {
namespace {

using namespace checkpoint;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::int64_t kBlock = 4;  // so that even small tensors have several, shared by ranks

/// Enough datasets for HDF5 to index a group's links, and little more than metadata.
std::vector<TensorInfo> small_tensors() {
  std::vector<TensorInfo> tensors{{"a", {3, 5}}, {"b", {4}}, {"frozen", {6}, false}};
  for (int i = 0; i < 9; ++i) tensors.push_back({"layers." + std::to_string(i) + ".weight", {2, 3}});
  return tensors;
}

SamplePieces small_pieces() {
  SampleOptions options;
  options.tensors = small_tensors();
  return SamplePieces::even(test_ranks(), test_rank(), test_ranks(), options);
}

class Damage : public ::testing::Test {
 protected:
  Damage() { save(small_pieces().fill(), sample_state()); }

  void save(const SamplePieces& pieces, const TrainingState& state) {
    SaveOptions options;
    options.block_elements = kBlock;
    wait_for_all_ranks();
    save_checkpoint(test_world(), sample_device(), file(), {pieces.tensors(), pieces.pieces(), state, texts_},
                    options);
    whole_ = read_text(file());
    wait_for_all_ranks();
  }

  fs::path file() const { return folder_.path() / "step.h5"; }
  const std::string& whole() const { return whole_; }
  void use_texts(const CheckpointTexts& texts) {
    texts_ = texts;
    save(small_pieces().fill(), sample_state());
  }

  void write(const std::string& bytes) const {
    wait_for_all_ranks();
    on_rank_0([&] { write_bytes(file(), bytes); });
  }

  /// Whether the file is loaded; then it must be as it was written, to the last bit.
  bool loads() const {
    const auto pieces = small_pieces();
    try {
      const auto state =
          load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
      const auto summary = read_checkpoint_summary(file());
      EXPECT_EQ(fields(state), fields(sample_state()));
      EXPECT_EQ(fields(summary.state), fields(sample_state()));
      EXPECT_TRUE(summary.texts.model_config == texts_.model_config);
      EXPECT_TRUE(summary.texts.run_config == texts_.run_config);
      EXPECT_EQ(pieces.differences(), 0);
      EXPECT_TRUE(summary.has_checksums);
      return true;
    } catch (const UserError&) {  // anything else ends the test
      return false;
    }
  }

  /// What other readers of the file do must be the same.
  void expect_the_same_of_inspect(bool loaded) const {
    if (test_rank() != 0) return;
    try {
      identify(file());
      verify_checkpoint(file());
      EXPECT_TRUE(loaded);
    } catch (const UserError&) {
      EXPECT_FALSE(loaded);
    }
  }

  bool loads(const std::string& bytes) const {
    write(bytes);
    const bool loaded = loads();
    expect_the_same_of_inspect(loaded);
    wait_for_all_ranks();
    return loaded;
  }

  /// Why the file is refused.
  std::string refusal() const {
    const auto pieces = small_pieces();
    return message_of<DamagedCheckpoint>(
        [&] { load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces()); });
  }

  /// Rank 0 changes the file, which was written anew, with HDF5.
  void change(const std::function<void(hid_t)>& work) const {
    write(whole());
    on_rank_0([&] {
      const io::Hdf5Lock lock;
      const io::hdf5::File opened(
          io::hdf5::check(H5Fopen(file().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "H5Fopen"));
      work(opened.id());
    });
  }

  std::size_t offset_of(const std::string& dataset) const {
    const io::Hdf5Lock lock;
    const auto opened = io::hdf5::open_file(file());
    return io::hdf5::contiguous_offset(opened.id(), io::hdf5::open_dataset(opened.id(), dataset).id())
        .value();
  }

  /// A place in the file, which is among all of its bytes, or among those that are not 0.
  std::size_t random_place(std::uint64_t index, bool used_bytes) const {
    const RandomStream random(20, used_bytes ? "damaged used bytes" : "damaged bytes");
    std::size_t place = random.bits(index) % whole().size();
    while (used_bytes && whole()[place] == 0) place = (place + 1) % whole().size();
    return place;
  }

 private:
  CheckpointTexts texts_{std::string(300, 'm'), std::string(900, 'r')};
  SharedFolder folder_;
  std::string whole_;
};

TEST_F(Damage, IsNotSeenWhereThereIsNone) { EXPECT_TRUE(loads(whole())); }

TEST_F(Damage, OfAFileThatIsCutAnywhereIsFound) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::size_t length = random_place(i, false);
    EXPECT_FALSE(loads(whole().substr(0, length))) << "cut to " << length << " bytes";
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, whole().size() - 1})
    EXPECT_FALSE(loads(whole().substr(0, length))) << "cut to " << length << " bytes";
}

// On one rank 1,000 places of all; others among those where something is stored. Fewer on several ranks,
// which take longer.
TEST_F(Damage, OfFlippedBitsIsFound) {
  for (const bool used_bytes : {false, true}) {
    const std::uint64_t places = test_ranks() > 1 ? 60 : used_bytes ? 300 : 1000;
    std::uint64_t refused = 0;
    for (std::uint64_t i = 0; i < places; ++i) {
      const std::size_t place = random_place(i, used_bytes);
      const auto bit = static_cast<unsigned char>(1U << RandomStream(21, "damaged bits").bits(i) % 8);
      SCOPED_TRACE(fmt::format("byte {}, bit {:#x}", place, bit));
      std::string damaged = whole();
      damaged[place] = static_cast<char>(static_cast<unsigned char>(damaged[place]) ^ bit);
      write(damaged);
      const bool loaded = loads();
      if (used_bytes) expect_the_same_of_inspect(loaded);
      refused += !loaded;
      wait_for_all_ranks();
    }
    if (test_rank() == 0)
      std::printf("%zu bytes: %lu of %lu refused, the others harmless\n", whole().size(), refused, places);
    // Of the bytes that are not 0 next to none is unused.
    EXPECT_GT(refused, used_bytes ? places * 9 / 10 : places / 10);
  }
}

// Sectors that never reached the disk, or came back as something else.
TEST_F(Damage, OfLostSectorsIsFound) {
  constexpr std::size_t kSector = 512;
  const std::size_t step = test_ranks() == 1 ? kSector : 8 * kSector;
  for (std::size_t begin = 0; begin < whole().size(); begin += step) {
    const std::size_t bytes = std::min(kSector, whole().size() - begin);
    for (const char filling : {'\0', '\xFF'}) {
      SCOPED_TRACE(fmt::format("sector at {}, {:#x}", begin, static_cast<unsigned char>(filling)));
      std::string damaged = whole();
      damaged.replace(begin, bytes, bytes, filling);
      const bool loaded = loads(damaged);
      if (begin == 0) {
        EXPECT_FALSE(loaded);
      }
    }
  }
}

// Texts of more than 64 KiB lie where HDF5 has no checksums of its own.
TEST_F(Damage, OfFlippedBitsInALongTextIsFound) {
  use_texts({std::string(300, 'm'), std::string(70'000, 'r')});
  const std::size_t begin = whole().find(std::string(70'000, 'r'));
  ASSERT_NE(begin, std::string::npos);
  for (std::uint64_t i = 0; i < 20; ++i) {
    std::string damaged = whole();
    damaged[begin + RandomStream(22, "damaged text").bits(i) % 70'000] ^= 1;
    EXPECT_FALSE(loads(damaged));
    EXPECT_THAT(refusal(), HasSubstr("its names, shapes, texts or state do not fit their checksum"));
  }
}

TEST_F(Damage, OfValuesIsNamed) {
  for (const std::string dataset : {"/model/a", "/model/b", "/model/frozen", "/optimizer/exp_avg/a",
                                    "/optimizer/exp_avg_sq/layers.8.weight"}) {
    SCOPED_TRACE(dataset);
    write(whole());
    std::string damaged = whole();
    damaged[offset_of(dataset) + 3 * sizeof(float)] ^= 0x10;
    write(damaged);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(file().string()),
                                 HasSubstr("elements 0 to 3 of " + dataset + " do not fit their checksum"),
                                 HasSubstr("use another checkpoint")));
    on_rank_0([&] {
      try {
        verify_checkpoint(file());
        ADD_FAILURE();
      } catch (const DamagedCheckpoint& error) {
        EXPECT_THAT(error.what(), HasSubstr(dataset));
      }
    });
  }
}

TEST_F(Damage, InAShorterLastBlockIsFound) {
  std::string damaged = whole();
  damaged[offset_of("/model/a") + 14 * sizeof(float)] ^= 1;
  write(damaged);
  EXPECT_THAT(refusal(), HasSubstr("elements 12 to 14 of /model/a"));
}

// Moments that are not asked for are not read, so damage in them is no reason to refuse.
TEST_F(Damage, InWhatIsNotReadDoesNotMatter) {
  std::string damaged = whole();
  damaged[offset_of("/optimizer/exp_avg/a")] ^= 1;
  write(damaged);
  SampleOptions options;
  options.tensors = small_tensors();
  options.moments = false;
  const auto pieces = SamplePieces::even(2, test_rank(), test_ranks(), options);
  load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
  EXPECT_EQ(pieces.differences(), 0);
}

// A block that no rank reads whole, also where several ranks read the same.
TEST_F(Damage, IsFoundWhereReplicasReadTheSame) {
  std::string damaged = whole();
  damaged[offset_of("/model/a") + 5 * sizeof(float)] ^= 1;
  write(damaged);
  SampleOptions options;
  options.tensors = small_tensors();
  const auto pieces = SamplePieces::even(7, 0, 1, options);  // all of it in seven parts, on each rank
  EXPECT_THAT(message_of<DamagedCheckpoint>([&] {
                load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
              }),
              HasSubstr("elements 4 to 7 of /model/a"));
}

TEST_F(Damage, IsNotExported) {
  std::string damaged = whole();
  damaged[offset_of("/model/layers.3.weight") + 9] ^= 1;
  write(damaged);
  const auto source = open_checkpoint_weights(file());
  const fs::path folder = file().parent_path() / "exported";
  on_rank_0([&] { fs::create_directory(folder); });
  EXPECT_THAT(message_of<UserError>([&] { export_weights(test_world(), *source, folder, {}); }),
              HasSubstr("elements 0 to 3 of /model/layers.3.weight"));
  wait_for_all_ranks();
  EXPECT_TRUE(fs::is_empty(folder));

  // Ranges that are no blocks are compared too.
  const auto index = [&](const std::string& name) {
    const auto& tensors = source->tensors();
    return static_cast<int>(std::find_if(tensors.begin(), tensors.end(),
                                         [&](const TensorInfo& tensor) { return tensor.name == name; }) -
                            tensors.begin());
  };
  float value = 0;
  EXPECT_THROW(source->read(index("layers.3.weight"), 1, 1, &value), DamagedCheckpoint);
  EXPECT_NO_THROW(source->read(index("layers.3.weight"), 5, 1, &value));
  EXPECT_NO_THROW(source->read(index("layers.4.weight"), 1, 1, &value));
}

// The first part of one checkpoint and the second of another, of the same model and the same size.
TEST_F(Damage, OfHalfAnotherCheckpointIsFound) {
  const std::string first = whole();
  auto pieces = small_pieces().fill();
  for (const auto& piece : pieces.pieces()) {
    for (const Tensor& values : {piece.model, piece.exp_avg, piece.exp_avg_sq}) {
      for (std::int64_t i = 0; i < values.elements(); ++i)
        static_cast<std::uint8_t*>(values.data)[4 * i] ^= 1;
    }
  }
  auto state = sample_state();
  state.step += 100;
  save(pieces, state);
  const std::string second = whole();
  ASSERT_EQ(first.size(), second.size());
  const std::size_t values = offset_of("/model/a"), end = first.size();
  for (const std::size_t cut : {end / 4, end / 2, 3 * end / 4, values, values + 4, end - 4}) {
    SCOPED_TRACE(cut);
    write(first.substr(0, cut) + second.substr(cut));
    EXPECT_THAT(refusal(), AnyOf(HasSubstr("do not fit their checksum"), HasSubstr("cannot be read")));
    write(second.substr(0, cut) + first.substr(cut));
    EXPECT_THAT(refusal(), AnyOf(HasSubstr("do not fit their checksum"), HasSubstr("cannot be read")));
  }
  write(first.substr(0, values) + second.substr(values));  // nothing but values
  EXPECT_THAT(refusal(), HasSubstr("elements 0 to 3 of /model/a do not fit their checksum"));
}

// A value and HDF5's own checksum of it may both be wrong: by a program that writes attributes.
TEST_F(Damage, OfMetadataIsFound) {
  const auto replace_step = [](hid_t id) {
    io::hdf5::check(H5Adelete_by_name(id, "state", "step", H5P_DEFAULT), "H5Adelete_by_name");
    io::hdf5::write_int64(io::hdf5::open_group(id, "state").id(), "step", 1235);
  };
  const auto replace_text = [](hid_t id) {
    io::hdf5::check(H5Adelete_by_name(id, ".", "model_config", H5P_DEFAULT), "H5Adelete_by_name");
    std::string text(300, 'm');
    text.back() = 'n';
    io::hdf5::write_string(id, "model_config", text);
  };
  const auto rename = [](hid_t id) {
    io::hdf5::check(H5Lmove(id, "/model/b", id, "/model/c", H5P_DEFAULT, H5P_DEFAULT), "H5Lmove");
  };
  const auto remove_checksum = [](hid_t id) {
    io::hdf5::check(H5Adelete_by_name(id, "/model/b", "crc32", H5P_DEFAULT), "H5Adelete_by_name");
  };
  const auto change_checksum = [](hid_t id) {
    io::hdf5::write_uint32s(io::hdf5::open_dataset(id, "/model/b").id(), "crc32", {1});
  };
  const auto change_block = [](hid_t id) {
    io::hdf5::check(H5Adelete_by_name(id, ".", "checksum_block_elements", H5P_DEFAULT), "H5Adelete_by_name");
    io::hdf5::write_int64(id, "checksum_block_elements", 0);
  };
  const std::vector<std::function<void(hid_t)>> changes{replace_step,    replace_text,    rename,
                                                        remove_checksum, change_checksum, change_block};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    change(changes[i]);
    EXPECT_THAT(refusal(), HasSubstr(file().string() + " is damaged"));
  }
}

// As older programs wrote them, or a user made them who changed something.
TEST_F(Damage, IsNotLookedForInFilesWithoutChecksums) {
  change([](hid_t id) {
    io::hdf5::check(H5Adelete_by_name(id, ".", "checksum_block_elements", H5P_DEFAULT), "H5Adelete_by_name");
    for (const char* dataset : {"/model/a", "/model/b"})
      io::hdf5::check(H5Adelete_by_name(id, dataset, "crc32", H5P_DEFAULT), "H5Adelete_by_name");
  });
  const auto pieces = small_pieces();
  load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
  EXPECT_EQ(pieces.differences(), 0);
  EXPECT_FALSE(read_checkpoint_summary(file()).has_checksums);
  EXPECT_THAT(message_of<UserError>([&] { verify_checkpoint(file()); }), HasSubstr("has no checksums"));
}

TEST_F(Damage, VerifyingReadsEveryByte) {
  std::int64_t elements = 0;
  for (const auto& tensor : small_tensors()) elements += size_of_tensor(tensor) * (tensor.optimizer ? 3 : 1);
  EXPECT_EQ(verify_checkpoint(file()), elements * 4);
  wait_for_all_ranks();
}

TEST_F(Damage, OtherVersionsAndKindsAreRefused) {
  const auto refused = [&](const char* attribute, const std::function<void(hid_t)>& write) {
    change([&](hid_t id) {
      io::hdf5::check(H5Adelete_by_name(id, ".", attribute, H5P_DEFAULT), "H5Adelete_by_name");
      write(id);
    });
    const auto pieces = small_pieces();
    return message_of<UserError>(
        [&] { load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces()); });
  };
  EXPECT_THAT(refused("format_version", [](hid_t id) { io::hdf5::write_int64(id, "format_version", 2); }),
              HasSubstr("format 2"));
  EXPECT_THAT(refused("format", [](hid_t id) { io::hdf5::write_string(id, "format", "llampi-tokens"); }),
              HasSubstr("not a llampi checkpoint"));
  EXPECT_THAT(refused("format", [](hid_t) {}), HasSubstr("not a llampi checkpoint"));
}

// What h5repack or a user's script may leave: refused, unless the values are the same float32 (io_test has all of a file).
TEST_F(Damage, DatasetsRewrittenAsOtherNumbersAreRefused) {
  const auto rewritten = [&](hid_t type, bool chunked) {
    change([&](hid_t id) {
      std::vector<float> values(15);
      const char* name = "/model/a";
      io::hdf5::Dataset old = io::hdf5::open_dataset(id, name);
      io::hdf5::check(H5Dread(old.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                      "H5Dread");
      const auto checksums = io::hdf5::read_uint32s(old.id(), "crc32", 4);
      old.close();
      io::hdf5::check(H5Ldelete(id, name, H5P_DEFAULT), "H5Ldelete");
      const hsize_t extents[2] = {3, 5}, chunk[2] = {2, 2};
      const io::hdf5::Dataspace space(H5Screate_simple(2, extents, nullptr));
      const io::hdf5::PropertyList properties(H5Pcreate(H5P_DATASET_CREATE));
      if (chunked) io::hdf5::check(H5Pset_chunk(properties.id(), 2, chunk), "H5Pset_chunk");
      const io::hdf5::Dataset data(io::hdf5::check(
          H5Dcreate2(id, name, type, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT), "H5Dcreate2"));
      io::hdf5::check(H5Dwrite(data.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                      "H5Dwrite");
      io::hdf5::create_uint32s(data.id(), "crc32", checksums.size());
      io::hdf5::write_uint32s(data.id(), "crc32", checksums);
    });
    const auto pieces = small_pieces();
    load_checkpoint(test_world(), sample_device(), file(), pieces.tensors(), pieces.pieces());
    return pieces.differences();
  };
  EXPECT_EQ(rewritten(H5T_IEEE_F32LE, false), 0);
  EXPECT_EQ(rewritten(H5T_IEEE_F32LE, true), 0);
  EXPECT_THROW(rewritten(io::hdf5::bfloat16_type().id(), false), UserError);
  EXPECT_THAT(message_of<UserError>([&] { rewritten(H5T_IEEE_F64LE, false); }),
              AllOf(HasSubstr("/model/a"), HasSubstr("float64, not float32")));
  EXPECT_THROW(rewritten(H5T_STD_I32LE, false), UserError);
}

}  // namespace
}  // namespace llampi::test
