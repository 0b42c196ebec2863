#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/report-light.png and report-dark.png: the page of `llampi report` for two small runs, which this makes.

    scripts/draw-report.py [PROGRAM [FOLDER]]

PROGRAM is build/llampi unless another is given, FOLDER gets the pictures (docs/images). Takes about a minute on two cores and needs mpirun and
Chromium (scripts/setup.sh --report). Speeds, times and memory in the pictures are those of this machine and of what else ran on it.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))
import chromium  # noqa: E402

SIZE = (1100, 3330)  # down to the end of "Where the time went"
MODEL = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "initializer_range": 0.02,
}
STEPS = 700


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/llampi").resolve()
    pictures = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs/images").resolve()
    if not chromium.BROWSER:
        sys.exit("draw-report: Chromium is not installed; install it with: scripts/setup.sh --report")
    with tempfile.TemporaryDirectory(prefix="llampi-pictures-") as name:
        folder = pathlib.Path(name)

        def call(*arguments):
            subprocess.run([str(argument) for argument in arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        def train(run, steps, *options):
            mpi = f"source {ROOT}/scripts/mpi-env.sh; exec mpirun -n 2 \"$@\""
            call("bash", "-c", mpi, "bash", program, "train", f"--run.dir={run}", "--model.config=model.json", "--data.train=train.h5",
                 "--data.eval=held-out.h5", "--data.seq_len=64", f"--train.steps={steps}", "--train.global_batch=32",
                 "--train.eval_every=100", "--checkpoint.every=150", "--optimizer.warmup_steps=40", "--run.threads=1", *options)

        (folder / "model.json").write_text(json.dumps(MODEL))
        (folder / "text").write_text("".join((ROOT / file).read_text() for file in ("LICENSE", "README.md", "TESTING.md", "docs/formats.md", "docs/models.md")))
        (folder / "other").write_text((ROOT / "docs/failures.md").read_text())
        call(program, "tokenize", "--tokenizer=bytes", "--output=train.h5", "text")
        call(program, "tokenize", "--tokenizer=bytes", "--output=held-out.h5", "other")
        train("runs/lr-3e-3", STEPS, "--optimizer.lr=3e-3")
        # As if the job had been killed after step 600: it continues from there.
        max((folder / "runs/lr-3e-3/checkpoints").glob("step-*.h5")).unlink()
        train("runs/lr-3e-3", STEPS, "--optimizer.lr=3e-3")
        train("runs/lr-1e-2", STEPS, "--optimizer.lr=1e-2")
        call(program, "report", "runs/lr-3e-3", "runs/lr-1e-2", "--output=report.html")
        for theme in chromium.SCHEMES:
            picture = folder / f"report-{theme}.png"
            chromium.picture_of(folder / "report.html", folder, theme, picture, SIZE)
            shutil.copyfile(picture, pictures / picture.name)


main()
