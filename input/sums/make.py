#!/usr/bin/env python3
"""Writes the files of this folder, always the same: a tokenizer, a text of sums, and questions to learn and to hold out.

    make.py [FOLDER]      default: where this file lies

tokenizer.json, tokenizer_config.json  BPE over bytes, a digit is a token; special tokens and chat template of Llama 3
text.jsonl                             {"text": "23 + 45 is 68."}: sums, no questions
train.jsonl, heldout.jsonl             {"prompt": "What is 23 + 45?", "completion": "68"}

Two numbers that stand in heldout.jsonl stand together in no other file, in neither order.
"""

import collections
import hashlib
import json
import pathlib
import re
import sys

NUMBERS = range(10, 100)
HELD_OUT, TRAINED = 200, 2000
SENTENCES = ["{} + {} = {}", "{} + {} is {}.", "{} + {} gives {}.", "{} + {} comes to {}.", "{} + {} adds up to {}.",
             "{} + {}, all in all, makes {}."]
QUESTIONS = ["What is {} + {}?", "Tell me {} + {}.", "How much is {} + {}?"]

WORDS = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+"  # tokens do not cross the borders of these
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")


def shuffled(items):
    """In an order that looks random, and is the same everywhere."""
    return sorted(items, key=lambda item: hashlib.sha256(repr(item).encode()).digest())


def byte_characters():
    """What stands for each byte in a byte-level vocabulary: itself where it is visible in Latin-1, else U+0100 and on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 0x100 + hidden.index(byte)) for byte in range(256)]


def merges_of(words):
    """Byte-pair encoding: the most frequent pair becomes a token, until each word is one."""
    words, merges = [list(word) for word in words], []
    while pairs := collections.Counter(pair for word in words for pair in zip(word, word[1:])):
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        for word in words:
            for i in range(len(word) - 1, 0, -1):
                if (word[i - 1], word[i]) == merges[-1]:
                    word[i - 1:i + 1] = ["".join(merges[-1])]
    return merges


def tokenizer():
    characters = byte_characters()
    texts = [each.format(0, 0, 0) for each in SENTENCES + QUESTIONS] + ["user", "assistant", "\n\n"]
    words = [word for text in texts for word in re.findall(WORDS, text)]
    merges = merges_of("".join(characters[byte] for byte in word.encode()) for word in words)
    vocabulary = characters + ["".join(merge) for merge in merges]
    first = len(vocabulary)
    begin, text, second = ({"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"Sequence": {"id": "B", "type_id": 1}})
    bytes_of_words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": first + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}, bytes_of_words]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, second],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [first], "tokens": SPECIAL[:1]}}},
        "decoder": bytes_of_words,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": [" ".join(m) for m in merges]}}


def tokenizer_config():
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
            "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}


def wording(kinds, a, b):
    return shuffled((a, b, kind) for kind in kinds)[0][2].format(a, b, a + b)


def lines(objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


def questions(pairs):
    return lines({"prompt": wording(QUESTIONS, a, b), "completion": str(a + b)} for a, b in pairs)


def main(folder):
    pairs = shuffled((a, b) for a in NUMBERS for b in NUMBERS)
    held_out = dict.fromkeys([(a, b) for a, b in pairs if a <= b][:HELD_OUT])
    known = [(a, b) for a, b in pairs if (min(a, b), max(a, b)) not in held_out]
    files = {
        "tokenizer.json": json.dumps(tokenizer(), ensure_ascii=False, indent=1) + "\n",
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=2) + "\n",
        "text.jsonl": lines({"text": wording(SENTENCES, a, b)} for a, b in known),
        "train.jsonl": questions(known[:TRAINED]),
        "heldout.jsonl": questions(held_out),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent)
