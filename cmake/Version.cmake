# The git revision, looked up at every build so that it is never stale; the header changes only when the revision does.
set(LLAMPI_VERSION_HEADER ${CMAKE_BINARY_DIR}/generated/llampi_version.h)
add_custom_target(
  llampi_version
  BYPRODUCTS ${LLAMPI_VERSION_HEADER}
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${LLAMPI_VERSION_HEADER}
          -DVERSION=${PROJECT_VERSION} -P ${CMAKE_SOURCE_DIR}/cmake/WriteVersion.cmake
  VERBATIM)
add_library(llampi_version_header INTERFACE)
target_include_directories(llampi_version_header INTERFACE ${CMAKE_BINARY_DIR}/generated)
add_dependencies(llampi_version_header llampi_version)
# Program and GPU plugin work together only if they are of the same version (src/device/gpu_factory.hpp).
set(LLAMPI_INTERFACE_DEFINITION LLAMPI_INTERFACE="${PROJECT_VERSION}")
