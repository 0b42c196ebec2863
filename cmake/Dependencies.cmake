# SPDX-License-Identifier: Apache-2.0
# What the library is built on; `scripts/setup.sh` installs it. Nothing is downloaded here. This file is installed too: who uses
# the library finds all of it in the same way (cmake/llampiConfig.cmake.in). So what is defined here is imported.

# A library without a CMake package of its own, as the target; LLAMPI_<name>_INCLUDE_DIR and LLAMPI_<name>_LIBRARY say where it is.
function(llampi_find target name words header library packages)
  find_path(LLAMPI_${name}_INCLUDE_DIR ${header})
  find_library(LLAMPI_${name}_LIBRARY ${library})
  mark_as_advanced(LLAMPI_${name}_INCLUDE_DIR LLAMPI_${name}_LIBRARY)
  if(NOT LLAMPI_${name}_INCLUDE_DIR OR NOT LLAMPI_${name}_LIBRARY)
    message(FATAL_ERROR "${words} was not found (${packages}).")
  endif()
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${LLAMPI_${name}_INCLUDE_DIR})
  target_link_libraries(${target} INTERFACE ${LLAMPI_${name}_LIBRARY})
endfunction()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# Checksums of checkpoints: libdeflate computes CRC-32 several times as fast as zlib, which joins them.
find_package(ZLIB REQUIRED)
llampi_find(llampi_crc32 DEFLATE libdeflate libdeflate.h deflate "Debian: libdeflate-dev; Fedora: libdeflate-devel")
target_link_libraries(llampi_crc32 INTERFACE ZLIB::ZLIB)

# Texts may be compressed; belongs to `io`.
llampi_find(llampi_zstd ZSTD zstd zstd.h zstd "Debian: libzstd-dev; Fedora: libzstd-devel")

# The regular expressions of tokenizer.json; belongs to `tokenizer`.
llampi_find(llampi_pcre2 PCRE2 PCRE2 pcre2.h pcre2-8 "Debian: libpcre2-dev; Fedora: pcre2-devel")
file(STRINGS ${LLAMPI_PCRE2_INCLUDE_DIR}/pcre2.h LLAMPI_PCRE2_VERSION REGEX "^#define PCRE2_M(AJOR|INOR) +[0-9]+")
list(TRANSFORM LLAMPI_PCRE2_VERSION REPLACE "^#define [A-Z0-9_]+ +" "")
list(JOIN LLAMPI_PCRE2_VERSION "." LLAMPI_PCRE2_VERSION)
if(LLAMPI_PCRE2_VERSION VERSION_LESS 10.40)
  message(FATAL_ERROR "PCRE2 ${LLAMPI_PCRE2_VERSION} was found; 10.40 or newer is needed, which knows Unicode's properties.")
endif()

# The normalization of tokenizer.json; belongs to `tokenizer`.
llampi_find(llampi_utf8proc UTF8PROC utf8proc utf8proc.h utf8proc "Debian: libutf8proc-dev; Fedora: utf8proc-devel")

find_package(MPI REQUIRED COMPONENTS C)

# Which cores and devices are near each other; belongs to `comm`.
llampi_find(llampi_hwloc HWLOC hwloc hwloc.h hwloc "Debian: libhwloc-dev; Fedora: hwloc-devel")
file(STRINGS ${LLAMPI_HWLOC_INCLUDE_DIR}/hwloc.h LLAMPI_HWLOC_API REGEX "^#define HWLOC_API_VERSION +0x")
string(REGEX REPLACE ".*(0x[0-9a-fA-F]+).*" "\\1" LLAMPI_HWLOC_API "${LLAMPI_HWLOC_API}")
math(EXPR LLAMPI_HWLOC_API "${LLAMPI_HWLOC_API} + 0")
if(LLAMPI_HWLOC_API LESS 131328) # 0x020100
  message(FATAL_ERROR "The hwloc in ${LLAMPI_HWLOC_INCLUDE_DIR} is too old; 2.1 or newer is needed.")
endif()

# Its serial build does as well as the parallel one, which may come with the MPI of the job and needs mpi.h: values are
# written beside it, through MPI-IO.
if(NOT DEFINED HDF5_PREFER_PARALLEL)
  set(HDF5_PREFER_PARALLEL ON)
endif()
find_package(HDF5 COMPONENTS C)
if(NOT HDF5_FOUND)
  message(FATAL_ERROR "HDF5 was not found. Install it (Debian: libhdf5-openmpi-dev or libhdf5-dev; Fedora: hdf5-devel; a "
                      "cluster: module load hdf5), or set HDF5_ROOT to it.")
endif()
add_library(llampi_hdf5 INTERFACE IMPORTED)
target_include_directories(llampi_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(llampi_hdf5 INTERFACE ${HDF5_C_LIBRARIES} MPI::MPI_C)

add_library(llampi_gemm INTERFACE IMPORTED)
if(LLAMPI_GEMM STREQUAL "onednn")
  find_package(dnnl REQUIRED)
  target_link_libraries(llampi_gemm INTERFACE DNNL::dnnl)
  target_compile_definitions(llampi_gemm INTERFACE LLAMPI_GEMM_ONEDNN)
else()
  find_package(BLAS REQUIRED)
  find_path(LLAMPI_CBLAS_INCLUDE_DIR NAMES cblas.h mkl_cblas.h PATH_SUFFIXES openblas blis mkl REQUIRED)
  target_link_libraries(llampi_gemm INTERFACE BLAS::BLAS)
  target_include_directories(llampi_gemm SYSTEM INTERFACE ${LLAMPI_CBLAS_INCLUDE_DIR})
  target_compile_definitions(llampi_gemm INTERFACE LLAMPI_GEMM_CBLAS)
endif()
