#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/architecture.svg: the parts, and which uses which, from the include lines of src/ and include/.

    scripts/draw-architecture.py            writes the picture
    scripts/draw-architecture.py --check    exits 1 if the picture is not of today's include lines

An arrow from A to B: A includes headers of B. Arrows that follow from others are left out. Under the name of a part stands
what it is for, and which libraries' headers it includes.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/system/structure"))
import structure  # noqa: E402

PICTURE = ROOT / "docs/architecture.svg"
JOBS = {
    "core": "errors, log, tensor views, Philox", "io": "whole files, HDF5, MPI-IO", "device": "memory, streams, operations",
    "comm": "ranks, groups, collectives", "health": "watchdog, flight records", "model": "layers and their gradients",
    "optim": "schedules, parameter groups", "fsdp": "units, program, engine", "tokenizer": "text to ids, chats",
    "data": "token files, batches", "checkpoint": "save, load, convert", "plan": "memory before the run",
    "selfcheck": "GPU against CPU", "infer": "generation, questions", "train": "the loop, resuming", "measure": "speed of this machine",
    "report": "pages and views of runs",
    "cli": "commands, options"}
LIBRARIES = [("MPI", r"mpi\.h"), ("NCCL", r"nccl\.h"), ("CUDA", r"cuda_runtime\.h"), ("cuBLAS", r"cublasLt\.h"),
             ("cuDNN", r"cudnn(_frontend)?\.h"), ("oneDNN", r"oneapi/dnnl/dnnl\.h"), ("HDF5", r"hdf5\.h"),
             ("PCRE2", r"pcre2\.h"), ("utf8proc", r"utf8proc\.h"), ("Oniguruma", r"oniguruma\.h"), ("SentencePiece", r"sentencepiece\w*\.h"),
             ("JSON", r"nlohmann/json(_fwd)?\.hpp"), ("Boost", r"boost/.*")]
BOX, HEIGHT, GAP, ROW, MARGIN = 206, 58, 26, 104, 24


def read():
    """For each part the parts that it uses, and the libraries."""
    sources = structure.read(ROOT)
    parts = {source.name: source.part for source in sources}
    uses = {part: set() for part in structure.PARTS}
    libraries = {part: set() for part in structure.PARTS}
    for source in sources:
        for _, bracket, target in source.includes:
            if target in parts:
                uses[source.part].add(parts[target])
            elif bracket == "<":
                libraries[source.part] |= {name for name, header in LIBRARIES if re.fullmatch(header, target)}
    for part in uses:
        uses[part].discard(part)
    return uses, libraries


def without_implied(uses):
    reached = {}
    for part in structure.PARTS:  # those above first
        reached[part] = set(uses[part]).union(*(reached[used] for used in uses[part]))
    return {part: {u for u in used if not any(u in reached[other] for other in used if other != u)}
            for part, used in uses.items()}


def lay_out(uses):
    """Rows from the bottom; an arrow over several rows passes through a place of its own in each, ("via", from, to, row)."""
    level = {}
    for part in structure.PARTS:
        level[part] = 1 + max((level[used] for used in uses[part]), default=-1)
    rows = [[] for _ in range(max(level.values()) + 1)]
    for part in structure.PARTS:
        rows[level[part]].append(part)
    chains = []
    for part in structure.PARTS:
        for used in sorted(uses[part], key=structure.PARTS.index):
            between = [("via", part, used, row) for row in range(level[part] - 1, level[used], -1)]
            for place in between:
                rows[place[3]].append(place)
            chains.append([part, *between, used])
    links = [pair for chain in chains for pair in zip(chain, chain[1:])]
    below, above = {}, {}
    for upper, lower in links:
        below.setdefault(upper, []).append(lower)
        above.setdefault(lower, []).append(upper)
    position = {}

    def place_rows():
        wide = max(sum(width(place) + GAP for place in row) for row in rows)
        for row in rows:
            x = (wide - sum(width(place) + GAP for place in row) + GAP) / 2
            for place in row:
                position[place] = x + width(place) / 2
                x += width(place) + GAP

    place_rows()
    for sweep in range(24):  # each place goes to the middle of its neighbours
        neighbours = below if sweep % 2 == 0 else above
        for row in (rows if sweep % 2 == 0 else reversed(rows)):
            row.sort(key=lambda place: (middle([position[n] for n in neighbours.get(place, [])], position[place]), str(place)))
            place_rows()
    return rows, chains, position


def width(place):
    return BOX if isinstance(place, str) else 8


def middle(values, otherwise):
    return sum(values) / len(values) if values else otherwise


def draw(uses, libraries):
    rows, chains, position = lay_out(without_implied(uses))
    level = {place: i for i, row in enumerate(rows) for place in row}
    total_width = max(position[place] + width(place) / 2 for row in rows for place in row) + 2 * MARGIN
    total_height = (len(rows) - 1) * ROW + HEIGHT + 2 * MARGIN

    def x(place):
        return MARGIN + position[place]

    def top(place):
        return MARGIN + (len(rows) - 1 - level[place]) * ROW

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width:.0f} {total_height:.0f}" '
             'font-family="sans-serif" text-anchor="middle">',
             "<title>The parts of llampi, and which uses which</title>",
             '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0L8 4L0 8z" fill="#557"/></marker></defs>',
             f'<rect width="{total_width:.0f}" height="{total_height:.0f}" fill="#fff"/>']
    for chain in chains:
        path = f"M{x(chain[0]):.0f} {top(chain[0]) + HEIGHT:.0f}"
        for upper, lower in zip(chain, chain[1:]):
            start = top(upper) + HEIGHT
            path += f"C{x(upper):.0f} {start + 30:.0f} {x(lower):.0f} {top(lower) - 30:.0f} {x(lower):.0f} {top(lower):.0f}"
            if not isinstance(lower, str):
                path += f"V{top(lower) + HEIGHT:.0f}"
        lines.append(f'<path d="{path}" fill="none" stroke="#557" stroke-width="1.3" marker-end="url(#end)"/>')
    for row in reversed(rows):
        for part in (place for place in row if isinstance(place, str)):
            left, y = x(part) - BOX / 2, top(part)
            lines.append(f'<rect x="{left:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="6" fill="#eef2fa" stroke="#557"/>')
            lines.append(f'<text x="{x(part):.0f}" y="{y + 19:.0f}" font-size="15" font-weight="bold">{part}</text>')
            lines.append(f'<text x="{x(part):.0f}" y="{y + 35:.0f}" font-size="11">{JOBS[part]}</text>')
            used = [name for name, _ in LIBRARIES if name in libraries[part]]
            lines.append(f'<text x="{x(part):.0f}" y="{y + 50:.0f}" font-size="10" fill="#666">{", ".join(used)}</text>')
    return "\n".join(lines) + "\n</svg>\n"


def main():
    picture = draw(*read())
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
            sys.exit("docs/architecture.svg is not of these include lines: run scripts/draw-architecture.py")
    else:
        PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
