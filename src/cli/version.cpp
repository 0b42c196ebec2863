// SPDX-License-Identifier: Apache-2.0
// llampi --version
#include <mpi.h>

#include "cli/commands.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/gemm_library.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/version.hpp"
#include "llampi_version.h"

namespace llampi::cli {
namespace {

/// What an MPI library says about itself can be pages; its name and version come first.
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
    throw CallError("MPI_Get_library_version", "no reason given");
  const std::string version = text;
  return version.substr(0, version.find_first_of(",\n"));
}

std::string compiler() {
#if defined(__clang__)
  return "clang++ " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "unknown";
#endif
}

std::string gpu_versions() {
  std::string why;
  const device::GpuLibrary* const library = device::gpu_library(why);
  return library == nullptr ? "none: " + why : library->describe();
}

}  // namespace

std::string version_text() {
  const device::GemmLibrary gemm = device::inspect_gemm_library();
  return fmt::format(
      "llampi {} ({})\n"
      "MPI              {}\n"
      "matrix products  {}{}\n"
      "HDF5             {}\n"
      "GPU              {}\n"
      "compiler         {}\n",
      kVersion, LLAMPI_GIT_SHA, mpi_version(), gemm.name, gemm.core.empty() ? "" : ", " + gemm.core,
      io::hdf5::library_version(), gpu_versions(), compiler());
}

}  // namespace llampi::cli
