# SPDX-License-Identifier: Apache-2.0
# What the library is built on; `scripts/setup.sh` installs it. Nothing is downloaded here. This file is installed too: who uses
# the library finds all of it in the same way (cmake/llampiConfig.cmake.in). So what is defined here is imported.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# Checksums of checkpoints: libdeflate computes CRC-32 several times as fast as zlib, which joins them.
find_package(ZLIB REQUIRED)
find_path(LLAMPI_DEFLATE_INCLUDE_DIR libdeflate.h)
find_library(LLAMPI_DEFLATE_LIBRARY deflate)
mark_as_advanced(LLAMPI_DEFLATE_INCLUDE_DIR LLAMPI_DEFLATE_LIBRARY)
if(NOT LLAMPI_DEFLATE_INCLUDE_DIR OR NOT LLAMPI_DEFLATE_LIBRARY)
  message(FATAL_ERROR "libdeflate was not found (Debian: libdeflate-dev; Fedora: libdeflate-devel).")
endif()
add_library(llampi_crc32 INTERFACE IMPORTED)
target_include_directories(llampi_crc32 SYSTEM INTERFACE ${LLAMPI_DEFLATE_INCLUDE_DIR})
target_link_libraries(llampi_crc32 INTERFACE ${LLAMPI_DEFLATE_LIBRARY} ZLIB::ZLIB)

# Texts may be compressed; belongs to `io`.
find_path(LLAMPI_ZSTD_INCLUDE_DIR zstd.h)
find_library(LLAMPI_ZSTD_LIBRARY zstd)
mark_as_advanced(LLAMPI_ZSTD_INCLUDE_DIR LLAMPI_ZSTD_LIBRARY)
if(NOT LLAMPI_ZSTD_INCLUDE_DIR OR NOT LLAMPI_ZSTD_LIBRARY)
  message(FATAL_ERROR "zstd was not found (Debian: libzstd-dev; Fedora: libzstd-devel).")
endif()
add_library(llampi_zstd INTERFACE IMPORTED)
target_include_directories(llampi_zstd SYSTEM INTERFACE ${LLAMPI_ZSTD_INCLUDE_DIR})
target_link_libraries(llampi_zstd INTERFACE ${LLAMPI_ZSTD_LIBRARY})

# The regular expressions of tokenizer.json; belongs to `tokenizer`.
find_path(LLAMPI_PCRE2_INCLUDE_DIR pcre2.h)
find_library(LLAMPI_PCRE2_LIBRARY pcre2-8)
mark_as_advanced(LLAMPI_PCRE2_INCLUDE_DIR LLAMPI_PCRE2_LIBRARY)
if(NOT LLAMPI_PCRE2_INCLUDE_DIR OR NOT LLAMPI_PCRE2_LIBRARY)
  message(FATAL_ERROR "PCRE2 was not found (Debian: libpcre2-dev; Fedora: pcre2-devel).")
endif()
file(STRINGS ${LLAMPI_PCRE2_INCLUDE_DIR}/pcre2.h LLAMPI_PCRE2_VERSION REGEX "^#define PCRE2_M(AJOR|INOR) +[0-9]+")
list(TRANSFORM LLAMPI_PCRE2_VERSION REPLACE "^#define [A-Z0-9_]+ +" "")
list(JOIN LLAMPI_PCRE2_VERSION "." LLAMPI_PCRE2_VERSION)
if(LLAMPI_PCRE2_VERSION VERSION_LESS 10.40)
  message(FATAL_ERROR "PCRE2 ${LLAMPI_PCRE2_VERSION} was found; 10.40 or newer is needed, which knows Unicode's properties.")
endif()
add_library(llampi_pcre2 INTERFACE IMPORTED)
target_include_directories(llampi_pcre2 SYSTEM INTERFACE ${LLAMPI_PCRE2_INCLUDE_DIR})
target_link_libraries(llampi_pcre2 INTERFACE ${LLAMPI_PCRE2_LIBRARY})

# The normalization of tokenizer.json; belongs to `tokenizer`.
find_path(LLAMPI_UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(LLAMPI_UTF8PROC_LIBRARY utf8proc)
mark_as_advanced(LLAMPI_UTF8PROC_INCLUDE_DIR LLAMPI_UTF8PROC_LIBRARY)
if(NOT LLAMPI_UTF8PROC_INCLUDE_DIR OR NOT LLAMPI_UTF8PROC_LIBRARY)
  message(FATAL_ERROR "utf8proc was not found (Debian: libutf8proc-dev; Fedora: utf8proc-devel).")
endif()
add_library(llampi_utf8proc INTERFACE IMPORTED)
target_include_directories(llampi_utf8proc SYSTEM INTERFACE ${LLAMPI_UTF8PROC_INCLUDE_DIR})
target_link_libraries(llampi_utf8proc INTERFACE ${LLAMPI_UTF8PROC_LIBRARY})

find_package(MPI REQUIRED COMPONENTS C)

# Which cores and devices are near each other; belongs to `comm`.
find_path(LLAMPI_HWLOC_INCLUDE_DIR hwloc.h)
find_library(LLAMPI_HWLOC_LIBRARY hwloc)
mark_as_advanced(LLAMPI_HWLOC_INCLUDE_DIR LLAMPI_HWLOC_LIBRARY)
if(NOT LLAMPI_HWLOC_INCLUDE_DIR OR NOT LLAMPI_HWLOC_LIBRARY)
  message(FATAL_ERROR "hwloc was not found (Debian: libhwloc-dev; Fedora: hwloc-devel).")
endif()
file(STRINGS ${LLAMPI_HWLOC_INCLUDE_DIR}/hwloc.h LLAMPI_HWLOC_API REGEX "^#define HWLOC_API_VERSION +0x")
string(REGEX REPLACE ".*(0x[0-9a-fA-F]+).*" "\\1" LLAMPI_HWLOC_API "${LLAMPI_HWLOC_API}")
math(EXPR LLAMPI_HWLOC_API "${LLAMPI_HWLOC_API} + 0")
if(LLAMPI_HWLOC_API LESS 131328) # 0x020100
  message(FATAL_ERROR "The hwloc in ${LLAMPI_HWLOC_INCLUDE_DIR} is too old; 2.1 or newer is needed.")
endif()
add_library(llampi_hwloc INTERFACE IMPORTED)
target_include_directories(llampi_hwloc SYSTEM INTERFACE ${LLAMPI_HWLOC_INCLUDE_DIR})
target_link_libraries(llampi_hwloc INTERFACE ${LLAMPI_HWLOC_LIBRARY})

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
