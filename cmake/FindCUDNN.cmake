# SPDX-License-Identifier: Apache-2.0
# cuDNN and its C++ frontend, which is header-only. cuDNN from a system package, the CUDA toolkit's folders, CUDNN_ROOT, or
# the pip package (nvidia/cudnn); the frontend (include/cudnn_frontend.h) from CUDNN_FRONTEND_ROOT, where
# scripts/fetch-cudnn-frontend.sh puts it, a system package, or the pip package.
# The frontend must be 1.13 or newer. Defines CUDNN::cudnn (with the frontend), CUDNN_VERSION, CUDNN_FRONTEND_VERSION.
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${LLAMPI_PIP_NVIDIA}
          PATH_SUFFIXES cudnn/include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS ${LLAMPI_PIP_NVIDIA}
             PATH_SUFFIXES cudnn/lib)
llampi_header_version(CUDNN_VERSION ${CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)

# Looked for anew until it is found: it may have been fetched since.
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${CUDNN_FRONTEND_ROOT} $ENV{CUDNN_FRONTEND_ROOT} ${CMAKE_BINARY_DIR}/cudnn-frontend ${CUDNN_INCLUDE_DIR}
          PATHS ${LLAMPI_PIP_NVIDIA} PATH_SUFFIXES include ../include)
llampi_header_version(CUDNN_FRONTEND_VERSION ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h
                      CUDNN_FRONTEND_MAJOR_VERSION CUDNN_FRONTEND_MINOR_VERSION CUDNN_FRONTEND_PATCH_VERSION)
if(CUDNN_FRONTEND_VERSION VERSION_GREATER_EQUAL 1.13)
  set(CUDNN_FRONTEND_IS_NEW_ENOUGH ON)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR
                                                CUDNN_FRONTEND_IS_NEW_ENOUGH
                                  VERSION_VAR CUDNN_VERSION)
if(CUDNN_FOUND AND NOT TARGET CUDNN::cudnn)
  add_library(CUDNN::cudnn SHARED IMPORTED)
  set_target_properties(CUDNN::cudnn PROPERTIES IMPORTED_LOCATION ${CUDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES
                                                "${CUDNN_INCLUDE_DIR};${CUDNN_FRONTEND_INCLUDE_DIR}")
endif()
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE_DIR)
