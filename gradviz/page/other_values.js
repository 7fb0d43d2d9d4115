// Other values for what enters the pass. The values and the gradients of the view follow, and what is known of the
// recorded values alone is not shown meanwhile.

const tried = { shown: null, view: null, recorded: null, entered: null, chosen: null, fields: new Map() };

// --- texts of numbers, as Python writes them (`words/numbers.py`)

function shortNumber(value, digits) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e").map(Number);
  if (value === 0) return "0";
  return exponent < -4 || exponent >= digits ? `${mantissa}e${exponent}` : String(Number(value.toPrecision(digits)));
}

function nestedText(list, shape, digits) {
  if (!shape.length) return typeof list[0] === "boolean" ? (list[0] ? "True" : "False") : shortNumber(list[0], digits);
  const part = list.length / shape[0];
  const rows = Array.from({ length: shape[0] }, (none, i) => nestedText(list.slice(i * part, (i + 1) * part), shape.slice(1), digits));
  return `[${rows.join(", ")}]`;
}

const FEW_ELEMENTS = 6;

// An entry of `values.js` without its event: text, short text, norm, whether an element is NaN or infinite.
function describedValue({ x, shape, dtype }) {
  const list = dtype === "bool" ? x.map(Boolean) : x;
  const finite = x.filter(Number.isFinite);
  const odd = finite.length < x.length;
  const squares = finite.reduce((all, one) => all + one * one, 0);
  const norm = odd ? null : Number(Math.sqrt(squares).toPrecision(6));
  if (x.length <= FEW_ELEMENTS) {
    const [digits, fewer] = x.length === 1 ? [6, 4] : [4, 3];
    return [nestedText(list, shape, digits), nestedText(list, shape, fewer), norm, +odd];
  }
  const nan = x.filter(Number.isNaN).length;
  const bad = [[nan, "NaN"], [x.length - finite.length - nan, "inf"]].filter(([count]) => count).map(([count, name]) => `${count} ${name}`);
  const rms = finite.length ? [`rms ${shortNumber(Math.sqrt(squares / finite.length), 4)}`] : [];
  const span = finite.length ? `, ${shortNumber(Math.min(...finite), 4)} to ${shortNumber(Math.max(...finite), 4)}` : "";
  const full = `(${shape.join("×")}) ${[...bad, ...rms].join(", ")}${span}`;
  return [full, [...rms, ...bad].join(", "), norm, +odd];
}

// --- a view with other values

const CHANGED = ["tensors", "steps", "waits", "why", "book", "summary", "notes", "sizes", "normRange"];

function keepRecorded(view) {
  tried.view = view;
  tried.recorded = Object.fromEntries(CHANGED.map((name) => [name, view[name]]));
  tried.recorded.flows = view.edges.map((edge) => edge.flows);
  tried.recorded.findings = new Map(view.nodes.filter((node) => node.finding).map((node) => [node, node.finding]));
}

const unknown = () => [said("not known with other values"), "?", null, 0];

// Entries of which those that are known get what was computed (`foundAt` an event), and the others say that nothing is
// known.
const entriesWith = (entries, isKnown, isOther, foundAt) =>
  entries.map((entry, i) => {
    const found = isKnown(entry[0]) && foundAt(entry[0]);
    return entry.length < 2 || !isOther(entry[0], i) ? entry : [entry[0], ...(found ? described(found) : unknown())];
  });

const described = (found) => (found.told ||= describedValue(found));

function otherTensors({ again }, recorded, { values, sums }) {
  const first = new Map(again.leaves.map((leaf) => [leaf.t, leaf.first]));
  const before = new Map(again.grads.map((grad) => [grad.t, grad.before]));
  const isKnown = (k) => k <= again.end;
  // The number of what a tensor was at an event.
  const versionAt = (t, k) => (again.versions[t] || []).findLast(([event]) => event <= k)?.[1] ?? t;
  return Object.fromEntries(Object.entries(recorded).map(([name, { v, g }]) => {
    const t = Number(name);
    // A leaf had other values before, which stay: what is set is the value that the pass has used.
    const from = first.has(t) ? Math.max(0, v.findLastIndex((entry) => entry[0] <= first.get(t))) : 0;
    const last = versionAt(t, again.end);
    const sum = before.has(last) && sums.has(last) ? gradOfLeaf(values.get(last), sums.get(last), before.get(last)) : null;
    return [name, {
      v: entriesWith(v, isKnown, (k, i) => i >= from, (k) => values.get(versionAt(t, k))),
      g: entriesWith(g, isKnown, (k) => k >= again.began, () => sum),
    }];
  }));
}

function gradOfLeaf({ shape, dtype }, sum, before) {
  const x = before ? sum.map((one, i) => one + Number(before[i])) : sum;
  return { shape, dtype, x: dtype === "float32" ? x.map(Math.fround) : x };
}

function setFlows(view, recorded, { values, flows }) {
  const found = new Map([...flows].map(([[place], { t, x }]) => [place, { ...values.get(t), x, told: null }]));
  view.edges.forEach((edge, place) => {
    edge.flows = entriesWith(recorded[place], () => true, () => true, () => found.get(place));
  });
}

// What each event says; of one that tells numbers, what happens without them.
const SAYS = {
  received: "{name} receives a gradient",
  produced: "{name} gives gradients to its inputs",
  accumulated: "a gradient is added to {name}.grad",
  retained: "{name} keeps its gradient",
};
const WITHOUT_NUMBERS = ["op", "node", "tensor", "pass_began", "pass_ended", "scope_entered", "scope_left", "requires_grad_changed", "grads_cleared", "mutated", "stepped", "holds", "scheduled"];

function stepWithoutNumbers(step) {
  const name = step.ids.length ? nameOf(step.ids[0]) : "?";
  const text = SAYS[step.kind] ? said(SAYS[step.kind], { name }) : WITHOUT_NUMBERS.includes(step.kind) ? step.text : said("an event whose numbers are those of the recording");
  return { ...step, text, rows: null, told: null };
}

// What was set, as a program would write it.
function setsTold() {
  const told = [];
  for (const field of tried.fields.values()) if (field.now !== field.was) told.push(`${field.name} = ${field.now}`);
  return told;
}

function showOthers() {
  const view = app.view;
  if (!setsTold().length) return setBack();
  if (tried.view !== view) keepRecorded(view);
  const { recorded } = tried;
  const found = passAgain.computedPass(view.again, tried.entered);
  view.tensors = otherTensors(view, recorded.tensors, found);
  setFlows(view, recorded.flows, found);
  view.steps = recorded.steps.map(stepWithoutNumbers);
  for (const node of recorded.findings.keys()) node.finding = undefined;
  const told = setsTold();
  const few = told.length > 4 ? [...told.slice(0, 4), "…"] : told;
  Object.assign(view, { waits: {}, why: {}, book: "", summary: null, normRange: null, lastKnown: view.again.end });
  view.notes = [...recorded.notes, said("computed by this page up to the end of the pass, with {sets}", { sets: few.join(", ") })];
  return showAgain(new Map([...(view.sizes || [])].map(([id, old]) => [id, id.startsWith("title ") ? old : larger(old, newSize(id))])));
}

const larger = (a, b) => ({ w: Math.max(a.w, b.w), h: Math.max(a.h, b.h) });

function showAgain(sizes) {
  const { view } = app;
  view.sizes = sizes;
  const isChanged = view.lastKnown < Infinity;
  document.body.classList.toggle("changed", isChanged);
  $("tried-back").disabled = !isChanged;
  app.step = allowed(app.step);
  draw();
  showBook();
  showNotes();
  tell("step");
  showPanel();
}

// Everything as it was recorded.
function setBack() {
  const { view, recorded } = tried;
  if (!view) return;
  Object.assign(view, Object.fromEntries(CHANGED.map((name) => [name, recorded[name]])), { lastKnown: Infinity });
  view.edges.forEach((edge, place) => (edge.flows = recorded.flows[place]));
  for (const [node, finding] of recorded.findings) node.finding = finding;
  tried.view = null;
  document.body.classList.remove("changed");
  if (view !== app.view) return;
  fillFields();
  showAgain(view.sizes);
}

// --- the fields

const DIGITS = 5; // of a field; an element that nobody changes keeps all its bits

const MOST_BESIDE = 3;

function fieldsOf({ t, shape, x, dtype }) {
  const node = (app.view.tensorNodes.get(t) || [])[0];
  const name = node ? nameOf(node.id) : `t${t}`;
  const fields = x.map((one, i) => {
    const place = shape.map((count, dim) => Math.floor(i / shape.slice(dim + 1).reduce((a, b) => a * b, 1)) % count);
    const was = Number(Number(one).toPrecision(DIGITS));
    const field = { t, i, dtype, name: place.length ? `${name}[${place.join(", ")}]` : name, was, now: was };
    field.input = element("input", {
      type: "number", step: "any", "aria-label": field.name, title: field.name,
      onfocus: () => choose(field), oninput: () => setField(field, field.input.value),
      onpointerdown: (event) => (field.grip = event.button ? null : { x: event.clientX, value: middle(field.now), isHeld: false }),
      onpointermove: (event) => pull(field, event),
      onpointerup: () => (field.grip = null),
      onselectstart: (event) => field.grip?.isHeld && event.preventDefault(),
      onkeydown: (event) => stepByKey(field, event),
    });
    tried.fields.set(`${t} ${i}`, field);
    return field.input;
  });
  const grid = element("div", {}, fields);
  grid.style.gridTemplateColumns = `repeat(${Math.min(shape.at(-1) || 1, MOST_BESIDE)}, 6em)`;
  return element("fieldset", {}, element("legend", {}, name), grid);
}

function fillFields() {
  tried.entered = passAgain.recordedLeaves(app.view.again);
  for (const field of tried.fields.values()) {
    field.now = field.was;
    field.input.value = Number.isFinite(field.was) ? field.was : "";
    field.input.classList.remove("set");
  }
  if (tried.chosen) choose(tried.chosen);
}

const middle = (value) => (Number.isFinite(value) ? value : 0);
const stepOf = (field) => 0.02 * Math.max(1, Math.abs(middle(field.was)));

function changeTo(field, value) {
  const step = stepOf(field);
  const near = Number((Math.round(value / step) * step).toPrecision(6));
  field.input.value = near;
  setField(field, near);
}

const FEW_PIXELS = 3; // of a click

// Change a number by pulling it to the right or to the left.
function pull(field, event) {
  const { grip } = field;
  if (!grip || !(event.buttons & 1)) return;
  const way = event.clientX - grip.x;
  if (!grip.isHeld && Math.abs(way) < FEW_PIXELS) return;
  if (!grip.isHeld) field.input.setPointerCapture(event.pointerId);
  grip.isHeld = true;
  changeTo(field, grip.value + way * stepOf(field));
}

function stepByKey(field, event) {
  const ways = { ArrowUp: 1, ArrowDown: -1 };
  if (!(event.key in ways)) return;
  event.preventDefault();
  changeTo(field, middle(field.now) + ways[event.key] * stepOf(field) * (event.shiftKey ? 10 : 1));
}

// The field that the slider changes.
function choose(field) {
  tried.chosen = field;
  const drag = $("tried-drag");
  const recorded = middle(field.was);
  const reach = Math.max(100 * stepOf(field), Math.abs(field.now - recorded) || 0);
  Object.assign(drag, { min: recorded - reach, max: recorded + reach, step: reach / 100 });
  drag.value = Number.isFinite(field.now) ? field.now : recorded;
  drag.setAttribute("aria-label", field.name);
  $("tried-name").textContent = field.name;
}

function setField(field, text) {
  const value = Number(text);
  if (String(text).trim() === "" || !Number.isFinite(value)) return;
  field.now = value === Number(field.was) ? field.was : value;
  field.input.classList.toggle("set", field.now !== field.was);
  if (field === tried.chosen && Number($("tried-drag").value) !== value) choose(field);
  tried.entered.get(field.t)[field.i] = field.now === field.was ? passAgain.recordedLeaves(app.view.again).get(field.t)[field.i] : value;
  showOthers();
}

const MOST_OPEN = 4; // elements: more fields are shown if asked for, and all below a narrow page's picture

function showTried() {
  const section = $("tried");
  if (tried.shown === app.view) return; // it is drawn in another way
  setBack();
  tried.shown = app.view;
  tried.fields = new Map();
  tried.chosen = null;
  section.replaceChildren();
  showIfOpen();
  if (whyFixed()) return;
  const leaves = app.view.again.leaves.filter((leaf) => leaf.dtype.startsWith("float"));
  const fields = leaves.map(fieldsOf);
  section.append(element("details", { id: "tried-all", open: tried.fields.size <= MOST_OPEN && innerWidth > 760 },
    element("summary", {}, said("What if? Other values")),
    element("p", { class: "hint" }, said("Drag a number, type it, or press ↑ and ↓.")),
    fields,
    element("div", { class: "drag" },
      element("label", { id: "tried-name", for: "tried-drag" }),
      element("input", { type: "range", id: "tried-drag", oninput: () => drag() }),
      element("button", { type: "button", id: "tried-back", disabled: true, onclick: () => setBack() }, said("Set back")))));
  tried.chosen = [...tried.fields.values()][0];
  fillFields();
}

function drag() {
  const value = Number(Number($("tried-drag").value).toPrecision(6));
  tried.chosen.input.value = value;
  setField(tried.chosen, value);
}

function openTried() {
  $("tried-all").open = true;
  [...tried.fields.values()][0].input.focus();
}

// A lesson's question is answered first: other values would tell.
function showIfOpen() {
  $("tried").hidden = Boolean(whyFixed()) || isAsked();
}

// Set what a question was about: `x = 3`.
function trySet(text) {
  const [name, value] = text.split("=").map((part) => part.trim());
  const field = [...tried.fields.values()].find((one) => one.name === name);
  if (!field) return;
  field.input.value = value;
  setField(field, value);
}

on("view", showTried);
on("asked", showIfOpen);
on("try", trySet);
on("recorded", setBack);
