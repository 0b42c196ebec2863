# SPDX-License-Identifier: Apache-2.0
"""The page of `llampi report` in headless Chromium: it is drawn without an error, and does what its controls say."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import runs

BROWSER = next((found for found in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if found), None)
if not BROWSER:
    print("Chromium is not installed; install it with: scripts/setup.sh --report (apt-get install chromium, which loads 80 MB)")
    sys.exit(77)

# What a reader does: each time the charts must be others.
READER = """
<script>
const seen = [];
const charts = () => document.getElementById('charts').innerHTML;
const expectChange = (what, act) => { const before = charts(); act(); if (charts() === before) throw new Error(`no change: ${what}`); seen.push(what); };
const set = (id, property, value, event) => { const e = document.getElementById(id); e[property] = value; e.dispatchEvent(new Event(event)); };
for (const axis of ['tokens', 'elapsed', 'clock', 'step']) expectChange(axis, () => set('axis', 'value', axis, 'change'));
expectChange('smoothing', () => set('smoothing', 'value', '0.9', 'input'));
expectChange('logarithmic', () => set('log', 'checked', true, 'change'));
expectChange('events', () => set('events', 'checked', false, 'change'));
const svg = () => document.querySelector('#charts svg');
const pointer = (kind, part) => { const b = svg().getBoundingClientRect();
  svg().dispatchEvent(new PointerEvent(kind, {clientX: b.left + part * b.width, clientY: b.top + 50})); };
expectChange('values under the pointer', () => pointer('pointermove', 0.5));
const tooltip = document.querySelector('#charts .tooltip').textContent;
if (!/one, step \\d+: \\d/.test(tooltip) || !tooltip.includes('other, step')) throw new Error(`tooltip: ${tooltip}`);
expectChange('zoom', () => { pointer('pointerdown', 0.4); pointer('pointerup', 0.7); });
if (document.getElementById('whole').hidden) throw new Error('no way back');
expectChange('back', () => document.getElementById('whole').click());
expectChange('without a run', () => { const box = document.querySelectorAll('#controls label:has(svg) input')[1]; box.checked = false;
  box.dispatchEvent(new Event('change')); });
if (document.querySelectorAll('#configuration tr.differs').length === 0) throw new Error('no key differs');
document.documentElement.dataset.seen = seen.length;
</script>
"""


def browse(page, folder):
    """The page's document once its scripts have run, and what they complained of."""
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'browser'}",
         "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", page.resolve().as_uri()],
        capture_output=True, text=True, timeout=100, env={**os.environ, "HOME": str(folder)})
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, complaints


with runs.Runs(sys.argv[1]) as of_test:
    folder = of_test.folder
    of_test.train("one", 8, "--log.trace=2")
    of_test.lose_newest_checkpoint("one")
    of_test.train("one", 60)
    of_test.train("other", 20, "--optimizer.lr=1e-3")
    of_test.call("report", "one", "other", "--output", "page.html")
    page = folder / "page.html"
    page.write_text(page.read_text().replace("</body>", READER + "</body>"))
    document, complaints = browse(page, folder)
    if not document.strip():
        print("Chromium does not start here")
        sys.exit(77)
    assert complaints == [], complaints
    assert 'data-drawn="true"' in document and 'data-seen="11"' in document, document[:500]
    assert document.count("<figure") == 9, document.count("<figure")
    assert re.search(r"<td[^>]*>60 of 60</td>", document)
    # A mistake in the script is seen.
    page.write_text(page.read_text().replace("drawOverview();\n", "drawOverview(; \n"))
    document, complaints = browse(page, folder)
    assert 'data-drawn' not in document and any("SyntaxError" in line for line in complaints), complaints
print("drawn without an error")
