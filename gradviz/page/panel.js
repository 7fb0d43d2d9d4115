// The panel: everything known about the selected node or group, or about the step if nothing is selected.

const PLAIN_KINDS = { leaf: "leaf", tensor: "tensor", op: "operation", grad_fn: "grad_fn node", group: "group", outside: "outside of this picture" };

// A name that links to a node.
function nodeLink(id) {
  const name = nameOf(id);
  return element("button", { class: isPath(name) ? "link path" : "link", type: "button", title: name, onclick: () => select(id, true) }, element("bdi", {}, name));
}

const fact = (label, ...told) => [element("dt", {}, said(label)), element("dd", {}, ...told)];

function showPanel() {
  const id = app.selected;
  const panel = $("facts");
  if (!id) panel.replaceChildren(...stepFacts());
  else if (app.view.groupOf.has(id)) panel.replaceChildren(...groupFacts(app.view.groupOf.get(id)));
  else panel.replaceChildren(...nodeFacts(app.view.nodeOf.get(id)));
  if (app.finding) panel.prepend(findingFacts());
}

// --- nothing selected: the present event

const FEW_LEAVES = 6;

// Why what enters the pass cannot be given other values; empty where it can.
function whyFixed() {
  const { again } = app.view;
  if (!again.reason && passAgain.isReproduced(again)) return "";
  const reason = again.reason || said("this page computes other numbers than were recorded");
  return said("No other values can be tried here: {reason}.", { reason });
}

function stepFacts() {
  const step = now();
  if (!step) return [element("p", { class: "hint" }, said("Nothing was recorded."))];
  const found = [element("h2", {}, said("At this event")), element("p", { class: "sentence" }, step.text)];
  if (step.told && step.told.length) found.push(whyText(said("Why"), step.told));
  const rows = rowsOf(step);
  if (rows.length) found.push(numberRows(rows));
  // Few leaves come first; of many the layers tell more.
  const few = app.view.nodes.filter((node) => node.leaf && node.wants && node.until === undefined).length <= FEW_LEAVES;
  found.push(...(few ? [leafTable(), passPanel()] : [passPanel(), leafTable()]).filter(Boolean));
  const reason = isAsked() ? "" : whyFixed();
  if (reason) found.push(element("p", { class: "hint" }, reason));
  found.push(element("p", { class: "hint" }, said("Click a node to see its details. Press ? for the keys.")));
  return found;
}

// The rows of a step: its own, and those of the gradients that wait at nodes.
const rowsOf = (step) => [...(step.rows || []), ...waitingRows(step)];

const MOST_WAITING = 20; // more are only counted; in a long pass there may be thousands

function waitingRows(step) {
  const waits = app.view.waits[step.pass] || [];
  const here = waits.filter(([since, , end]) => since <= step.k && (end === null || step.k < end));
  const count = here.reduce((sum, wait) => sum + wait[3], 0);
  if (count > MOST_WAITING) {
    return [[said("waiting"), said("{count} gradients, each at the node that will take it", { count: counted(count) })]];
  }
  return here.filter(([, shown]) => shown <= step.k).map((wait) => [said("waiting"), wait[4]]);
}

// An explanation, in the words of the stepper's `why`.
const whyText = (title, lines) =>
  element("div", { class: "why" }, element("h3", {}, title), lines.map((line) => element("p", {}, line)));

function numberRows(rows) {
  return element("dl", { class: "rows" }, rows.flatMap(([label, text]) => fact(label, text)));
}

// The leaves that require grad, and their gradients.
function leafTable() {
  const leaves = app.view.nodes.filter((node) => node.leaf && node.wants && node.until === undefined);
  if (!leaves.length) return null;
  const k = moment();
  return element("table", { class: "leaves" },
    element("caption", {}, said("Leaves")),
    leaves.slice(0, 40).map((node) => {
      const grad = gradOf(node, k);
      return element("tr", { "data-leaf": node.id },
        element("th", { scope: "row" }, nodeLink(node.id)),
        element("td", { class: grad && grad.odd ? "odd" : grad ? "grad" : "none" }, grad ? grad.text : "None"));
    }),
    leaves.length > 40 ? element("tr", {}, element("td", { colspan: 2 }, said("and {count} more", { count: leaves.length - 40 }))) : null);
}

// --- a node

function nodeFacts(node) {
  const k = moment();
  const found = [
    element("p", { class: "kind" }, said(PLAIN_KINDS[node.kind]), element("button", { class: "close", type: "button", title: said("Deselect (Esc)"), onclick: () => select(null) }, "×")),
    element("h2", {}, nameOf(node.id)),
    element("dl", {}, [...(node.tensor !== undefined ? tensorFacts(node, k) : []), ...computed(node), ...placed(node)]),
    ...lists(node, k),
  ];
  const reason = held.until() < Infinity ? null : app.view.why[node.id];
  if (reason) found.splice(2, 0, whyText(said("At the end of this pass"), [reason]));
  const step = now();
  const rows = step && step.ids.includes(node.id) ? rowsOf(step) : [];
  if (rows.length) found.splice(2, 0, numberRows(rows));
  return found;
}

function tensorFacts(node, k) {
  const there = isThere(node, k);
  const value = valueOf(node, k);
  const grad = gradOf(node, k);
  const facts = [
    ...fact("value", element("output", { id: "value" }, there ? (value ? value.text : said("not kept")) : said("not made yet"))),
  ];
  if (showsGrad(node) && isPresent(node, k)) {
    facts.push(...fact(".grad", element("output", { id: "grad", class: grad && grad.odd ? "odd" : "grad" }, grad ? grad.text : "None")));
    if (grad && grad.norm !== null) facts.push(...fact("norm of .grad", String(Number(grad.norm.toPrecision(6)))));
  }
  if (node.tangent) facts.push(...fact("tangent", node.tangent.lines.join(" ").replace("tangent = ", "")));
  facts.push(...fact("shape", sizesText(node)), ...fact("dtype", node.dtype || "?"));
  facts.push(...fact("is_leaf", node.leaf ? "True" : "False"), ...fact("requires_grad", node.wants ? "True" : "False"));
  if (node.gradFn) facts.push(...fact("grad_fn", node.gradFn));
  if (node.retained) facts.push(...fact("retains grad", "True"));
  if (node.version) facts.push(...fact("version", said("{version}, after {op}", { version: node.version, op: node.writtenBy })));
  if (node.base) facts.push(...fact("shares memory with", node.base));
  return facts;
}

function computed(node) {
  const facts = [];
  if (node.kind === "op") facts.push(...fact("op", node.op || node.name), ...(node.args ? fact("arguments", node.args) : []));
  if (node.kind === "grad_fn") {
    if (node.op) facts.push(...fact("backward of", node.op));
    if (node.formula) facts.push(...fact("derivative", node.formula));
    if (node.base) facts.push(...fact("of", node.base));
    if (errorOf(node)) facts.push(...fact("error", element("span", { class: "odd" }, node.error)));
    facts.push(...fact("ran", hasRun(node, moment()) ? said("yes") : app.view.ran.has(node.id) ? said("not yet") : said("not in this pass")));
  }
  if (node.pair && app.view.nodeOf.has(node.pair)) facts.push(...fact(node.kind === "op" ? "its grad_fn" : "accumulates in", nodeLink(node.pair)));
  const owner = app.view.ownerOf.get(node.id);
  if (owner) facts.push(...fact(node.gradFn === "AccumulateGrad" ? "fills" : "its op", nodeLink(owner)));
  return facts;
}

function placed(node) {
  const facts = [];
  if (node.finding) facts.push(...fact("gradviz check", element("span", { class: "finding" }, node.finding)));
  if (node.exchanges) facts.push(...fact("between ranks", node.exchanges.join("; ")));
  if (node.apart) facts.push(...fact("ranks", element("ul", { class: "finding" }, node.apart.map((text) => element("li", {}, text)))));
  if (node.scope) facts.push(...fact("scope", node.scope));
  if (node.at) {
    facts.push(...fact("made at", element("button", { class: "link", type: "button", onclick: () => showPlace(node.at, "") }, placeOf(node))));
  }
  return [...facts, ...fact("id", node.id)];
}

// The neighbours of a node, by the kind of edge.
const LISTS = [
  ["data", "target", "source", "from"],
  ["data", "source", "target", "to"],
  ["grad", "source", "target", "next_functions"],
  ["grad", "target", "source", "gradient from"],
  ["saved", "source", "target", "saved for"],
  ["saved", "target", "source", "saved tensors"],
  ["view", "target", "source", "a view of"],
  ["view", "source", "target", "views"],
  ["mutation", "target", "source", "before"],
  ["mutation", "source", "target", "changed in place to"],
];

function lists(node, k) {
  const edges = app.view.edgesOf.get(node.id) || [];
  const rows = [];
  for (const [kind, own, other, label] of LISTS) {
    const found = edges.filter((edge) => edge.kind === kind && edge[own] === node.id);
    if (found.length) rows.push(...fact(label, element("ul", {}, found.slice(0, 30).map((edge) => listed(edge, edge[other], k)))));
    if (found.length > 30) rows.push(...fact("", said("and {count} more", { count: found.length - 30 })));
  }
  return rows.length ? [element("dl", { class: "ways" }, rows)] : [];
}

function listed(edge, other, k) {
  const flow = edge.kind === "grad" ? flowOf(edge, k) : null;
  return element("li", {}, nodeLink(other),
    flow ? element("span", { class: flow.odd ? "odd" : "grad" }, ` ${flow.text}`) : null,
    edge.cut ? element("span", { class: edge.due ? "odd" : null }, ` ${said("cut: {why}", { why: edge.cut })}`) : null);
}

// --- a group

const GROUP_KINDS = { scope: "scope", repeat: "repetition", run: "chain of operations", place: "place of the program", data: "preparation of data" };

function groupFacts(group) {
  const held = heldBy(group);
  const open = !app.closed.has(group.id);
  const counts = [["operations", held.op], ["leaves", held.leaf], ["tensors", held.tensor], ["grad_fns", held.grad_fn]];
  return [
    element("p", { class: "kind" }, said(GROUP_KINDS[group.kind]), element("button", { class: "close", type: "button", title: said("Deselect (Esc)"), onclick: () => select(null) }, "×")),
    element("h2", {}, group.label),
    element("p", {}, element("button", { type: "button", onclick: () => fold(group.id) }, open ? said("Fold (Enter)") : said("Unfold (Enter)"))),
    element("dl", {},
      group.scope ? fact("scope", group.scope) : [],
      group.count > 1 ? fact("repeats", said("{count} times", { count: group.count })) : [],
      counts.filter(([, count]) => count).map(([label, count]) => fact(label, count.toLocaleString("en")))),
    element("ul", { class: "inside" }, group.children.slice(0, 60).map((child) => element("li", {}, nodeLink(child)))),
  ];
}

for (const what of ["view", "step", "select"]) {
  on(what, () => {
    app.finding = null;
    showPanel();
  });
}
