# SPDX-License-Identifier: Apache-2.0
# llampi_test(NAME SOURCES file... USES part... [RANKS n...] [LABELS label...] [TIMEOUT seconds])
# One executable, which sees the private headers of these parts; one ctest entry, or one per number of ranks. With RANKS the test runs under mpirun, failures of all ranks
# are printed by rank 0 (tests/support/mpi_main.cpp), and every rank has one thread.
find_package(GTest REQUIRED)

set(LLAMPI_MPI_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_io=romio321 OMP_NUM_THREADS=1
    LLAMPI_PLUGIN_DIR=${CMAKE_BINARY_DIR})

function(llampi_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;USES;LIBRARIES;RANKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(main_source ${CMAKE_SOURCE_DIR}/tests/support/main.cpp)
  if(ARG_RANKS)
    set(main_source ${CMAKE_SOURCE_DIR}/tests/support/mpi_main.cpp)
    list(APPEND ARG_USES comm)
    list(APPEND ARG_LIBRARIES MPI::MPI_C)
  endif()
  add_executable(test_${name} ${ARG_SOURCES} ${main_source})
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE LLAMPI_TEST_DATA="${CMAKE_SOURCE_DIR}/tests"
                                                  LLAMPI_PROGRAM="${CMAKE_BINARY_DIR}/llampi")
  foreach(used ${ARG_USES})
    target_link_libraries(test_${name} PRIVATE llampi_${used})
    if(TARGET llampi_${used}_private)
      target_link_libraries(test_${name} PRIVATE llampi_${used}_private)
    endif()
  endforeach()
  target_link_libraries(test_${name} PRIVATE GTest::gtest GTest::gmock ${ARG_LIBRARIES})
  llampi_warnings(test_${name})
  if(NOT ARG_RANKS)
    add_test(NAME ${name} COMMAND test_${name})
    llampi_test_properties(${name} 1 "${ARG_LABELS}" ${ARG_TIMEOUT})
  endif()
  if("gpu" IN_LIST ARG_LABELS) # for cmake/Bundle.cmake
    list(JOIN ARG_RANKS " " ranks)
    set_property(GLOBAL APPEND PROPERTY LLAMPI_GPU_TESTS "${name} ${ranks}")
  endif()
  foreach(ranks ${ARG_RANKS})
    add_test(NAME ${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:test_${name}>)
    llampi_test_properties(${name}_${ranks} ${ranks} "${ARG_LABELS}" ${ARG_TIMEOUT})
  endforeach()
endfunction()

function(llampi_test_properties test ranks labels timeout)
  if(ranks GREATER 2)
    set(ranks 2) # oversubscribed: do not keep ctest waiting for processors that a workstation does not have
  endif()
  set(environment ${LLAMPI_MPI_ENVIRONMENT})
  if(NOT "gpu" IN_LIST labels)
    list(APPEND environment CUDA_VISIBLE_DEVICES=) # run.device = auto means CPUs there, whatever the machine has
  endif()
  set_tests_properties(${test} PROPERTIES PROCESSORS ${ranks} TIMEOUT ${timeout} LABELS "${labels}" ENVIRONMENT "${environment}")
endfunction()
