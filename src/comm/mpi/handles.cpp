// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/handles.hpp"

#include <array>
#include <exception>

#include "comm/mpi/check.hpp"
#include "llampi/core/error.hpp"

namespace llampi::comm {
namespace {

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

MPI_Datatype contiguous(std::int64_t count, MPI_Datatype element) {
  require(count <= kMaxCount, "more blocks in a message than MPI can count");
  MPI_Datatype type = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(count), element, &type), "MPI_Type_contiguous");
  return type;
}

}  // namespace

Communicator::Communicator(MPI_Comm handle) : handle_(handle) {
  check_mpi(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  if (handle_ == MPI_COMM_NULL || std::uncaught_exceptions() > 0 || finalized()) return;
  MPI_Comm_free(&handle_);  // an error cannot be reported from here, and nothing depends on it
}

Communicator Communicator::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(handle_, &copy), "MPI_Comm_dup");
  return Communicator(copy);
}

ByteBlock::ByteBlock(std::int64_t bytes, std::int64_t max_count) {
  if (bytes <= max_count) {
    count_ = static_cast<int>(bytes);
    return;
  }
  MPI_Datatype full = contiguous(max_count, MPI_BYTE);
  MPI_Datatype all_full = contiguous(bytes / max_count, full);
  const std::array<int, 2> lengths = {1, static_cast<int>(bytes % max_count)};
  const std::array<MPI_Aint, 2> offsets = {0, static_cast<MPI_Aint>(bytes - bytes % max_count)};
  const std::array<MPI_Datatype, 2> types = {all_full, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, lengths.data(), offsets.data(), types.data(), &type_),
            "MPI_Type_create_struct");
  owned_ = true;
  count_ = 1;
  check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  check_mpi(MPI_Type_free(&all_full), "MPI_Type_free");
  check_mpi(MPI_Type_free(&full), "MPI_Type_free");
}

ByteBlock::~ByteBlock() {
  if (owned_ && !finalized()) MPI_Type_free(&type_);
}

ScatteredBlocks::ScatteredBlocks(const ByteBlock& block, std::int64_t block_bytes,
                                 const std::vector<int>& positions) {
  std::vector<MPI_Aint> offsets;
  for (const int position : positions) offsets.push_back(position * static_cast<MPI_Aint>(block_bytes));
  check_mpi(MPI_Type_create_hindexed_block(static_cast<int>(offsets.size()), block.count(), offsets.data(),
                                           block.type(), &type_),
            "MPI_Type_create_hindexed_block");
  check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
}

ScatteredBlocks::~ScatteredBlocks() {
  if (type_ != MPI_DATATYPE_NULL && !finalized()) MPI_Type_free(&type_);
}

bool Requests::test() {
  int done = 1;
  if (!requests_.empty()) {
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
  }
  return done != 0;
}

}  // namespace llampi::comm
