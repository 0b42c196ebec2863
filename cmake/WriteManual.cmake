# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=FILE -DFOLDER=FOLDER -P WriteManual.cmake: the manual page and the completion scripts that the program prints, into
# FOLDER, for cmake/Install.cmake.
file(MAKE_DIRECTORY ${FOLDER})
foreach(what man bash zsh fish)
  if(what STREQUAL "man")
    set(command man)
  else()
    set(command completion ${what})
  endif()
  execute_process(COMMAND ${PROGRAM} ${command} OUTPUT_FILE ${FOLDER}/${what} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
