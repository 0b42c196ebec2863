# SPDX-License-Identifier: Apache-2.0
# One target for each of these, in fuzz_NAME.cpp, which begins with the files in corpus/NAME.
set(llampi_fuzz_targets safetensors safetensors_index model_config adapter_config ini_config text_line chat_line chat_template tokenizer_json
                        tokenizer_model tokenizer_neighbours)
