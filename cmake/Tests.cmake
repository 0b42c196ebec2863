# SPDX-License-Identifier: Apache-2.0
# llampi_test(NAME [OPTIMIZED] SOURCES file... USES part... [LIBRARIES lib...] [RANKS n...] [LABELS label...] [TIMEOUT seconds] [SHARDS n])
# One executable, test_NAME, which sees the private headers of these parts; one ctest entry NAME, or one NAME_n per number of ranks.
# NAME begins with the folder below tests/: tests/ranks/fsdp/engine_test.cpp is in ranks_fsdp or ranks_fsdp_engine; unit, ranks and
# system are labels, too (TESTING.md). With RANKS the test runs under mpirun, failures of all ranks are printed by rank 0
# (tests/support/mpi_main.cpp), and every rank has one thread. OPTIMIZED: its own code takes longer to run than to compile. SHARDS: as many
# processes at a time, each with a part of the tests, for those that mostly wait.
find_package(GTest REQUIRED)

set(LLAMPI_MPI_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_io=romio321 OMP_NUM_THREADS=1
    LLAMPI_PLUGIN_DIR=${CMAKE_BINARY_DIR})

function(llampi_test name)
  cmake_parse_arguments(ARG "OPTIMIZED" "TIMEOUT;SHARDS" "SOURCES;USES;LIBRARIES;RANKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  llampi_test_options(test_${name})
  if(ARG_OPTIMIZED)
    llampi_optimized(test_${name})
  endif()
  llampi_unity(test_${name})
  add_dependencies(test_${name} patient_yield)
  if(ARG_RANKS)
    target_link_libraries(test_${name} PRIVATE llampi_test_mpi_main)
    list(APPEND ARG_USES comm)
  else()
    target_link_libraries(test_${name} PRIVATE llampi_test_main)
  endif()
  llampi_use_parts(test_${name} ${ARG_USES})
  target_link_libraries(test_${name} PRIVATE ${ARG_LIBRARIES})
  if(NOT ARG_RANKS)
    if(ARG_SHARDS)
      add_test(NAME ${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/support/in_shards.sh ${ARG_SHARDS} $<TARGET_FILE:test_${name}>)
    else()
      add_test(NAME ${name} COMMAND test_${name})
    endif()
    llampi_test_properties(${name} 1 "${ARG_LABELS}" ${ARG_TIMEOUT})
  endif()
  if("gpu" IN_LIST ARG_LABELS) # for cmake/Bundle.cmake
    list(JOIN ARG_RANKS " " ranks)
    set_property(GLOBAL APPEND PROPERTY LLAMPI_GPU_TESTS "${name} ${ranks}")
  endif()
  foreach(ranks ${ARG_RANKS})
    llampi_rank_test(${name}_${ranks} ${name} ${ranks} "${ARG_LABELS}" ${ARG_TIMEOUT})
  endforeach()
endfunction()

# llampi_rank_test(ENTRY NAME RANKS LABELS TIMEOUT [argument...]): one more ctest entry of the executable test_NAME, under mpirun.
function(llampi_rank_test entry name ranks labels timeout)
  add_test(NAME ${entry} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:test_${name}> ${ARGN})
  llampi_test_properties(${entry} ${ranks} "${labels}" ${timeout})
endfunction()

function(llampi_test_properties test ranks labels timeout)
  if(ranks GREATER 4)
    set(ranks 4) # oversubscribed: ctest is not to wait for processors that a workstation does not have
  endif()
  set(environment ${LLAMPI_MPI_ENVIRONMENT})
  if(NOT "gpu" IN_LIST labels)
    list(APPEND environment CUDA_VISIBLE_DEVICES=) # run.device = auto means CPUs there, whatever the machine has
  endif()
  if(NOT test MATCHES "^system_")
    list(APPEND environment OMP_WAIT_POLICY=passive) # threads leave the cores to other tests; the program sees to that itself
  endif()
  if(NOT test MATCHES "^unit_")
    list(APPEND environment LLAMPI_RUN_BIND=none) # tests share the cores with others: ranks go where there is room
  endif()
  if(test MATCHES "^(ranks|system|gpu)_" AND NOT test MATCHES "^system_bench_" AND NOT "gpu" IN_LIST labels AND NOT LLAMPI_SANITIZE)
    list(APPEND environment LD_PRELOAD=${CMAKE_BINARY_DIR}/tests/support/patient_yield.so)
  endif()
  if(test MATCHES "^(unit|ranks|system)_")
    list(PREPEND labels ${CMAKE_MATCH_1})
  endif()
  # Those that may take longest begin first, also where ctest does not know yet how long they take.
  set_tests_properties(${test} PROPERTIES PROCESSORS ${ranks} TIMEOUT ${timeout} COST ${timeout} LABELS "${labels}" ENVIRONMENT "${environment}")
endfunction()

# What tests are compiled with: -O0, since it takes longer to compile them than to run them. What they test is optimized all the same.
function(llampi_test_options target)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE LLAMPI_TEST_DATA="${CMAKE_SOURCE_DIR}/tests" LLAMPI_PROGRAM="${CMAKE_BINARY_DIR}/llampi")
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  target_link_libraries(${target} PRIVATE GTest::gtest GTest::gmock fmt::fmt)
  llampi_warnings(${target})
  # What most tests include is most of what their compiler reads. To Clang, other options are an error here.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND target STREQUAL "llampi_test_main")
    target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <nlohmann/json.hpp> <algorithm>
                              <filesystem> <functional> <map> <numeric> <optional> <span> <sstream> <string> <vector>)
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} REUSE_FROM llampi_test_main)
  endif()
endfunction()

function(llampi_optimized target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON) # which are for -O0
endfunction()

# The libraries of these parts, and their private headers.
function(llampi_use_parts target)
  foreach(part ${ARGN})
    target_link_libraries(${target} PRIVATE llampi_${part})
    if(TARGET llampi_${part}_private)
      target_link_libraries(${target} PRIVATE llampi_${part}_private)
    endif()
  endforeach()
endfunction()
