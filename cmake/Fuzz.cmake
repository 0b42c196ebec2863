# SPDX-License-Identifier: Apache-2.0
# Fuzz targets of the parsers (tests/fuzz), built by clang++ whatever compiles the rest; ctest runs each for some seconds.
# Without a clang++ that has libFuzzer the tests are reported as skipped.
set(LLAMPI_FUZZ "AUTO" CACHE STRING "Fuzz targets: AUTO (where clang++ has libFuzzer), ON, OFF")
set_property(CACHE LLAMPI_FUZZ PROPERTY STRINGS AUTO ON OFF)
include(tests/fuzz/targets.cmake)

# LLAMPI_FUZZ_WORKS: whether LLAMPI_FUZZ_CXX has libFuzzer and the sanitizers. Tried once for each compiler, and again after a no.
function(llampi_find_fuzzer)
  find_program(LLAMPI_FUZZ_CXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14
               DOC "clang++ for the fuzz targets")
  if(NOT LLAMPI_FUZZ_CXX OR LLAMPI_FUZZ_CXX STREQUAL LLAMPI_FUZZ_WORKS)
    return()
  endif()
  set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/fuzz_probe)
  file(WRITE ${probe}.cpp 
       "#include <string>\nextern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n")
  execute_process(COMMAND ${LLAMPI_FUZZ_CXX} -std=c++20 -fsanitize=fuzzer,address,undefined ${probe}.cpp -o ${probe}
                  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(LLAMPI_FUZZ_WORKS FALSE CACHE INTERNAL "")
  else()
    set(LLAMPI_FUZZ_WORKS ${LLAMPI_FUZZ_CXX} CACHE INTERNAL "")
  endif()
endfunction()

if(NOT LLAMPI_FUZZ MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LLAMPI_FUZZ=${LLAMPI_FUZZ}: use AUTO, ON or OFF.")
endif()
if(LLAMPI_FUZZ STREQUAL "OFF")
  return()
endif()
llampi_find_fuzzer()
if(NOT LLAMPI_FUZZ_WORKS)
  set(reason "no clang++ with libFuzzer and the sanitizers was found (Debian: clang libclang-rt-dev)")
  if(LLAMPI_FUZZ STREQUAL "ON")
    message(FATAL_ERROR "LLAMPI_FUZZ=ON, but ${reason}. Install it, or set LLAMPI_FUZZ_CXX to it.")
  endif()
  message(STATUS "Fuzz targets are not built, and their tests are skipped: ${reason}")
  foreach(name ${llampi_fuzz_targets})
    add_test(NAME fuzz_${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
    set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz SKIP_REGULAR_EXPRESSION "^skipped: ")
  endforeach()
  return()
endif()

include(ExternalProject)
ExternalProject_Add(
  fuzz_targets
  SOURCE_DIR ${CMAKE_SOURCE_DIR}/tests/fuzz
  BINARY_DIR ${CMAKE_BINARY_DIR}/fuzz
  PREFIX ${CMAKE_BINARY_DIR}/fuzz/external
  CMAKE_CACHE_ARGS -DCMAKE_CXX_COMPILER:FILEPATH=${LLAMPI_FUZZ_CXX}
                   -DCMAKE_PREFIX_PATH:STRING=${CMAKE_PREFIX_PATH}
                   -Dfmt_DIR:PATH=${fmt_DIR}
                   -Dnlohmann_json_DIR:PATH=${nlohmann_json_DIR}
                   -DBoost_DIR:PATH=${Boost_DIR}
                   -DLLAMPI_PCRE2_INCLUDE_DIR:PATH=${LLAMPI_PCRE2_INCLUDE_DIR}
                   -DLLAMPI_PCRE2_LIBRARY:FILEPATH=${LLAMPI_PCRE2_LIBRARY}
                   -DLLAMPI_UTF8PROC_INCLUDE_DIR:PATH=${LLAMPI_UTF8PROC_INCLUDE_DIR}
                   -DLLAMPI_UTF8PROC_LIBRARY:FILEPATH=${LLAMPI_UTF8PROC_LIBRARY}
  BUILD_ALWAYS ON # it knows by itself what is out of date
  INSTALL_COMMAND "")
# The same inputs each time, so that a change is not stopped by what the fuzzer happens to find elsewhere; `make fuzz` looks on.
foreach(name ${llampi_fuzz_targets})
  add_test(NAME fuzz_${name} COMMAND bash ${CMAKE_SOURCE_DIR}/tests/fuzz/run.sh ${CMAKE_BINARY_DIR}/fuzz/fuzz_${name}
                                     -max_total_time=2 -seed=1)
  set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz TIMEOUT 300)
endforeach()
