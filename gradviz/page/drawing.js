// The picture: boxes, frames and edges as SVG, and their look at the present event.

const SVG = "http://www.w3.org/2000/svg";
const LINE = 15; // the height of a line of text
const MOST_EXCHANGES = 4; // the most exchanges between ranks that a box lists
const FONTS = { name: "600 12.5px", label: "12px", fact: "11px", odd: "600 11px", finding: "600 11.5px" };
const FAMILY = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

const svg = (tag, attributes = {}, ...children) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function widthOf(text, role) {
  const key = `${role} ${text}`;
  if (!widths.has(key)) {
    pen.font = `${FONTS[role]} ${FAMILY}`;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}

// Whether a name is a path, such as encoder.layers.0.weight: its end tells it from others.
const isPath = (name) => /^[\w[\]]+(\.[\w[\]]+)+$/.test(name);

// A name as a short text: of a long path its end.
const cutName = (name, most) =>
  (name.length > most && isPath(name) ? `…${name.slice(name.length - most + 1)}` : cut(name, most));
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// --- the text of a box: lines of {role, text}; their number is the same at every event

function linesOf(id, k) {
  const lines = ownLines(id, k);
  const node = app.view.nodeOf.get(id);
  const gate = gateOf(id);
  if (gate) lines.push({ role: "gate", text: cut(gate, 60) });
  for (const text of exchangesOf(id)) lines.push({ role: "exchange", text: cut(text, 60) });
  if (node && node.finding) lines.push({ role: "finding", text: cut(node.finding, 40) });
  for (const text of apartLines(id)) lines.push({ role: "apart", text: cut(text, 60) });
  return lines;
}

// What ranks exchanged at a node, or inside a closed group: `all_gather · 2 ranks`.
function exchangesOf(id) {
  const group = app.view.groupOf.get(id);
  if (!group) return app.view.nodeOf.get(id).exchanges || [];
  if (group.exchanges === undefined) {
    const found = new Set();
    everyNode(group, (node) => (node.exchanges || []).forEach((text) => found.add(text)));
    group.exchanges = [...found].slice(0, MOST_EXCHANGES);
  }
  return group.exchanges;
}

// What a gradient, or the gradients in a closed module, went through between ranks after the pass; if not all of them
// did, how many.
function gateOf(id) {
  const group = app.view.groupOf.get(id);
  if (!group) return app.view.nodeOf.get(id).gate;
  const wanting = wantingIn(group);
  const through = wanting.filter((node) => node.gate);
  const few = through.length < wanting.length ? `, ${through.length} of ${wanting.length} gradients` : "";
  return through.length ? [...new Set(through.map((node) => node.gate))].join("; ") + few : "";
}

// What is not the same on all ranks: of a node, or how many nodes of a closed group.
function apartLines(id) {
  const group = app.view.groupOf.get(id);
  if (!group) return app.view.nodeOf.get(id).apart || [];
  if (group.apart === undefined) {
    group.apart = 0;
    everyNode(group, (node) => (group.apart += node.apart ? 1 : 0));
  }
  return group.apart ? [said("{count} inside not the same on all ranks", { count: counted(group.apart) })] : [];
}

// What a tensor of a small graph is for autograd.
const autogradLines = (node, k) =>
  (node.says ? [{ role: "fact", text: (node.says.filter((entry) => entry[0] <= k).pop() || node.says[0])[1] }] : []);

function ownLines(id, k) {
  const group = app.view.groupOf.get(id);
  if (group) return groupLines(group, k);
  const node = app.view.nodeOf.get(id);
  if (node.block) return node.block.map((text, at) => ({ role: at ? "fact" : "name", text: cut(text, 44) }));
  if (node.kind === "op") {
    const name = { role: "label", text: cut(nameOf(id), 26) };
    return node.shownArgs ? [name, { role: "fact", text: node.shownArgs }] : [name];
  }
  if (node.kind === "grad_fn") {
    const lines = [{ role: "label", text: cut(nameOf(id), 30) }];
    if (node.base && !app.view.ownerOf.has(id)) lines.push({ role: "fact", text: cut(said("of {expression}", { expression: node.base }), 30) });
    if (errorOf(node)) lines.push({ role: "odd", text: cut(node.error, 44) });
    return lines;
  }
  if (node.kind === "outside") {
    const lines = [{ role: "fact", text: placeOf(node) || said("no source location") }];
    return node.text ? [...lines, { role: "label", text: node.text }] : lines;
  }
  const value = valueOf(node, k);
  const lines = [
    { role: node.name ? "name" : "unnamed", text: cutName(nameOf(id), 32) },
    ...autogradLines(node, k),
    { role: value && value.odd ? "odd" : "fact", text: valueLine(shapeText(node), value) },
  ];
  if (showsGrad(node)) {
    const grad = isPresent(node, k) ? gradOf(node, k) : null;
    const none = isPresent(node, k) ? ".grad = None" : ""; // a line all the same: a box has as many at each event
    lines.push({ role: grad ? (grad.odd ? "odd" : "grad") : "none", text: grad ? valueLine(".grad", grad) : none });
  }
  for (const text of node.tangent ? node.tangent.lines : []) lines.push({ role: "grad", text: node.tangent.since <= k ? text : "" });
  return lines;
}

const valueLine = (shape, value) => {
  if (!value || !value.brief) return shape;
  return cut(/^(rms|from|true in)/.test(value.brief) ? `${shape} ${value.brief}` : `${shape} = ${value.brief}`, 40);
};

function groupLines(group, k) {
  if (group.lines.length) {
    const rest = group.lines.slice(1).map((text) => cut(text, 60));
    const grad = gradLine(group, k);
    return [{ role: "name", text: titleOf(group) }, ...rest.map((text) => ({ role: "fact", text })), ...(grad ? [grad] : [])];
  }
  const held = heldBy(group);
  const parts = [];
  if (held.op) parts.push(said(held.op > 1 ? "{count} ops" : "{count} op", { count: counted(held.op) }));
  if (held.leaf) parts.push(said(held.leaf > 1 ? "{count} leaves" : "{count} leaf", { count: counted(held.leaf) }));
  if (!parts.length) parts.push(`${held.grad_fn || 0} grad_fns`);
  return [
    { role: "name", text: titleOf(group) },
    { role: "fact", text: parts.join(" · ") },
  ];
}

// The gradients of the parameters in a group; null if it has none.
function gradLine(group, k) {
  if (group.kind !== "scope") return null;
  const wanting = wantingIn(group);
  if (!wanting.length) return isFrozen(group) ? { role: "fact", text: said("frozen") } : null;
  const grads = wanting.map((node) => gradOf(node, k)).filter((grad) => grad);
  if (!grads.length) return { role: "none", text: ".grad = None" };
  if (grads.some((grad) => grad.odd)) return { role: "odd", text: said(".grad with NaN or inf") };
  const norms = grads.map((grad) => grad.norm);
  const areKnown = norms.every((norm) => typeof norm === "number");
  const norm = areKnown ? ` norm ${Number(Math.hypot(...norms).toPrecision(4))}` : "";
  const without = wanting.length - grads.length;
  return { role: "grad", text: `.grad${norm}${without ? said(", {without} of {count} without", { without, count: wanting.length }) : ""}` };
}

// Whether a group of which no parameter requires grad has parameters.
function isFrozen(group) {
  if (group.holds === undefined) {
    group.holds = false;
    everyNode(group, (node) => (group.holds = group.holds || Boolean(node.leaf && node.parameter)));
  }
  return group.holds;
}

// The parameters in a group that require grad, in their last version.
function wantingIn(group) {
  if (!group.wanting) {
    const last = new Map();
    everyNode(group, (node) => {
      if (node.leaf && node.wants && node.parameter) last.set(node.tensor, node);
    });
    group.wanting = [...last.values()];
  }
  return group.wanting;
}

function heldBy(group) {
  if (!group.held) {
    group.held = { op: 0, leaf: 0, tensor: 0, grad_fn: 0 };
    for (const id of group.members) group.held[app.view.nodeOf.get(id).kind]++;
    for (const child of group.children) {
      for (const [kind, count] of Object.entries(heldBy(app.view.groupOf.get(child)))) group.held[kind] += count;
    }
  }
  return group.held;
}

// The name of a group: of a module, with its class.
const titleOf = (group) => cut(group.lines.length ? group.lines[0] : group.label, 60);

// The size of a box; it is wide enough at every event.
function sizeOf(id, title = false) {
  const sizes = (app.view.sizes ||= new Map());
  const key = title ? `title ${id}` : id;
  if (!sizes.has(key)) sizes.set(key, title ? { w: widthOf(titleOf(app.view.groupOf.get(id)), "name"), h: 0 } : newSize(id));
  return sizes.get(key);
}

const FONT_OF = { name: "name", odd: "odd", finding: "finding", unnamed: "label", label: "label" };

function newSize(id) {
  const lines = linesOf(id, moment());
  let widest = Math.max(...lines.map((line) => widthOf(line.text, FONT_OF[line.role] || "fact")));
  const node = app.view.nodeOf.get(id);
  if (node && node.tensor !== undefined) {
    const { v, g } = tensorOf(node);
    for (const text of node.tangent ? node.tangent.lines : []) widest = Math.max(widest, widthOf(text, "fact"));
    for (const entry of node.says || []) widest = Math.max(widest, widthOf(entry[1], "fact"));
    for (const entry of v.slice(-20)) {
      if (entry.length > 1) widest = Math.max(widest, widthOf(valueLine(shapeText(node), { brief: entry[2] }), "fact"));
    }
    for (const entry of g.slice(-20)) {
      if (entry.length > 1) widest = Math.max(widest, widthOf(cut(`.grad = ${entry[2]}`, 40), "fact"));
    }
  }
  const kind = app.view.groupOf.has(id) ? "group" : node.kind;
  const [side, upright] = { op: [14, 5], grad_fn: [9, 5], group: [16, 10] }[kind] || [11, 6];
  return { w: Math.ceil(widest) + 2 * side, h: lines.length * LINE + 2 * upright };
}

// --- the picture

const picture = {
  layout: null,
  nodes: new Map(), // id -> {g, lines, state}
  edges: [],
  obstacles: null, // what the labels of the edges must not cover
};

function draw() {
  const layout = layOut(sizeOf);
  picture.layout = layout;
  picture.obstacles = obstaclesOf(layout);
  picture.nodes.clear();
  picture.edges = [];
  const frames = layout.frames.sort((a, b) => a.depth - b.depth).map(drawnFrame);
  const titles = layout.frames.map(drawnTitle);
  const ties = layout.ties.map(([a, b]) => tie(layout.boxes.get(a), layout.boxes.get(b)));
  const edges = layout.edges.map(drawnEdge);
  const nodes = [...layout.boxes.values()].map(drawnBox);
  const world = $("world");
  world.replaceChildren(
    svg("g", { id: "frames" }, ...frames), svg("g", { id: "edges" }, ...ties, ...edges), svg("g", { id: "titles" }, ...titles), svg("g", { id: "nodes" }, ...nodes),
    svg("g", { id: "labels" }),
  );
  const visible = layout.boxes.size + layout.frames.length;
  $("graph").dataset.nodes = layout.boxes.size;
  $("graph").dataset.edges = layout.edges.length;
  $("stage").classList.toggle("many", visible > 150);
  drawOverview();
  refresh();
}

function drawnFrame({ id, x, y, w, h, depth }) {
  const group = app.view.groupOf.get(id);
  const left = x - w / 2;
  const top = y - h / 2;
  const sign = svg("g", { class: "sign", transform: `translate(${left + 18} ${top + 13})` },
    svg("rect", { x: -7, y: -7, width: 14, height: 14, rx: 4 }), svg("path", { d: "M-4 0H4" }));
  const g = svg("g", { class: `frame ${group.kind} depth${depth % 2}`, "data-id": id },
    svg("rect", { x: left, y: top, width: w, height: h, rx: 10, class: "back" }), sign);
  picture.nodes.set(id, { g, lines: [], state: "", base: `frame ${group.kind} depth${depth % 2}` });
  return g;
}

// The title of a frame. It lies above the edges, which come into the frame from above.
function drawnTitle({ id, x, y, w, h, depth }) {
  const name = svg("text", { x: x - w / 2 + 34, y: y - h / 2 + 17, class: `name depth${depth % 2}`, "data-id": id });
  name.textContent = titleOf(app.view.groupOf.get(id));
  return name;
}

function drawnBox({ id, x, y, w, h }) {
  const group = app.view.groupOf.get(id);
  const node = app.view.nodeOf.get(id);
  const base = group ? groupClasses(group) : nodeClasses(node);
  const g = svg("g", { class: base, "data-id": id, id: `box-${id}`, transform: `translate(${round(x - w / 2)} ${round(y - h / 2)})` });
  if (group && group.kind !== "place") {
    g.append(svg("rect", { x: 4, y: -4, width: w, height: h, rx: 6, class: "behind" }));
  }
  const rx = node && node.kind === "op" ? h / 2 : node && node.kind === "grad_fn" ? 2 : 7;
  g.append(svg("rect", { width: w, height: h, rx, class: "box" }));
  const lines = linesOf(id, moment()).map((line, i, all) => {
    const text = svg("text", { x: w / 2, y: h / 2 + (i - (all.length - 1) / 2) * LINE + 4, class: line.role });
    text.textContent = line.text;
    g.append(text);
    return { text, role: line.role, now: line.text };
  });
  if (group && group.kind !== "place") {
    g.append(svg("g", { class: "sign", transform: `translate(${w - 1} 0)` },
      svg("circle", { r: 8 }), svg("path", { d: "M-4 0H4M0 -4V4" })));
  }
  picture.nodes.set(id, { g, lines, state: "", base });
  return g;
}

// Whether a gradient that was due stops where data comes into a box.
const isCutAt = (id) => app.view.edges.some((edge) => edge.due && edge.kind === "data" && shownAs(edge.target) === id && shownAs(edge.source) !== id);

function groupClasses(group) {
  const flags = { finding: apartLines(group.id).length, cut: isCutAt(group.id), astray: everyOp(group, (op) => op.astray), passive: group.kind === "place" && everyOp(group, (op) => !op.gradFn) };
  return ["node", "group", group.kind, ...Object.keys(flags).filter((flag) => flags[flag])].join(" ");
}

// Whether a group has operations, and something holds for all of them.
function everyOp(group, holds) {
  const ops = [];
  everyNode(group, (node) => node.kind === "op" && ops.push(node));
  return ops.length > 0 && ops.every(holds);
}

function nodeClasses(node) {
  const flags = {
    wants: node.wants, root: node.root, retained: node.retained, error: errorOf(node), finding: node.finding || node.apart,
    passive: node.kind === "op" && !node.gradFn, astray: node.astray,
    accumulate: node.kind === "grad_fn" && node.gradFn === "AccumulateGrad",
  };
  return ["node", node.kind, ...Object.keys(flags).filter((flag) => flags[flag])].join(" ");
}

function tie(a, b) {
  return svg("path", { class: "tie", d: `M${round(a.x + a.w / 2)} ${round(a.y)}H${round(b.x - b.w / 2)}` });
}

function drawnEdge(edge) {
  const base = `edge ${edge.kind}${edge.cut ? " cut" : ""}${edge.due ? " due" : ""}${edge.aside ? " aside" : ""}`;
  const path = svg("path", { class: base, d: curve(edge.points), "data-source": edge.source, "data-target": edge.target });
  path.setAttribute("marker-end", `url(#tip-${edge.due ? "due" : edge.cut ? "stop" : edge.kind})`);
  picture.edges.push({ ...edge, path, base, state: "" });
  return path;
}

// --- the state at an event

// Draw everything as it is at the present event.
function refresh() {
  const k = moment();
  const step = now();
  const lit = new Set((step ? step.ids : []).map(shownAs));
  const near = app.selected ? shownAs(app.selected) : null;
  for (const [id, drawn] of picture.nodes) refreshNode(id, drawn, k, lit, near);
  const labels = [];
  for (const edge of picture.edges) refreshEdge(edge, k, step, near, labels);
  const place = $("labels");
  if (place) place.replaceChildren(...edgeLabels(labels));
}

function refreshNode(id, drawn, k, lit, near) {
  const node = app.view.nodeOf.get(id);
  const group = node ? null : app.view.groupOf.get(id);
  const state = [];
  if (node ? !isThere(node, k) : !sinceOf(group, k)) state.push("unborn");
  if (node && node.kind === "grad_fn" && hasRun(node, k)) state.push("ran");
  if (lit.has(id)) state.push("now");
  if (id === near) state.push("chosen");
  if (search.hits.has(id)) state.push("hit");
  if (node && node.tensor !== undefined) {
    const grad = gradOf(node, k);
    if (grad) state.push("has-grad");
  }
  if (group && drawn.lines.length && groupHasRun(group, k)) state.push("ran");
  const classes = state.join(" ");
  if (classes !== drawn.state) {
    drawn.g.setAttribute("class", `${drawn.base} ${classes}`);
    drawn.state = classes;
  }
  if (!drawn.lines.length || (node && node.tensor === undefined)) return;
  linesOf(id, k).forEach((line, i) => {
    const shown = drawn.lines[i];
    if (line.text !== shown.now) {
      shown.text.textContent = line.text;
      shown.now = line.text;
    }
    if (line.role !== shown.role) {
      shown.text.setAttribute("class", line.role);
      shown.role = line.role;
    }
  });
}

function everyNode(group, act) {
  for (const id of group.members) act(app.view.nodeOf.get(id));
  for (const child of group.children) everyNode(app.view.groupOf.get(child), act);
}

const sinceOf = (group, k) => {
  if (group.since === undefined) {
    group.since = Infinity;
    everyNode(group, (node) => (group.since = Math.min(group.since, node.since)));
  }
  return group.since <= k;
};

const groupHasRun = (group, k) => {
  if (group.ran === undefined) {
    group.ran = Infinity;
    everyNode(group, (node) => {
      if (app.view.ran.has(node.id)) group.ran = Math.min(group.ran, app.view.ran.get(node.id));
    });
  }
  return group.ran <= k;
};

function refreshEdge(edge, k, step, near, labels) {
  const state = [];
  let flow = null;
  if (edge.kind === "grad") {
    for (const member of edge.members) {
      const found = flowOf(member, k);
      if (found && (!flow || found.odd || found.k > flow.k)) flow = found;
    }
    if (flow) state.push(flow.odd ? "flowed odd" : "flowed");
    if (flow && step && step.kind === "produced" && flow.k === step.k) state.push("now");
  } else if (edge.members.every((member) => !isThere(app.view.nodeOf.get(member.target), k))) state.push("unborn");
  else if (step && step.kind === "op" && edge.members.some((member) => step.ids.includes(member.source) || step.ids.includes(member.target))) {
    state.push("now");
  }
  const touches = near && (edge.source === near || edge.target === near);
  if (touches) state.push("near");
  const classes = state.join(" ");
  if (classes !== edge.state) {
    edge.path.setAttribute("class", `${edge.base} ${classes}`);
    edge.path.style.strokeWidth = flow && !flow.odd ? `${1.4 + 2.2 * relativeSize(flow.norm)}px` : "";
    edge.state = classes;
  }
  const text = cutText(edge) || (flow && (app.view.small || state.includes("now") || touches) ? flow.brief : "") || edge.label || (movedAlong(edge) > 1 ? `×${movedAlong(edge)}` : "");
  if (text) labels.push([edge, cut(text, 30)]);
}

// The word for the cut at an edge; where no gradient was due, `detach` is only a state.
const cutText = ({ cut: how, due }) => (how === "detach" && !due ? said("detached") : how);

// How many edges are drawn as one; in a rolled picture how many tensors or gradients move along them.
function movedAlong(edge) {
  if (!app.view.rolled) return edge.members.length;
  return new Set(edge.members.map((member) => (edge.kind === "grad" ? member.target : member.source))).size;
}

on("view", draw);
on("fold", (id) => {
  const place = whereIs(id);
  draw();
  keepAt(id, place);
});
on("step", refresh);
on("select", refresh);
