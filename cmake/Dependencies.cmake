# What the program is built on; `scripts/setup.sh` installs it. Nothing is downloaded here.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.71 REQUIRED COMPONENTS program_options)

find_package(MPI REQUIRED COMPONENTS C)
# The C++ bindings of MPI were removed from the standard; these keep their headers out.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

set(HDF5_PREFER_PARALLEL ON)
find_package(HDF5 COMPONENTS C)
if(NOT HDF5_FOUND)
  message(FATAL_ERROR "HDF5 was not found. Install its parallel build (Debian: libhdf5-openmpi-dev; Fedora: "
                      "hdf5-openmpi-devel; a cluster: module load hdf5-parallel or phdf5).")
endif()
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "HDF5 ${HDF5_VERSION} was found, but it is the serial build; llampi writes checkpoints from all "
                      "ranks at once and needs the parallel one (Debian: libhdf5-openmpi-dev; Fedora: "
                      "hdf5-openmpi-devel; a cluster: module load hdf5-parallel or phdf5), or set HDF5_ROOT to it.")
endif()
add_library(llampi_hdf5 INTERFACE)
target_include_directories(llampi_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(llampi_hdf5 INTERFACE ${HDF5_C_LIBRARIES} MPI::MPI_C)

add_library(llampi_gemm INTERFACE)
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
