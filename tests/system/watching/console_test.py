# SPDX-License-Identifier: Apache-2.0
"""What `llampi train` prints: few lines before the first step; then a line for each step in a file, and in a terminal one line that each step replaces."""
import re
import subprocess
import sys

import runs
from terminal import Terminal

MPIRUN = sys.argv[2]
STEPS = 20
MOST_LINES = 12  # before the first step
STEP = r"step +(\d+)/{}  loss [0-9.]+  lr [0-9.e+-]+  grad norm [0-9.]+  [0-9,]+ tokens/s  (?:\d+[dhms] ?)+ ?left"
TIME = r"  20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
CLEAR = "\r\x1b[K"


def heading_of(lines):
    """The lines before the first step."""
    first = next(i for i, line in enumerate(lines) if re.match(r"step +\d+/", line))
    heading = lines[:first]
    assert 5 <= len(heading) <= MOST_LINES, f"{len(heading)} lines before the first step:\n" + "\n".join(heading)
    for name in ("model: ", "data: ", "ranks: ", "device: ", "fsdp: ", "memory: ", "output: "):
        assert sum(line.startswith(name) for line in heading) == 1, (name, heading)
    return heading


def check_file(text, steps):
    assert text.isprintable() or not re.search(r"[^\n -~]", text), f"a character that is not plain: {text!r}"
    lines = text.splitlines()
    shown = [re.fullmatch(STEP.format(steps[-1]) + TIME, line) for line in lines if re.match(r"step +\d+/", line)]
    assert all(shown), lines
    assert [int(step[1]) for step in shown] == list(steps), lines
    return heading_of(lines)


def check_terminal(terminal, columns):
    status = terminal.status()
    text = terminal.text.replace("\r\n", "\n")
    assert status == 0 and text.endswith("\n"), (status, text[-500:])
    # What each line was, one after another, and what is left of it on the screen.
    history = [line.split(CLEAR) for line in text.split("\n")[:-1]]
    screen = [line[-1] for line in history]
    assert all(len(line) < columns for line in screen if line.startswith("step ") and "/" in line), screen
    assert len([line for line in screen if re.match(r"step +\d+/", line)]) == 1, "one line of progress is left:\n" + "\n".join(screen)
    progress = [part for line in history for part in line if re.match(r"step +\d+/", part)]
    steps = [int(re.match(r"step +(\d+)/", part)[1]) for part in progress]
    assert sorted(set(steps)) == list(range(1, STEPS + 1)) and steps == sorted(steps), steps  # shown again under a line that comes in between
    assert re.match(rf"step {STEPS}/{STEPS} ", screen[-1]), screen[-3:]
    if columns > 90:
        assert all(re.fullmatch(STEP.format(STEPS), part) for part in progress), progress
    heading_of([part for line in history for part in line if part])


with runs.Runs(sys.argv[1]) as of_test:
    check_file(of_test.train("one", STEPS).stdout, range(1, STEPS + 1))
    of_test.lose_newest_checkpoint("one")
    heading = check_file(of_test.train("one", STEPS).stdout, range(19, STEPS + 1))
    where = [i for i, line in enumerate(heading) if line == "resumed from one/checkpoints/step-00000018.h5 at step 18"]
    assert len(where) == 1 and where[0] > heading.index(next(line for line in heading if line.startswith("model: "))), heading

    mpirun = [MPIRUN, "-n", "2"]
    two = of_test.train_command("two", STEPS)
    with open(of_test.folder / "log", "w") as log:
        subprocess.run([*mpirun, *two], cwd=of_test.folder, stdout=log, stderr=subprocess.STDOUT, check=True, timeout=60)
    check_file((of_test.folder / "log").read_text(), range(1, STEPS + 1))

    for columns in (120, 50):
        check_terminal(Terminal(of_test, *of_test.train_command(f"wide-{columns}", STEPS), columns=columns), columns)
    check_terminal(Terminal(of_test, *mpirun, *of_test.train_command("both", STEPS), columns=120), 120)

    # A clean stop, of which mpirun says that it is an error: one line explains it, and with -q mpirun says nothing.
    for options, is_quiet in (([], False), (["-q"], True)):
        name = f"stop-{is_quiet}"
        (of_test.folder / name).mkdir()
        (of_test.folder / name / "stop").touch()
        done = subprocess.run([MPIRUN, *options, "-n", "2", *of_test.train_command(name, STEPS)], cwd=of_test.folder, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 75, (done.returncode, done.stderr)
        assert "exit status 75 means stopped, not failed: ignore what mpirun prints below, or omit it with mpirun -q\n" in done.stdout, done.stdout
        assert ("Exit code" not in done.stderr) == is_quiet, done.stderr
    alone = of_test.folder / "alone"
    alone.mkdir()
    (alone / "stop").touch()
    stopped = of_test.call(*of_test.train_command("alone", STEPS)[1:], status=75)
    assert "mpirun" not in stopped.stdout, stopped.stdout

    # What a model generates does not control the terminal: CSI in UTF-8, which comes in two tokens, and ESC.
    (of_test.folder / "controls").write_bytes("aé\u009b\x1b".encode() * 2000)
    of_test.call("tokenize", "--tokenizer", "bytes", "--output", "controls.h5", "controls")
    of_test.train("controls-run", 100, "--data.train=controls.h5", "--data.eval=", "--train.eval_every=0", "--optimizer.lr=3e-2", "--checkpoint.every=0")
    generate = [of_test.program, "generate", "--weights", "controls-run", "--prompt", "aé", "--max-tokens", "12", "--temperature", "0", "--device", "cpu"]
    piped = subprocess.run(generate, cwd=of_test.folder, capture_output=True, check=True, timeout=60).stdout
    assert piped == ("aé\u009b\x1b" * 2 + "aé\n").encode(), piped
    shown = Terminal(of_test, *generate)
    assert shown.status() == 0 and shown.text.splitlines()[-1].split(CLEAR)[-1].split("\x1b[K")[-1] == "aéaéaé", shown.text
print("few lines, and one that changes")
