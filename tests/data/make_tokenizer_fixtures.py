#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizers and texts under tokenizers/ and what Hugging Face's libraries make of them. Run by hand; tests
only read them.

Needs tokenizers, sentencepiece, transformers and protobuf (written with 0.22.2, 0.2.3, 4.57.6). The vocabularies are small
and trained here; the settings are those of Llama 3, GPT-2, Llama 2 as converted to tokenizer.json, and Llama 2's
tokenizer.model. Characters are those of Unicode 14, which every supported PCRE2 knows.

texts.json: a list of strings, and of {"hex": ...} for bytes that are not UTF-8 (there Python's
decode("utf-8", "replace") is encoded). NAME/ids.json: for each text the ids, for each text where they differ
the ids with special tokens as text, and for each text where it differs from the text what the ids decode to.
"""

import json
import pathlib
import pydoc_data.topics
import random
import sys
import unicodedata

import sentencepiece
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import LlamaConverter

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LANGUAGES = [
    "Grüße aus Köln: schöne Straßen, süße Äpfel.",
    "¿Dónde está la biblioteca? ¡Qué niño!",
    "Ça va, garçon? L'été où j'ai vu",
    "Привет, как дела? Всё хорошо.",
    "Γειά σου Κόσμε, τι κάνεις;",
    "你好，世界。今天天气很好，我们去公园吧。",
    "こんにちは、世界。カタカナとひらがな。",
    "안녕하세요 세계, 반갑습니다",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "สวัสดีชาวโลก",
    "Xin chào thế giới, tiếng Việt",
    "Zażółć gęślą jaźń",
    "İstanbul'da ığdır ağacı",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "ⵜⴰⵎⴰⵣⵉⵖⵜ",
    "გამარჯობა მსოფლიო",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𐍈𐌰",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "🏳️‍🌈", "☃️", "1️⃣", "🧑🏿‍🚀", "❤️‍🔥", "🫠"]
CONTRACTIONS = [
    "I'm",
    "he's",
    "HE'S",
    "they'll",
    "THEY'LL",
    "we've",
    "you're",
    "can't",
    "I'd",
    "'tis",
    "o'clock",
    "it\u2019s",
    "'\u017f",
    "a'\u017fb",
    "rock'n'roll",
    "'re",
    "'RE've",
    "x'lL",
    "''s",
    "'",
]
SPACES = (
    " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
)
SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<0x0A>",
    "<|",
    "|>",
    "<|eot",
    "<",
    "▁",
    "▁▁",
    "<s",
    "<single>",
    "<strip>",
]


def texts():
    draw = random.Random(1)
    by_category = {}
    for code in range(0x110000):
        by_category.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    del by_category["Cn"], by_category["Cs"]
    everything = [c for category in by_category.values() for c in category]
    prose = "".join(pydoc_data.topics.topics.values())

    def pick(source, most):
        return "".join(draw.choice(source) for _ in range(draw.randint(1, most)))

    def phrase(most=14):
        at = draw.randrange(len(prose) - most)
        return prose[at : at + draw.randint(1, most)]

    result = [
        "",
        " ",
        "  ",
        "\n",
        "\0",
        "a",
        "Hello, world!",
        " Hello",
        "Hello ",
        "a" * 100,
        "ab" * 60,
        " " * 100,
        "\n" * 70,
        "é" * 60,
    ]
    for category in sorted(by_category):
        result += [pick(by_category[category], 3) for _ in range(8)]
        result += [phrase(4) + pick(by_category[category], 2) + phrase(4) for _ in range(4)]
    result += [pick(everything, 5) for _ in range(200)]
    result += LANGUAGES + [pick(LANGUAGES, 2)[: draw.randint(1, 30)] for _ in range(100)]
    result += EMOJI + [pick(EMOJI, 3) + draw.choice(["", " ", "!", "x"]) + pick(EMOJI, 1) for _ in range(90)]
    result += [
        pick("aeAnoх한く", 2) + pick(by_category["Mn"][:300] + by_category["Mc"][:100], 3) + phrase(4)
        for _ in range(120)
    ]
    result += [pick(SPACES, 6) for _ in range(60)] + [pick("  \n\t\r", 8) for _ in range(60)]
    result += [phrase(5) + pick(draw.choice([SPACES, "  \n\t\r"]), 7) + phrase(5) for _ in range(160)]
    result += [pick("0123456789", 9) for _ in range(50)] + [pick("0123456789.,-+eE x", 9) for _ in range(60)]
    result += [
        pick(by_category["Nd"] + by_category["Nl"] + by_category["No"], 4) + pick("12a ", 2) for _ in range(50)
    ]
    result += CONTRACTIONS + [draw.choice([" ", "", "x"]) + draw.choice(CONTRACTIONS) + phrase(4) for _ in range(120)]
    result += SPECIAL + [
        draw.choice(["", " ", phrase(5)])
        + draw.choice(SPECIAL)
        + draw.choice(["", " ", "s", phrase(5)])
        + draw.choice(SPECIAL)
        for _ in range(250)
    ]
    result += [phrase(40) for _ in range(230)]
    result += [pick("abcXYZ019 .,;:'\"()[]{}<>|/\\_-+*=&^%$#@!~`\n", 14) for _ in range(120)]
    for _ in range(220):
        data = bytearray((phrase(6) + pick(everything, 2) + phrase(3)).encode())
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.5:
                del data[draw.randrange(len(data)) :][:1]
            else:
                data.insert(draw.randint(0, len(data)), draw.randrange(128, 256))
        result.append(bytes(data))
    result += [
        bytes(b)
        for b in (
            [0x80],
            [0xC0, 0x80],
            [0xE0, 0x80, 0x80],
            [0xED, 0xA0, 0x80],
            [0xF0, 0x9F, 0x98],
            [0xF5, 0x80],
            [0xFF, 0xFE],
            [0xF4, 0x90, 0x80, 0x80],
            [0xE2, 0x82, 0x41],
            [0xC3, 0x28],
            [0xF0, 0x9F, 0x41, 0x98],
            [0xC3],
        )
    ]
    return list(dict.fromkeys(result))


def train_byte_level(samples, size, pre_tokenizer, specials, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        samples, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(specials)
    return tokenizer


def llama3(samples):
    words = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    steps = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>"]
    tokenizer = train_byte_level(samples, 1500, steps, names, ignore_merges=True)
    tokenizer.add_tokens(
        [AddedToken("<single>", single_word=True, normalized=False), AddedToken("<strip>", lstrip=True, rstrip=True)]
    )
    begin = [("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))]
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=begin)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def gpt2(samples):
    return train_byte_level(samples, 1000, pre_tokenizers.ByteLevel(add_prefix_space=True), ["<|endoftext|>"])


def train_sentencepiece(samples, folder):
    lines = [line for sample in samples for line in sample.split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=1200,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=100000,
        character_coverage=0.99995,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    return folder / "tokenizer.model"


def llama2(model):
    tokenizer = LlamaConverter(transformers.LlamaTokenizer(str(model), legacy=True)).converted()
    begin = [("<s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    return tokenizer


def write(name, all_texts, encode, encode_as_text, decode):
    def rows(lists):
        return "[\n" + ",\n".join(json.dumps(ids, separators=(",", ":")) for ids in lists) + "\n]"

    plain = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in all_texts]
    ids = [encode(text) for text in plain]
    as_text = {str(i): other for i, text in enumerate(plain) if (other := encode_as_text(text)) != ids[i]}
    decoded = {str(i): other for i, text in enumerate(plain) if (other := decode(ids[i])) != text}
    with open(FOLDER / name / "ids.json", "w", encoding="utf-8") as f:
        f.write('{"ids": ' + rows(ids) + ',\n"as_text": ' + json.dumps(as_text, separators=(",", ":")))
        f.write(',\n"decoded": ' + json.dumps(decoded, ensure_ascii=False, separators=(",", ":")) + "}\n")
    print(
        name,
        len(ids),
        "texts,",
        sum(map(len, ids)),
        "ids,",
        len(as_text),
        "differ as text,",
        len(decoded),
        "decode to another text",
    )


def write_tokenizer_json(name, tokenizer, all_texts):
    (FOLDER / name).mkdir(exist_ok=True)
    (FOLDER / name / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )

    def encode(text, as_text=False):
        tokenizer.encode_special_tokens = as_text
        return tokenizer.encode(text, add_special_tokens=False).ids

    write(
        name,
        all_texts,
        encode,
        lambda text: encode(text, True),
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )


def write_sentencepiece(name, model, all_texts):
    plain = sentencepiece.SentencePieceProcessor(model_file=str(model))
    hugging_face = transformers.LlamaTokenizer(str(model), legacy=True)

    def decode(ids):
        # Without special tokens as SentencePiece does it. With them as the tokenizer.json made of this model does, because
        # SentencePiece leaves them out and LlamaTokenizer adds spaces to them.
        return plain.decode(ids) if not any(i < 3 for i in ids) else converted.decode(ids, skip_special_tokens=False)

    converted = llama2(model)
    write(
        name,
        all_texts,
        lambda text: hugging_face.convert_tokens_to_ids(hugging_face.tokenize(text)),
        plain.encode,
        decode,
    )


def main():
    for name in ("llama3", "gpt2", "llama2", "sentencepiece"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"Unicode is {unicodedata.unidata_version} here; run this with Python 3.11, which has 14.0.0")
    all_texts = texts()
    with open(FOLDER / "texts.json", "w", encoding="utf-8") as f:
        rows = [{"hex": text.hex()} if isinstance(text, bytes) else text for text in all_texts]
        f.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n")
    samples = ["".join(pydoc_data.topics.topics.values())[:300000]] + [line + "\n" for line in LANGUAGES + EMOJI] * 40
    write_tokenizer_json("llama3", llama3(samples), all_texts)
    write_tokenizer_json("gpt2", gpt2(samples), all_texts)
    model = train_sentencepiece(samples, FOLDER / "sentencepiece")
    write_tokenizer_json("llama2", llama2(model), all_texts)
    write_sentencepiece("sentencepiece", model, all_texts)


if __name__ == "__main__":
    main()
