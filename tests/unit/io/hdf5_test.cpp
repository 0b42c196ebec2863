// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/hdf5.hpp"

#include <hdf5.h>
#include <sys/stat.h>

#include <limits>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

io::hdf5::Dataset create_dataset(const io::hdf5::File& file, const char* name, hid_t type,
                                 std::vector<hsize_t> extents) {
  const io::hdf5::Dataspace space(io::hdf5::check(
      H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple"));
  const io::hdf5::PropertyList links(io::hdf5::check(H5Pcreate(H5P_LINK_CREATE), "H5Pcreate"));
  io::hdf5::check(H5Pset_create_intermediate_group(links.id(), 1), "H5Pset_create_intermediate_group");
  return io::hdf5::Dataset(io::hdf5::check(
      H5Dcreate2(file.id(), name, type, space.id(), links.id(), H5P_DEFAULT, H5P_DEFAULT), "H5Dcreate2"));
}

TEST(Hdf5, AttributesComeBackAsTheyWereWritten) {
  const TemporaryFolder folder;
  const std::string long_text(100'000, 'x');  // more than the 64 KiB that older formats allow
  {
    const io::Hdf5Lock lock;
    const auto file = io::hdf5::create_file(folder / "a.h5", io::hdf5::file_access().id());
    io::hdf5::write_string(file.id(), "text", "Grüße");
    io::hdf5::write_string(file.id(), "empty", "");
    io::hdf5::write_string(file.id(), "long", long_text);
    io::hdf5::write_int64(file.id(), "integer", std::numeric_limits<std::int64_t>::min());
    io::hdf5::write_double(file.id(), "real", 0.1);
    io::hdf5::write_bool(file.id(), "yes", true);
    io::hdf5::write_bool(file.id(), "no", false);
  }
  const auto file = io::hdf5::open_file(folder / "a.h5");
  EXPECT_EQ(io::hdf5::read_string(file.id(), "text"), "Grüße");
  EXPECT_EQ(io::hdf5::read_string(file.id(), "empty"), "");
  EXPECT_EQ(io::hdf5::read_string(file.id(), "long"), long_text);
  EXPECT_EQ(io::hdf5::read_int64(file.id(), "integer"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(io::hdf5::read_double(file.id(), "real"), 0.1);
  EXPECT_EQ(io::hdf5::read_double(file.id(), "integer"), -0x1p63);
  EXPECT_TRUE(io::hdf5::read_bool(file.id(), "yes"));
  EXPECT_FALSE(io::hdf5::read_bool(file.id(), "no"));
  EXPECT_FALSE(io::hdf5::has_attribute(file.id(), "other"));
  const auto path = (folder / "a.h5").string();
  EXPECT_EQ(user_error([&] { io::hdf5::read_int64(file.id(), "other"); }),
            path + " has no attribute 'other'");
  EXPECT_EQ(user_error([&] { io::hdf5::read_int64(file.id(), "text"); }),
            path + ": attribute 'text' must be an integer");
  EXPECT_EQ(user_error([&] { io::hdf5::read_string(file.id(), "real"); }),
            path + ": attribute 'real' must be a string");
}

TEST(Hdf5, ReadsStringsOfOtherPrograms) {
  const auto file = io::hdf5::open_file(fixture("token_files/other_format.h5"));
  EXPECT_EQ(io::hdf5::read_string(file.id(), "format"), "llampi-checkpoint");
}

TEST(Hdf5, DescribesWhatIsInAFile) {
  const TemporaryFolder folder;
  const io::Hdf5Lock lock;
  const auto file = io::hdf5::create_file(folder / "a.h5", io::hdf5::file_access().id());
  create_dataset(file, "model/b.weight", H5T_NATIVE_FLOAT, {2, 3});
  create_dataset(file, "model/a.weight", H5T_STD_U16BE, {4});
  EXPECT_THAT(io::hdf5::links(file.id()), ElementsAre("model"));
  const auto group = io::hdf5::open_group(file.id(), "model");
  EXPECT_THAT(io::hdf5::links(group.id()), ElementsAre("a.weight", "b.weight"));
  EXPECT_TRUE(io::hdf5::has_link(file.id(), "/model/a.weight"));
  EXPECT_TRUE(io::hdf5::has_link(group.id(), "a.weight"));
  EXPECT_FALSE(io::hdf5::has_link(file.id(), "model/a.weight/x"));
  EXPECT_FALSE(io::hdf5::has_link(file.id(), "optimizer/a.weight"));
  const auto weight = io::hdf5::open_dataset(group.id(), "b.weight");
  EXPECT_THAT(io::hdf5::shape(weight.id()), ElementsAre(2, 3));
  EXPECT_TRUE(io::hdf5::element_type(weight.id()).is_float32());
  EXPECT_EQ(io::hdf5::element_type(weight.id()).name(), "float32");
  EXPECT_FALSE(io::hdf5::contiguous_offset(file.id(), weight.id()).has_value()) << "nothing is written yet";
  const auto foreign = io::hdf5::element_type(io::hdf5::open_dataset(group.id(), "a.weight").id());
  EXPECT_FALSE(foreign.is_native);
  EXPECT_FALSE(foreign.is_signed);
  EXPECT_EQ(foreign.bytes, 2);
  EXPECT_THAT(user_error([&] { io::hdf5::open_dataset(file.id(), "model"); }),
              HasSubstr("has no dataset 'model'"));
  EXPECT_THAT(user_error([&] { io::hdf5::open_group(file.id(), "none"); }), HasSubstr("has no group 'none'"));
}

TEST(Hdf5, FailuresCarryTheLibrarysReasonAndPrintNothing) {
  ::testing::internal::CaptureStderr();
  try {
    const io::Hdf5Lock lock;
    io::hdf5::check(H5Fopen("/no/such/file.h5", H5F_ACC_RDONLY, H5P_DEFAULT), "H5Fopen");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const io::hdf5::Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("H5Fopen failed: "));
    EXPECT_THAT(failure.reason(), HasSubstr("No such file or directory"));
    EXPECT_FALSE(failure.storage_problem().empty());
    EXPECT_EQ(failure.system_error(), "No such file or directory");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Hdf5, HandlesMoveAndCloseOnce) {
  const TemporaryFolder folder;
  auto first = io::hdf5::create_file(folder / "a.h5", io::hdf5::file_access().id());
  auto second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that it is empty is what is tested
  EXPECT_TRUE(second);
  second.close();
  EXPECT_FALSE(second);
  second.close();
  EXPECT_EQ(H5Fget_obj_count(H5F_OBJ_ALL, H5F_OBJ_ALL), 0);
}

TEST(Hdf5, SaysInOneSentenceWhyAFileCannotBeOpened) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name) {
    const auto text = user_error([&] { io::hdf5::open_file(folder / name); });
    EXPECT_THAT(text, HasSubstr((folder / name).string()));
    return text;
  };
  EXPECT_THAT(message("missing.h5"), HasSubstr("no such file"));
  EXPECT_THAT(message(""), HasSubstr("is a folder"));
  write_text(folder / "empty.h5", "");
  EXPECT_THAT(message("empty.h5"), HasSubstr("is empty"));
  write_text(folder / "text.h5", "once upon a time");
  EXPECT_THAT(message("text.h5"), HasSubstr("not an HDF5 file"));
  const auto whole = read_text(fixture("token_files/plain.h5"));
  write_text(folder / "cut.h5", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(message("cut.h5"), HasSubstr("truncated"));
  ASSERT_EQ(::mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  EXPECT_THAT(message("pipe.h5"), HasSubstr("is a pipe, and HDF5 needs a file")) << "nothing writes to it";
  EXPECT_THAT(user_error([&] { io::hdf5::open_file("/dev/null"); }), HasSubstr("is not a regular file"));
  const AsNobody nobody(folder.path());
  EXPECT_THAT(message("text.h5"), HasSubstr("permission denied"));
  EXPECT_THAT(user_error([&] { io::hdf5::create_file(folder / "a.h5", io::hdf5::file_access().id()); }),
              HasSubstr("permission denied"));
}

TEST(Hdf5, SaysThatAFolderIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(user_error([&] { io::hdf5::create_file(folder / "none/a.h5", io::hdf5::file_access().id()); }),
              HasSubstr("the folder does not exist"));
}

}  // namespace
}  // namespace llampi::test
