# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads from the event files of a run what its metrics.jsonl says, also of one that was continued."""
import math
import os
import pathlib
import struct
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import system_python

system_python.require("tensorboard", pythons=[os.environ.get("TENSORBOARD_PYTHON", "")], how="scripts/setup.sh --report")
import runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {
    "train/loss": "loss", "eval/loss": "eval_loss", "train/learning_rate": "lr", "train/grad_norm": "grad_norm",
    "train/tokens_seen": "tokens_seen", "speed/tokens_per_second": "tokens_per_second", "speed/step_seconds": "step_seconds",
    "speed/data_seconds": "data_seconds", "speed/checkpoint_stall_seconds": "checkpoint_stall_seconds", "memory/bytes": "memory_bytes",
}


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def curves(accumulator):
    accumulator.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def expected(lines, tags):
    return {tag: [(line["step"], math.nan if line[key] is None else float32(line[key]), line["time"]) for line in lines if key in line]
            for tag, key in tags.items()}


def open_run(runs, name):
    return EventAccumulator(str(runs.folder / name / "tensorboard"), size_guidance={"scalars": 0})


with runs.Runs(sys.argv[1]) as of_test:
    of_test.train("run", 8, "--log.tensorboard=true")
    live = open_run(of_test, "run")  # a TensorBoard that stays open while the run goes on
    assert curves(live) == expected(of_test.lines("run"), TAGS), curves(live)

    of_test.lose_newest_checkpoint("run")
    before = of_test.lines("run")
    of_test.train("run", 10, "--log.tensorboard=true")
    lines = of_test.lines("run")
    assert before[:7] == lines[:7] and before[7:] != lines[7:len(before)], "steps 7 and 8 are done again"
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 11))
    assert curves(open_run(of_test, "run")) == expected(lines, TAGS)
    assert curves(live) == expected(lines, TAGS), "without what is no longer so"

    # A run that had none so far.
    of_test.train("late", 3)
    assert not (of_test.folder / "late/tensorboard").exists()
    of_test.train("late", 5, "--log.tensorboard=true")
    assert curves(open_run(of_test, "late")) == expected(of_test.lines("late"), TAGS)

    # A curve that only some runs have.
    of_test.train("scaled", 3, "--log.tensorboard=true", "--fsdp.reduce_dtype=float16")
    assert curves(open_run(of_test, "scaled")) == expected(of_test.lines("scaled"), TAGS | {"train/loss_scale": "loss_scale"})
print("the same values")
