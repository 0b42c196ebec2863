#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/fsdp-step.svg: what one rank does in a step of full_shard with three units."""
import pathlib
import sys

ROW, UNIT, LEFT = {"unshard": 44, "compute": 96, "reduce": 148}, 52, 104
FILL = {"unshard": "#9ecae1", "forward": "#a1d99b", "backward": "#fdd0a2", "reduce": "#dadaeb", "update": "#fdae6b"}
# (row, from, to, text, kind): times in units of UNIT
BOXES = [
    ("unshard", 0, 1, "0", "unshard"), ("unshard", 1, 2, "1", "unshard"), ("unshard", 2, 3, "2", "unshard"),
    ("unshard", 4, 5, "1", "unshard"), ("unshard", 5.5, 6.5, "0", "unshard"),
    ("compute", 1, 2, "0", "forward"), ("compute", 2, 3, "1", "forward"), ("compute", 3, 4, "2", "forward"),
    ("compute", 4, 5.5, "2", "backward"), ("compute", 5.5, 7, "1", "backward"), ("compute", 7, 8.5, "0", "backward"),
    ("reduce", 5.5, 6.5, "2", "reduce"), ("reduce", 7, 8, "1", "reduce"), ("reduce", 8.5, 9.5, "0", "reduce"),
    ("compute", 9.5, 11, "AdamW", "update"),
]


def draw():
    width, height = LEFT + int(11.4 * UNIT), 226
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="14">',
           f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
           '<text x="14" y="26" fill="#333">one rank, one step of full_shard; three FSDP units (0, 1, 2)</text>']
    for text, y in (("all-gather", 44), ("compute", 96), ("reduce-scatter", 148)):
        out.append(f'<text x="14" y="{y + 25}" fill="#333" font-size="13">{text}</text>')
    for row, begin, end, text, kind in BOXES:
        x, w = LEFT + begin * UNIT, (end - begin) * UNIT - 3
        out.append(f'<rect x="{x:g}" y="{ROW[row]}" width="{w:g}" height="40" rx="4" fill="{FILL[kind]}"/>')
        out.append(f'<text x="{x + w / 2:g}" y="{ROW[row] + 25}" text-anchor="middle" fill="#222">{text}</text>')
    x = 14
    for text, kind, w in (("unshard parameters", "unshard", 158), ("forward", "forward", 86), ("backward", "backward", 94),
                          ("reduce gradients", "reduce", 140), ("update this rank's shard", "update", 0)):
        out.append(f'<rect x="{x}" y="203" width="13" height="13" fill="{FILL[kind]}"/>')
        out.append(f'<text x="{x + 18}" y="214" fill="#333" font-size="12">{text}</text>')
        x += w
    return "\n".join(out + ["</svg>", ""])


pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "docs/fsdp-step.svg").write_text(draw())
