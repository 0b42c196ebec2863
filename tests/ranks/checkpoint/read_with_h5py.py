# SPDX-License-Identifier: Apache-2.0
"""Opens a checkpoint of exchange_test.cpp with h5py, knowing nothing but docs/formats.md. Exit status 77: no h5py here."""
import json
import pathlib
import struct
import sys
import zlib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import system_python

system_python.require("h5py")
import h5py

SHAPES = {
    "model.embed_tokens.weight": (331, 80),
    "model.layers.0.input_layernorm.weight": (80,),
    "model.layers.0.mlp.down_proj.weight": (80, 176),
    "column": (7, 1),
    "row": (1, 5),
    "scalar": (1,),
}
FROZEN = {"row"}
STATE = {
    "step": 1234, "optimizer_steps": 1230, "tokens_seen": 3_000_000_000_000, "samples_consumed": 9871, "epoch": 3,
    "seed": -5, "seq_len": 257, "global_batch": 12, "data_tokens": 5_000_000_001, "shuffle": False,
    "loss_scale": 1.5 * 2.0**-20, "loss_scale_good_steps": 1999,
}


def philox(counter, key):
    """Philox-4x32-10 (Salmon et al. 2011), first word: the values of the sample."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def checksum_of_metadata(file):
    parts = [bytes(file.attrs[name]) + b"\0" for name in ("program_version", "git_sha", "created", "model_config", "run_config")]
    state = file["state"].attrs
    parts.append(struct.pack("<10qdq", *(state[name].item() for name in STATE)))
    parts.append(struct.pack("<q", file.attrs["checksum_block_elements"]))
    datasets = {}
    for group in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq"):
        datasets.update({f"/{group}/{name}": dataset for name, dataset in file.get(group, {}).items()})
    for path in sorted(datasets):
        parts += [path.encode() + b"\0", struct.pack(f"<{datasets[path].ndim}q", *datasets[path].shape)]
        parts.append(datasets[path].attrs["crc32"].astype("<u4").tobytes())
    return zlib.crc32(b"".join(parts))


def text(value):
    return value.decode() if isinstance(value, bytes) else value


for path in sys.argv[1:]:
    with h5py.File(path, "r") as file:
        assert text(file.attrs["format"]) == "llampi-checkpoint"
        assert file.attrs["format_version"] == 1
        assert text(file.attrs["created"]).endswith("Z")
        assert json.loads(text(file.attrs["model_config"])) == {"hidden_size": 80}
        assert text(file.attrs["run_config"]) == "[run]\nseed = 5\n"
        assert {name: file["state"].attrs[name] for name in STATE} == STATE
        for role, group in enumerate(("model", "optimizer/exp_avg", "optimizer/exp_avg_sq")):
            missing = FROZEN if role > 0 else set()
            assert set(file[group]) == set(SHAPES) - missing, list(file[group])
            for tensor, (name, shape) in enumerate(SHAPES.items()):
                if name in missing:
                    continue
                dataset = file[group][name]
                assert dataset.shape == shape and dataset.dtype == "<f4", (name, dataset)
                size = 4 * file.attrs["checksum_block_elements"]
                values = dataset[()].tobytes()
                blocks = [zlib.crc32(values[i : i + size]) for i in range(0, len(values), size)]
                assert list(dataset.attrs["crc32"]) == blocks, (group, name)
                bits = dataset[()].view("<u4").reshape(-1)
                for element in {0, bits.size // 2, bits.size - 1}:
                    expected = philox((element, (role << 24) | (tensor << 8), 1, 2), (3, 4))
                    assert bits[element] == expected, (group, name, element)
        assert file.attrs["metadata_crc32"][0] == checksum_of_metadata(file)
    print(path, "is as documented")
