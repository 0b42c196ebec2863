#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares figures of the manual that the program predicts with what the program predicts now.

    figures.py ROOT LLAMPI

A comment in a page, from `<!-- figures` to `-->`, has commands that the reader does not see. Each line that they print stands in that
page: a row of a table from its first cell on, or a part of a sentence. Commands may also compare files themselves, with cmp.
They run in a folder with build/llampi, input/ and docs/, and stop at the first that fails.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def faults(root, llampi, page):
    text = page.read_text(encoding="utf-8")
    shown = " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.S).split())
    for m in re.finditer(r"^<!-- figures\n(.*?)^-->", text, re.M | re.S):
        place = f"{page.relative_to(root)}:{text.count(chr(10), 0, m.start()) + 1}"
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "build").mkdir()
            for link, target in (("build/llampi", llampi), ("input", root / "input"), ("docs", root / "docs")):
                (folder / link).symlink_to(target)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", m[1]], cwd=folder, env={**os.environ, "LC_ALL": "C.UTF-8"},
                                  capture_output=True, text=True)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            yield f"{place}: status {done.returncode}, {len(lines)} lines: {done.stdout}{done.stderr}"
        for line in lines:
            if " ".join(line.split()) not in shown:
                yield f"{place}: the page does not have what the program prints: {line}"
        print(f"{place}: {len(lines)} lines")


def main():
    root, llampi = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    found = [fault for page in sorted((root / "docs").glob("*.md")) for fault in faults(root, llampi, page)]
    if not any("<!-- figures\n" in page.read_text(encoding="utf-8") for page in (root / "docs").glob("*.md")):
        found.append("no page of docs/ has a comment that begins with <!-- figures")
    print("\n".join(found) or "figures: all pages have what the program prints")
    sys.exit(bool(found))


main()
