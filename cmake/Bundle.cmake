# SPDX-License-Identifier: Apache-2.0
# What scripts/make-bundle.sh takes out of the build (docs/bundle.md): programs into libexec/, below which they keep the places
# that they have in the build folder, and the plugin into lib/. The target bundle_contents builds it all.
add_custom_target(bundle_contents)

function(llampi_bundle target)
  get_target_property(folder ${target} RUNTIME_OUTPUT_DIRECTORY)
  if(NOT folder)
    get_target_property(folder ${target} BINARY_DIR)
  endif()
  file(RELATIVE_PATH folder ${CMAKE_BINARY_DIR} ${folder})
  add_dependencies(bundle_contents ${target})
  install(TARGETS ${target} RUNTIME DESTINATION libexec/${folder} COMPONENT bundle EXCLUDE_FROM_ALL
                            LIBRARY DESTINATION lib COMPONENT bundle EXCLUDE_FROM_ALL)
endfunction()

foreach(target llampi llampi_cuda gpu_bench)
  if(TARGET ${target})
    llampi_bundle(${target})
  endif()
endforeach()

# The tests labelled gpu, for scripts/run-gpu-tests.sh: a name, the program, a filter for its tests, and numbers of ranks where it
# runs under mpirun. A program has one line, or one for each of its parts (llampi_gpu_parts in tests/gpu/CMakeLists.txt).
get_property(gpu_tests GLOBAL PROPERTY LLAMPI_GPU_TESTS)
set(list "")
foreach(test ${gpu_tests})
  separate_arguments(ranks UNIX_COMMAND ${test})
  list(POP_FRONT ranks name)
  llampi_bundle(test_${name})
  list(JOIN ranks " " ranks)
  set(program "$<PATH:RELATIVE_PATH,$<TARGET_FILE:test_${name}>,${CMAKE_BINARY_DIR}>")
  get_property(parts GLOBAL PROPERTY LLAMPI_GPU_PARTS_${name})
  set(filters "")
  while(parts)
    list(POP_FRONT parts part filter)
    string(APPEND list "test_${name}_${part} ${program} ${filter} ${ranks}\n")
    list(APPEND filters ${filter})
  endwhile()
  if(filters)
    list(JOIN filters ":" filters)
    string(APPEND list "test_${name}_rest ${program} -${filters} ${ranks}\n")
  else()
    string(APPEND list "test_${name} ${program} * ${ranks}\n")
  endif()
endforeach()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/gpu_tests.list CONTENT "${list}")
install(FILES ${CMAKE_BINARY_DIR}/gpu_tests.list DESTINATION libexec COMPONENT bundle EXCLUDE_FROM_ALL)
