# SPDX-License-Identifier: Apache-2.0
# The git revision, looked up at every build so that it is never stale; the header changes only when the revision does.
set(LLAMPI_VERSION_HEADER ${CMAKE_BINARY_DIR}/generated/llampi_version.h)
add_custom_target(
  llampi_version
  BYPRODUCTS ${LLAMPI_VERSION_HEADER}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${LLAMPI_VERSION_HEADER}
          -P ${CMAKE_SOURCE_DIR}/cmake/WriteVersion.cmake
  VERBATIM)
add_library(llampi_version_header INTERFACE)
target_include_directories(llampi_version_header INTERFACE ${CMAKE_BINARY_DIR}/generated)
add_dependencies(llampi_version_header llampi_version)
# Program and GPU plugin call each other's virtual functions: they work together only if these headers were the same for both
# (src/device/gpu_factory.hpp). The version alone does not tell a plugin that was left over from an earlier build.
file(GLOB interface_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/llampi/core/*.hpp
     ${CMAKE_SOURCE_DIR}/include/llampi/device/*.hpp ${CMAKE_SOURCE_DIR}/include/llampi/comm/*.hpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${interface_headers})
set(hashes "")
foreach(header ${interface_headers})
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
set(LLAMPI_INTERFACE_DEFINITION LLAMPI_INTERFACE="${PROJECT_VERSION}-${hash}")
