#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do adapters that llampi trained and wrote load in PEFT, with the same results?

    check_peft_export.py LLAMPI      the program; needs torch, transformers, peft and h5py (exit status 77: they are not there)

Adapters of two bases are trained for some steps and written alone and merged. PEFT must load the first without a missing or
unexpected tensor; the loss that it computes must be the one that `llampi evaluate` prints for base and adapter, and its logits
those of transformers with the merged folder, within float32's rounding. The files of the base must be as they were.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

try:
    import peft
    import torch
    from safetensors.torch import load_file
    from transformers.models.llama.modeling_llama import LlamaForCausalLM
except ImportError as missing:
    print(f"left out: {missing}")
    sys.exit(77)

from check_export import FOLDERS, LOSS_TOLERANCE, load, results, run, write_tokens

# Of a logit, relative to the largest: float32 alone makes 2e-6 of these models' logits (make_folders.py --float32), and the
# merged matrices are rounded once more. Both sides have such errors.
LOGIT_TOLERANCE = 1e-5
CASES = {"gqa_tied_v5": ["--lora.rank=3", "--lora.alpha=6", "--lora.targets=proj", "--lora.dropout=0.1"],
         "bf16_v4": ["--lora.rank=4", "--lora.scaling=rslora", "--lora.targets=layers.1.*(q|v)_proj|down_proj"]}


def digest(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def check(program, name, keys, scratch):
    base, run_dir, alone, merged = FOLDERS / name, scratch / f"{name}-run", scratch / f"{name}-adapter", scratch / f"{name}-merged"
    before = digest(base)
    tokens = write_tokens(scratch / "tokens.h5")
    run(program, "train", f"--model.config={base}", f"--model.weights={base}", f"--data.train={scratch / 'tokens.h5'}",
        "--data.seq_len=12", "--data.document_mask=false", "--train.steps=6", "--train.global_batch=4", "--optimizer.lr=0.05",
        "--optimizer.schedule=constant", f"--run.dir={run_dir}", "--run.device=cpu", "--run.bind=none", *keys)
    assert digest(base) == before, "the base was changed"
    run(program, "export", "--checkpoint", run_dir, "--adapter", "--output", alone)
    run(program, "export", "--checkpoint", run_dir, "--output", merged)
    printed = json.loads(run(program, "evaluate", "--weights", base, "--adapter", alone, "--data", scratch / "tokens.h5",
                             "--seq-len", "12", "--device", "cpu", "--json"))["loss"]

    stored = LlamaForCausalLM.from_pretrained(base, attn_implementation="eager").float()
    model = peft.PeftModel.from_pretrained(stored, alone).eval()
    there = load_file(alone / "adapter_model.safetensors")
    loaded = {n.replace(".default", ""): p for n, p in model.named_parameters() if ".lora_" in n}
    assert loaded.keys() == there.keys(), "PEFT has other tensors"
    for tensor in there:
        assert torch.equal(loaded[tensor].float(), there[tensor]), tensor
    assert all(tensor.abs().max() > 0 for tensor in there.values()), "an adapter that has learnt nothing"
    logits, loss = results(model, tokens)
    merged_logits, _ = results(load(merged)[1], tokens)
    difference = ((logits - merged_logits).abs().max() / logits.abs().max()).item()
    print(f"{name}: {len(there)} tensors, loss {loss:.7f} (llampi {printed:.7f}), merged logits differ by {difference:.1e}")
    assert abs(loss - printed) < LOSS_TOLERANCE * loss
    assert difference < LOGIT_TOLERANCE


def main():
    with tempfile.TemporaryDirectory() as scratch:
        for name, keys in CASES.items():
            check(pathlib.Path(sys.argv[1]).resolve(), name, keys, pathlib.Path(scratch))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
