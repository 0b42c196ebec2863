#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do folders that llampi wrote load in transformers, with the same weights and results?

    check_export.py LLAMPI      the program; needs torch, transformers and h5py (exit status 77: they are not there)

Every folder of tests/oracle/folders is imported and exported again, and so is a model of each other architecture in cases.py, as
transformers saves it. One Llama and one of each other are trained in between. transformers must find the class that it saved, and no tensor too many
or too few. What it loads must be the tensors of the checkpoint, exactly; its logits those that it computes from the original folder, exactly;
its loss the one that `llampi evaluate` prints.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
    import torch
    import transformers
except ImportError as missing:
    print(f"left out: {missing}")
    sys.exit(77)

from cases import CASES
from deterministic import parameter

FOLDERS = pathlib.Path(__file__).resolve().parent / "folders"
SEQ_LEN, SAMPLES, VOCABULARY = 12, 24, 61
# Both sides compute in float32, which alone makes up to 3e-7 of these losses (make_folders.py --float32): two such errors.
LOSS_TOLERANCE = 6e-7


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"llampi {' '.join(map(str, arguments))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def write_tokens(path):
    tokens = np.arange(SAMPLES * SEQ_LEN + 1) ** 2 % VOCABULARY
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens.astype("<u2")
        file["documents"] = np.array([0, len(tokens)], "<u8")
    return torch.from_numpy(tokens)


def save_case(name, folder):
    """A model of an architecture other than Llama, as transformers saves it."""
    config = dict(CASES[name]["config"], vocab_size=VOCABULARY)
    kind = getattr(transformers, config.pop("architectures")[0])
    model = kind(kind.config_class(**config))
    with torch.no_grad():
        for tensor_name, tensor in model.named_parameters():
            value = torch.tensor(parameter(tensor_name, tuple(tensor.shape)))
            tensor.copy_(value if value.ndim == 1 else 3 * value)
    model.save_pretrained(folder)


def load(folder):
    """The stored tensors by name, and the model that they make, in float32."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    wrong = {what: found[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys") if found[what]}
    expect(not wrong, folder.name, str(wrong))
    named = json.loads((folder / "config.json").read_text())["architectures"]
    expect(named == [type(model).__name__], folder.name, f"the class is {type(model).__name__}, not {named}")
    stored = {name: tensor.clone() for name, tensor in model.named_parameters()}  # a tied head only once
    return stored, model.float().eval()


def results(model, tokens):
    """Logits and loss of all samples."""
    inputs, labels = tokens[:-1].reshape(SAMPLES, SEQ_LEN), tokens[1:].reshape(SAMPLES, SEQ_LEN)
    with torch.no_grad():
        logits = model(input_ids=inputs).logits
    return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1)).item()


def expect(condition, name, what):
    if not condition:
        raise SystemExit(f"{name}: {what} (transformers {transformers.__version__})")


def check_tensors(name, stored, checkpoint, dtype):
    with h5py.File(checkpoint, "r") as file:
        expect(stored.keys() == file["model"].keys(), name, f"tensors {sorted(stored.keys() ^ file['model'].keys())}")
        for tensor_name, dataset in file["model"].items():
            expected = torch.from_numpy(dataset[()]).to(dtype)
            found = stored[tensor_name]
            # transformers 4 widens what it loads to float32 unless it is told otherwise; both are exact.
            expect(torch.equal(found.float(), expected.float()), name, f"{tensor_name} is not the checkpoint's")


def read_by_this_version(folder):
    """transformers 4 leaves rope_parameters, as 5 writes it, unread, and computes something else."""
    return int(transformers.__version__.split(".")[0]) >= 5 or "rope_parameters" not in (folder / "config.json").read_text()


def check(program, label, original, checkpoint, dtype, max_shard_size, scratch, tokens):
    """Exports a checkpoint and loads that; with `original`, the folder that the checkpoint was imported from."""
    name = f"{label} as {dtype}, files of {max_shard_size}"
    folder = scratch / name.replace(" ", "_")
    run(program, "export", "--checkpoint", checkpoint, "--output", folder, "--dtype", dtype,
        "--max-shard-size", max_shard_size)
    expect((folder / "model.safetensors.index.json").exists() == (max_shard_size != "1GB"), name, "number of files")
    stored, model = load(folder)
    check_tensors(name, stored, checkpoint, getattr(torch, dtype))

    logits, loss = results(model, tokens)
    evaluated = json.loads(run(program, "evaluate", "--weights", folder, "--data", scratch / "tokens.h5",
                               "--seq-len", str(SEQ_LEN), "--json"))["loss"]
    difference = abs(loss - evaluated) / evaluated
    expect(difference < LOSS_TOLERANCE, name, f"the loss is {loss} and llampi's {evaluated}")

    same = original is not None and read_by_this_version(original) and (dtype == "float32" or "bf16" in original.name)
    if same:
        expect(torch.equal(logits, results(load(original)[1], tokens)[0]), name, "the logits are not the original's")
    print(f"{name}: tensors equal, loss {loss:.6f} differs by {difference:.0e}"
          f"{', logits equal to those of the original' if same else ''}")
    return loss


def check_trained(program, original, scratch, tokens):
    """Five steps, which must change the loss."""
    folder = scratch / f"run-{original.name}"
    run(program, "train", f"--run.dir={folder}", f"--model.config={original}", f"--model.weights={original}",
        f"--data.train={scratch / 'tokens.h5'}", f"--data.seq_len={SEQ_LEN}", "--train.steps=5",
        "--train.global_batch=8", "--optimizer.lr=1e-2", "--run.threads=1")
    trained = folder / "checkpoints" / "step-00000005.h5"
    before = results(load(original)[1], tokens)[1]
    after = check(program, f"{original.name} trained", None, trained, "float32", "10KB", scratch, tokens)
    expect(after < before - 0.1, f"training of {original.name}", f"the loss was {before} and is {after}")


def main():
    program = os.path.abspath(sys.argv[1])
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        tokens = write_tokens(scratch / "tokens.h5")
        others = [scratch / name for name, case in CASES.items() if case["config"]["model_type"] != "llama"]
        for original in others:
            save_case(original.name, original)
        for original in sorted(FOLDERS.iterdir()) + others:
            checkpoint = scratch / f"{original.name}.h5"
            run(program, "import", "--weights", original, "--output", checkpoint)
            check(program, original.name, original, checkpoint, "float32", "1GB", scratch, tokens)
            check(program, original.name, original, checkpoint, "bfloat16", "6KB", scratch, tokens)

        for original in [FOLDERS / "llama3_rope_v5"] + others:
            check_trained(program, original, scratch, tokens)


if __name__ == "__main__":
    main()
