# SPDX-License-Identifier: Apache-2.0
"""Small runs on one rank, in a folder of their own, for the tests of what shows a run."""
import json
import pathlib
import subprocess
import tempfile

MODEL = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "initializer_range": 0.02,
}


class Runs:
    """`with Runs(program) as runs`: the folder is gone at the end."""

    def __init__(self, program):
        self.program = program

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="llampi-watching-")
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "model.json").write_text(json.dumps(MODEL))
        (self.folder / "text").write_text("".join(f"the quick brown fox {i}\n" for i in range(40)))
        self.call("tokenize", "--tokenizer", "bytes", "--output", "tokens.h5", "text")
        return self

    def __exit__(self, *_):
        self.temporary.cleanup()

    def call(self, *arguments, status=0, **more):
        """Runs the program there, which must end with this status."""
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, timeout=60,
                              **more)
        assert done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def train_command(self, name, steps, *options):
        return [self.program, "train", f"--run.dir={name}", "--model.config=model.json", "--data.train=tokens.h5", "--data.eval=tokens.h5",
                "--data.seq_len=16", f"--train.steps={steps}", "--train.global_batch=2", "--train.eval_every=4", "--checkpoint.every=3",
                "--run.threads=1", *options]

    def train(self, name, steps, *options):
        return self.call(*self.train_command(name, steps, *options)[1:])

    def lose_newest_checkpoint(self, name):
        """As if the job had died before it: the run continues from an older one."""
        newest = max((self.folder / name / "checkpoints").glob("step-*.h5"))
        newest.unlink()
        history = self.folder / name / "history.jsonl"
        kept = [line for line in history.read_text().splitlines(keepends=True) if newest.name not in line]
        history.write_text("".join(kept))

    def lines(self, name, file="metrics.jsonl"):
        return [json.loads(line) for line in (self.folder / name / file).read_text().splitlines()]
