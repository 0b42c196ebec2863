// SPDX-License-Identifier: Apache-2.0
// Ranges of datasets, by one process or by all at once.
#include <hdf5.h>
#include <mpi.h>

#include <algorithm>
#include <span>
#include <vector>

#include "llampi/io/hdf5.hpp"

namespace llampi::io::hdf5 {
namespace {

/// Adds the flattened range as boxes: as many whole slices as fit, of the largest dimensions that do.
void select_range(hid_t space, const std::vector<std::int64_t>& extents, std::int64_t begin,
                  std::int64_t end) {
  const std::size_t dimensions = extents.size();
  std::vector<std::int64_t> stride(dimensions + 1, 1);  // elements of a slice of the dimensions from here on
  for (std::size_t d = dimensions; d > 0; --d) stride[d - 1] = stride[d] * extents[d - 1];
  while (begin < end) {
    std::size_t d = dimensions - 1;  // runs along this dimension, and has all of those after it
    while (d > 0 && begin % stride[d] == 0 && begin + stride[d] <= end) --d;
    const std::int64_t in_parent = (stride[d] - begin % stride[d]) / stride[d + 1];
    const std::int64_t count = std::min((end - begin) / stride[d + 1], in_parent);
    std::vector<hsize_t> start(dimensions, 0);
    std::vector<hsize_t> size(dimensions, 1);
    for (std::size_t i = 0; i <= d; ++i) start[i] = static_cast<hsize_t>(begin % stride[i] / stride[i + 1]);
    size[d] = static_cast<hsize_t>(count);
    for (std::size_t i = d + 1; i < dimensions; ++i) size[i] = static_cast<hsize_t>(extents[i]);
    check(H5Sselect_hyperslab(space, H5S_SELECT_OR, start.data(), nullptr, size.data(), nullptr),
          "H5Sselect_hyperslab");
    begin += count * stride[d + 1];
  }
}

struct Selection {
  Dataspace memory, file;
};

Selection select(Id dataset, std::span<const ElementRange> ranges) {
  const auto extents = shape(dataset);
  std::int64_t elements = 0;
  for (const auto& range : ranges) elements += range.elements;
  const auto room = static_cast<hsize_t>(std::max<std::int64_t>(elements, 1));
  Selection selection{Dataspace(check(H5Screate_simple(1, &room, nullptr), "H5Screate_simple")),
                      Dataspace(check(H5Dget_space(dataset), "H5Dget_space"))};
  if (elements == 0) check(H5Sselect_none(selection.memory.id()), "H5Sselect_none");
  if (elements > 0 && extents.empty()) return selection;  // a scalar's one element
  check(H5Sselect_none(selection.file.id()), "H5Sselect_none");
  for (const auto& range : ranges)
    select_range(selection.file.id(), extents, range.begin, range.begin + range.elements);
  return selection;
}

}  // namespace

Type bfloat16_type() {
  const Hdf5Lock lock;
  Type type(check(H5Tcopy(H5T_IEEE_F32LE), "H5Tcopy"));
  check(H5Tset_fields(type.id(), 15, 7, 8, 0, 7), "H5Tset_fields");  // sign, exponent and fraction, as bits
  check(H5Tset_precision(type.id(), 16), "H5Tset_precision");
  check(H5Tset_size(type.id(), 2), "H5Tset_size");
  check(H5Tset_ebias(type.id(), 127), "H5Tset_ebias");
  return type;
}

void read_elements(Id dataset, std::span<const ElementRange> ranges, void* values, Id type, Id transfer) {
  const Hdf5Lock lock;
  const auto selection = select(dataset, ranges);
  check(H5Dread(dataset, type, selection.memory.id(), selection.file.id(), transfer, values), "H5Dread");
}

void write_elements(Id dataset, std::span<const ElementRange> ranges, const void* values, Id type,
                    Id transfer) {
  const Hdf5Lock lock;
  const auto selection = select(dataset, ranges);
  check(H5Dwrite(dataset, type, selection.memory.id(), selection.file.id(), transfer, values), "H5Dwrite");
}

#ifdef H5_HAVE_PARALLEL

namespace {

/// ROMIO's two phases for every write, by one rank of each node: only there do all ranks learn that one has failed. Without
/// them HDF5 leaves the write on that rank alone, and the others wait for it.
class WriteHints {
 public:
  WriteHints() {
    if (MPI_Info_create(&info_) != MPI_SUCCESS) throw CallError("MPI_Info_create", "it failed");
    MPI_Info_set(info_, "romio_cb_write", "enable");
  }
  ~WriteHints() { MPI_Info_free(&info_); }
  WriteHints(const WriteHints&) = delete;
  WriteHints& operator=(const WriteHints&) = delete;

  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

}  // namespace

bool is_parallel() { return true; }

File open_together(const std::filesystem::path& path, int communicator, OpenFor purpose) {
  const Hdf5Lock lock;
  const auto access = file_access();
  const WriteHints hints;
  check(H5Pset_fapl_mpio(access.id(), MPI_Comm_f2c(communicator), hints.get()), "H5Pset_fapl_mpio");
  check(H5Pset_all_coll_metadata_ops(access.id(), true), "H5Pset_all_coll_metadata_ops");
  check(H5Pset_coll_metadata_write(access.id(), true), "H5Pset_coll_metadata_write");
  const unsigned flags = purpose == OpenFor::reading ? H5F_ACC_RDONLY : H5F_ACC_RDWR;
  return File(check(H5Fopen(path.c_str(), flags, access.id()), "H5Fopen"));
}

PropertyList collective_transfer() {
  const Hdf5Lock lock;
  PropertyList properties(check(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate"));
  check(H5Pset_dxpl_mpio(properties.id(), H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio");
  return properties;
}

#else

bool is_parallel() { return false; }
File open_together(const std::filesystem::path&, int, OpenFor) { throw Error("this HDF5 is not parallel"); }
PropertyList collective_transfer() { throw Error("this HDF5 is not parallel"); }

#endif

}  // namespace llampi::io::hdf5
