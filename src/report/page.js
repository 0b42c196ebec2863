// SPDX-License-Identifier: Apache-2.0
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const SVG = document.getElementById('svg').namespaceURI;
const COLOURS = 6;
const DASHES = ['', '7 3', '2 3', '9 3 2 3'];
const narrow = matchMedia('(max-width: 920px)');  // as in page.css

/** What the reader has chosen. */
const view = {axis: 'step', smoothing: 0, log: false, events: true, range: null, hidden: new Set()};

// ---- small helpers ----

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null));
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const isNumber = value => typeof value === 'number' && isFinite(value);
const colour = r => `var(--run-${r % COLOURS})`;
const dash = r => DASHES[Math.floor(r / COLOURS) % DASHES.length];
const sum = values => values.reduce((total, value) => total + value, 0);

/** Where time goes, each with its colour. */
const PART = {compute: 0, ranks: 1, data: 2, checkpoints: 3, rest: 4};
const partColour = part => `var(--part-${part})`;

function swatch(r, paint = colour(r), dashes = dash(r)) {
  const line = shape('line', {x1: 0, y1: 5, x2: 26, y2: 5, 'stroke-width': 3, 'stroke-dasharray': dashes});
  line.style.stroke = paint;
  return shape('svg', {class: 'swatch', viewBox: '0 0 26 10', 'aria-hidden': 'true'}, line);
}

// ---- numbers for people ----

function shortNumber(value) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  for (const [unit, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
    if (size >= unit) return `${Number((value / (letter === 'k' ? 1e3 : unit)).toPrecision(4))} ${letter}`;
  }
  return String(Number(value.toPrecision(5)));
}

function bytes(value) {
  if (!isNumber(value)) return '–';
  for (const [unit, name] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
    if (Math.abs(value) >= unit) return `${(value / unit).toFixed(2)} ${name}`;
  }
  return `${Math.round(value)} B`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return '–';
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${String(Math.floor(seconds % 60)).padStart(2, '0')}s`;
  return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, '0')}m`;
}

const date = time => isNumber(time) ? new Date(time * 1e3).toISOString().replace('T', ' ').slice(0, 19) + ' UTC' : '–';
const percent = part => isNumber(part) ? `${(100 * part).toFixed(1)} %` : '–';

function onAxis(x) {
  if (view.axis === 'elapsed') return duration(x);
  if (view.axis === 'clock') return date(x).slice(5, 16);
  return shortNumber(x);
}

// ---- curves ----

for (const run of runs) {
  const starts = run.jobs.filter(event => event.kind === 'start').map(event => event.time).filter(isNumber);
  const first = run.steps.time.length > 0 ? run.steps.time[0] - (run.steps.values.step_seconds?.mean[0] ?? 0) : Infinity;
  run.begin = Math.min(first, ...starts);
}

const isTimeAxis = () => view.axis === 'elapsed' || view.axis === 'clock';
const onTimeAxis = (run, time) => view.axis === 'elapsed' && isNumber(time) ? time - run.begin : time;

/** Where points are on the horizontal axis. `points` has step, tokens and time. */
function places(run, points) {
  return isTimeAxis() ? points.time.map(time => onTimeAxis(run, time)) : points[view.axis];
}

/** The points with the first step of a job: it takes much longer than others, and would hide them. */
function firstSteps(run) {
  const found = new Set();
  for (const job of run.jobs) {
    const i = job.kind === 'start' ? run.steps.step.findIndex(step => step > job.step) : -1;
    if (i >= 0) found.add(i);
  }
  return found.size < run.steps.step.length ? found : new Set();
}

/** Exponential moving average, corrected for its beginning. @param apart points that stay as they are and count for no other */
function smooth(values, apart = new Set()) {
  if (view.smoothing === 0) return values;
  let average = 0, remaining = 1;
  return values.map((value, i) => {
    if (apart.has(i)) return value;
    if (!isNumber(value)) return null;
    average = view.smoothing * average + (1 - view.smoothing) * value;
    remaining *= view.smoothing;
    return average / (1 - remaining);
  });
}

const CHARTS = [
  {title: 'Loss', keys: ['loss'], evaluations: true, wide: true, logarithmic: true},
  {title: 'Evaluation loss', keys: [], evaluations: true, logarithmic: true},
  {title: 'Learning rate', keys: ['lr'], exact: true},
  {title: 'Gradient norm, before clipping', keys: ['grad_norm'], logarithmic: true},
  {title: 'Tokens per second, all ranks', keys: ['tokens_per_second'], zero: true},
  {title: 'Model FLOP/s utilization (MFU)', keys: ['mfu'], zero: true},
  {title: 'Time of a step', keys: ['step_seconds'], startsApart: true, zero: true, text: duration},
  {title: 'Time of a step of the slowest rank, without its waiting', keys: ['slowest_rank_seconds'], startsApart: true, zero: true, text: duration},
  {title: 'What the time of a step went to', keys: ['step_seconds'], stacked: true, startsApart: true, zero: true, text: duration},
  {title: 'Waiting for data, in a step', keys: ['data_seconds'], startsApart: true, zero: true, text: duration},
  {title: 'Held up by checkpoints, between steps', keys: ['checkpoint_stall_seconds'], zero: true, exact: true, text: duration},
  {title: 'Memory of the rank that uses most; dashed: planned', keys: ['memory_bytes'], planned: true, zero: true, text: bytes},
  {title: 'GPU memory of the process', keys: ['gpu_process_bytes'], zero: true, text: bytes},
  {title: 'Loss scale', keys: ['loss_scale'], logarithmic: true, exact: true},
  {title: 'FP8: infinite numbers that were cast', keys: ['fp8_saturated'], zero: true},
  {title: 'FP8: tensors of zeros that were cast', keys: ['fp8_zero_scale'], zero: true},
];

/** What the steps that a run has say of their time: [name, part, seconds in each step], which add up to the step and the wait for a save after it. */
function timesOfSteps(run) {
  const known = key => run.steps.values[key]?.mean;
  const all = known('step_seconds'), or = (values, i) => isNumber(values?.[i]) ? values[i] : 0;
  const busy = known('mean_rank_seconds');  // of all ranks, on CPUs
  const ranks = all.map((seconds, i) => isNumber(busy?.[i]) ? Math.max(0, or(all, i) - busy[i]) : 0);
  const forData = all.map((seconds, i) => Math.min(or(known('data_seconds'), i), or(all, i) - ranks[i]));
  const times = [[busy || run.ranks === 1 ? 'computing' : 'computing and communicating', PART.compute,
    all.map((seconds, i) => or(all, i) - ranks[i] - forData[i])]];
  if (busy) times.push(['waiting for ranks', PART.ranks, ranks]);
  times.push(['waiting for data', PART.data, forData]);
  const saves = all.map((seconds, i) => or(known('checkpoint_stall_seconds'), i));
  if (saves.some(seconds => seconds > 0)) times.push(['saving', PART.checkpoints, saves]);
  return times;
}

/** Stacked areas. */
function areasOf(run, r) {
  const apart = firstSteps(run);
  let base = run.steps.step.map(() => 0);
  return timesOfSteps(run).map(([name, part, seconds]) => {
    const own = part === PART.checkpoints ? seconds : smooth(seconds, apart);
    const area = {r, name, paint: partColour(part), x: places(run, run.steps), base, y: own.map((value, i) => base[i] + value), apart, raw: seconds, step: run.steps.step};
    base = area.y;
    return area;
  });
}

/** What the job that did a step had planned: on GPUs of the GPU, on CPUs of the process. */
function plannedBytes(run) {
  const planned = run.steps.step.map(() => null);
  for (const job of run.jobs) {
    if (!job.planned) continue;
    const bytes = (job.planned.device ?? 0) + (run.device.startsWith('cpu') ? job.planned.host ?? 0 : 0);
    run.steps.step.forEach((step, i) => { if (step > job.step) planned[i] = bytes; });
  }
  return planned;
}

/** The curves of a chart: of each run that is shown and has the values. */
function curvesOf(chart) {
  if (chart.stacked) return areasOf(runs[chart.run], chart.run);
  const curves = [];
  runs.forEach((run, r) => {
    if (view.hidden.has(r)) return;
    for (const key of chart.keys) {
      const values = run.steps.values[key];
      if (!values || !values.mean.some(isNumber)) continue;
      const apart = chart.startsApart ? firstSteps(run) : new Set();
      const smoothed = chart.exact ? values.mean : smooth(values.mean, apart);
      curves.push({r, name: run.name, x: places(run, run.steps), y: smoothed, apart, raw: values.mean, low: values.low, high: values.high,
        isSmoothed: smoothed !== values.mean, step: run.steps.step});
    }
    if (chart.evaluations && run.evaluations.loss.some(isNumber)) {
      curves.push({r, name: chart.keys.length > 0 ? `${run.name}, evaluation` : run.name, x: places(run, run.evaluations),
        y: run.evaluations.loss, raw: run.evaluations.loss, step: run.evaluations.step, dots: true, dashes: chart.keys.length > 0 ? '5 3' : dash(r)});
    }
    const planned = chart.planned ? plannedBytes(run) : [];
    if (planned.some(isNumber))
      curves.push({r, name: `${run.name}, planned`, x: places(run, run.steps), y: planned, raw: planned, step: run.steps.step, dashes: '5 3'});
  });
  return curves;
}

/** Whether two values differ by no more than rounding: what smoothing makes of a constant. */
const isFlat = (low, high) => !(high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)));

function ticks(low, high, wanted) {
  if (isFlat(low, high)) return [low];  // steps so small would not change large multiples of them
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) found.push(i * step);
  return found;
}

function timeTicks(low, high, wanted) {
  const sizes = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
  const step = sizes.find(size => size >= (high - low) / wanted);
  if (high - low < 5 || !step) return ticks(low, high, wanted);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high; x += step) found.push(x);
  return found;
}

function byteTicks(low, high, wanted) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)));
  return ticks(low / unit, high / unit, wanted).map(tick => tick * unit);
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
    for (const factor of [1, 2, 5]) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
    }
  }
  return found.length >= 2 && found.length <= 12 ? found : found.filter(tick => /^1/.test(tick.toExponential()));
}

/** The smallest and largest x over all runs that are shown, so that all charts have the same axis. Evaluations and checkpoints come after their step. */
function wholeRange() {
  let low = Infinity, high = -Infinity;
  runs.forEach((run, r) => {
    if (view.hidden.has(r)) return;
    const saves = isTimeAxis() ? places(run, run.checkpoints) : [];  // history.jsonl has those of lost steps, too
    for (const x of [...places(run, run.steps), ...places(run, run.evaluations), ...saves]) {
      if (!isNumber(x)) continue;
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
  });
  return low <= high ? [low, high > low ? high : low + 1] : [0, 1];
}

function rangeOfValues(curves, chart, [left, right], isLog) {
  let low = Infinity, high = -Infinity;
  const look = value => {
    if (!isNumber(value) || (isLog && value <= 0)) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const curve of curves) {
    curve.x.forEach((x, i) => {
      if (x >= left && x <= right && !curve.apart?.has(i)) look(curve.y[i]), curve.isSmoothed || look(curve.raw[i]);
    });
  }
  if (low > high) return null;
  if (isLog) return isFlat(low, high) ? [low / 2, high * 2] : [low, high];
  if (chart.zero) low = Math.min(0, low);
  const margin = isFlat(low, high) ? Math.abs(high) * 0.1 || 1 : 0.05 * (high - low);
  return [chart.zero && low === 0 ? 0 : low - margin, high + margin];
}

function path(x, y, toX, toY) {
  let text = '', pen = 'M';
  for (let i = 0; i < x.length; ++i) {
    if (!isNumber(x[i]) || !isNumber(y[i]) || !isFinite(toY(y[i]))) {
      pen = 'M';
      continue;
    }
    text += `${pen}${toX(x[i]).toFixed(1)} ${toY(y[i]).toFixed(1)}`;
    pen = 'L';
  }
  return text;
}

/** From the low values there and from the high ones back. */
function bandPath(curve, toX, toY) {
  const known = curve.x.map((_, i) => i).filter(i => isNumber(curve.low[i]) && isFinite(toY(curve.low[i])));
  if (known.length < 2) return '';
  const side = (order, values) => order.map(i => `${toX(curve.x[i]).toFixed(1)} ${toY(values[i]).toFixed(1)}`).join('L');
  return `M${side(known, curve.low)}L${side([...known].reverse(), curve.high)}Z`;
}

function nearest(x, wanted) {
  let best = -1;
  for (let low = 0, high = x.length - 1; low <= high;) {
    const middle = (low + high) >> 1;
    if (best < 0 || Math.abs(x[middle] - wanted) < Math.abs(x[best] - wanted)) best = middle;
    if (x[middle] < wanted) low = middle + 1; else high = middle - 1;
  }
  return best;
}

/** Where something that happened after a step is on the horizontal axis. */
function placeOf(run, step, time) {
  if (isTimeAxis()) return onTimeAxis(run, time);
  if (view.axis === 'step') return step;
  const i = nearest(run.steps.step, step);
  return step === 0 || i < 0 ? 0 : run.steps.tokens[i];
}

const describeStart = event => event.step > 0 ? `continued from step ${event.step}` : 'started';

function drawEvents(svg, toX, [left, right], top, bottom, only) {
  runs.forEach((run, r) => {
    if (view.hidden.has(r) || (only ?? r) !== r) return;
    // One of those that would cover each other.
    const add = (step, time, text, paint, draw, drawn) => {
      const x = placeOf(run, step, time), pixel = Math.round(toX(x));
      if (!(x >= left && x <= right) || drawn.has(pixel)) return;
      drawn.add(pixel);
      const mark = draw(toX(x));
      mark.append(shape('title', {}, document.createTextNode(`${run.name}: ${text}`)));
      mark.style[paint] = colour(r);
      svg.append(mark);
    };
    const saves = new Set(), restarts = new Set();
    run.checkpoints.step.forEach((step, i) => add(step, run.checkpoints.time[i], `checkpoint of step ${step}`, 'fill',
      x => shape('path', {d: `M${x} ${bottom + 3 * (r % 3)}l-3.5 6h7z`, class: 'checkpoint'}), saves));
    run.jobs.forEach((event, e) => {
      if (event.kind !== 'start' || e === 0) return;
      add(event.step, event.time, describeStart(event), 'stroke',
        x => shape('line', {x1: x, x2: x, y1: top, y2: bottom, class: 'restart'}), restarts);
    });
  });
}

function drawChart(chart, id) {
  const width = chart.wide && !narrow.matches ? 860 : 440, height = 230, left = 62, right = 12, top = 8, bottom = 30;
  const curves = curvesOf(chart);
  const isLog = view.log && Boolean(chart.logarithmic);
  const range = view.range ?? wholeRange();
  const values = rangeOfValues(curves, chart, range, isLog);
  const box = element('figure', {class: chart.wide ? 'chart wide' : 'chart', style: 'margin:0'}, element('h3', {}, chart.title));
  if (chart.stacked) box.append(legend(curves.map(curve => [curve.name, curve.paint])));
  const svg = shape('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': chart.title});
  box.append(svg);
  if (!values) return box;
  const scale = isLog ? Math.log10 : y => y;
  const toX = x => left + (x - range[0]) / (range[1] - range[0]) * (width - left - right);
  const toY = y => height - bottom - (scale(y) - scale(values[0])) / (scale(values[1]) - scale(values[0])) * (height - top - bottom);

  const text = chart.text ?? shortNumber;
  for (const y of isLog ? logTicks(...values) : (text === bytes ? byteTicks : ticks)(...values, 5)) {
    svg.append(shape('line', {x1: left, x2: width - right, y1: toY(y), y2: toY(y), class: 'grid'}),
      shape('text', {x: left - 6, y: toY(y) + 4, 'text-anchor': 'end'}, document.createTextNode(text(y).replace('.00 ', ' '))));
  }
  for (const x of (isTimeAxis() ? timeTicks : ticks)(...range, width > 440 ? 8 : 4)) {
    svg.append(shape('text', {x: toX(x), y: height - 8, 'text-anchor': 'middle'}, document.createTextNode(onAxis(x))));
  }
  const clip = `clip-${id}`;
  svg.append(shape('clipPath', {id: clip}, shape('rect', {x: left - 4, y: top - 4, width: width - left - right + 8, height: height - top - bottom + 4})));
  const plot = shape('g', {'clip-path': `url(#${clip})`});
  svg.append(plot);
  if (view.events) drawEvents(svg, toX, range, top, height - bottom, chart.run);
  for (const curve of curves) {
    const add = (name, attributes, property) => {
      const made = shape(name, attributes);
      made.style[property] = curve.paint ?? colour(curve.r);
      plot.append(made);
    };
    if (curve.base) {
      add('path', {class: 'area', d: bandPath({...curve, low: curve.base, high: curve.y}, toX, toY)}, 'fill');
      continue;
    }
    if (curve.low) add('path', {class: 'band', d: bandPath(curve, toX, toY)}, 'fill');
    if (curve.isSmoothed) add('path', {class: 'raw', d: path(curve.x, curve.raw, toX, toY)}, 'stroke');
    add('path', {class: 'curve', d: path(curve.x, curve.y, toX, toY), 'stroke-dasharray': curve.dashes ?? dash(curve.r)},
      'stroke');
    curve.x.forEach((x, i) => {
      if ((curve.dots || curve.x.length === 1) && isNumber(curve.y[i]) && isFinite(toY(curve.y[i])))
        add('circle', {cx: toX(x), cy: toY(curve.y[i]), r: 3}, 'fill');
    });
  }
  listen(box, svg, curves, {range, toX, left, top, width: width - right, height: height - bottom, text, fullWidth: width});
  return box;
}

/** Values under the pointer; zooms in on what the pointer is dragged across. */
function listen(box, svg, curves, plot) {
  const cursor = shape('line', {class: 'cursor', y1: plot.top, y2: plot.height, visibility: 'hidden'});
  const selection = shape('rect', {class: 'selection', y: plot.top, height: plot.height - plot.top, visibility: 'hidden'});
  const tooltip = element('div', {class: 'tooltip', hidden: ''});
  svg.append(selection, cursor);
  box.append(tooltip);
  let pressed = null;

  const place = event => {
    const bounds = svg.getBoundingClientRect();
    const x = (event.clientX - bounds.left) / bounds.width * plot.fullWidth;
    return Math.min(plot.width, Math.max(plot.left, x));
  };
  const valueAt = x => plot.range[0] + (x - plot.left) / (plot.width - plot.left) * (plot.range[1] - plot.range[0]);

  svg.addEventListener('pointermove', event => {
    const x = place(event);
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    cursor.setAttribute('visibility', 'visible');
    if (pressed !== null) {
      selection.setAttribute('x', Math.min(x, pressed));
      selection.setAttribute('width', Math.abs(x - pressed));
      selection.setAttribute('visibility', 'visible');
    }
    const rows = curves.map(curve => {
      const i = nearest(curve.x, valueAt(x));
      if (i < 0) return null;
      const smoothed = curve.isSmoothed ? ` (smoothed ${plot.text(curve.y[i])})` : '';
      return element('div', {}, swatch(curve.r, curve.paint, curve.dashes), `${curve.name}, step ${curve.step[i]}: ${plot.text(curve.raw[i])}${smoothed}`);
    });
    tooltip.replaceChildren(...rows.filter(row => row !== null));
    tooltip.hidden = false;
    const isRight = x > plot.fullWidth / 2;
    tooltip.style.left = isRight ? '' : `${100 * x / plot.fullWidth + 2}%`;
    tooltip.style.right = isRight ? `${100 * (1 - x / plot.fullWidth) + 2}%` : '';
  });
  svg.addEventListener('pointerleave', () => {
    tooltip.hidden = true;
    cursor.setAttribute('visibility', 'hidden');
    selection.setAttribute('visibility', 'hidden');
    pressed = null;
  });
  svg.addEventListener('pointerdown', event => {
    pressed = place(event);
    event.preventDefault();
  });
  svg.addEventListener('pointerup', event => {
    if (pressed === null) return;
    const ends = [valueAt(pressed), valueAt(place(event))].sort((a, b) => a - b);
    const isDrag = Math.abs(place(event) - pressed) > 8;
    pressed = null;
    if (isDrag) show({range: ends});
  });
  svg.addEventListener('dblclick', () => show({range: null}));
}

function drawCharts() {
  const shown = CHARTS.filter(chart => runs.some(run => chart.keys.some(key => run.steps.values[key]?.mean.some(isNumber)) ||
    (chart.evaluations && run.evaluations.loss.some(isNumber))));
  const each = shown.flatMap(chart => !chart.stacked ? [chart] : runs.flatMap((run, run_index) =>
    view.hidden.has(run_index) || !run.steps.values.step_seconds?.mean.some(isNumber) ? [] :
      [{...chart, run: run_index, title: runs.length > 1 ? `${chart.title}: ${run.name}` : chart.title}]));
  document.getElementById('charts').replaceChildren(...each.map(drawChart));
  if (shown.length === 0) document.getElementById('charts').append('There is no step in metrics.jsonl yet.');
}

function show(changes) {
  Object.assign(view, changes);
  document.getElementById('whole').hidden = view.range === null;
  document.getElementById('smoothing-value').textContent = view.smoothing.toFixed(2);
  drawCharts();
}

// ---- tables ----

/** @param rows [name, cell for each run], a cell is text or {number: text} */
function tableOfRuns(rows, attributes = {}) {
  const body = rows.map(([name, cells, options = {}]) => element('tr', options, element('th', {scope: 'row'}, name),
    ...cells.map(cell => element('td', {class: typeof cell === 'object' ? 'number' : 'value'}, typeof cell === 'object' ? cell.number : cell))));
  const head = element('tr', {}, element('th', {}, ''), ...runs.map((run, r) => element('th', {scope: 'col'}, swatch(r), run.name)));
  return element('div', {class: 'scroll'}, element('table', attributes, element('thead', {}, head), element('tbody', {}, ...body)));
}

function drawOverview() {
  const row = (name, value) => [name, runs.map(run => ({number: value(run.summary, run)}))];
  const rows = [
    ['State', runs.map(run => run.summary.state)],
    row('Steps', s => s.total_steps > 0 ? `${s.step} of ${s.total_steps}` : String(s.step)),
    row('Labels so far', s => shortNumber(s.tokens)),
    row('Loss of the last step', s => shortNumber(s.loss)),
    row('Evaluation loss, last', s => shortNumber(s.eval_loss)),
    row('Evaluation loss, best', s => isNumber(s.best_eval_loss) ? `${shortNumber(s.best_eval_loss)} at step ${s.best_eval_step}` : '–'),
    row('Tokens per second, recent steps', s => shortNumber(s.tokens_per_second)),
    row('Time of a step, recent steps', s => duration(s.step_seconds)),
    row('Slowest rank, recent steps', ({slow_rank: slow}) => slow ? `${slow.rank} in ${slow.steps} of ${slow.of_steps}: ${duration(slow.seconds)} without waiting, mean ${duration(slow.mean_seconds)}` : '–'),
    row('MFU, recent steps', s => percent(s.mfu)),
    row('Memory in the last job, at most', s => bytes(s.memory_bytes)),
    row('Wall time, breaks included', s => duration(s.elapsed_seconds)),
    row('Jobs, checkpoints', s => `${s.jobs}, ${s.checkpoints}`),
    row('Ranks, nodes', (_, run) => run.ranks > 0 ? `${run.ranks}, ${run.nodes}` : '–'),
    row('Parameters', (_, run) => run.parameters > 0 ? shortNumber(run.parameters) : '–'),
    ['Device', runs.map(run => run.device || '–')],
  ];
  const section = document.getElementById('overview');
  section.append(tableOfRuns(rows));
  for (const run of runs) {
    if (run.unreadable_lines > 0) section.append(element('p', {}, `${run.name}/metrics.jsonl has lines that cannot be read: ${run.unreadable_lines}`));
    if (run.steps.group > 1) {
      section.append(element('p', {class: 'hint'},
        `${run.name}: each point of a curve is the mean of ${run.steps.group} steps; the band shows the least and the largest value.`));
    }
    if (run.evaluations.group > 1)
      section.append(element('p', {class: 'hint'}, `${run.name}: each point of the evaluation loss is the mean of ${run.evaluations.group} evaluations.`));
    if (run.checkpoints.group > 1)
      section.append(element('p', {class: 'hint'}, `${run.name}: one of ${run.checkpoints.group} checkpoints is marked.`));
  }
  if (runs.length < 2) return;
  const boxes = runs.map((run, r) => {
    const box = element('input', {type: 'checkbox', checked: ''});
    box.addEventListener('change', () => {
      if (box.checked) view.hidden.delete(r); else view.hidden.add(r);
      show({});
    });
    return element('label', {}, box, swatch(r), run.name);
  });
  document.getElementById('controls').append(...boxes);
}

/** @param parts [name, colour] */
function legend(parts) {
  return element('p', {class: 'legend'}, ...parts.map(([name, paint]) => {
    const mark = element('span', {class: 'swatch'});
    mark.style.background = paint;
    return element('span', {class: 'item'}, mark, name);
  }));
}

function bar(names, parts) {
  const whole = sum(parts) || 1;
  return element('div', {class: 'bar'}, ...parts.map((part, i) => {
    const [name, paint] = names[i];
    const piece = element('span', {title: `${name}: ${percent(part / whole)}`});
    piece.style.width = `${100 * part / whole}%`;
    piece.style.background = paint;
    return piece;
  }));
}

/** A bar and its numbers for each row. @param names of the parts, with their colours; a part that is not a number is not known */
function barTable(names, rows, text) {
  const head = element('tr', {}, element('th', {}, ''), element('th', {}, ''), ...names.map(([name]) => element('th', {class: 'number'}, name)));
  const body = rows.map(({label, parts, note}) => element('tr', {}, element('th', {scope: 'row'}, label), element('td', {}, bar(names, parts.map(part => part ?? 0))),
    ...parts.map(part => element('td', {class: 'number'}, isNumber(part) ? `${text(part)} (${percent(part / (sum(parts) || 1))})` : '–')), note ? element('td', {}, note) : null));
  return element('div', {class: 'scroll'}, element('table', {class: 'bars'}, element('thead', {}, head), element('tbody', {}, ...body)));
}

function drawTime() {
  const shown = runs.filter(run => isNumber(run.summary.elapsed_seconds));
  const knowsRanks = shown.some(run => isNumber(run.summary.seconds_for_ranks));
  const names = [['Rest of the steps', partColour(PART.compute)], ['Waiting for other ranks', partColour(PART.ranks)],
    ['Waiting for data', partColour(PART.data)], ['Held up by checkpoints', partColour(PART.checkpoints)], ['Starts, last saves, evaluations, lost steps, breaks', partColour(PART.rest)]];
  const isShown = i => i !== PART.ranks || knowsRanks;
  const rows = shown.map(run => {
    const s = run.summary, ranks = s.seconds_for_ranks;
    const parts = [Math.max(0, s.seconds_in_steps - s.seconds_for_data - (ranks ?? 0)), ranks, s.seconds_for_data, s.seconds_for_checkpoints];
    return {label: run.name, parts: [...parts, Math.max(0, s.elapsed_seconds - sum(parts.map(part => part ?? 0)))].filter((_, i) => isShown(i))};
  });
  const shownNames = names.filter((_, i) => isShown(i));
  document.getElementById('time').append(element('p', {class: 'hint'}, 'Of all steps in metrics.jsonl: steps and the wait for data as rank 0 measures them, ' +
    'the wait for other ranks as the mean over the ranks (on CPUs; on GPUs only a trace shows it).'), legend(shownNames), barTable(shownNames, rows, duration));
}

function drawTrace() {
  const section = document.getElementById('trace');
  const traced = runs.filter(run => run.trace.length > 0);
  const incomplete = runs.filter(run => run.traces_left_out !== '');
  for (const run of incomplete) section.append(element('p', {class: 'hint'}, `${run.name}, traces left out: ${run.traces_left_out}.`));
  if (traced.length === 0) {
    if (incomplete.length === 0) section.append(element('p', {class: 'hint'}, 'There is no trace. With log.trace = 10-12 a run writes one of these steps, which this part sums up.'));
    return;
  }
  const names = [['Computing', partColour(PART.compute)], ['Waiting for communication', partColour(PART.ranks)], ['Neither', partColour(PART.rest)]];
  section.append(element('p', {class: 'hint'}, 'From the traces that log.trace wrote: the average traced step of each rank. Communication ' +
    'in parallel with computation counts as computing. The other ranks wait in communication for the rank that computes longest.'), legend(names));
  for (const run of traced) {
    const {first_step, last_step, is_of_earlier_job, slowest, excess} = run.summary.traced;
    section.append(element('p', {class: 'hint'}, `${run.name}, ${first_step === last_step ? `step ${first_step}` : `steps ${first_step}-${last_step}`}` +
      `${is_of_earlier_job ? ', of an earlier job than the last' : ''}:`));
    const rows = run.trace.map(rank => ({
      label: `${run.name}, rank ${rank.rank}`,
      parts: [rank.compute, rank.exposed, Math.max(0, rank.step - rank.compute - rank.exposed)],
      note: rank.rank === slowest && excess > 0.1 ? `slowest: ${percent(excess)} above the median` : '',
    }));
    section.append(barTable(names, rows, duration));
    const operations = {};
    for (const rank of run.trace) {
      for (const [name, time] of Object.entries(rank.operations)) operations[name] = (operations[name] ?? 0) + time / run.trace.length;
    }
    const sorted = Object.entries(operations).sort((a, b) => b[1] - a[1]);
    section.append(element('p', {class: 'hint'}, `${run.name}, time of each operation in a step, mean over ranks (operations of different streams overlap): ` +
      sorted.map(([name, time]) => `${name} ${duration(time)}`).join(', ')));
  }
}

function drawMemory() {
  const section = document.getElementById('memory');
  const known = runs.filter(run => Object.keys(run.memory.planned).length > 0);
  if (known.length === 0) {
    section.append(element('p', {class: 'hint'}, 'There is no history.jsonl, in which newer programs keep what memory they planned.'));
    return;
  }
  const total = sizes => Object.keys(sizes).length > 0 ? sum(Object.values(sizes)) : NaN;
  const purposes = [...new Set(known.flatMap(run => Object.keys(run.memory.peak)))]
    .sort((a, b) => Math.max(...runs.map(run => run.memory.peak[b] ?? 0)) - Math.max(...runs.map(run => run.memory.peak[a] ?? 0)));
  section.append(element('p', {class: 'hint'}, 'Of each rank, in the last job. What is in use also counts the program, libraries and what they allocate.'),
    tableOfRuns([
      ['Planned for the device', runs.map(run => ({number: bytes(run.memory.planned.device)}))],
      ['Planned for the host', runs.map(run => ({number: bytes(run.memory.planned.host)}))],
      ['Of that used in the first step', runs.map(run => ({number: bytes(total(run.memory.used))}))],
      ['In use, at most', runs.map(run => ({number: bytes(run.summary.memory_bytes)}))],
      ...purposes.map(name => [`At the peak of a step: ${name}`, runs.map(run => ({number: bytes(run.memory.peak[name])}))]),
    ]));
}

function drawHistory() {
  const section = document.getElementById('history');
  const rows = runs.flatMap((run, r) => run.jobs.map((event, i, all) => {
    const lost = event.kind === 'start' && i > 0 && all[i - 1].kind === 'start' ? '; the previous job ended without reporting a reason' : '';
    const what = event.kind === 'end' ? `ended: ${event.outcome}` : describeStart(event) + lost;
    const checkpoints = event.checkpoints > 0 ? `${event.checkpoints} (${duration(event.checkpoint_seconds)} each)` : '';
    return element('tr', {}, element('td', {}, swatch(r), run.name), element('td', {}, date(event.time)), element('td', {}, what),
      element('td', {class: 'number'}, String(event.step)), element('td', {}, checkpoints));
  }));
  if (rows.length === 0) {
    section.append(element('p', {class: 'hint'}, 'There is no history.jsonl, which newer programs write.'));
    return;
  }
  const head = ['Run', 'When', 'What', 'Step', 'Checkpoints'].map(name => element('th', {}, name));
  section.append(element('div', {class: 'scroll'}, element('table', {}, element('thead', {}, element('tr', {}, ...head)), element('tbody', {}, ...rows))));
}

function drawConfiguration() {
  const section = document.getElementById('configuration');
  const keys = part => [...new Set(runs.flatMap(run => Object.keys(run[part])))];
  const rows = [...keys('config').map(key => [key, runs.map(run => run.config[key] ?? '–')]),
    ...keys('notes').map(key => [`${key}, as read`, runs.map(run => run.notes[key] ?? '–')])];
  const differs = cells => cells.some(cell => cell !== cells[0]);
  const draw = all => rows.filter(([, cells]) => all || differs(cells)).map(([key, cells]) => [key, cells, differs(cells) ? {class: 'differs'} : {}]);
  if (runs.length < 2) {
    section.append(tableOfRuns(draw(true)));
    return;
  }
  const box = element('input', {type: 'checkbox'});
  let table = tableOfRuns(draw(false));
  box.addEventListener('change', () => {
    const other = tableOfRuns(draw(box.checked));
    table.replaceWith(other);
    table = other;
  });
  section.append(element('p', {}, element('label', {}, box, ' also keys that are the same in all runs')), table);
}

// ---- all of it ----

document.getElementById('made').textContent = `Made ${data.made} from ${runs.map(run => run.name).join(', ')}`;
drawOverview();
drawTime();
drawTrace();
drawMemory();
drawHistory();
drawConfiguration();

const input = id => document.getElementById(id);
input('axis').addEventListener('change', event => show({axis: event.target.value, range: null}));
input('smoothing').addEventListener('input', event => show({smoothing: Number(event.target.value)}));
input('log').addEventListener('change', event => show({log: event.target.checked}));
input('events').addEventListener('change', event => show({events: event.target.checked}));
input('whole').addEventListener('click', () => show({range: null}));
narrow.addEventListener('change', () => show({}));
const isLong = runs.some(run => run.steps.step.length > 50);
input('smoothing').value = isLong ? 0.6 : 0;
show({smoothing: isLong ? 0.6 : 0});
document.documentElement.dataset.drawn = 'true';
