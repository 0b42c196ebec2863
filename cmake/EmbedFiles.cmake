# SPDX-License-Identifier: Apache-2.0
# cmake -DHEADER=x/assets.hpp -DNAMESPACE=a::b -DOUTPUT=out.cpp -DFILES=a/page.html;a/page.js -P EmbedFiles.cmake
# A source file with each file's text as a constant: kPageHtml, kPageJs; of a-b.json kABJson.
set(source "// Made by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
foreach(file ${FILES})
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME)
  string(REGEX REPLACE "[.-]" ";" words "${name}")
  set(constant k)
  foreach(word ${words})
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND constant ${first}${rest})
  endforeach()
  string(APPEND source "const std::string_view ${constant} = R\"__file__(${text})__file__\";\n\n")
endforeach()
string(APPEND source "}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUTPUT}" "${source}")
