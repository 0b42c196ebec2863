#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write corpus/: small inputs from which libFuzzer starts, and which tests/system/cli/malformed_test.cpp gives to the program.

good_* is accepted, bad_* is refused, others may be either. Run by hand, after a case was added; the files are committed. found_* are inputs that
the fuzzer once found a mistake with; they are not written here and stay.
"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4, "hidden_size": 4,
    "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 48}
SHAPES = {  # of that model
    "model.embed_tokens.weight": [4, 4], "model.norm.weight": [4],
    **{f"model.layers.0.{name}.weight": shape for name, shape in {
        "input_layernorm": [4], "post_attention_layernorm": [4], "self_attn.q_proj": [4, 4], "self_attn.k_proj": [2, 4],
        "self_attn.v_proj": [2, 4], "self_attn.o_proj": [4, 4], "mlp.gate_proj": [2, 4], "mlp.up_proj": [2, 4],
        "mlp.down_proj": [4, 2]}.items()},
}


def write(parser, name, content):
    path = CORPUS / parser / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_all(parser, contents):
    for name, content in contents.items():
        write(parser, name, content)


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def safetensors_file(header, data=bytes(8), length=None):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def whole_safetensors_file(dtype, width):
    header, begin = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in SHAPES.items():
        size = width * (shape[0] if len(shape) == 1 else shape[0] * shape[1])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    return safetensors_file(compact(header), bytes(begin))


def adapter_config():
    good = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.05, "bias": "none", "target_modules": ["q_proj"]}
    write_all("adapter_config", {
        "good_peft": json.dumps(good, indent=2),
        "good_checkpoint": compact(good | {"use_rslora": True, "base_checksums": {"lm_head.weight": 4294967295}}),
        "bad_dora": compact(good | {"use_dora": True}),
        "bad_rank": compact(good | {"r": 0.5}),
        "bad_sum": compact(good | {"base_checksums": {"lm_head.weight": -1}}),
        "bad_deep": "[" * 1000,
    })


def safetensors():
    whole = whole_safetensors_file("F16", 2)
    one = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    two = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"%s":{"dtype":"F32","shape":[1],"data_offsets":[%s]}}'
    write_all("safetensors", {
        "good_f32": whole_safetensors_file("F32", 4), "good_bf16": whole_safetensors_file("BF16", 2), "good_f16": whole,
        "bad_f64": whole_safetensors_file("F64", 8), "bad_truncated_data": whole[:-1], "bad_truncated_header": whole[:100],
        "bad_behind_the_last": whole + b"x", "bad_empty": b"", "bad_seven_bytes": b"\x07\0\0\0\0\0\0",
        "bad_length_2_64": safetensors_file("{}", length=(1 << 64) - 1),
        "bad_length_huge": safetensors_file("{}", length=99_000_000),
    })
    write_all("safetensors", {f"bad_{name}": safetensors_file(header) for name, header in {
        "other_tensors": one, "open": "{", "not_utf8": one.encode().replace(b"a", b"\xff", 1),
        "overlap": two % ("b", "4,8"), "gap": two % ("b", "12,16"), "same_name": two % ("a", "8,12"),
        "control_characters": two % (r"\u001b[31m\n\r\u0000", "4,8"),
        "offsets_beyond_the_end": one.replace("[0,8]", "[0,12]"), "offsets_backwards": one.replace("[0,8]", "[8,0]"),
        "offsets_largest": one.replace("[0,8]", "[0,18446744073709551615]"),
        "offsets_fraction": one.replace("[0,8]", "[0,8.5]"), "shape_shorter": one.replace("[2]", "[1]"),
        "shape_overflows": one.replace("[2]", "[4611686018427387904,2]"), "dtype_unknown": one.replace("F32", "Q4_0"),
    }.items()})


def safetensors_index():
    shard = "model-00001-of-00002.safetensors"
    good = {"metadata": {"total_size": 64}, "weight_map": dict.fromkeys(SHAPES, shard)}
    write("safetensors_index", "good_whole", compact(good))
    for name, file in {
        "parent": "../model.safetensors", "absolute": "/etc/passwd", "parent_itself": "..", "itself": ".", "empty": "",
        "inner": "a/b", "backslash": "..\\b", "null_byte": "a\0/../b", "absent": "absent.safetensors", "folder": "folder",
        "control_characters": "\x1b[31m\n", "very_long": "n" * 3000, "null": None,
    }.items():
        write("safetensors_index", f"bad_file_{name}", compact({"weight_map": {"model.norm.weight": file}}))
    write_all("safetensors_index", {
        "bad_empty": "", "bad_not_json": "{", "bad_no_map": "{}", "bad_map_is_list": '{"weight_map":[]}',
        "bad_map_is_empty": '{"weight_map":{}}', "bad_not_utf8": b'{"weight_map":{"\xff":"a"}}', "bad_two_values": "{}{}",
    })


def model_config():
    def put(name, **changes):
        config = {key: value for key, value in (CONFIG | changes).items() if value != "LEFT OUT"}
        write("model_config", name, compact(config))

    put("good_of_4", torch_dtype="bfloat16", rope_theta=5e5, rope_scaling=LLAMA3, head_dim=None, sliding_window=None)
    put("good_of_5", dtype="bfloat16", rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    put("bad_without_a_key", hidden_size="LEFT OUT")
    for name, value in (("zero", 0), ("negative", -1), ("fraction", 1.5), ("text", "4"), ("2_64", 2**64)):
        put(f"bad_size_{name}", hidden_size=value)
    sizes = [key for key in CONFIG if key.endswith(("size", "heads", "layers"))]
    put("bad_sizes_overflow", **dict.fromkeys(sizes, 2**31 - 1), head_dim=2**31 - 2)
    put("bad_layers_largest", num_hidden_layers=2**31 - 1)
    put("bad_architecture", architectures=["GPT2LMHeadModel"])
    put("bad_bias", attention_bias=True)
    put("bad_heads", num_key_value_heads=3)
    put("bad_eps", rms_norm_eps=0)
    put("bad_rope_type", rope_scaling={"rope_type": "yarn", "factor": 2})
    put("bad_rope_order", rope_scaling=LLAMA3 | {"low_freq_factor": 9})
    put("bad_rope_incomplete", rope_scaling={"rope_type": "llama3"})
    put("bad_rope_differs", rope_scaling=LLAMA3, rope_parameters={"rope_theta": 1e4})
    put("bad_control_characters", model_type="\x1b[31m\n\0")
    put("bad_long_text", model_type="m" * 3000)
    plain = compact(CONFIG)
    write_all("model_config", {
        "good_plain": plain, "bad_empty": "", "bad_cut": plain[:-1], "bad_list": "[1, 2]",
        "bad_not_utf8": plain.encode() + b"\xff", "bad_overflow": plain.replace("1e-05", "1e999"),
    })


def ini_config():
    good = "# a comment\n[model]\nconfig = model\n\n[data]\ntrain = t.h5\n[train]\nsteps = 2\nglobal_batch = 8\n"
    write("ini_config", "good_small", good)
    write("ini_config", "good_types", good + "[fsdp]\nstrategy = NO_SHARD\nforward_prefetch = false\n[optimizer]\nlr = 1e-3\n")
    for name, text in {
        "unknown_key": "[train]\nstepz = 3\n", "twice": "[train]\nsteps = 3\nsteps = 4\n", "no_section": "steps\n",
        "open_section": "[train\nsteps = 3\n", "not_a_number": "[train]\nsteps = many\n", "fraction": "[train]\nsteps = 1.5\n",
        "too_large": "[train]\nsteps = 99999999999999999999\n", "negative": "[train]\nmicro_batch = -1\n",
        "not_finite": "[optimizer]\nlr = nan\n", "not_utf8": b"[train]\nsteps = \xff\n", "null_byte": b"[train]\nsteps = 3\0\n",
        "control_characters": "[\x1b[31m]\n\x1b = 3\n", "long_key": f"[train]\n{'k' * 3000} = 3\n",
        "no_choice": "[fsdp]\nstrategy = some\n", "carriage_return": "[model]\nconfig = a\rb\n",
        "empty_value": "[train]\nsteps =\n",
    }.items():
        content = text if isinstance(text, bytes) else text.encode()
        write("ini_config", f"bad_{name}", good.encode() + content)


def added_token(number, content, **flags):
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content} | plain | {"special": True} | flags


def template(name, number):
    return {"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}}}


def tokenizer_json():
    """Small vocabularies with the settings of Llama 3 and of Llama 2 as converted, and what else is supported."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    llama3 = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [added_token(7, "<|begin_of_text|>"), added_token(8, "<|eot_id|>")],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
            level | {"add_prefix_space": False, "use_regex": False}]},
        "post_processor": {"type": "Sequence", "processors": [level, template("<|begin_of_text|>", 7)]},
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "ignore_merges": True,
                  "vocab": {"l": 0, "o": 1, "\u0120": 2, "lo": 3, "\u0120lo": 4, "\u00c3": 5, "\u00b6": 6},
                  "merges": [["l", "o"], ["\u0120", "lo"]]},
    }
    llama2 = {
        "version": "1.0", "added_tokens": [added_token(1, "<s>"), added_token(2, "</s>", normalized=True)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None, "post_processor": template("<s>", 1),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xC3>": 4, "\u2581": 5, "a": 6, "b": 7, "ab": 8},
                  "merges": ["#version: 0.2", "a b"]},
    }
    splits = [{"type": "Split", "pattern": {"String": "a"}, "behavior": behavior, "invert": True}
              for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
    model = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    small = {"added_tokens": [added_token(3, "<end>", lstrip=True, rstrip=True),
                              added_token(4, "b c", single_word=True, normalized=True)],
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                 {"type": "Digits", "individual_digits": True}, *splits,
                 {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]},
             "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}, "model": model}

    def put(name, base=small, **changes):
        write("tokenizer_json", name, compact(base | changes))

    put("good_llama3", llama3)
    put("good_llama2", llama2)
    put("good_small")

    def split(pattern):
        return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}}

    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    put("bad_doubling", pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": [double] * 30})  # no text with an "a"
    put("bad_steps", pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 33})
    nested = {"type": "Digits"}
    for _ in range(9):
        nested = {"type": "Sequence", "pretokenizers": [nested]}
    put("bad_nested", pre_tokenizer=nested)
    put("bad_regex", **split("(a"))
    put("bad_regex_call", **split("(?C'x')a"))
    put("bad_type", normalizer={"type": "\x1b[31mNFKC\n"})
    put("bad_version", version="2.0")
    put("bad_unigram", model=model | {"type": "Unigram"})
    put("bad_no_model", model=None)
    put("bad_id_huge", model=model | {"vocab": {"a": 0, "b": 2**63}})
    put("bad_id_twice", model=model | {"vocab": {"a": 0, "b": 0}})
    put("bad_merge_unknown", model=model | {"merges": [["a", "x"]]})
    put("bad_merge_text", model=model | {"merges": ["a", "a b"]})
    put("bad_unk", model=model | {"unk_token": "<none>"})
    put("bad_added_id", added_tokens=[added_token(4000000000, "<end>")])
    put("bad_added_empty", added_tokens=[added_token(3, "")])
    put("bad_template", post_processor=template("<end>", 17))
    put("bad_decoder", decoder={"type": "Strip", "content": "xy", "start": 1, "stop": -1})
    plain = compact(small)
    write_all("tokenizer_json", {"bad_empty": "", "bad_cut": plain[:-1], "bad_list": "[]",
                                 "bad_not_utf8": plain.encode().replace(b"ab", b"\xff")})


def varint(value):
    text = b""
    while value >= 128:
        text += bytes([value & 127 | 128])
        value >>= 7
    return text + bytes([value])


def field(number, value):
    """A protobuf field: an integer, a float32, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tokenizer_model():
    """ModelProto of SentencePiece: pieces (1), trainer_spec (2), normalizer_spec (3)."""
    UNKNOWN, CONTROL, USER, BYTE = 2, 3, 4, 6

    def piece(text, score=0.0, kind=None):
        text = text if isinstance(text, bytes) else text.encode()
        return field(1, field(1, text) + field(2, score) + (field(3, kind) if kind else b""))

    trainer = field(3, 2)  # BPE
    normalizer = field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1)
    first = [piece("<unk>", kind=UNKNOWN), piece("<s>", kind=CONTROL), piece("</s>", kind=CONTROL)]
    words = [piece("\u2581"), piece("a", -1.0), piece("b", -2.0), piece("ab", -0.5), piece("\u2581ab", -0.25)]
    bytes_of_all = [piece(f"<0x{byte:02X}>", kind=BYTE) for byte in range(256)]

    def model(*pieces, trainer=trainer, normalizer=normalizer):
        return b"".join(pieces) + field(2, trainer) + field(3, normalizer)

    good = model(*first, *words)
    write_all("tokenizer_model", {
        "good_small": good,
        "good_bytes": model(*first, *bytes_of_all, *words, trainer=trainer + field(35, 1)),
        "good_user_defined": model(*first, *words, piece("<end> a", kind=USER)),
        "bad_empty": b"", "bad_cut": good[:-5], "bad_text": "this is a text and not a model",
        "bad_html": "<!DOCTYPE html><html><body>404</body></html>",
        "bad_no_pieces": model(), "bad_no_unknown": model(*first[1:], *words), "bad_twice": model(*first, *words, words[0]),
        "bad_empty_piece": model(*first, piece("")),
        "good_no_utf8": model(*first, piece(b"\xff\xfe")),
        "bad_unigram": model(*first, *words, trainer=field(3, 1)),
        "bad_character_map": model(*first, *words, normalizer=normalizer + field(2, b"\x04\0\0\0abcd")),
        "bad_suffix": model(*first, *words, trainer=trainer + field(24, 1)),
        "bad_few_bytes": model(*first, *bytes_of_all[:3], *words, trainer=trainer + field(35, 1)),
        "bad_long_length": b"\x0a\xff\xff\xff\xff\x7f<unk>", "bad_long_integer": b"\x08" + b"\xff" * 12,
        "bad_group": b"\x0b\x0c" + good,
    })


def tokenizer_neighbours():
    token = {"content": "<end>", "lstrip": False}
    write_all("tokenizer_neighbours", {name: compact(value) for name, value in {
        "good_config": {"add_bos_token": True, "bos_token": "a", "eos_token": token, "tokenizer_class": "LlamaTokenizer"},
        "good_number": {"eos_token_id": 4, "bos_token_id": None}, "good_numbers": {"eos_token_id": [4, 2]},
        "good_added": {"<end>": 4},
        "bad_name": {"eos_token": "\x1b[31m", "bos_token": 3, "add_bos_token": "yes"}, "bad_object": {"eos_token": {}},
        "bad_number": {"eos_token_id": 2**63}, "bad_negative": {"eos_token_id": -1}, "bad_added": {"<end>": 5},
        "bad_list": [],
    }.items()})
    write_all("tokenizer_neighbours", {"bad_empty": "", "bad_not_utf8": b'{"eos_token":"\xff"}'})


LINES = {"bad_not_json": "{", "bad_no_json": "hello", "bad_not_utf8": b'{"text":"\xff"}', "bad_list": "[]", "bad_number": "7",
         "bad_two_values": "{}{}", "bad_overflow": '{"text":1e999}', "bad_surrogate": r'{"text":"\ud800"}',
         "bad_control_characters": '{"text":"\x1b[31m"}', "bad_null_byte": b'{"text":"a"}\0'}


def text_line():
    write_all("text_line", LINES | {
        "good_plain": compact({"text": "A short text.", "id": 7}),
        "good_escapes": r'{"id":[{"a":null}],"text":"\u00f6\ud83d\ude00\t\u0000\n"}',
        "bad_missing": compact({"content": "a"}), "bad_type": compact({"text": ["a"]}), "blank": compact({"text": " \n"}),
        "bad_cut": '{"text":"a lon',
    })


def chat_line():
    def message(role, content, **more):
        return {"role": role, "content": content} | more

    talk = [message("system", ""), message("user", "a"), message("assistant", "b", weight=0), message("user", "c"),
            message("assistant", "d", weight=1)]
    write_all("chat_line", LINES)
    write_all("chat_line", {name: compact(value) for name, value in {
        "good_talk": {"messages": talk}, "good_pair": {"prompt": "a", "completion": "b"},
        "bad_no_messages": {"conversation": []}, "bad_empty_messages": {"messages": []}, "bad_messages_type": {"messages": {}},
        "bad_message": {"messages": ["a"]}, "bad_role": {"messages": [message("\x1b[31m" * 30, "a")]},
        "bad_weight": {"messages": [message("assistant", "a", weight=2)]}, "bad_nothing_to_learn": {"messages": talk[:3]},
        "bad_content": {"messages": [message("user", None)]}, "bad_no_completion": {"prompt": "a"},
    }.items()})


def chat_template():
    message = "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'"
    prompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    default = ("{% if loop.first and messages[0]['role'] != 'system' %}"
               "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}")
    write_all("chat_template", {
        "chatml": f"{{% for message in messages %}}{{{{{message}}}}}{{% endfor %}}{prompt}\n",
        "default_system": f"{{% for message in messages %}}{default}{{{{{message}}}}}{{% endfor %}}{prompt}",
        "unknown": '{%- if x %}{# a #} {{ "\\u00e9" ~ bos_token }}{%- endif -%}', "cut": '{{ "open',
    })


def main():
    for path in CORPUS.glob("*/*"):
        if not path.name.startswith("found_"):
            path.unlink()
    for make in (safetensors, safetensors_index, model_config, adapter_config, ini_config, tokenizer_json, tokenizer_model,
                 tokenizer_neighbours, text_line, chat_line, chat_template):
        make()
    for folder in sorted(CORPUS.iterdir()):
        files = list(folder.iterdir())
        print(f"{folder.name}: {len(files)} files, {sum(path.stat().st_size for path in files)} bytes")


if __name__ == "__main__":
    main()
