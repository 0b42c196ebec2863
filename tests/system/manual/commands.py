#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that README and manual show, in an empty folder for each page, one block after another in one shell.

    commands.py ROOT LLAMPI           all but what takes minutes
    commands.py ROOT LLAMPI --whole   also that, and nothing shortened
    commands.py ROOT LLAMPI --page P  only the page P, such as docs/lora.md
    commands.py ROOT LLAMPI --list    which blocks are run and which are not, with the reasons

A command stands between ```sh and ```, lines of Python between ```python and ```. A comment on the line before it says how it is tested:

    (none)                               it is run as it stands
    <!-- shorten s/200/3/ -->            it is run with this change by sed, and as it stands with --whole
    <!-- smaller s/8B/tiny/ -->          it is run with this change by sed, also with --whole: it names what a test cannot have
    <!-- long: REASON -->                it is run with --whole only
    <!-- tested by PATH: WORD; ... -->   another test runs it
    <!-- not run: REASON -->             it cannot be run by a test
    <!-- not run: REASON; see PATH: WORD; ... -->   it cannot, but this file runs what matters of it; more files: ; see PATH: WORD

Each WORD stands in the block (or in the recipe of a `make TARGET` in it), and in the file's code: not in its comments. A test that reads the page
itself needs no WORD. Python whose modules no python3 here has is skipped, and the output says so.

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
NOTES = {"run.began_at", "run.began_from", "run.placement"}  # in config.ini, but no key


MARK = r"<!-- (shorten|smaller|long:|tested by|not run:) (.+) -->"
PYTHONS = dict.fromkeys([sys.executable, "/usr/bin/python3"])


class Block:
    def __init__(self, place, mark, text, is_python):
        self.place, self.text, self.is_python = place, text, is_python
        m = re.fullmatch(MARK, mark)
        self.kind, self.detail = (m[1].rstrip(":"), m[2]) if m else ("run", "")
        references = [self.detail] if self.kind == "tested by" else self.detail.split("; see ")[1:] if self.kind == "not run" else []
        self.files = {}  # words by file
        for reference in references:
            file, _, words = reference.partition(": ")
            self.files[file] = [word for word in words.split("; ") if word]

    def commands(self, whole):
        if self.kind == "run" or (self.kind in ("shorten", "long") and whole):
            return self.text
        if self.kind in ("shorten", "smaller"):
            done = subprocess.run(["sed", "-E", self.detail], input=self.text, capture_output=True, text=True, check=True)
            if done.stdout == self.text:
                sys.exit(f"{self.place}: {self.detail} changes nothing")
            return done.stdout
        return None

    def wrong_references(self, root, page, recipes):
        """Why the files that it names do not test it."""
        shown = self.text + "".join(recipes.get(target, "") for target in re.findall(r"\bmake ([a-z-]+)", self.text))
        for file, words in self.files.items():
            if not (root / file).is_file():
                yield f"{self.place}: there is no file {file}"
                continue
            lines = (root / file).read_text(encoding="utf-8").splitlines()
            code = "\n".join(line for line in lines if not re.match(r"\s*(#|//)", line))
            if not words and page not in code:
                yield f"{self.place}: name a word of it that {file} has, too: that file does not read {page}"
            for word in words:
                if word not in shown:
                    yield f"{self.place}: \"{word}\" is not in the block"
                if word not in code:
                    yield f"{self.place}: \"{word}\" is not in {file}"


def recipes_of(root):
    """The recipes of the Makefile's targets."""
    return {m[1]: m[2] for m in re.finditer(r"^([a-z-]+):(?!=)[^\n]*\n((?:\t[^\n]*\n)*)", (root / "Makefile").read_text(encoding="utf-8"), re.M)}


def python_for(text):
    """A python3 that has the modules, or the module that none has."""
    modules = re.findall(r"^(?:import|from) (\w+)", text, re.M)
    for python in PYTHONS:
        if os.path.exists(python) and subprocess.run([python, "-c", "import sys" + "".join(f", {name}" for name in modules)], capture_output=True).returncode == 0:
            return python, modules
    return None, modules


def read(path, name):
    """The commands that set a page up, and its blocks."""
    setup, blocks, lines = "", [], path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        if lines[number] == "<!-- setup":
            end = lines.index("-->", number)
            setup += "\n".join(lines[number + 1:end]) + "\n"
            number = end
        elif lines[number].strip() in ("```sh", "```python"):
            end = lines.index(re.sub("sh|python", "", lines[number]), number)
            mark = lines[number - 1].strip() if lines[number - 1].strip().startswith("<!--") else ""
            if mark and not re.fullmatch(MARK, mark):
                sys.exit(f"{name}:{number}: no such mark: {mark}")
            blocks.append(Block(f"{name}:{number + 1}", mark, "\n".join(lines[number + 1:end]) + "\n",
                                lines[number].strip() == "```python"))
            number = end
        number += 1
    return setup, blocks


def run_page(root, llampi, name, setup, blocks, whole):
    commands = [(block, block.commands(whole)) for block in blocks]
    commands = [(block, text) for block, text in commands if text]
    if not commands:
        return []
    script = "set -euo pipefail\nsource scripts/mpi-env.sh\n" + setup
    skipped = []
    for block, text in commands:
        script += f"echo '== {block.place}'\n"
        if not block.is_python:
            script += text + "\n"
            continue
        python, modules = python_for(text)
        if python:
            script += f"{python} - <<'END_OF_PYTHON'\n{text}END_OF_PYTHON\n"
        else:
            skipped.append(f"  {block.place}: SKIPPED, no python3 here has {', '.join(modules)}")
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
    return skipped


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
    page = sys.argv[sys.argv.index("--page") + 1] if "--page" in sys.argv else None
    counts, reasons = {}, []
    found, recipes = list(unknown_keys(root, llampi)), recipes_of(root)
    for path in [root / "README.md"] + sorted((root / "docs").glob("*.md")):
        name = path.relative_to(root).as_posix()
        setup, blocks = read(path, name)
        for block in blocks:
            counts[block.kind] = counts.get(block.kind, 0) + 1
            found += block.wrong_references(root, name, recipes)
            if block.kind != "run":
                reasons.append(f"  {block.place}: {block.kind} {block.detail}")
        if not only_list and page in (None, name):
            reasons += run_page(root, llampi, name, setup, blocks, whole)
    print("\n".join(reasons))
    print("commands: " + ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)) + f"; {sum(counts.values())} blocks")
    print("\n".join(found))
    sys.exit(bool(found))


main()
