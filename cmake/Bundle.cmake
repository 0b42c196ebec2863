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

# The tests labelled gpu, for scripts/run-gpu-tests.sh: program, and numbers of ranks where it runs under mpirun.
get_property(gpu_tests GLOBAL PROPERTY LLAMPI_GPU_TESTS)
set(list "")
foreach(test ${gpu_tests})
  separate_arguments(ranks UNIX_COMMAND ${test})
  list(POP_FRONT ranks name)
  llampi_bundle(test_${name})
  list(JOIN ranks " " ranks)
  string(APPEND list "$<PATH:RELATIVE_PATH,$<TARGET_FILE:test_${name}>,${CMAKE_BINARY_DIR}> ${ranks}\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/gpu_tests.list CONTENT "${list}")
install(FILES ${CMAKE_BINARY_DIR}/gpu_tests.list DESTINATION libexec COMPONENT bundle EXCLUDE_FROM_ALL)
