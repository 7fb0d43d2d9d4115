// The selection of a pass, and the norm of each leaf's gradient over the passes.

const heldPasses = new Map(data.held.map((pass, position) => [pass, position]));
const chart = { w: 0, h: 0, left: 48, right: 10, top: 8, bottom: 18, x: null, hovered: -1 };
const FEW_PASSES = 3;

function startPasses() {
  const choice = $("pass");
  const order = data.held.map((pass, position) => [pass, position]).sort((a, b) => (a[0] || 0) - (b[0] || 0));
  const title = new Map(data.passes);
  choice.replaceChildren(...order.map(([pass, position]) =>
    element("option", { value: position }, pass === null ? said("the whole run") : `${said("pass {number} of {count}", { number: pass, count: data.passes.length })}${title.get(pass) ? ` · ${title.get(pass)}` : ""}`)));
  on("held", () => {
    choice.value = app.view.position;
    say(data.lesson.say.later);
  });
  choice.addEventListener("change", () => openPass(Number(choice.value)));
  choice.disabled = order.length < 2;
  if (data.norms.passes.length < 2 || data.norms.leaves.every((leaf) => leaf.norms.every((norm) => norm === null))) {
    $("chart").hidden = true;
    $("chart-toggle").hidden = true;
    return;
  }
  $("chart-toggle").addEventListener("click", () => toggleChart());
  if (data.norms.passes.length <= FEW_PASSES) toggleChart(false); // they say little, and the picture needs the room
  $("legend").replaceChildren(...data.norms.leaves.map(legendRow));
  $("chart-filter").addEventListener("input", filterNames);
  $("chart-mean").addEventListener("change", drawChart);
  const plot = $("plot");
  plot.addEventListener("pointermove", (event) => hover(nearestPass(event)));
  plot.addEventListener("pointerleave", () => hover(-1));
  plot.addEventListener("click", (event) => goToPass(data.norms.passes[nearestPass(event)]));
  new ResizeObserver(drawChart).observe(plot);
}

function toggleChart(show = $("chart").hidden) {
  $("chart").hidden = !show;
  $("chart-toggle").setAttribute("aria-pressed", String(show));
}

// Show a pass, at the same place and scale if it is like the one before.
async function openPass(position) {
  const before = app.view;
  if ((await openView(position)) && !areAlike(before, app.view)) fit(false);
}

// Go to a pass. If the page does not contain it, show the command that makes a page for it.
function goToPass(number) {
  if (heldPasses.has(number)) {
    if (data.held[app.asked] !== number) openPass(heldPasses.get(number));
  } else say(`${said("pass {number} is not in this page; make a page with it:", { number })} gradviz graph ${data.trace} --pass ${number} -o pass${number}.html`);
}

// The next or previous pass that the page contains.
function nextPass(direction) {
  const numbers = data.held.filter((pass) => pass !== null).sort((a, b) => a - b);
  const at = numbers.indexOf(data.held[app.asked]);
  const wanted = at < 0 ? (direction > 0 ? 0 : numbers.length - 1) : at + direction;
  if (numbers[wanted] !== undefined) goToPass(numbers[wanted]);
  else say(direction > 0 ? said("this is the last pass") : said("this is the first pass"));
}

// --- the chart

const isNumber = (norm) => typeof norm === "number" && norm > 0;

function drawChart() {
  const plot = $("plot");
  chart.w = plot.clientWidth;
  chart.h = plot.clientHeight;
  if (!chart.w || !chart.h) return;
  const { passes, leaves } = data.norms;
  const all = leaves.flatMap((leaf) => leaf.norms.filter(isNumber));
  let [least, most] = [Math.log10(Math.min(...all)), Math.log10(Math.max(...all))];
  if (!all.length) [least, most] = [-1, 1];
  if (most - least < 0.4) [least, most] = [least - 0.3, most + 0.3];
  const right = chart.w - chart.right;
  const bottom = chart.h - chart.bottom;
  chart.x = (at) => (passes.length > 1 ? chart.left + (at * (right - chart.left)) / (passes.length - 1) : chart.left);
  const y = (norm) => bottom - ((Math.log10(norm) - least) * (bottom - chart.top)) / (most - least);
  const parts = gridLines(least, most, y, right);
  for (const at of ticks(passes)) {
    parts.push(label(chart.x(at), chart.h - 4, String(passes[at]), at === 0 ? "start" : at === passes.length - 1 ? "end" : "middle"));
  }
  leaves.forEach((leaf, number) => parts.push(...series(leaf, number, y, bottom)));
  parts.push(svg("line", { id: "cursor", class: "off", y1: chart.top, y2: bottom }), svg("line", { id: "here", y1: chart.top, y2: bottom }));
  plot.setAttribute("viewBox", `0 0 ${chart.w} ${chart.h}`);
  plot.replaceChildren(...parts);
  filterNames();
  markPass();
}

function gridLines(least, most, y, right) {
  const step = Math.max(1, Math.ceil((most - least) / 4));
  const parts = [];
  for (let power = Math.ceil(least); power <= most; power += step) {
    parts.push(svg("line", { class: "grid", x1: chart.left, x2: right, y1: y(10 ** power), y2: y(10 ** power) }));
    parts.push(label(chart.left - 6, y(10 ** power) + 4, power > -4 && power < 5 ? String(Number((10 ** power).toPrecision(1))) : `1e${power}`, "end"));
  }
  if (parts.length < 2) {
    for (const power of [least + (most - least) * 0.15, least + (most - least) * 0.85]) {
      parts.push(label(chart.left - 6, y(10 ** power) + 4, Number((10 ** power).toPrecision(2)).toString(), "end"));
    }
  }
  return parts;
}

function label(x, y, text, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

// The positions of the passes whose numbers stand below the chart: multiples of a round number, and the first and the last
// where these are not too near.
function ticks(passes) {
  const count = passes.length;
  const most = Math.max(2, Math.floor(chart.w / 60));
  const step = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((zeros) => digit * 10 ** zeros)).sort((a, b) => a - b).find((one) => count / one <= most);
  const areInTurn = passes[count - 1] - passes[0] === count - 1;
  const shown = passes.map((_, at) => at).filter((at) => (areInTurn ? passes[at] : at) % step === 0);
  const isFar = (at) => shown.every((other) => Math.abs(other - at) > 0.6 * step);
  for (const end of [0, count - 1]) if (isFar(end)) shown.push(end);
  return shown;
}

// A colour by name: a leaf has the same in each run. Neighbouring hues may belong to any names, so lines differ by dashes, too.
function coloured(made, name) {
  let code = 2166136261; // FNV-1a, which spreads names that are much alike
  for (const letter of name) code = Math.imul(code ^ letter.codePointAt(0), 16777619) >>> 0;
  made.style.setProperty("--hue", code % 360);
  made.classList.add(`dash${Math.floor(code / 360) % 3}`);
  return made;
}

// The running mean of the logarithms of norms over the last passes; what is no norm stays as it is.
function averaged(norms, count) {
  if (count < 2) return norms;
  return norms.map((norm, at) => {
    if (!isNumber(norm)) return norm;
    const near = norms.slice(Math.max(0, at - count + 1), at + 1).filter(isNumber);
    return 10 ** (near.reduce((sum, one) => sum + Math.log10(one), 0) / near.length);
  });
}

// Show only the lines whose names have a text in them.
function filterNames() {
  const wanted = $("chart-filter").value.trim().toLowerCase();
  const isOff = (number) => !data.norms.leaves[number].name.toLowerCase().includes(wanted);
  [...$("legend").children].forEach((row, number) => (row.hidden = isOff(number)));
  for (const line of $("plot").querySelectorAll(".series")) line.classList.toggle("off", isOff(Number(line.dataset.leaf)));
}

// The line of one leaf. It is interrupted where a pass did not reach the leaf; a cross marks NaN or inf.
function series(leaf, number, y, bottom) {
  let path = "";
  let pen = "M";
  const marks = [];
  averaged(leaf.norms, Number($("chart-mean").value)).forEach((norm, at) => {
    if (isNumber(norm)) {
      path += `${pen}${round(chart.x(at))} ${round(y(norm))}`;
      pen = "L";
      if (leaf.norms.length <= 60) marks.push(svg("circle", { cx: chart.x(at), cy: y(norm), r: 2 }));
    } else {
      pen = "M";
      if (norm === "odd") marks.push(svg("path", { class: "odd", d: `M${chart.x(at) - 3} ${chart.top}l6 6m0 -6l-6 6` }));
      else if (norm === 0) marks.push(svg("circle", { cx: chart.x(at), cy: bottom, r: 2 }));
    }
  });
  return [coloured(svg("g", { class: "series", "data-leaf": number }, svg("path", { class: "line", d: path || "M0 0" }), ...marks), leaf.name)];
}

function legendRow(leaf, number) {
  return coloured(element("button", { type: "button", title: leaf.name,
    onclick: () => selectLeaf(leaf.name), onpointerenter: () => emphasize(number), onpointerleave: () => emphasize(-1),
    onfocus: () => emphasize(number), onblur: () => emphasize(-1) },
  element("i"), element("span", {}, element("bdi", {}, leaf.name)), element("b", {})), leaf.name);
}

function selectLeaf(name) {
  const node = app.view.nodes.find((one) => one.leaf && one.name === name && one.until === undefined);
  if (node) select(node.id, true);
  else say(said("{name} is not in this graph", { name }));
}

function emphasize(number) {
  $("plot").classList.toggle("one", number >= 0);
  for (const line of $("plot").querySelectorAll(".series")) line.classList.toggle("on", Number(line.dataset.leaf) === number);
}

function nearestPass(event) {
  const box = $("plot").getBoundingClientRect();
  const count = data.norms.passes.length;
  const share = (event.clientX - box.left - chart.left) / (chart.w - chart.left - chart.right);
  return Math.min(count - 1, Math.max(0, Math.round(share * (count - 1))));
}

function hover(at) {
  chart.hovered = at;
  const cursor = $("cursor");
  if (cursor && chart.x) {
    cursor.classList.toggle("off", at < 0);
    if (at >= 0) {
      cursor.setAttribute("x1", chart.x(at));
      cursor.setAttribute("x2", chart.x(at));
    }
  }
  showNorms(at < 0 ? data.norms.passes.indexOf(app.view.pass) : at);
}

function showNorms(at) {
  $("chart-title").textContent = at < 0 ? said("norm of each .grad, by pass") : said("norm of each .grad after pass {number}", { number: data.norms.passes[at] });
  [...$("legend").children].forEach((row, number) => {
    const norm = at < 0 ? null : data.norms.leaves[number].norms[at];
    row.lastChild.textContent = norm === null || norm === undefined ? "–" : norm === "odd" ? "NaN/inf" : Number(norm.toPrecision(4)).toString();
  });
}

function markPass() {
  const here = $("here");
  const at = data.norms.passes.indexOf(app.view ? app.view.pass : null);
  if (here && chart.x) {
    here.classList.toggle("off", at < 0);
    here.setAttribute("x1", chart.x(Math.max(at, 0)));
    here.setAttribute("x2", chart.x(Math.max(at, 0)));
  }
  showNorms(at);
}

on("view", () => {
  $("pass").value = String(app.view.position);
  markPass();
});
