# SPDX-License-Identifier: Apache-2.0
# The configurations and job scripts that `make install` puts into share/llampi and scripts/make-bundle.sh into the bundle. By name: users
# keep their own files next to them, such as site files with tokens, token files and weights, which must not be published with llampi.
function(llampi_ship kind) # FILES or PROGRAMS
  foreach(file ${ARGN})
    get_filename_component(folder ${file} DIRECTORY)
    install(${kind} ${CMAKE_SOURCE_DIR}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/llampi/${folder})
    install(${kind} ${CMAKE_SOURCE_DIR}/${file} DESTINATION ${folder} COMPONENT bundle EXCLUDE_FROM_ALL)
  endforeach()
endfunction()

llampi_ship(
  FILES
  input/llama3-70b.ini
  input/llama3-70b/config.json
  input/llama3-8b-chat.ini
  input/llama3-8b.ini
  input/llama3-8b/config.json
  input/machines/a100.json
  input/machines/h100.json
  input/machines/h200.json
  input/machines/workstation-2-cores.json
  input/small.ini
  input/small/config.json
  input/sums-base.ini
  input/sums-chat.ini
  input/sums-lora.ini
  input/sums/config.json
  input/sums/heldout.jsonl
  input/sums/text.jsonl
  input/sums/tokenizer.json
  input/sums/tokenizer_config.json
  input/sums/train.jsonl
  jobscripts/common.sh
  jobscripts/sites/ethernet.env
  jobscripts/sites/example.env
  jobscripts/sites/infiniband.env
  jobscripts/sites/slingshot.env)
llampi_ship(PROGRAMS input/sums/make.py jobscripts/pbs.sh jobscripts/slurm.sh)
