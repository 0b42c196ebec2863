# SPDX-License-Identifier: Apache-2.0
"""`llampi top`: what it prints, how it follows a run in a terminal and ends, and what it refuses."""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import runs


BACK = "\x1b[?7h\x1b[?25h\x1b[?1049l"


class Terminal:
    """The program in a terminal of its own."""

    def __init__(self, of_test, *arguments):
        self.printed = b""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(of_test.folder)
            os.environ.update(LC_ALL="C.UTF-8", TERM="xterm")
            os.execv(of_test.program, [of_test.program, *arguments])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

    @property
    def text(self):
        return self.printed.decode(errors="replace")

    def read_until(self, *expected):
        deadline = time.monotonic() + 20
        while not all(part in self.text for part in expected):
            assert time.monotonic() < deadline, f"{expected} is not in {self.text[-3000:]!r}"
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.printed += os.read(self.terminal, 65536)

    def type(self, key):
        os.write(self.terminal, key)

    def echoes(self):
        return bool(termios.tcgetattr(self.terminal)[3] & termios.ECHO)

    def stops(self):
        """Whether Ctrl-Z stops the program."""
        return termios.tcgetattr(self.terminal)[6][termios.VSUSP] == b"\x1a"

    def drain(self):
        try:
            while select.select([self.terminal], [], [], 0)[0]:
                self.printed += os.read(self.terminal, 65536)
        except OSError:  # closed
            pass

    def status(self):
        """Of the program, which must end; reads what it still prints."""
        deadline = time.monotonic() + 20
        while True:
            try:
                if select.select([self.terminal], [], [], 0.05)[0]:
                    self.printed += os.read(self.terminal, 65536)
            except OSError:  # closed
                pass
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                self.drain()
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                raise AssertionError("it does not end")


with runs.Runs(os.path.abspath(sys.argv[1])) as of_test:
    of_test.train("one", 8, "--log.trace=2")
    of_test.train("other", 3)

    utf8 = of_test.call("top", "one", env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
    assert utf8.startswith("one: done\nstep 8 of 8  █") and any("\u2800" < c <= "\u28ff" for c in utf8) and "\x1b" not in utf8, utf8
    for part in ("loss ", "gradient norm", "learning rate", "tokens/s", "memory", "checkpoint: step 8,", "evaluation: loss"):
        assert part in utf8, part
    ascii_only = of_test.call("top", "one", "other", env={**os.environ, "LC_ALL": "C"}).stdout
    assert ascii_only.isascii() and "step 8 of 8  ####" in ascii_only and "\nother: done\nstep 3 of 3" in ascii_only, ascii_only

    top = Terminal(of_test, "top", "one", "--interval=0.1")
    top.read_until("\x1b[?1049h", "step 8 of 8")
    of_test.train("one", 9)
    top.read_until("step 9 of 9")  # it follows the run
    assert not top.echoes() and not top.stops()
    fcntl.ioctl(top.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 8, 0, 0))  # hardly any room
    top.printed = b""
    top.read_until("\x1b[Hone: don\x1b[K")
    top.type(b"xq")
    assert top.status() == 0 and top.text.endswith(BACK), top.text[-200:]

    for end in (lambda top: top.type(b"\x03"), lambda top: top.type(b"\x1c"), lambda top: os.kill(top.process, signal.SIGTERM)):  # Ctrl-C, Ctrl-backslash
        top = Terminal(of_test, "top", "one", "other")
        top.read_until("step 9 of 9", "other: done")
        end(top)
        assert top.status() == 0 and top.text.endswith(BACK), top.text[-200:]

    once = Terminal(of_test, "top", "--once", "one")
    assert once.status() == 0 and "\x1b" not in once.text and "step 9 of 9" in once.text, once.text

    for sentence, arguments in (
            ("top needs the folder of a run (run.dir); see llampi top --help", []),
            ("there is no folder none; give the run.dir of a run", ["none"]),
            ("tokens.h5 is not a folder; give the run.dir of a run", ["one", "tokens.h5"]),
            (". is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run", ["."]),
            ("interval = 0 (command line) is out of range; it must be at least 0.1", ["one", "--interval=0"])):
        error = of_test.call("top", *arguments, status=2)
        assert error.stderr == f"llampi: {sentence}\n" and error.stdout == "", error
print("seen in a terminal")
