# SPDX-License-Identifier: Apache-2.0
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT sha)
  set(sha "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
#pragma once
#define LLAMPI_GIT_SHA "@sha@"
]] @ONLY)
