# SPDX-License-Identifier: Apache-2.0
# llampi_part(NAME [DECIDES] USES part... [LIBRARIES lib...] [SOURCES file...]): src/NAME as one static library, llampi_NAME.
#
# A part sees its own files, as "NAME/x.hpp", and the public headers, <llampi/USED/x.hpp>, of the parts that it uses and of those
# that these use; other headers are on no include path of it, so that including them does not compile, and a call to a part that it
# does not use does not link. For that each part has include folders of its own in the build folder, with one link in each:
#   include/NAME/llampi/NAME -> include/llampi/NAME       of the part and of those that use it
#   private/NAME/NAME        -> src/NAME                  of the part, and of tests of it that ask for it
#
# DECIDES: the part says what is to be computed, read and written, and others do it. It is compiled at -Og: that takes half of the
# time of -O3, and steps of bench/step_bench took no longer.
function(llampi_part name)
  cmake_parse_arguments(ARG "DECIDES" "" "USES;LIBRARIES;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
    list(FILTER ARG_SOURCES EXCLUDE REGEX "/src/${name}/(cuda|nccl)/") # the plugin's
  endif()
  llampi_part_headers(${name} USES ${ARG_USES})
  add_library(llampi_${name} STATIC ${ARG_SOURCES})
  set_property(GLOBAL APPEND PROPERTY LLAMPI_PARTS ${name})
  # An installed part has one include folder with the headers of all (cmake/Install.cmake).
  target_link_libraries(llampi_${name} PUBLIC $<BUILD_INTERFACE:llampi_${name}_headers> fmt::fmt
                        PRIVATE $<BUILD_INTERFACE:llampi_${name}_private> ${ARG_LIBRARIES})
  foreach(used ${ARG_USES})
    target_link_libraries(llampi_${name} PUBLIC llampi_${used})
  endforeach()
  target_compile_features(llampi_${name} PUBLIC cxx_std_20)
  llampi_warnings(llampi_${name})
  llampi_unity(llampi_${name})
  if(ARG_DECIDES)
    target_compile_options(llampi_${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  endif()
endfunction()

# The include folders alone, for what is compiled from files of a part but is not linked with it: llampi_NAME_headers (with those
# of the parts that it uses) and llampi_NAME_private.
function(llampi_part_headers name)
  cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
  add_library(llampi_${name}_headers INTERFACE)
  target_link_libraries(llampi_${name}_headers INTERFACE fmt::fmt)
  llampi_include_link(llampi_${name}_headers include/${name}/llampi/${name} include/llampi/${name} include/${name})
  foreach(used ${ARG_USES})
    target_link_libraries(llampi_${name}_headers INTERFACE llampi_${used}_headers)
  endforeach()
  if(name STREQUAL "core")
    llampi_include_link(llampi_core_headers include/core/llampi/version.hpp include/llampi/version.hpp include/core)
  endif()
  add_library(llampi_${name}_private INTERFACE)
  llampi_include_link(llampi_${name}_private private/${name}/${name} src/${name} private/${name})
endfunction()

function(llampi_include_link target link folder include)
  if(EXISTS ${CMAKE_SOURCE_DIR}/${folder})
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/${parent})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${CMAKE_BINARY_DIR}/${link} SYMBOLIC)
    target_include_directories(${target} INTERFACE ${CMAKE_BINARY_DIR}/${include})
  endif()
endfunction()

# All files of a target are compiled at once (LLAMPI_UNITY), in a third of the time. So anonymous namespaces of neighbours must not
# share names; a clash does not compile.
function(llampi_unity target)
  if(LLAMPI_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # To GCC, what stands in an included file could stand in several translation units.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()

# llampi_unity_group(TARGET GROUP source...): of such a target, only these are compiled at once; what is in no group is compiled alone.
function(llampi_unity_group target group)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()

# llampi_unity_kernels(LIST ENDING): in the variable LIST, the .cu files become two, *.ENDING, that include them: CMake's own unity
# builds leave .cu alone before 3.31. nvcc takes 6 s for the headers of a file, longer than for what is in most of them.
function(llampi_unity_kernels list ending)
  if(NOT LLAMPI_UNITY)
    return()
  endif()
  set(kernels ${${list}})
  set(attention_kernels ${${list}})
  list(FILTER kernels EXCLUDE REGEX "/attention[^/]*$")
  list(FILTER attention_kernels INCLUDE REGEX "/attention[^/]*$")
  set(sources "")
  foreach(group kernels attention_kernels)
    list(TRANSFORM ${group} REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN ${group} "" text)
    file(CONFIGURE OUTPUT ${group}.${ending} CONTENT "${text}" @ONLY)
    list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/${group}.${ending})
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

function(llampi_warnings target)
  set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND warnings -Wno-restrict) # false alarms about std::string (GCC bug 105651)
  endif()
  set(cuda_warnings -Xcompiler=-Wall,-Wextra,-Wshadow) # what nvcc writes for the host compiler is not pedantic
  if(LLAMPI_WERROR)
    list(APPEND warnings -Werror)
    list(APPEND cuda_warnings --Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
endfunction()
