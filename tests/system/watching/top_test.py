# SPDX-License-Identifier: Apache-2.0
"""`llampi top`: what it prints, how it follows a run in a terminal and ends, and what it refuses."""
import fcntl
import os
import re
import signal
import struct
import sys
import termios

import runs
from terminal import Terminal


BACK = "\x1b[?7h\x1b[?25h\x1b[?1049l"


with runs.Runs(os.path.abspath(sys.argv[1])) as of_test:
    of_test.train("one", 8, "--log.trace=2")
    of_test.train("other", 3)

    utf8 = of_test.call("top", "one", env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
    assert utf8.startswith("one: done\nstep 8 of 8  █") and any("\u2800" < c <= "\u28ff" for c in utf8) and "\x1b" not in utf8, utf8
    for part in ("loss ", "gradient norm", "learning rate", "tokens/s", "memory", "checkpoint: step 8,", "evaluation: loss"):
        assert part in utf8, part
    ascii_only = of_test.call("top", "one", "other", env={**os.environ, "LC_ALL": "C"}).stdout
    assert ascii_only.isascii() and "step 8 of 8  ####" in ascii_only and "\nother: done\nstep 3 of 3" in ascii_only, ascii_only

    top = Terminal(of_test, of_test.program, "top", "one", "--interval=0.1")
    top.read_until("\x1b[?1049h", "step 8 of 8")
    of_test.train("one", 9, "--log.trace=9")
    top.read_until("step 9 of 9")  # it follows the run
    (of_test.folder / "one/trace/rank-00001.json").write_text("{")
    top.read_until("traces left out: 1 that cannot be read")  # and its traces
    assert not top.echoes() and not top.stops()
    fcntl.ioctl(top.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 8, 0, 0))  # hardly any room
    top.printed = b""
    top.read_until("\x1b[Hone: don\x1b[K")
    top.type(b"xq")
    assert top.status() == 0 and top.text.endswith(BACK), top.text[-200:]

    for end in (lambda top: top.type(b"\x03"), lambda top: top.type(b"\x1c"), lambda top: os.kill(top.process, signal.SIGTERM)):  # Ctrl-C, Ctrl-backslash
        top = Terminal(of_test, of_test.program, "top", "one", "other")
        top.read_until("step 9 of 9", "other: done")
        end(top)
        assert top.status() == 0 and top.text.endswith(BACK), top.text[-200:]

    many = Terminal(of_test, of_test.program, "top", *["one"] * 40)  # on 30 rows
    many.read_until("one: done", "11 more runs")
    many.type(b"q")
    assert many.status() == 0, many.text[-200:]

    once = Terminal(of_test, of_test.program, "top", "--once", "one")
    assert once.status() == 0 and "\x1b" not in once.text and "step 9 of 9" in once.text, once.text

    # As a pattern of the shell gives them: runs, and what else is there.
    (of_test.folder / "data").mkdir()
    several = of_test.call("top", "--once", "data", "one", "tokens.h5")
    assert several.stderr == "".join(f"warning: {name} is left out: it is not the folder of a run (run.dir)\n" for name in ("data", "tokens.h5"))
    without_ages = lambda text: re.sub(r", [0-9hms ]+ ago,", "", text)  # seconds, which pass between the two calls
    assert without_ages(several.stdout) == without_ages(of_test.call("top", "--once", "one").stdout)

    for sentence, arguments in (
            ("data is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run", ["data", "tokens.h5"]),
            ("there is no folder none; give the run.dir of a run", ["one", "none"]),
            ("top needs the folder of a run (run.dir); see llampi top --help", []),
            ("there is no folder none; give the run.dir of a run", ["none"]),
            ("tokens.h5 is not a folder; give the run.dir of a run", ["tokens.h5"]),
            (". is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run", ["."]),
            ("--interval 0 is out of range; it must be at least 0.1", ["one", "--interval=0"])):
        error = of_test.call("top", *arguments, status=2)
        assert error.stderr == f"llampi: {sentence}\n" and error.stdout == "", error
print("seen in a terminal")
