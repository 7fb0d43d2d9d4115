// The curves of a report: drawn from the data in the page, filtered by name, smoothed, and enlarged together.

"use strict";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [520, 220, 56, 36, 22, 30];
const LABELS = 6;
const controls = document.getElementById("controls");
const [filter, mean, scale, whole] = ["filter", "mean", "scale", "whole"].map((id) => document.getElementById(id));
const zoomed = {}; // the first and last place that are shown, by axis: pass or step
const charts = [...document.querySelectorAll(".plot")].map((plot) => ({
  plot, ...JSON.parse(plot.dataset.curves), rows: [...plot.parentElement.querySelectorAll(".legend li")],
}));

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const label = (x, y, text, anchor) => svg("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor }, text);
const short = (value) => (value === null ? "not finite" : String(Number(value.toPrecision(3))));

// --- scales

const roundSteps = Array.from({ length: 60 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

// The first and the last pass or step, and round numbers between them that are not too near to these.
function numbersBelow(first, last) {
  const most = last >= 10000 ? 5 : 9;
  const step = roundSteps.find((one) => last - first <= most * one);
  const shown = [first];
  for (let number = Math.ceil((first + 1) / step) * step; number < last; number += step) {
    if (Math.min(number - first, last - number) >= 0.8 * step) shown.push(number);
  }
  return last > first ? [...shown, last] : shown;
}

// Round values between two: multiples of 1, 2 or 5 times a power of ten, or such numbers themselves on a logarithmic scale.
function roundValues(low, high, isLinear) {
  if (isLinear) {
    const decade = 10 ** Math.floor(Math.log10((high - low) / LABELS));
    const step = [1, 2, 5, 10].map((factor) => factor * decade).find((one) => one >= ((high - low) / LABELS) * 0.999);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
  }
  const [from, to] = [Math.floor(low), Math.min(Math.ceil(high), 308)];
  const every = Math.max(1, Math.ceil((to - from + 1) / LABELS));
  const values = [];
  for (let power = from; power <= to; power++) {
    if (power % every === 0) values.push(...(high - low < 2 ? [1, 2, 5] : [1]).map((digit) => Number(`${digit}e${power}`)));
  }
  return values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
}

// The heights of the least and the largest value, with a margin.
function extent(heights, isLinear) {
  let [low, high] = [Infinity, -Infinity];
  for (const height of heights) if (Number.isFinite(height)) [low, high] = [Math.min(low, height), Math.max(high, height)];
  if (low > high) [low, high] = [-1, 1];
  const least = isLinear ? 0.05 * Math.max(Math.abs(low), Math.abs(high)) || 0.1 : 0.1;
  const margin = Math.max(0.05 * (high - low), least);
  return [low - margin, high + margin];
}

// The running mean of heights over the last `count` points; what is not finite stays as it is.
function averaged(heights, count) {
  return heights.map((height, at) => {
    if (!Number.isFinite(height)) return height;
    const near = heights.slice(Math.max(0, at - count + 1), at + 1).filter(Number.isFinite);
    return near.reduce((sum, one) => sum + one / near.length, 0);
  });
}

// --- drawing

const isShown = (name) => name.toLowerCase().includes(filter.value.trim().toLowerCase());

function draw(chart) {
  const isLinear = scale.value === "fitting" ? chart.linear : scale.value === "linear";
  const height = (value) => (value === null ? NaN : isLinear ? Math.min(1.8e306, Math.max(-1.8e306, value)) : value > 0 ? Math.log10(value) : -Infinity);
  const places = chart.series.flatMap((one) => one.at);
  const [first, last] = zoomed[chart.axis] || [Math.min(...places), Math.max(...places)];
  const curves = chart.series.map((one) => {
    const heights = one.values.map(height);
    const inside = one.at.map((at) => at >= first && at <= last);
    return { ...one, heights, inside, smooth: averaged(heights, Number(mean.value)) };
  });
  const seen = curves.filter((one) => isShown(one.name));
  const [low, high] = extent(seen.flatMap((one) => one.heights.filter((_, i) => one.inside[i])), isLinear);
  chart.x = (at) => LEFT + (last > first ? (at - first) / (last - first) : 0.5) * (WIDTH - LEFT - RIGHT);
  chart.at = (x) => first + ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (last - first);
  const y = (h) => HEIGHT - BOTTOM - (h === -Infinity ? 0 : ((h - low) / (high - low)) * (HEIGHT - TOP - BOTTOM));
  const parts = [];
  for (const value of roundValues(low, high, isLinear)) {
    const at = y(isLinear ? value : Math.log10(value));
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    parts.push(label(LEFT - 6, at + 4, String(Number(value.toPrecision(6))), "end"));
  }
  for (const place of numbersBelow(Math.ceil(first), Math.floor(last))) {
    parts.push(label(chart.x(place), HEIGHT - 8, place.toLocaleString("en"), "middle"));
  }
  for (const one of seen) parts.push(curve(one, chart.x, y));
  for (const [at, text, link] of chart.marks) parts.push(mark(chart.x(Math.min(last, Math.max(first, at))), text, link));
  chart.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const drawing = svg("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}` }, ...parts, chart.cursor);
  chart.plot.replaceChildren(drawing);
  chart.rows.forEach((row, i) => (row.hidden = !isShown(chart.series[i].name)));
}

// A curve: lines through finite values, above a pale line of those before smoothing, and a mark where others begin.
function curve(one, x, y) {
  const paths = { heights: "", smooth: "" };
  const marks = [];
  const inside = (i) => i >= 0 && i < one.at.length && one.inside[i];
  const isDrawn = (i) => inside(i) && !Number.isNaN(one.heights[i]);
  one.at.forEach((at, i) => {
    if (!one.inside[i]) return;
    const pen = isDrawn(i - 1) ? "L" : "M";
    if (isDrawn(i)) {
      for (const name of Object.keys(paths)) paths[name] += `${pen}${x(at).toFixed(1)} ${y(one[name][i]).toFixed(1)}`;
      if (pen === "M" && !isDrawn(i + 1)) marks.push(svg("circle", { cx: x(at), cy: y(one.smooth[i]), r: 2.5, fill: one.colour }));
    } else if (!inside(i - 1) || isDrawn(i - 1)) {
      let end = i;
      while (inside(end + 1) && !isDrawn(end + 1)) end += 1;
      marks.push(svg("line", { class: "odd", x1: x(at), x2: x(one.at[end]), y1: TOP, y2: TOP }));
      marks.push(svg("path", { class: "odd", d: `M${x(at) - 4} ${TOP - 6}h8l-4 7z` }, svg("title", {}, "not finite")));
    }
  });
  const lines = Object.entries(paths).filter(([name, path]) => path && (name === "smooth" || mean.value !== "1"));
  return svg("g", {}, svg("title", {}, one.name), ...lines.map(([name, d]) => svg("path", { class: `line ${name}`, d, stroke: one.colour })), ...marks);
}

function mark(x, text, link) {
  const made = svg("a", { href: link }, svg("rect", { x: x - 9, width: 18, height: HEIGHT - BOTTOM, fill: "transparent" }));
  made.append(svg("line", { class: "mark", x1: x, x2: x, y1: TOP - 6, y2: HEIGHT - BOTTOM }));
  made.append(svg("text", { class: "mark", x, y: 12, "text-anchor": "middle" }, text));
  return made;
}

const drawAll = () => charts.forEach(draw);

// --- the pointer: the values at a place, in all charts of an axis, and a stretch to enlarge

const placeOf = (chart, event) => {
  const box = chart.plot.getBoundingClientRect();
  return ((event.clientX - box.left) / box.width) * WIDTH;
};

// Show the values at a place in the legends of an axis; without a place, the last ones.
function point(axis, at) {
  for (const chart of charts.filter((one) => one.axis === axis)) {
    const nearest = (places) => places.reduce((best, place, i) => (Math.abs(place - at) < Math.abs(places[best] - at) ? i : best), 0);
    const shown = chart.series.map((one) => (at === null ? one.at.length - 1 : nearest(one.at)));
    chart.rows.forEach((row, i) => (row.lastChild.textContent = short(chart.series[i].values[shown[i]])));
    chart.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) ["x1", "x2"].forEach((name) => chart.cursor.setAttribute(name, chart.x(chart.series[0].at[shown[0]])));
  }
}

for (const chart of charts) {
  let from = null;
  chart.plot.addEventListener("pointerdown", (event) => (from = placeOf(chart, event)));
  chart.plot.addEventListener("pointermove", (event) => point(chart.axis, chart.at(placeOf(chart, event))));
  chart.plot.addEventListener("pointerleave", () => point(chart.axis, (from = null)));
  chart.plot.addEventListener("pointerup", (event) => {
    const ends = [from, placeOf(chart, event)].sort((a, b) => a - b).map((x) => Math.round(chart.at(x)));
    if (from !== null && Math.abs(from - placeOf(chart, event)) > 12 && ends[1] > ends[0]) enlarge(chart.axis, ends);
    from = null;
  });
  chart.plot.addEventListener("dblclick", () => enlarge(chart.axis, undefined));
}

function enlarge(axis, ends) {
  zoomed[axis] = ends;
  whole.hidden = !Object.values(zoomed).some(Boolean);
  drawAll();
}

whole.addEventListener("click", () => Object.keys(zoomed).forEach((axis) => enlarge(axis, undefined)));
for (const [control, event] of [[filter, "input"], [mean, "change"], [scale, "change"]]) control.addEventListener(event, drawAll);
controls.hidden = !charts.length;
drawAll();

// --- the small charts of the tables: a curve without axes, on a logarithmic scale, and a histogram

for (const cell of document.querySelectorAll("[data-curve]")) {
  const { at, values } = JSON.parse(cell.dataset.curve);
  const known = at.map((place, i) => [place, Math.log10(values[i])]).filter((_, i) => values[i] > 0);
  const heights = known.map((point) => point[1]);
  const [low, high] = [Math.min(...heights) - 0.1, Math.max(...heights) + 0.1];
  const points = known.map(([place, height]) => [
    2 + ((place - at[0]) / Math.max(at[at.length - 1] - at[0], 1)) * 106, 18 - ((height - low) / (high - low)) * 16,
  ]);
  const line = points.length === 1 ? svg("circle", { cx: points[0][0], cy: points[0][1], r: 2 }) : svg("polyline", { points: points.join(" ") });
  if (points.length) cell.append(svg("svg", { class: "small", viewBox: "0 0 110 20", width: 110, height: 20 }, line));
}

for (const cell of document.querySelectorAll("[data-bars]")) {
  const [low, high, counts] = JSON.parse(cell.dataset.bars);
  const [step, tallest] = [110 / counts.length, Math.max(1, ...counts)];
  const bars = counts.map((count, i) => svg("rect", { x: i * step, width: step - 0.4, y: 20 - (20 * count) / tallest, height: (20 * count) / tallest }));
  const zero = (-110 * low) / (high - low);
  if (low < 0 && high > 0) bars.unshift(svg("line", { x1: zero, x2: zero, y2: 20 }));
  cell.append(svg("svg", { class: "bars", viewBox: "0 0 110 20", width: 110, height: 20 }, ...bars));
}
