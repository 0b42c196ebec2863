# SPDX-License-Identifier: Apache-2.0
"""What a user sees who runs a command in a terminal."""
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time


class Terminal:
    """A command, such as the program with its arguments, in a terminal of its own."""

    def __init__(self, of_test, *command, columns=100):
        self.printed = b""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
            os.chdir(of_test.folder)
            os.environ.update(LC_ALL="C.UTF-8", TERM="xterm")
            os.execvp(command[0], [str(argument) for argument in command])

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
