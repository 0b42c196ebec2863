# SPDX-License-Identifier: Apache-2.0
# What `make install` puts beside the program so that other programs can use the parts as a library: headers, static libraries, the
# CMake package `llampi` and llampi.pc. llampi::llampi is all of it; llampi::fsdp and so on are single parts, with those below them.
get_property(LLAMPI_LIBRARY_PARTS GLOBAL PROPERTY LLAMPI_PARTS) # each after those that it uses
list(REMOVE_ITEM LLAMPI_LIBRARY_PARTS cli)
set(llampi_package ${CMAKE_INSTALL_LIBDIR}/cmake/llampi)

add_library(llampi_library INTERFACE)
set_target_properties(llampi_library PROPERTIES EXPORT_NAME llampi)
foreach(part ${LLAMPI_LIBRARY_PARTS})
  target_link_libraries(llampi_library INTERFACE llampi_${part})
  set_target_properties(llampi_${part} PROPERTIES EXPORT_NAME ${part})
  install(TARGETS llampi_${part} EXPORT llampi ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
install(TARGETS llampi_library EXPORT llampi)
install(EXPORT llampi NAMESPACE llampi:: FILE llampiTargets.cmake DESTINATION ${llampi_package})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/llampi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")

include(CMakePackageConfigHelpers)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/llampiConfig.cmake.in ${CMAKE_BINARY_DIR}/package/llampiConfig.cmake
                              INSTALL_DESTINATION ${llampi_package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/llampiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/llampiConfig.cmake ${CMAKE_BINARY_DIR}/package/llampiConfigVersion.cmake
        DESTINATION ${llampi_package})
install(FILES ${CMAKE_SOURCE_DIR}/cmake/Dependencies.cmake DESTINATION ${llampi_package} RENAME llampiDependencies.cmake)

# ---- llampi.pc: the libraries are static, so that it names all that they need ----

# What a linker is told for these libraries: files, or -lNAME.
function(llampi_linker_arguments result)
  set(arguments "")
  foreach(library ${ARGN})
    if(TARGET ${library})
      get_target_property(type ${library} TYPE)
      if(type STREQUAL "INTERFACE_LIBRARY")
        get_target_property(needed ${library} INTERFACE_LINK_LIBRARIES)
        if(needed)
          llampi_linker_arguments(needed ${needed})
          list(APPEND arguments ${needed})
        endif()
      else()
        list(APPEND arguments $<TARGET_LINKER_FILE:${library}>)
      endif()
    elseif(IS_ABSOLUTE "${library}" OR library MATCHES "^-")
      list(APPEND arguments ${library})
    elseif(library)
      list(APPEND arguments -l${library})
    endif()
  endforeach()
  set(${result} "${arguments}" PARENT_SCOPE)
endfunction()

llampi_linker_arguments(needed llampi_hdf5 llampi_crc32 llampi_zstd llampi_hwloc llampi_pcre2 llampi_utf8proc llampi_gemm MPI::MPI_C OpenMP::OpenMP_CXX
                        Threads::Threads ${CMAKE_DL_LIBS})
list(REMOVE_DUPLICATES needed)
set(parts ${LLAMPI_LIBRARY_PARTS})
list(REVERSE parts)
list(TRANSFORM parts PREPEND -lllampi_)
list(JOIN parts " " parts)
list(JOIN needed " " needed)
file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" up ${up})
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/package/llampi.pc CONTENT "prefix=\${pcfiledir}/${up}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}

Name: llampi
Description: ${PROJECT_DESCRIPTION}
Version: ${PROJECT_VERSION}
Requires: fmt
Cflags: -I\${includedir} -std=c++20
Libs: -L\${libdir} ${parts} ${needed}
")
install(FILES ${CMAKE_BINARY_DIR}/package/llampi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- manual page and completion, which the program has printed (src/CMakeLists.txt), where shells and man look ----

install(FILES ${LLAMPI_MANUAL}/man DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME llampi.1)
install(FILES ${LLAMPI_MANUAL}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME llampi)
install(FILES ${LLAMPI_MANUAL}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _llampi)
install(FILES ${LLAMPI_MANUAL}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME llampi.fish)

# ---- a modulefile, which knows the prefix: `cmake --install` can be given another one than was configured ----

install(CODE "set(LLAMPI_VERSION ${PROJECT_VERSION})
set(LLAMPI_MODULE ${CMAKE_INSTALL_DATADIR}/llampi/modulefiles/llampi/${PROJECT_VERSION})
set(LLAMPI_BINDIR ${CMAKE_INSTALL_BINDIR})
set(LLAMPI_LIBDIR ${CMAKE_INSTALL_LIBDIR})
set(LLAMPI_MANDIR ${CMAKE_INSTALL_MANDIR})
configure_file(\"${CMAKE_SOURCE_DIR}/packaging/modulefile.in\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${LLAMPI_MODULE}\" @ONLY)
message(STATUS \"Installing: \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${LLAMPI_MODULE}\")")
