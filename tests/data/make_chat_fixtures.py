#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat.json: conversations, and what transformers makes of them. Run by hand; tests only read it.

Needs transformers and jinja2 (written with 5.23.0 and 3.1.6), and the tokenizers under tokenizers/. The templates are those of
Meta-Llama-3-8B-Instruct and Llama-2-7b-chat-hf; marks around what the assistant says give transformers' mask, and the text with
them is checked to be the text without. For each conversation and template: the rendered text, ids and mask with the small
tokenizer of that kind, and text and ids of the prompt up to its last answer; null where the template refuses.
"""
import json
import pathlib
import tempfile

import transformers

FOLDER = pathlib.Path(__file__).parent
TEMPLATES = {
    "llama3":
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set head = '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n' %}{% set content = message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
        "{% set head = bos_token + head %}{% endif %}{{ head }}{% if message['role'] == 'assistant' %}BEGIN{{ content }}END{% else %}"
        "{{ content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{% endif %}",
    "llama2":
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
        "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}"
        "{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + "
        "'\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}BEGIN{{ ' ' + content.strip() + ' ' + eos_token }}END{% endif %}{% endfor %}",
}
SPECIAL = {"llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, "llama2": {"bos_token": "<s>", "eos_token": "</s>"}}
CONVERSATIONS = [
    [("user", "Hello!"), ("assistant", "Hi, how can I help?")],
    [("system", "You are terse."), ("user", "Why is the sky blue?"), ("assistant", "Rayleigh scattering.")],
    [("system", ""), ("user", "One."), ("assistant", "1"), ("user", "Two?"), ("assistant", "2"), ("user", "Three?"), ("assistant", "3")],
    [("system", "  spaces around \n"), ("user", "\n\t left and right \u3000"), ("assistant", "\u00a0\u2003kept  inside\u200b \x1f\x85")],
    [("system", "S"), ("user", "  kept behind the system message"), ("assistant", "yes")],
    [("user", "Grüße, 你好 👍🏽"), ("assistant", "Ça va?\n\n- eins\n- zwei\n\n```c\nint main() {}\n```")],
    [("user", "1234567"), ("assistant", "'tis 3.14159 o'clock"), ("user", "it's"), ("assistant", "I'd  say  so")],
    [("user", "no answer")],
    [("user", "a"), ("assistant", "b"), ("user", "c")],
    [("user", "a"), ("user", "twice"), ("assistant", "b")],
    [("assistant", "first"), ("user", "then")],
    [("user", "x"), ("assistant", "[INST] not a turn [/INST]")],
]


def load(name):
    text = (FOLDER / "tokenizers" / name / "tokenizer.json").read_text().replace("<|end_of_text|>", "<|end_header_id|>")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file.name, **SPECIAL[name])
    plain = TEMPLATES[name].replace("BEGIN", "").replace("END", "")
    marked = TEMPLATES[name].replace("BEGIN", "{% generation %}").replace("END", "{% endgeneration %}")
    return tokenizer, plain, marked


def as_list(ids):
    return ids if isinstance(ids, list) else ids["input_ids"]


def render(name, messages):
    tokenizer, plain, marked = load(name)
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=plain, tokenize=False)
    except Exception as error:
        assert "alternate" in str(error), error
        return None
    assert text == tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=False)
    result = {"text": text, "ids": as_list(tokenizer.apply_chat_template(messages, chat_template=plain, tokenize=True))}
    both = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert both["input_ids"] == result["ids"]
    result["mask"] = both["assistant_masks"] if any(m["role"] == "assistant" for m in messages) else [0] * len(result["ids"])
    prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    if prompt:
        options = dict(chat_template=plain, add_generation_prompt=True)
        result["prompt_text"] = tokenizer.apply_chat_template(prompt, tokenize=False, **options)
        result["prompt_ids"] = as_list(tokenizer.apply_chat_template(prompt, tokenize=True, **options))
    return result


def main():
    cases = []
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        cases.append({"messages": messages, **{name: render(name, messages) for name in TEMPLATES}})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (FOLDER / "fixtures" / "chat.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
