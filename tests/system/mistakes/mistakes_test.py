#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A user's mistakes, from the outside: status, one clear sentence, nothing lost.

Usage: mistakes_test.py PROGRAM SOURCE_FOLDER MPIRUN [PATTERN]

Each mistake is a command line with the exit status and a part of the sentence that it must end with. After each
one, every file that was there before must have the same bytes. Needs numpy and h5py for files of other programs.
PATTERN runs only the mistakes whose command or group it is found in (a regular expression). Exit status 77: no h5py here.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import system_python

system_python.require("h5py", "numpy")
import h5py
import numpy

PROGRAM, SOURCE, MPIRUN = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
PATTERN = sys.argv[4] if len(sys.argv) > 4 else ""

# Keys that all runs of this test share; `train` in a command stands for this.
TRAIN = ("train --model.config=m --data.train=tokens.h5 --data.seq_len=16 --train.steps=4 --train.global_batch=4 "
         "--checkpoint.every=2 --run.device=cpu --optimizer.min_lr=1e-5")

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 16,
         "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu", "initializer_range": 0.02}


class Mistake:
    def __init__(self, group, command, status, sentence, writes=(), lines=1):
        self.group, self.command, self.status, self.sentence = group, command, status, sentence
        self.writes, self.lines = writes, lines


def shell(command, folder, check=False):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1",
                       OMPI_MCA_hwloc_base_binding_policy="none", OMPI_MCA_io="romio321", OMP_NUM_THREADS="1",
                       OMPI_MCA_odls_base_sigkill_timeout="0", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, env=environment, timeout=120)
    if check and done.returncode != 0:
        sys.exit(f"{command}: {done.stderr.decode(errors='replace')}")
    return done


def expand(command):
    """llampi and train as they are really called; mpirun as given."""
    command = re.sub(r"^train\b", f"llampi {TRAIN}", command)
    command = re.sub(r"^mpirun train\b", f"mpirun llampi {TRAIN}", command)
    command = re.sub(r"^mpirun\b", f"{MPIRUN} -n 2", command)
    return re.sub(r"(^|\s)llampi\b", rf"\1{PROGRAM}", command, count=1)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def changed_model(folder, name, **changes):
    write_json(folder / name / "config.json", {**MODEL, **changes})


def set_up(folder):
    text = "".join(f"the quick brown fox {i}\n" for i in range(100))
    (folder / "text.txt").write_text(text)
    (folder / "more.txt").write_text(text[:500])
    (folder / "notes.txt").write_text("what I must not lose\n")
    write_json(folder / "m" / "config.json", MODEL)
    for command in ("llampi tokenize --tokenizer bytes --output tokens.h5 text.txt", "train --run.dir=run",
                    "llampi export --checkpoint run/checkpoints/step-00000004.h5 --output hf",
                    "llampi import --weights hf --output imported.h5"):
        shell(expand(command), folder, check=True)
    shutil.copytree(SOURCE / "input" / "sums", folder / "sums")
    chat = "".join(json.dumps({"prompt": f"What is {i} + 1?", "completion": str(i + 1)}) + "\n" for i in range(40))
    (folder / "chat.jsonl").write_text(chat)
    shell(expand("llampi tokenize --tokenizer sums --format chat --seq-len 32 --output chat.h5 chat.jsonl"), folder,
          check=True)
    write_json(folder / "msums" / "config.json", {**MODEL, "vocab_size": 1024})
    make_damaged(folder)
    make_models(folder)
    make_texts(folder)


def make_damaged(folder):
    checkpoint = (folder / "run" / "checkpoints" / "step-00000004.h5").read_bytes()
    (folder / "torn.h5").write_bytes(checkpoint[:len(checkpoint) // 2])
    (folder / "empty.h5").write_bytes(b"")
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = numpy.arange(5)
    with h5py.File(folder / "float.h5", "w") as file:
        file["tokens"] = numpy.arange(500.0)
        file["documents"] = numpy.array([0, 500], dtype="uint64")
    with h5py.File(folder / "negative.h5", "w") as file:
        file["tokens"] = numpy.where(numpy.arange(500) == 100, -100, 5).astype("int64")
        file["documents"] = numpy.array([0, 500], dtype="uint64")
    with h5py.File(folder / "large.h5", "w") as file:
        file["tokens"] = numpy.full(500, 300, dtype="uint16")
        file["documents"] = numpy.array([0, 500], dtype="uint64")
    with h5py.File(folder / "short.h5", "w") as file:
        file["tokens"] = numpy.full(20, 5, dtype="uint8")
        file["documents"] = numpy.array([0, 20], dtype="uint64")
    with h5py.File(folder / "mask.h5", "w") as file:
        file["tokens"] = numpy.full(500, 5, dtype="uint8")
        file["documents"] = numpy.array([0, 500], dtype="uint64")
        file["loss_mask"] = numpy.ones(10, dtype="uint8")
    for name, change in (("hf_torn", lambda data: data[:-100]),
                         ("hf_lfs", lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
                         ("hf_header", lambda data: struct.pack("<Q", 1 << 60) + data[8:])):
        shutil.copytree(folder / "hf", folder / name)
        weights = next((folder / name).glob("*.safetensors"))
        weights.write_bytes(change(weights.read_bytes()))
    shutil.copytree(folder / "hf", folder / "hf_bin")
    for weights in (folder / "hf_bin").glob("*.safetensors*"):
        weights.unlink()
    (folder / "hf_bin" / "pytorch_model.bin").write_bytes(b"PK\x03\x04 not read")
    (folder / "readonly").mkdir()
    (folder / "a_folder").mkdir()
    flipped = bytearray(checkpoint)
    flipped[len(flipped) // 2] ^= 1
    (folder / "flipped.h5").write_bytes(flipped)


def make_models(folder):
    changed_model(folder, "m_gpt2", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    changed_model(folder, "m_phi3", model_type="phi3", architectures=["Phi3ForCausalLM"])
    changed_model(folder, "m_mixtral", model_type="mixtral", architectures=["MixtralForCausalLM"])
    changed_model(folder, "m_gemma", model_type="gemma", architectures=["GemmaForCausalLM"])
    changed_model(folder, "m_quantized", quantization_config={"quant_method": "gptq", "bits": 4})
    changed_model(folder, "m_bias", attention_bias=True)
    changed_model(folder, "m_mlp_bias", mlp_bias=True)
    changed_model(folder, "m_gelu", hidden_act="gelu")
    changed_model(folder, "m_linear", rope_scaling={"type": "linear", "factor": 2.0})
    changed_model(folder, "m_dynamic", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    changed_model(folder, "m_dropout", attention_dropout=0.1)
    changed_model(folder, "m_heads", num_attention_heads=3)
    changed_model(folder, "m_groups", num_attention_heads=4, num_key_value_heads=3)
    changed_model(folder, "m_wide", hidden_size=32)
    changed_model(folder, "m_zero", num_hidden_layers=0)
    changed_model(folder, "m_text", hidden_size="16")
    changed_model(folder, "m_negative", vocab_size=-1)
    changed_model(folder, "m_odd", head_dim=7)
    changed_model(folder, "m_gpu_heads", head_dim=320)
    changed_model(folder, "m_gpu_rows", hidden_size=16384, head_dim=16)
    changed_model(folder, "m_small", vocab_size=100)
    (folder / "m_torn").mkdir()
    (folder / "m_torn" / "config.json").write_text(json.dumps(MODEL)[:60])
    (folder / "m_list").mkdir()
    (folder / "m_list" / "config.json").write_text("[1, 2]")
    missing = dict(MODEL)
    del missing["hidden_size"]
    write_json(folder / "m_missing" / "config.json", missing)


def make_texts(folder):
    (folder / "lines.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (folder / "torn.jsonl").write_text('{"text": "one"}\n{"text": "tw\n')
    (folder / "number.jsonl").write_text('{"text": 5}\n')
    (folder / "other.jsonl").write_text('{"content": "one", "id": 3}\n')
    (folder / "sharegpt.jsonl").write_text('{"id": 1, "conversations": [{"from": "human", "value": "hi"}]}\n')
    (folder / "alpaca.jsonl").write_text('{"instruction": "say hi", "input": "", "output": "hi"}\n')
    (folder / "tool.jsonl").write_text('{"messages": [{"role": "tool", "content": "5"}]}\n')
    (folder / "parts.jsonl").write_text(
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}\n')
    (folder / "noanswer.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    (folder / "empty.txt").write_text("")
    (folder / "blank.jsonl").write_text('{"text": ""}\n{"text": "\\n"}\n')
    (folder / "utf16.txt").write_bytes("caf\u00e9 and more text\n".encode("utf-16"))
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "run.ini").write_text("[train]\nsteps 10\n")
    (folder / "key.ini").write_text("[train]\nstep = 10\n")
    (folder / "twice.ini").write_text("[train]\nsteps = 10\nsteps = 11\n")
    (folder / "quote.ini").write_text('[run]\ndir = "runs/x\n')
    (folder / "tiktoken").mkdir()
    (folder / "tiktoken" / "tokenizer.model").write_text("".join(f"{c}{c}== {i}\n" for i, c in enumerate("QRSTUVWX")))
    (folder / "tok_torn").mkdir()
    (folder / "tok_torn" / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab"')
    write_json(folder / "tok_unigram" / "tokenizer.json",
               {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}, "added_tokens": []})
    write_json(folder / "tok_wordpiece" / "tokenizer.json",
               {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "added_tokens": []})


def hashes(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def restore(folder, before, backup, allowed):
    """What was changed, lost or left; all of it is undone."""
    after = hashes(folder)
    complaints = []
    for name in before:
        if after.get(name) != before[name]:
            complaints.append(("changed " if name in after else "lost ") + name)
            shutil.copy2(backup / name, folder / name)
    for name in after:
        if name not in before:
            if not any(re.match(pattern, name) for pattern in allowed):
                complaints.append(f"left {name}")
            (folder / name).unlink()
    return complaints


def check(mistake, folder, before, backup):
    done = shell(expand(mistake.command), folder)
    if b"ompi_rte_init failed" in done.stderr:  # Open MPI's own, now and then on a loaded machine
        done = shell(expand(mistake.command), folder)
    err = done.stderr.decode(errors="replace")
    said = [line for line in err.splitlines() if line.startswith("llampi: ")]
    everything = err + done.stdout.decode(errors="replace")
    complaints = []
    if done.returncode != mistake.status:
        complaints.append(f"status {done.returncode}, not {mistake.status}")
    if mistake.status != 0 and len(said) != mistake.lines:
        complaints.append(f"{len(said)} sentences")
    if not re.search(mistake.sentence, " ".join(said) if mistake.status else everything):
        complaints.append(f"does not say {mistake.sentence!r}")
    complaints += restore(folder, before, backup, mistake.writes)
    if complaints:
        complaints.append("said: " + (" | ".join(said) or everything[-600:]))
    return complaints


def main():
    from mistakes_table import MISTAKES  # beside this file
    wanted = [m for m in MISTAKES if re.search(PATTERN, m[0] + " " + m[1])]
    with tempfile.TemporaryDirectory() as name:
        folder, backup = pathlib.Path(name) / "work", pathlib.Path(name) / "backup"
        folder.mkdir()
        set_up(folder)
        shutil.copytree(folder, backup)
        before = hashes(folder)
        failed = 0
        for row in wanted:
            mistake = Mistake(*row[:4], **(row[4] if len(row) > 4 else {}))
            complaints = check(mistake, folder, before, backup)
            failed += bool(complaints)
            if complaints:
                print(f"[{mistake.group}] {mistake.command}")
                for complaint in complaints:
                    print(f"    {complaint}")
    print(f"{len(wanted)} mistakes, {failed} not answered as they should be")
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
