#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the folders of tests/oracle/folders with transformers' save_pretrained, and what LlamaForCausalLM makes of them.

    make_folders.py              write the folders of this major version of transformers
    make_folders.py --check      compute the results of the folders that are there again and compare
    make_folders.py --float32    what float32 rounding alone does to each folder's results

The weights of a folder are read back from it before anything is computed, so expected.json belongs to what is in the
files, rounding to bfloat16 included. Logits, loss and gradients are those of transformers in float64
(check_transformers.py says how it is kept from computing parts of a float64 model in float32).
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
import torch
import transformers
from transformers.models.llama import modeling_llama

from check_transformers import PARTS, float32_only_in
from deterministic import draws, parameter
from make_fixtures import global_norm, summary, to_json

HERE = pathlib.Path(__file__).resolve().parent / "folders"
MAJOR = int(transformers.__version__.split(".")[0])
SEQUENCES, TOKENS = 2, 12  # and one more, which is the last label

SIZES = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}
LLAMA3 = {  # wavelengths are 6, 168, 4443 tokens: kept, blended, slowed
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.05, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def case(written_by, dtype="float32", max_shard_size="1GB", rope_theta=10000.0, rope_scaling=None, **config):
    return {"written_by": written_by, "dtype": dtype, "max_shard_size": max_shard_size,
            "config": SIZES | config | {"rope_theta": rope_theta, "rope_scaling": rope_scaling}}


# Each variant by one version; what the versions write differently, by both: RoPE, the dtype, sharded weights.
FOLDERS = {
    "mha_untied_v4": case(4),
    "gqa_tied_v5": case(5, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6),
    "mqa_v5": case(5, num_key_value_heads=1, rope_theta=500.0),
    "head_dim_v4": case(4, hidden_size=16, num_key_value_heads=2, head_dim=10),
    "llama3_rope_v4": case(4, num_key_value_heads=2, rope_theta=20000.0, rope_scaling=LLAMA3),
    "llama3_rope_v5": case(5, num_key_value_heads=2, rope_theta=20000.0, rope_scaling=LLAMA3),
    "bf16_v4": case(4, dtype="bfloat16", num_key_value_heads=2),
    "bf16_tied_v5": case(5, dtype="bfloat16", num_key_value_heads=2, tie_word_embeddings=True),
    "sharded_tied_v4": case(4, max_shard_size="12KB", num_key_value_heads=2, tie_word_embeddings=True),
    "sharded_bf16_v5": case(5, dtype="bfloat16", max_shard_size="6KB", num_key_value_heads=2),
}


def initial_value(name, tensor):
    """As in the other fixtures, but matrices are three times as large: so small a model would hardly attend otherwise."""
    values = parameter(name, tuple(tensor.shape))
    return torch.tensor(values if values.ndim == 1 else 3 * values)


def save(name, case):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = modeling_llama.LlamaForCausalLM(transformers.LlamaConfig(**case["config"]))
    with torch.no_grad():
        for parameter_name, tensor in model.named_parameters():
            tensor.copy_(initial_value(parameter_name, tensor))
    model.to(getattr(torch, case["dtype"])).save_pretrained(folder, max_shard_size=case["max_shard_size"])
    if list(folder.glob("*.index.json")) == [] and case["max_shard_size"] != "1GB":
        raise SystemExit(f"{name}: it should have come in several files")


def tokens_of(name, vocabulary):
    """Of several sequences, one token longer than the inputs."""
    drawn = draws(f"tokens of {name}", SEQUENCES * (TOKENS + 1)) % np.uint64(vocabulary)
    return torch.from_numpy(drawn.astype(np.int64)).reshape(SEQUENCES, TOKENS + 1)


def model_results(folder, tokens, dtype):
    """Logits, loss and gradients by name; in float64 throughout, or as transformers does it in float32."""
    stored = modeling_llama.LlamaForCausalLM.from_pretrained(folder)
    config = transformers.LlamaConfig.from_pretrained(folder, attn_implementation="eager", use_cache=False)
    with float32_only_in(PARTS if dtype == torch.float32 else ()) as loss_in_dtype:
        model = modeling_llama.LlamaForCausalLM(config).to(dtype)
        model.loss_function = loss_in_dtype(model.loss_function)
        model.load_state_dict(stored.state_dict())
        labels = tokens[:, 1:].contiguous()
        output = model(input_ids=tokens[:, :-1], labels=labels, shift_labels=labels)
        output.loss.backward()
    return output.logits.detach(), output.loss.item(), {n: p.grad for n, p in model.named_parameters()}


def results(folder, dtype=torch.float64):
    """What expected.json holds of a folder."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = tokens_of(folder.name, vocabulary)
    logits, loss, gradients = model_results(folder, tokens, dtype)
    return {
        "tokens": tokens.tolist(),
        "logits": {f"sequence_{s}": summary(logits[s]) | {"last": logits[s, -1].tolist()} for s in range(SEQUENCES)},
        "loss": loss,
        "grad_norm": global_norm(gradients.values()),
        "gradients": {name: summary(gradient) for name, gradient in gradients.items()},
    }


def write(name):
    save(name, FOLDERS[name])
    folder = HERE / name
    (folder / "expected.json").write_text(
        to_json({"transformers": transformers.__version__} | results(folder)) + "\n")
    print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir())} bytes in "
          f"{', '.join(sorted(file.name for file in folder.iterdir()))}")


def differences(expected, found):
    """Of the loss and the gradients' norms, relative; of products with the probe and of elements, relative to the norm."""
    tensors = [(expected[kind][n], found[kind][n]) for kind in ("logits", "gradients") for n in expected[kind]]
    assert expected["tokens"] == found["tokens"] and expected["gradients"].keys() == found["gradients"].keys()
    norms = [abs(a["norm"] - b["norm"]) / a["norm"] for a, b in tensors]
    norms += [abs(expected[key] - found[key]) / expected[key] for key in ("loss", "grad_norm")]
    elements = [abs(x - y) / a["norm"] for a, b in tensors
                for x, y in zip([a["dot"]] + a["first"] + a.get("last", []), [b["dot"]] + b["first"] + b.get("last", []))]
    return max(norms), max(elements)


def compare(name, dtype, limit):
    folder = HERE / name
    expected = json.loads((folder / "expected.json").read_text())
    if FOLDERS[name]["written_by"] > MAJOR:
        print(f"{name}: left out, transformers {transformers.__version__} cannot read rope_parameters")
        return
    norms, elements = differences(expected, results(folder, dtype))
    print(f"{name}: loss and norms {norms:.1e}, elements {elements:.1e} (transformers {transformers.__version__})")
    if max(norms, elements) > limit:
        raise SystemExit(f"{name}: the results differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--float32", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in FOLDERS:
        if arguments.check:
            compare(name, torch.float64, 1e-12)
        elif arguments.float32:
            compare(name, torch.float32, 1e-4)
        elif FOLDERS[name]["written_by"] == MAJOR:
            write(name)


if __name__ == "__main__":
    main()
