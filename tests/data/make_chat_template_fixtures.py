#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_templates.json: random conversations, and digests of what transformers makes of them with the chat templates
that models were published with. Run by hand; tests only read it.

Usage: make_chat_template_fixtures.py FOLDER, which holds the templates as the models' tokenizer_config.json has them: llama2.jinja
(Llama-2-7b-chat-hf), llama3.jinja (Meta-Llama-3-8B-Instruct), llama3.1.jinja (Llama-3.1-8B-Instruct), llama3.2.jinja
(Llama-3.2-1B-Instruct), chatml.jinja (without a default system message), chatml-default.jinja (SmolLM2's, with DEFAULT_SYSTEM in
place of its own), zephyr.jinja (zephyr-7b-beta), mistral-v0.1.jinja, mistral-v0.2.jinja (Mistral-7B-Instruct's first ones),
mistral-v1.jinja and mistral-v3.jinja. Needs transformers and jinja2 (written with 5.23.0 and 3.1.6), and the tokenizers under
tokenizers/.

For each tokenizer and template two lists with a digest per conversation: of the whole conversation with the mask of what the
assistant says, and of the prompt up to its last answer. Where the template refuses a conversation, it is tried without the system
messages behind the first message, and then without any.
"""
import json
import pathlib
import random
import sys
import tempfile

import jinja2
import transformers

FOLDER = pathlib.Path(__file__).parent
COUNT = 200
DATE = "05 Nov 2031"  # given to llama3.2, which asks the clock
DEFAULT_SYSTEM = "Answer in verse."
TOKENIZERS = {"llama3": "llama3", "llama2": "llama2", "llama2-first": "llama2"}
ADDED = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|im_start|>", "<|im_end|>"]
WITH_LLAMA3_TOKENS = ["llama3", "llama3.1", "llama3.2", "chatml", "chatml-default", "zephyr"]
WITH_LLAMA2_TOKENS = [
    "llama2", "chatml", "chatml-default", "zephyr", "mistral-v0.1", "mistral-v0.2", "mistral-v1", "mistral-v3",
]
WORDS = [
    "Hello", "it's", "two", "12345", "Grüße", "你好", "👍🏽", "a\nb", "\n\nc", "x ", "O'Neil", "```c\nint main() {}\n```", "3.14",
    "-", "  indented", "tab\there", "été", "мир", "[", "]", "user", "assistant", "\u00a0", "…", "(a)", "{{ b }}", "<<", "|",
]


def conversations():
    draw = random.Random(20)
    result = []

    def content():
        ends = ["", "", "", " ", "\n", "\t ", "\u3000"]
        words = [draw.choice(WORDS) for _ in range(draw.randint(1, 7))]
        return draw.choice(ends) + draw.choice([" ", "", "\n", "  "]).join(words) + "." + draw.choice(ends)

    for _ in range(COUNT):
        messages = [["system", content()]] if draw.random() < 0.4 else []
        for _ in range(draw.randint(1, 4)):
            if draw.random() < 0.02:
                messages.append(["system", content()])  # not all templates have a place for it
            messages += [["user", content()], ["assistant", content()]]
        result.append(messages)
    return result


def tokenizer_file(name):
    """The small tokenizer with the tokens of all templates; chat_test.cpp makes the same."""
    tokenizer = json.loads((FOLDER / "tokenizers" / TOKENIZERS[name] / "tokenizer.json").read_text())
    known = [token["content"] for token in tokenizer["added_tokens"]]
    following = 1 + max(max(tokenizer["model"]["vocab"].values()), *(token["id"] for token in tokenizer["added_tokens"]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for token in ADDED:
        if token not in known:
            tokenizer["added_tokens"].append({"id": following, "content": token, **flags})
            following += 1
    if name == "llama3":  # positions of tokens with the spaces that belong to them; ids stay as they are
        tokenizer["post_processor"]["processors"][0]["trim_offsets"] = False
    if name == "llama2-first":
        tokenizer["normalizer"] = None
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        tokenizer["pre_tokenizer"] = metaspace
    return json.dumps(tokenizer)


def load(name):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    if name == "llama3":
        special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(tokenizer_file(name))
        file.flush()
        return transformers.PreTrainedTokenizerFast(tokenizer_file=file.name, **special)


def answers_of(template, eos, messages):
    """For each answer the text before it, which tells where it stands, and what is learnt of it."""
    for role, content in messages:
        if role != "assistant":
            continue
        if template.startswith("llama3"):
            yield "<|start_header_id|>assistant<|end_header_id|>\n\n", content.strip() + "<|eot_id|>"
        elif template.startswith("chatml"):
            yield "<|im_start|>assistant\n", content + "<|im_end|>"
        elif template == "zephyr":
            yield "<|assistant|>\n", content + eos
        elif template == "llama2":
            yield "[/INST]", " " + content.strip() + " " + eos
        else:
            yield "[/INST]", ("" if template.startswith("mistral-v0") else " ") + content + eos


def mask_of(template, eos, messages, text, encoding):
    """As transformers' return_assistant_tokens_mask has it: the tokens from that of the first character to that of the last."""
    mask = [0] * len(encoding["input_ids"])
    at = 0
    for before, learnt in answers_of(template, eos, messages):
        begin = text.index(before + learnt, at) + len(before)
        at = begin + len(learnt)
        for token in range(encoding.char_to_token(begin), encoding.char_to_token(at - 1) + 1):
            mask[token] = 1
    return mask


def digest(ids, mask):
    value = 2166136261
    for token, flag in zip(ids, mask):
        value = (value * 16777619 ^ (2 * token + flag)) & 0xFFFFFFFF
    return f"{value:08x}"


def cases(name, template, text_of_template, tokenizer, all_messages):
    def render(messages, prompt):
        given = [{"role": role, "content": content} for role, content in messages]
        options = dict(chat_template=text_of_template, add_generation_prompt=prompt)
        if template == "llama3.2":
            options["date_string"] = DATE
        text = tokenizer.apply_chat_template(given, tokenize=False, **options)
        ids = tokenizer.apply_chat_template(given, tokenize=True, **options)
        ids = ids if isinstance(ids, list) else ids["input_ids"]
        encoding = tokenizer(text, add_special_tokens=False)
        assert encoding["input_ids"] == ids
        return digest(ids, [0] * len(ids) if prompt else mask_of(template, tokenizer.eos_token, messages, text, encoding))

    def without_system(messages, kept):
        """Without the system messages but the first `kept` messages."""
        return messages[:kept] + [message for message in messages[kept:] if message[0] != "system"]

    def digest_of(messages, prompt):
        # The system message of mistral-v3 stands before the last message if that is the user's, and otherwise gets lost.
        loses_system = template == "mistral-v3" and not prompt and messages[0][0] == "system"
        for given in [] if loses_system else [messages, without_system(messages, 1)]:
            try:
                return render(given, prompt)
            except jinja2.exceptions.TemplateError as error:
                assert "alternate" in str(error) or "supported" in str(error), error
        return render(without_system(messages, 0), prompt)

    return {
        "whole": [digest_of(messages, False) for messages in all_messages],
        "prompt": [digest_of(messages[:-1], True) for messages in all_messages],
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    all_messages = conversations()
    result = {}
    for name in TOKENIZERS:
        tokenizer = load(name)
        result[name] = {}
        for template in WITH_LLAMA3_TOKENS if name == "llama3" else WITH_LLAMA2_TOKENS:
            text = (pathlib.Path(sys.argv[1]) / f"{template}.jinja").read_bytes().decode()
            if template == "chatml-default":
                assert DEFAULT_SYSTEM in text
            result[name][template] = cases(name, template, text, tokenizer, all_messages)
    with open(FOLDER / "fixtures" / "chat_templates.json", "w", encoding="utf-8") as file:
        rows = ",\n".join(json.dumps(messages, ensure_ascii=False) for messages in all_messages)
        file.write(f'{{"date": "{DATE}", "default_system": "{DEFAULT_SYSTEM}",\n"conversations": [\n{rows}\n],\n"cases": ')
        file.write(json.dumps(result, separators=(",", ":")).replace('"],', '"],\n') + "}\n")


if __name__ == "__main__":
    main()
