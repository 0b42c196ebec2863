#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write float8_casts.txt: what PyTorch makes of every bfloat16 in 8 bits, and of every 8 bits in float32.

    casts FORMAT RUNS       then RUNS times, in the order of the bits of the bfloat16: COUNT times the same BYTE
    values FORMAT           then 256 times the bits of the float32, in the order of the bytes; bits are hexadecimal
"""

import pathlib

import torch

import fp8

HERE = pathlib.Path(__file__).resolve().parent


def in_lines(words, a_line):
    return "".join(" ".join(words[i:i + a_line]) + "\n" for i in range(0, len(words), a_line))


def runs_of(values):
    runs = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return runs


def main():
    bfloat16 = torch.arange(65536).to(torch.int16).view(torch.bfloat16)
    text = ""
    for dtype in fp8.LARGEST:
        name = str(dtype).removeprefix("torch.")
        runs = runs_of(fp8.clamped_cast(bfloat16.float(), dtype).view(torch.uint8).tolist())
        values = torch.arange(256).to(torch.uint8).view(dtype).float().view(torch.int32).tolist()
        text += f"casts {name} {len(runs)}\n" + in_lines([f"{count} {byte:02x}" for count, byte in runs], 16)
        text += f"values {name}\n" + in_lines([f"{bits % 2**32:08x}" for bits in values], 12)
    path = HERE / "float8_casts.txt"
    path.write_text(text)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
