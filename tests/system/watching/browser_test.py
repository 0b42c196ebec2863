# SPDX-License-Identifier: Apache-2.0
"""The page of `llampi report` in headless Chromium: it is drawn without an error, and does what its controls say."""
import json
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import chromium
import runs

if not chromium.BROWSER:
    print("Chromium is not installed; install it with: scripts/setup.sh --report (apt-get install chromium, which loads 80 MB)")
    sys.exit(77)

# Colours of src/report/page.css: of the page, of the panel of a chart, of the first run and of the time that steps compute.
COLOURS = {"light": {"page": "#ffffff", "panel": "#f6f7f9", "run": "#0072b2", "other": "#d55e00", "part": "#0072b2"},
           "dark": {"page": "#14181c", "panel": "#1d2329", "run": "#5bb2ec", "other": "#ff9a52", "part": "#4a9fd8"}}

# What a reader does: each time the charts must be others.
READER = """
<script>
const seen = [];
const charts = () => document.getElementById('charts').innerHTML;
const expectChange = (what, act) => { const before = charts(); act(); if (charts() === before) throw new Error(`no change: ${what}`); seen.push(what); };
const set = (id, property, value, event) => { const e = document.getElementById(id); e[property] = value; e.dispatchEvent(new Event(event)); };
for (const axis of ['tokens', 'elapsed', 'clock', 'step']) expectChange(axis, () => set('axis', 'value', axis, 'change'));
set('axis', 'value', 'elapsed', 'change');
if (charts().includes('continued from step 0') || !charts().includes('other: started')) throw new Error('a run that began again');
set('axis', 'value', 'step', 'change');
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
// The parts of a step, also of ranks that wait for each other, add up to it.
const near = (what, a, b) => { if (!(Math.abs(a - b) <= 1e-9 * Math.abs(b))) throw new Error(`${what}: ${a}, not ${b}`); };
for (const run of runs) {
  const values = run.steps.values, seconds = values.step_seconds.mean;
  values.data_seconds.mean = seconds.map(value => value / 8);
  for (const isKnown of [false, true]) {
    if (isKnown) values.mean_rank_seconds = {mean: seconds.map(value => 0.75 * value)};
    const times = Object.fromEntries(timesOfSteps(run).map(([name, _, parts]) => [name, parts]));
    seconds.forEach((value, i) => {
      near('all', sum(Object.values(times).map(parts => parts[i])), value + (values.checkpoint_stall_seconds.mean[i] ?? 0));
      near('computing', times.computing[i], value * (isKnown ? 5 : 7) / 8);
      near('data', times['waiting for data'][i], value / 8);
      if (isKnown) near('ranks', times['waiting for ranks'][i], value / 4);
    });
  }
  // On one device the plan is the same for each step of each job.
  if (!run.jobs[0].planned.device || plannedBytes(run).some(bytes => bytes !== run.jobs[0].planned.device)) throw new Error('plan');
}
// A slow first step of a job hides no other one, neither by its height nor by smoothing.
const chart = CHARTS.find(chart => chart.title === 'Time of a step');
for (const smoothing of [0, 0.9]) {
  view.smoothing = smoothing;
  for (const step of [1, runs[0].jobs.filter(job => job.kind === 'start')[1].step + 1]) runs[0].steps.values.step_seconds.mean[step - 1] = 100;
  const curves = curvesOf(chart), slow = curves[0].y.filter(seconds => seconds > 0.1);
  if (slow.length !== 2 || slow.some(seconds => seconds !== 100)) throw new Error(`smoothed: ${slow}`);
  const [low, high] = rangeOfValues(curves, chart, wholeRange(), false);
  if (low !== 0 || high > 0.02) throw new Error(`range of times: ${low} to ${high}`);
}
const job = {...runs[0].jobs[0], step: 30, planned: {device: 7, host: 2}};
const continued = {...runs[0], jobs: [runs[0].jobs[0], job]};
near('plan of the first job', plannedBytes(continued)[29], runs[0].jobs[0].planned.device);
near('plan of the second job, with what it keeps on the host', plannedBytes(continued)[30], 9);
near('plan of the second job, on a GPU', plannedBytes({...continued, device: 'NVIDIA'})[30], 7);
// The last evaluation and checkpoint come after the last step.
for (const axis of ['elapsed', 'clock']) {
  view.axis = axis;
  const run = runs[0], begin = axis === 'elapsed' ? run.begin : 0, high = wholeRange()[1];
  const last = [run.evaluations, run.checkpoints].map(({time}) => time.at(-1) - begin);
  if (!last.every(x => x >= places(run, run.steps).at(-1) && x <= high)) throw new Error(`${axis} until ${high} of ${last}`);
}
view.axis = 'step';
// A constant value: smoothing changes its last bits, and the chart is drawn all the same.
for (const run of runs) run.steps.values.grad_norm.mean.fill(0.1);
const constant = CHARTS.find(chart => chart.keys[0] === 'grad_norm');
for (const isLog of [false, true]) {
  Object.assign(view, {smoothing: 0.6, log: isLog});
  const curves = curvesOf(constant), y = curves[0].y;
  if (!(Math.max(...y) > Math.min(...y))) throw new Error('smoothing changed no bit');
  if (ticks(Math.min(...y), Math.max(...y), 5).length !== 1) throw new Error('ticks of a constant');
  const [low, high] = rangeOfValues(curves, constant, wholeRange(), isLog);
  if (!(low < 0.095 && high > 0.105)) throw new Error(`range of a constant: ${low} to ${high}`);
  show({});
}
document.documentElement.dataset.seen = seen.length;
</script>
"""

# Colours and places of what is drawn, before a reader does anything.
PROBE = """
<script>
const root = document.documentElement;
root.setAttribute('data-seen-page', getComputedStyle(document.body).backgroundColor);
root.setAttribute('data-seen-curve', getComputedStyle(document.querySelector('#charts .curve')).stroke);
const clipped = [], overlaps = [];
for (const svg of document.querySelectorAll('#charts svg[role]')) {
  const box = svg.getBoundingClientRect(), labels = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  for (const [text, place] of labels) {
    if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 || place.bottom > box.bottom + 1) clipped.push(text);
  }
  labels.forEach(([text, a], i) => labels.slice(i + 1).forEach(([other, b]) => {
    if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) overlaps.push(`${svg.getAttribute('aria-label')}: ${text}, ${other}`);
  }));
}
root.setAttribute('data-seen-clipped', clipped.join('; '));
root.setAttribute('data-seen-overlaps', overlaps.join('; '));
</script>
"""


def of_hex(colour):
    return tuple(int(colour[i:i + 2], 16) for i in (1, 3, 5))


def check_theme(page, folder, theme):
    """The page as it comes, in one theme: its colours as the browser computes them, and what a picture of it shows."""
    colours = {name: of_hex(colour) for name, colour in COLOURS[theme].items()}
    probe = folder / f"{theme}.html"
    probe.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    document, complaints = chromium.document_of(probe, folder, theme)
    if not document.strip():
        print("Chromium does not start here")
        sys.exit(77)
    assert complaints == [], complaints
    seen = dict(re.findall(r'data-seen-([a-z]+)="([^"]*)"', document.split(">", 2)[1]))
    assert seen["page"] == "rgb({}, {}, {})".format(*colours["page"]), seen
    assert seen["curve"] == "rgb({}, {}, {})".format(*colours["run"]), seen
    assert seen["clipped"] == "", f"text that is cut off: {seen['clipped']}"
    assert seen["overlaps"] == "", f"labels that overlap: {seen['overlaps']}"

    picture = folder / f"{theme}.png"
    chromium.picture_of(page, folder, theme, picture, (1100, 2400))
    rows = chromium.pixels(picture)
    assert len(rows) == 2400 and len(rows[0]) == 1100
    assert all(rows[y][x] == colours["page"] for y in (0, 1200, 2399) for x in (0, 1099)), (rows[0][0], rows[1200][0])
    count = {name: sum(row.count(colour) for row in rows) for name, colour in colours.items()}
    # Half of it is page and panels. Curves are thin, and smoothed at their edges; areas are not.
    assert count["page"] + count["panel"] > 1100 * 2400 / 2, count
    assert count["run"] > 1000 and count["other"] > 500 and count["part"] > 50000, count
    missing = [y for y, row in enumerate(rows) if set(row) == {colours["page"]}]
    assert len(missing) < 1000, "most rows of the picture show something"


with runs.Runs(sys.argv[1]) as of_test:
    folder = of_test.folder
    of_test.train("one", 8, "--log.trace=2")
    of_test.lose_newest_checkpoint("one")
    of_test.train("one", 60)
    of_test.train("other", 20, "--optimizer.lr=1e-3")
    # Times of this machine as it is now would make other areas each time.
    for name in ("one", "other"):
        lines = of_test.lines(name)
        for line in lines:
            if "loss" in line:
                seconds = 0.01 + 0.001 * (line["step"] % 3)
                line.update(step_seconds=seconds, data_seconds=seconds / 4, tokens_per_second=32 / seconds, checkpoint_stall_seconds=0.002 * (line["step"] % 12 == 0))
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Two ranks, of which one takes twice as long, and a run that began again: its first job had not saved a checkpoint.
    (folder / "other/trace").mkdir()
    for rank in (0, 1):
        event = {"ph": "X", "pid": rank, "ts": 0, "dur": 1e6 * (rank + 1), "cat": "forward", "args": {"step": 3}}
        (folder / f"other/trace/rank-0000{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    history = [line for line in of_test.lines("other", "history.jsonl") if line["event"] != "checkpoint"]
    again = dict(history[0], time=of_test.lines("other")[-2]["time"])
    assert again["event"] == "start" and again["step"] == 0, again
    (folder / "other/history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history + [again]))
    of_test.call("report", "one", "other", "--output", "page.html")
    page = folder / "page.html"
    for theme in chromium.SCHEMES:
        check_theme(page, folder, theme)
    page.write_text(page.read_text().replace("</body>", READER + "</body>"))
    document, complaints = chromium.document_of(page, folder, "light")
    if not document.strip():
        print("Chromium does not start here")
        sys.exit(77)
    assert complaints == [], complaints
    assert 'data-drawn="true"' in document and 'data-seen="11"' in document, document[:500]
    assert "other, step 3, of an earlier job than the last:<" in document and document.count("slowest: 33.3 % above the median") == 1, "of two ranks one is slowest"
    assert "one, step 2, of an earlier job than the last:<" in document
    assert document.count("<figure") == 10, document.count("<figure")
    assert re.search(r"<td[^>]*>60 of 60</td>", document)
    # A mistake in the script is seen.
    page.write_text(page.read_text().replace("drawOverview();\n", "drawOverview(; \n"))
    document, complaints = chromium.document_of(page, folder, "light")
    assert 'data-drawn' not in document and any("SyntaxError" in line for line in complaints), complaints
print("drawn without an error")
