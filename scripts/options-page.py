#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/options.md, from the options that the program has.

    options-page.py LLAMPI FILE           writes the page
    options-page.py LLAMPI FILE --check   exits 1 if the page is not what it would write
"""
import html
import pathlib
import re
import subprocess
import sys

HEAD = """# Options

<!-- Made by `make options` from the program's own table of options; a test compares it. Do not edit it by hand. -->

`llampi COMMAND --help` and `man llampi` print the same. Options are written `--name=value` or `--name value`.

"""
KEYS = """## Keys of llampi train

A key can be in the file that `--config` names (`[train]`, then `steps = 20`), on the command line (`--train.steps=20`), or in the environment
(`LLAMPI_TRAIN_STEPS=20`). The command line wins over the environment, the environment over the file. `llampi plan` takes the same keys.
Another variable that begins with `LLAMPI_` is refused, except `LLAMPI_PLUGIN_DIR` ([Library](library.md)) and what modules set for a program that they provide, such as `LLAMPI_ROOT`.

"""


def printed(llampi, *arguments):
    return subprocess.run([llampi, *arguments], capture_output=True, text=True).stdout


def options(text):
    """(section, name, value, default, help) of each option in a --help text."""
    section, found = "", []
    for line in text.split("\noptions:\n", 1)[1].splitlines():
        if m := re.fullmatch(r"([a-z]+):", line):
            section = m[1]
        elif m := re.match(r"  --(\S+)((?: \S+)*?)(?: \(=([^)]*)\)(?: +(.*))?|(?:  +(.*))?)$", line):
            found.append([section, m[1], m[2].strip(), m[3], m[4] or m[5] or ""])
        elif line.strip():
            found[-1][4] += " " + line.strip()
    return found


def code(text):
    """In code font, also where there are bars, which Markdown takes for the borders of a table: GitHub and MkDocs escape them differently."""
    if text and "|" in text:
        return f"<code>{html.escape(text, quote=False)}</code>"
    return f"`{text}`" if text else ""


def table(rows):
    out = ["| option | value | default | |", "|---|---|---|---|"]
    for _, name, value, default, text in rows:
        cells = [code(name), code(value), code(default), html.escape(" ".join(text.split()), quote=False)]
        out.append("| " + " | ".join(cell.replace("|", "&#124;<wbr>") for cell in cells) + " |")
    return "\n".join(out) + "\n\n"


def page(llampi):
    text = HEAD
    usage = printed(llampi, "--help")
    commands = re.findall(r"^  ([a-z]+) +(.+)$", usage.split("Commands:")[1], re.M)
    sections = {}
    for name, _ in commands:
        output = printed(llampi, name, "--help")
        if "\noptions:\n" not in output and not output.startswith("Usage"):
            continue
        text += f"## llampi {name}\n\n```text\n{output.split(chr(10) + 'options:')[0].strip()}\n```\n\n"
        rows = options(output) if "\noptions:\n" in output else []
        own = [["", "--" + row[1]] + row[2:] for row in rows if not row[0]]
        if own:
            text += table(own)
        if name == "train":
            for row in rows:
                if row[0]:
                    sections.setdefault(row[0], []).append(row)
    text += KEYS
    for section, rows in sections.items():
        text += f"### {section}\n\n" + table(rows)
    return text.rstrip() + "\n"


def main():
    llampi, path = sys.argv[1], pathlib.Path(sys.argv[2])
    made = page(llampi)
    if "--check" in sys.argv:
        if path.read_text(encoding="utf-8") != made:
            sys.exit(f"{path} does not have the options of the program; run `make options`")
    else:
        path.write_text(made, encoding="utf-8")


main()
