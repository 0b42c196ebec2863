// SPDX-License-Identifier: Apache-2.0
// The numbers of a micro-batch in host memory.
#include "llampi/device/host_batch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

TEST(HostBatch, IsPaddedWithEmptyDocumentsAlone) {
  device::HostBatch batch(6);
  batch.cut_into_documents(3);
  std::vector<std::int32_t> values(batch.values().begin(), batch.values().end());
  device::HostBatch::pad_documents(values, batch.documents, 4);
  const auto offsets = batch.cu_seqlens();
  ASSERT_THAT(offsets, ElementsAre(0, 3, 6, 0, 0, 0, 0));
  offsets[3] = offsets[4] = 6;
  EXPECT_THAT(values, ElementsAreArray(batch.values()));
}

}  // namespace
}  // namespace llampi::test
