# SPDX-License-Identifier: Apache-2.0
"""Pages in headless Chromium, in the light or the dark theme, and what its pictures of them show."""
import os
import shutil
import struct
import subprocess
import zlib

BROWSER = next((found for found in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if found), None)
SCHEMES = {"dark": 0, "light": 1}  # Blink's numbers of what prefers-color-scheme says


def run(page, folder, theme, *options):
    """Chromium with this page; it keeps what it must write in `folder`."""
    return subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'browser'}",
         f"--blink-settings=preferredColorScheme={SCHEMES[theme]}", "--force-device-scale-factor=1", "--hide-scrollbars",
         "--enable-logging=stderr", "--virtual-time-budget=2000", *options, page.resolve().as_uri()],
        capture_output=True, text=True, timeout=100, env={**os.environ, "HOME": str(folder)})


def document_of(page, folder, theme):
    """The page's document once its scripts have run, and what they complained of."""
    done = run(page, folder, theme, "--dump-dom")
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def picture_of(page, folder, theme, picture, size):
    """Writes a PNG of the page as a window of this size (width, height) shows it."""
    done = run(page, folder, theme, f"--screenshot={picture.resolve()}", f"--window-size={size[0]},{size[1]}")
    if not picture.exists():
        raise RuntimeError(f"Chromium wrote no picture:\n{done.stderr[-2000:]}")


def pixels(png):
    """Rows of (red, green, blue) of a PNG with 8 bits a channel and without interlacing, as Chromium writes it."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            assert depth == 8 and colour in (2, 6) and not interlaced
        elif kind == b"IDAT":
            packed += chunk
        at += 12 + length
    channels = 3 if colour == 2 else 4
    raw, line = zlib.decompress(packed), channels * width
    before, rows = bytearray(line), []
    for y in range(height):
        kind, row = raw[y * (line + 1)], bytearray(raw[y * (line + 1) + 1:(y + 1) * (line + 1)])
        for i in range(line) if kind else ():
            left, up = row[i - channels] if i >= channels else 0, before[i]
            if kind == 1:
                row[i] = (row[i] + left) & 255
            elif kind == 2:
                row[i] = (row[i] + up) & 255
            elif kind == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            else:
                corner = before[i - channels] if i >= channels else 0
                guess = left + up - corner
                errors = abs(guess - left), abs(guess - up), abs(guess - corner)
                row[i] = (row[i] + (left, up, corner)[errors.index(min(errors))]) & 255
        rows.append([tuple(row[i:i + 3]) for i in range(0, line, channels)])
        before = row
    return rows
