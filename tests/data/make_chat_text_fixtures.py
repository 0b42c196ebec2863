#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_texts.json: the Jinja texts that llampi exports, once transformers has rendered them as it renders the published
ones, and outlines of texts by Jinja's own lexer. Run by hand; tests only read it.

Usage: make_chat_text_fixtures.py FOLDER TEST_DATA. FOLDER holds published texts, any number for each template:
TEMPLATE__ANYTHING.jinja. TEST_DATA is the program of the tests in tests/data, which says what llampi exports. Needs what
make_chat_template_fixtures.py needs.

Fails where a text renders one of the 200 random conversations otherwise than the first published text of its template, or where
a fingerprint in chat_templates.cpp belongs to none of the published texts. These are not kept, only their shapes: each letter x,
each digit 0.
"""
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import jinja2

import jinja_outline_reference as reference
from make_chat_template_fixtures import DATE, DEFAULT_SYSTEM, FOLDER, conversations, load

SAME_AS = {"llama3.3": "llama3.1", "llama3.2-dated": "llama3.2"}
OWN_DATE = "1 o'clock \\ May"  # of llama3.2-dated
LAYOUTS = 4
ERASED = 60
SNIPPETS = [  # what the published texts do not have
    r"""{{ 'a\tb' + '\\' + '\'' + "\"" }}""",
    "a {# b #} c{{ d }}",
    "a {#- b -#} c{{ d }} ",
    "a\n  {# b #}\n  c\n\t{% if d %}\n\n e\n{% endif %}\n",
    "a\r\n  {%+ if b %}\rc {%- endif -%} \n d\r\n\r\n",
    "{{ a-1 }}{{ b - 1.5 }}{{ c[-1:] ** 2 // d }}{{ e ~ f|g(h=1) }}",
    "{% set date_string = '1 May' %}{% set date_string = '2 May' %}",
    "{% set date_string = a %}{% set date_string = \"3 May\" %}",
    r"{{ '<|im_start|>system\nA.<|im_end|>\n' }}{{ '<|im_start|>system\nB.<|im_end|>\n' }}",
    r"{{ '<|im_start|>system\n<|im_end|>\n' }}{{ '<|im_start|>system\nC.<|im_end|>\n<|im_start|>user\n' }}",
    "{{ 'Grüße' }} 你好 {{ a['ü'] }} {{- b }}",
    "{ a } {{ b }} } %} {",
]


def read_own(program):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "own.json"
        choice = "--gtest_filter=ChatTemplates.TextsAreThoseThatTransformersRendered"
        subprocess.run([program, choice, f"--gtest_output=json:{output}"], stdout=subprocess.DEVNULL, check=False)
        properties = json.loads(output.read_text())["testsuites"][0]["testsuite"][0]
    return {key[5:]: text for key, text in properties.items() if key.startswith("text ")}


class Renderer:
    def __init__(self):
        self.tokenizers = {name: load(name) for name in ("llama2", "llama3")}

    def render(self, name, text, messages, prompt, **options):
        given = [{"role": role, "content": content} for role, content in messages]
        tokenizer = self.tokenizers[name]
        try:
            return tokenizer.apply_chat_template(
                given, chat_template=text, tokenize=False, add_generation_prompt=prompt, **options
            )
        except jinja2.exceptions.TemplateError as error:
            words = ("alternate", "supported", "take turns", "no place")
            assert any(word in str(error) for word in words), error
            return None

    def all(self, template, text, all_messages, **options):
        """What the text makes of the conversations, whole and up to the last answer, with system messages and without."""
        names = ["llama3"] if template.startswith("llama3") else ["llama2"]
        names = ["llama2", "llama3"] if template in ("chatml", "zephyr") else names
        for name in names:
            for messages in all_messages:
                plain = [message for message in messages if message[0] != "system"]
                first = messages[:1] + [message for message in messages[1:] if message[0] != "system"]
                for given in (messages, first, plain):
                    yield self.render(name, text, given, False, **options)
                    yield self.render(name, text, given[:-1], True, **options)


def with_default(text):
    """With DEFAULT_SYSTEM in place of its own default system message, if it has one."""
    default = reference.outline(text)[2]
    return text.replace(default, DEFAULT_SYSTEM) if default else text


def shape(text):
    kept = r"\\.|\bset\s+date_string\b|<\|im_start\|>system\\n|<\|im_end\|>\\n"
    return re.sub(f"({kept})|([A-Za-z])|([0-9])", lambda m: m[1] or ("x" if m[2] else "0"), text)


def layout(text, draw):
    """The same words, laid out in another way, which sometimes changes what is rendered."""
    result = ""
    for kind, value in reference.tokens(text):
        space = draw.choice(["", " ", " ", "\n", "\t  "])
        if kind.endswith("_begin"):
            before = draw.choice(["", "", "", "{# of a turn #}", "{#- a -#}\n", "\n  ", " "])
            result += before + value + draw.choice(["", "-", "-", "+" if kind == "block_begin" else ""]) + " " * draw.randint(0, 2)
        elif kind.endswith("_end"):
            result += space + draw.choice(["", "-"]) + value + draw.choice(["", "", "\n", "\r\n", "\n\n", "  "])
        elif kind == "string":
            other = '"' if value[0] == "'" and '"' not in value and "\\'" not in value else value[0]
            result += space + other + draw.choice([value[1:-1], value[1:-1].replace("\\n", "\n")]) + other
        elif kind == "whitespace":
            result += draw.choice([" ", "  ", "\n", "\t"])
        else:
            result += value
    return result


def of_own(name, text, renderer, all_messages, counts):
    draw = random.Random(name)
    template = SAME_AS.get(name, name)
    few = [messages for messages in all_messages if len(messages) > 2][:6]
    fingerprint = reference.outline(text)[0]
    options = {"date_string": DATE} if template.startswith("llama3.") else {}  # else dates would differ
    rendered = list(renderer.all(template, text, few, **options))

    def check(other, must_parse):
        """The fingerprint of a changed text; None if Jinja cannot read it."""
        try:
            reference.ENVIRONMENT.parse(other)
            found = reference.outline(other)[0]
            same = found == fingerprint and list(renderer.all(template, other, few, **options)) == rendered
        except jinja2.exceptions.TemplateSyntaxError:
            assert not must_parse, other
            return None
        assert same or found != fingerprint, other
        counts["same" if same else "other"] += 1
        return found

    layouts, wanted = [], [True, False] * (LAYOUTS // 2)
    for attempt in range(100000):
        other = layout(text, draw)
        if attempt % 10:  # nearly all would have white space somewhere that is rendered
            other = re.sub(r"(?<=[%}]})[ \n\r]+(?={[{%#])", "", other)
        if (reference.outline(other)[0] == fingerprint) in wanted:
            wanted.remove(reference.outline(other)[0] == fingerprint)
            layouts.append([other, check(other, True)])
        if not wanted:
            break
    assert not wanted
    places = sorted(draw.sample(range(len(text)), ERASED))
    erased = [[at, check(text[:at] + text[at + 1 :], False)] for at in places]
    return {
        "text": text,
        "fingerprint": fingerprint,
        "layouts": layouts,
        "erased": [pair for pair in erased if pair[1]],
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    all_messages, renderer = conversations(), Renderer()
    published = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*__*.jinja")):
        published.setdefault(path.name.split("__")[0], []).append(path.read_bytes().decode())
    fingerprints, shapes, compared = {}, {}, 0
    for template, texts in published.items():
        expected = {}
        for text in texts:
            fingerprint, _, default = reference.outline(text)
            fingerprints[fingerprint] = template
            shapes[shape(text)] = reference.outline(shape(text))
            rendered = list(renderer.all(template, with_default(text), all_messages))
            assert rendered == expected.setdefault(bool(default), rendered), (template, fingerprint)
            compared += len(rendered) - rendered.count(None)
    own, counts = {}, {"same": 0, "other": 0}
    for name, text in read_own(sys.argv[2]).items():
        template = SAME_AS.get(name, name)
        first = next(text for text in published[template] if not reference.outline(text)[2])
        dates = [({}, {"date_string": OWN_DATE})] if name == "llama3.2-dated" else [({}, {})]
        if template in ("llama3.1", "llama3.2") and not name.endswith("-dated"):
            dates.append(({"date_string": DATE}, {"date_string": DATE}))
        for own_date, published_date in dates:
            rendered = list(renderer.all(template, text, all_messages, **own_date))
            assert rendered == list(renderer.all(template, first, all_messages, **published_date)), name
            compared += len(rendered) - rendered.count(None)
        own[name] = of_own(name, text, renderer, all_messages, counts)
    result = {
        "own_date": OWN_DATE,
        "own": own,
        "published": fingerprints,
        "shapes": [[text, *found] for text, found in shapes.items()],
        "snippets": [[text, *reference.outline(text)] for text in SNIPPETS],
    }
    with open(FOLDER / "fixtures" / "chat_texts.json", "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=0)
        file.write("\n")
    print(f"{sum(map(len, published.values()))} published texts, {len(own)} own; {compared} renderings compared;", counts)


if __name__ == "__main__":
    main()
