#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the SPDX line with the licence (LICENSE) at the top of each source file that has none, below `#!`.

    scripts/add-spdx.py            changes files, and names them
    scripts/add-spdx.py --check    names them, and exits 1 if there are any
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/system/structure"))
import structure  # noqa: E402


def add(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(structure.place_of_spdx(lines), structure.spdx_line(path) + "\n")
    with path.open("w", encoding="utf-8", newline="") as file:  # the mode stays
        file.writelines(lines)


def main():
    missing = list(structure.without_spdx(ROOT))
    for path in missing:
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            add(path)
    if missing and "--check" in sys.argv[1:]:
        sys.exit(1)


if __name__ == "__main__":
    main()
