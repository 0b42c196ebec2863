#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `llampi tokenize` with Hugging Face's library on random texts: ids, and what they decode to.

Usage: check_tokenizers.py LLAMPI [--texts N] [--seed S] [--fixtures]. Needs tokenizers and h5py (written with 0.23.3). The vocabularies
are trained here; normalizers, pre-tokenizers, decoders and added tokens are those of Qwen2.5 and Qwen3 (qwen), Mistral 7B v0.1 and
v0.2 (mistral), v0.3 (mistral-v3) and Nemo (tekken). --fixtures writes tests/fixtures/tokenizers/NAME/tokenizer.json and ids.json
for those that have such a folder or none yet, as make_tokenizer_fixtures.py does for its own."""
import argparse
import json
import pathlib
import pydoc_data.topics
import random
import subprocess
import sys
import tempfile

import h5py
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROSE = "".join(pydoc_data.topics.topics.values())
SAMPLES = [PROSE[:200000]] + ["Grüße aus Köln, naïve café. Привет, мир! 你好，世界。 こんにちは 안녕하세요 नमस्ते สวัสดี 👍🏽 ½ ②\n"] * 40
MARKS = "\u0301\u0323\u0308\u0327\u0334\u0345\u093c\u09be\u0bbe\u1161\u11a8\u3099\u0338\u05b4\u064b\u0f71\U0001d165\u200d\ufe0f"
BASES = ["Cafe\u0301s", *"aeoAOuncsdºΩЕиעל한가ᄒ하ᅡक़ড়เか漢\u0958\u0344\u0340\u212b\u2126\u1e69\ufb2c\U0001d15e\U0002f800\u2adc"]


def byte_level(pattern, normalizer, specials, others, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLES, trainer)
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(others)
    return tokenizer


def qwen():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_pad|>"]
    others = [AddedToken(name, normalized=False) for name in ("<tool_call>", "</tool_call>", "<think>", "</think>")]
    # Not of Qwen: the flags, and a token that is found in the normalized text.
    others += [
        AddedToken("Caf\u00e9s", normalized=True),
        AddedToken("<word>", single_word=True, normalized=True),
        AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False),
    ]
    return byte_level(QWEN, normalizers.NFC(), specials, others, False)


def tekken():
    return byte_level(TEKKEN, None, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"], [], True)


def sentencepiece_like(specials):
    """A vocabulary as the conversion of a SentencePiece model gives it: special tokens, bytes, pieces."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    names = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1300, special_tokens=names, show_progress=False, limit_alphabet=200)
    trained.train_from_iterator(SAMPLES, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=False)
    )
    tokenizer.add_special_tokens(specials)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def mistral():
    tokenizer = sentencepiece_like(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def mistral_v3():
    tokenizer = sentencepiece_like(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return tokenizer


KINDS = {"qwen": qwen, "mistral": mistral, "mistral-v3": mistral_v3, "tekken": tekken}


def texts(count, seed, specials):
    draw = random.Random(seed)
    scripts = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x400), (0x400, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1000)]
    scripts += [(0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2C00), (0x3040, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4)]
    scripts += [(0xF900, 0x10000), (0x1F300, 0x1FB00), (0x10000, 0x12000), (0x16000, 0x17000), (0x1D100, 0x1E000), (0x1E000, 0x1F000)]
    scripts += [(0x20000, 0x33480), (0xE0000, 0xE0200)]

    def anything():
        while 0xD800 <= (c := draw.randrange(0x110000)) < 0xE000:
            pass
        return chr(c)

    def script():
        first, last = draw.choice(scripts)
        return "".join(chr(draw.randrange(first, last)) for _ in range(draw.randint(1, 6)))

    def marked():
        return draw.choice(BASES) + "".join(draw.choice(MARKS) for _ in range(draw.randint(0, 4)))

    def phrase():
        at = draw.randrange(len(PROSE) - 20)
        return PROSE[at : at + draw.randint(1, 20)]

    kinds = [anything, script, script, marked, marked, phrase, phrase, lambda: draw.choice(specials)]
    kinds += [lambda: draw.choice([" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000", "\u0085"]), lambda: str(draw.randrange(10**6))]
    result = []
    while len(result) < count:
        text = "".join(draw.choice(kinds)() for _ in range(draw.randint(1, 8)))
        result.append(text if text.strip() else text + ".")  # white space alone makes no document
    return result


def run(llampi, folder, all_texts):
    """Ids of each text."""
    lines = folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in all_texts), encoding="utf-8")
    output = folder / "ids.h5"
    command = [llampi, "tokenize", "--tokenizer", str(folder / "tokenizer.json"), "--format", "jsonl", "--bos=false"]
    subprocess.run(command + ["--eos=false", "--output", str(output), str(lines)], check=True, stdout=subprocess.DEVNULL)
    with h5py.File(output) as file:
        tokens, ends = file["tokens"][:].tolist(), file["documents"][:].tolist()
    return [tokens[begin:end] for begin, end in zip(ends, ends[1:])]


def decode(llampi, folder, all_ids):
    command = [llampi, "tokenize", "--tokenizer", str(folder / "tokenizer.json"), "--decode"]
    given = "".join(" ".join(map(str, ids)) + "\n" for ids in all_ids)
    return subprocess.run(command, input=given.encode(), capture_output=True, check=True).stdout.decode()


def write_fixture(name, tokenizer, folder):
    all_texts = [
        bytes.fromhex(text["hex"]).decode("utf-8", "replace") if isinstance(text, dict) else text
        for text in json.loads((FIXTURES / "texts.json").read_text(encoding="utf-8"))
    ]

    def encode(text, as_text):
        tokenizer.encode_special_tokens = as_text
        return tokenizer.encode(text, add_special_tokens=False).ids

    ids = [encode(text, False) for text in all_texts]
    as_text = {str(i): other for i, text in enumerate(all_texts) if (other := encode(text, True)) != ids[i]}
    decoded = {
        str(i): other
        for i, text in enumerate(all_texts)
        if (other := tokenizer.decode(ids[i], skip_special_tokens=False)) != text
    }
    tokenizer.encode_special_tokens = False
    (FIXTURES / name).mkdir(exist_ok=True)
    (FIXTURES / name / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids)
    with open(FIXTURES / name / "ids.json", "w", encoding="utf-8") as f:
        f.write('{"ids": [\n' + rows + '\n],\n"as_text": ' + json.dumps(as_text, separators=(",", ":")))
        f.write(',\n"decoded": ' + json.dumps(decoded, ensure_ascii=False, separators=(",", ":")) + "}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llampi")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixtures", action="store_true")
    options = parser.parse_args()
    failed = False
    for name, make in KINDS.items():
        tokenizer = make()
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()] + ["<|im_", "[INST", "<s"]
        all_texts = texts(options.texts, options.seed, specials)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            file = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
            (folder / "tokenizer.json").write_text(file, encoding="utf-8")
            wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in all_texts]
            found = run(options.llampi, folder, all_texts)
            wrong = [i for i in range(len(wanted)) if i >= len(found) or found[i] != wanted[i]]
            expected = "".join(tokenizer.decode(ids, skip_special_tokens=False) + "\n" for ids in wanted)
            decoded = decode(options.llampi, folder, wanted)
            same = decoded == expected
            if not same:
                at = next(i for i, pair in enumerate(zip(decoded + "\0", expected + "\0")) if pair[0] != pair[1])
                print("  ", ascii(decoded[at - 20 : at + 20]), "instead of", ascii(expected[at - 20 : at + 20]))
            print(f"{name}: {len(wanted)} texts, {sum(map(len, wanted))} ids, {len(wrong)} texts differ, decoded {'equal' if same else 'DIFFERENT'}")
            for i in wrong[:3]:
                print("  ", ascii(all_texts[i]), wanted[i], found[i] if i < len(found) else None)
            failed = failed or bool(wrong) or not same or len(found) != len(wanted)
            if options.fixtures:
                write_fixture(name, tokenizer, folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
