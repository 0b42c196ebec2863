#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the token files under fixtures/ as other programs would, with h5py. Run by hand; tests only read them.

Every token file has 50 tokens in documents that start at 0, 13, 13 (an empty one) and 30. Token i is 7 i mod 331,
but for the one token that gives `huge_token` and `negative` their names.
"""
import pathlib

import h5py
import numpy as np

FOLDER = pathlib.Path(__file__).parent / "fixtures"
TOKENS = np.arange(50) * 7 % 331
DOCUMENTS = np.array([0, 13, 13, 30, 50])


def write(name, tokens, documents=DOCUMENTS.astype("<u8"), mask=None, file_options=None, **options):
    with h5py.File(FOLDER / f"{name}.h5", "w", **(file_options or {})) as f:
        f.create_dataset("tokens", data=tokens, **options)
        f.create_dataset("documents", data=documents, **options)
        if mask is not None:
            f.create_dataset("loss_mask", data=mask, **options)


def write_compact():
    with h5py.File(FOLDER / "compact.h5", "w") as f:
        f.create_dataset("documents", data=DOCUMENTS.astype("<u8"))
        data = TOKENS.astype("<u2")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(data.shape)
        dataset = h5py.h5d.create(f.id, b"tokens", h5py.h5t.STD_U16LE, space, properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data)


def main():
    FOLDER.mkdir(exist_ok=True)
    mask = np.arange(50) % 3 != 0
    write("plain", TOKENS.astype("<u2"))
    write("newest_format", TOKENS.astype("<u2"), file_options={"libver": "latest"})
    write("user_block", TOKENS.astype("<u2"), file_options={"userblock_size": 512})
    write("gzip", TOKENS.astype("<u2"), mask=mask, chunks=(16,), compression="gzip", maxshape=(None,))
    write("big_endian", TOKENS.astype(">u4"), documents=DOCUMENTS.astype(">i8"))
    write("loss_mask", TOKENS.astype("<i8"), documents=DOCUMENTS, mask=mask.astype("u1"))
    write("bool_mask", TOKENS.astype("<u4"), mask=mask)
    write_compact()
    huge = TOKENS.astype("<u8")
    huge[40] = 2**40 + 5  # the low 32 bits alone would look like token 5
    write("huge_token", huge)
    negative = TOKENS.astype("<i2")
    negative[3] = -5
    write("negative", negative)
    with h5py.File(FOLDER / "other_format.h5", "w") as f:
        f.attrs["format"] = "llampi-checkpoint"  # a variable-length string, as h5py writes them
        f.create_group("model")


if __name__ == "__main__":
    main()
