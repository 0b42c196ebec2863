#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that README and manual show, in an empty folder for each page, one block after another in one shell.

    commands.py ROOT LLAMPI           all but what takes minutes
    commands.py ROOT LLAMPI --whole   also that, and nothing shortened
    commands.py ROOT LLAMPI --list    which blocks are run and which are not, with the reasons

A command stands between ```sh and ```. A comment on the line before it says how it is tested:

    (none)                            it is run as it stands
    <!-- shorten s/200/3/ -->         it is run with this change by sed, and as it stands with --whole
    <!-- long: REASON -->             it is run with --whole only
    <!-- tested by PATH -->           another test runs it; the file exists
    <!-- not run: REASON -->          it cannot be run by a test

A page's folder has what a checkout has, and the program in build/. `<!-- setup`, lines of commands, `-->` makes files that a reader has.
Keys of `llampi train` (--section.key=, or in code font) must exist in any block and on any page.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SECTIONS = "run|data|train|optimizer|fsdp|activation|checkpoint|log|lora"
NOTES = {"run.placement"}  # in config.ini, but no key


class Block:
    def __init__(self, place, mark, text):
        self.place, self.text = place, text
        m = re.fullmatch(r"<!-- (shorten|long:|tested by|not run:) ?(.*) -->", mark)
        self.kind, self.detail = (m[1].rstrip(":"), m[2]) if m else ("run", "")

    def commands(self, whole):
        if self.kind == "run" or (self.kind in ("shorten", "long") and whole):
            return self.text
        if self.kind == "shorten":
            done = subprocess.run(["sed", "-E", self.detail], input=self.text, capture_output=True, text=True, check=True)
            if done.stdout == self.text:
                sys.exit(f"{self.place}: {self.detail} changes nothing")
            return done.stdout
        return None


def read(path, name):
    """The commands that set a page up, and its blocks."""
    setup, blocks, lines = "", [], path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        if lines[number] == "<!-- setup":
            end = lines.index("-->", number)
            setup += "\n".join(lines[number + 1:end]) + "\n"
            number = end
        elif lines[number].strip() == "```sh":
            end = lines.index(lines[number].replace("sh", ""), number)
            mark = lines[number - 1].strip() if lines[number - 1].strip().startswith("<!--") else ""
            if mark and not re.fullmatch(r"<!-- (shorten|long:|tested by|not run:) .+ -->", mark):
                sys.exit(f"{name}:{number}: no such mark: {mark}")
            blocks.append(Block(f"{name}:{number + 1}", mark, "\n".join(lines[number + 1:end]) + "\n"))
            number = end
        number += 1
    return setup, blocks


def run_page(root, llampi, name, setup, blocks, whole):
    commands = [(block, block.commands(whole)) for block in blocks]
    commands = [(block, text) for block, text in commands if text]
    if not commands:
        return 0
    script = "set -euo pipefail\nsource scripts/mpi-env.sh\n" + setup
    for block, text in commands:
        script += f"echo '== {block.place}'\n{text}\n"
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for entry in root.iterdir():
            if entry.name not in ("build", "runs", ".git"):
                (place / entry.name).symlink_to(entry)
        (place / "build").mkdir()
        (place / "build/llampi").symlink_to(llampi)
        environment = dict(os.environ, PATH=f"{place}/build:{os.environ['PATH']}", HOME=folder)
        done = subprocess.run(["bash", "-c", script], cwd=place, stdin=subprocess.DEVNULL, env=environment, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(done.stdout[-6000:])
        if done.returncode:
            sys.exit(f"{name}: status {done.returncode} at the last == above")
    return len(commands)


def unknown_keys(root, llampi):
    help_text = subprocess.run([llampi, "train", "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  --([a-z]+\.[a-z0-9_]+)", help_text, re.M))
    for path in [root / "README.md"] + sorted((root / "docs").glob("*.md")):
        text = re.sub(r"^was .*$", "", path.read_text(encoding="utf-8"), flags=re.M)
        for m in re.finditer(rf"(?:--|`)((?:{SECTIONS}|model)\.[a-z0-9_]+)(?![\w.(-])", text):
            key = m[1]
            if key not in known | NOTES and (not key.startswith("model.") or m[0].startswith("--")):
                yield f"{path.relative_to(root)}: there is no key {key}"


def main():
    root, llampi = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    whole, only_list = "--whole" in sys.argv, "--list" in sys.argv
    counts, reasons = {}, []
    found = list(unknown_keys(root, llampi))
    for path in [root / "README.md"] + sorted((root / "docs").glob("*.md")):
        name = path.relative_to(root).as_posix()
        setup, blocks = read(path, name)
        for block in blocks:
            counts[block.kind] = counts.get(block.kind, 0) + 1
            if block.kind == "tested by" and not (root / block.detail).exists():
                found.append(f"{block.place}: there is no {block.detail}")
            if block.kind != "run":
                reasons.append(f"  {block.place}: {block.kind} {block.detail}")
        if not only_list:
            run_page(root, llampi, name, setup, blocks, whole)
    print("\n".join(reasons))
    print("commands: " + ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)) + f"; {sum(counts.values())} blocks")
    print("\n".join(found))
    sys.exit(bool(found))


main()
