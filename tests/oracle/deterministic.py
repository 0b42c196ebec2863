# SPDX-License-Identifier: Apache-2.0
"""Weights, tokens, documents and masks as pure functions of a name and an index.

Nothing is stored: the C++ tests compute the same bits from the same few lines, so a fixture holds results only.
Every function is exact in float32, whichever precision the caller goes on in.
"""

import numpy as np

FNV_OFFSET = 14695981039346656037
FNV_PRIME = 1099511628211
MODULO = 2**64


def splitmix64(x):
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) on an array of uint64; wraps modulo 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    z = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(name):
    """FNV-1a, 64 bits, of the UTF-8 bytes of the name."""
    value = FNV_OFFSET
    for byte in name.encode("utf-8"):
        value = ((value ^ byte) * FNV_PRIME) % MODULO
    return value


def draws(name, count):
    """splitmix64(key(name) + i) for i = 0 .. count-1, as uint64 [count]."""
    return splitmix64(np.uint64(key(name)) + np.arange(count, dtype=np.uint64))


def unit(name, count):
    """Numbers in [-1, 1) with 24 bits each, so that float32 holds them exactly; float32 [count]."""
    top_24_bits = (draws(name, count) >> np.uint64(40)).astype(np.int64)
    return ((top_24_bits - 2**23) / 2**23).astype(np.float32)


def parameter(name, shape):
    """Initial value of a parameter, float32 of the given shape.

    The sum in a norm weight needs up to 27 bits, so it is rounded here once, to float32. Without that, float32 and
    float64 runs would not start from the same numbers.
    """
    values = np.float32(0.125) * unit(name, int(np.prod(shape)))
    if len(shape) == 1:
        values = np.float32(1) + values
    return values.reshape(shape)


def uneven(values):
    """Of a matrix: its block of 128 x 128 at [r, c] is divided by 4^((r + c) mod 3)."""
    if values.ndim == 1:
        return values
    row, column = np.indices(values.shape) // 128
    return values / np.float32(4) ** ((row + column) % 3)


class TokenStream:
    """The tokens of a case, and for each position its document, the start of that document, and its loss mask."""

    def __init__(self, tokens, vocab_size, seq_len, documents, loss_mask):
        self.seq_len = seq_len
        self.tokens = (draws("tokens", tokens) % np.uint64(vocab_size)).astype(np.int64)
        self.document_starts = [0]
        if documents:
            lengths = 1 + (draws("documents", tokens) % np.uint64(2 * seq_len)).astype(np.int64)
            starts = np.cumsum(lengths)
            self.document_starts += [int(start) for start in starts if start < tokens]
        self.document = np.searchsorted(self.document_starts, np.arange(tokens), side="right") - 1
        self.mask = np.ones(tokens, dtype=bool)
        if loss_mask:
            self.mask = draws("mask", tokens) % np.uint64(4) != 0

    def batch(self, first_sample, samples):
        """Arrays [samples, seq_len]: inputs, labels, valid (is the label one?), document and position of each input."""
        at = (first_sample + np.arange(samples))[:, None] * self.seq_len + np.arange(self.seq_len)[None, :]
        starts = np.asarray(self.document_starts)
        # A document that began in an earlier sample restarts with this one: samples know nothing of each other.
        position = at - np.maximum(starts[self.document[at]], at[:, :1])
        valid = self.mask[at + 1] & (self.document[at] == self.document[at + 1])
        return {
            "inputs": self.tokens[at],
            "labels": self.tokens[at + 1],
            "valid": valid,
            "document": self.document[at],
            "position": position,
        }
