// The data of the page (`data`, and one view for each pass) and the state of its controls.

const data = JSON.parse(document.getElementById("data").textContent);

const app = {
  view: null, // the pass that is shown, prepared by `index`
  step: 0, // an index into view.steps
  asked: 0, // the position of the pass that is shown or about to be
  selected: null, // the id of a node or a group
  finding: null, // the finding whose sentence the panel has
  closed: new Set(), // the ids of the groups that are drawn as one node
};

const heard = new Map();
const on = (what, act) => heard.set(what, [...(heard.get(what) || []), act]);
const tell = (what, ...about) => (heard.get(what) || []).forEach((act) => act(...about));

const $ = (id) => document.getElementById(id);

// A text in the language of the page, with its {parts} filled in.
function said(text, parts = {}) {
  return (data.texts[text] || text).replace(/{(\w+)}/g, (whole, name) => (name in parts ? parts[name] : whole));
}

const counted = (count) => count.toLocaleString("en");

// An element with attributes and children; strings become text nodes.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

// --- a view, with its lookup tables

const loaded = new Map();

const unpacked = new Map(); // the views that came with others and have not been shown

// A view, which is compressed in the page, together with some others, until it is shown.
async function viewAt(position) {
  if (!loaded.has(position) && !unpacked.has(position)) {
    let [number, first] = [0, 0];
    while (first + data.packed[number] <= position) first += data.packed[number++];
    const parts = Object.entries(await packAt(number));
    for (let one = first; one < first + data.packed[number]; one += 1) {
      if (!loaded.has(one)) unpacked.set(one, Object.fromEntries(parts.map(([name, of]) => [name, of[one - first]])));
    }
  }
  if (!loaded.has(position)) {
    loaded.set(position, index(unpacked.get(position), position));
    unpacked.delete(position);
  }
  return loaded.get(position);
}

async function packAt(number) {
  const bytes = Uint8Array.from(atob($(`views-${number}`).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function index(view, position) {
  view.position = position;
  view.lastKnown = Infinity; // with other values nothing is known behind the pass
  view.nodeOf = new Map(view.nodes.map((node) => [node.id, node]));
  for (const tree of Object.values(view.trees)) indexTree(tree);
  useTree(view, view.rolled);
  view.tensorNodes = new Map();
  for (const node of view.nodes) {
    if (node.tensor === undefined) continue;
    if (!view.tensorNodes.has(node.tensor)) view.tensorNodes.set(node.tensor, []);
    view.tensorNodes.get(node.tensor).push(node);
  }
  for (const nodes of view.tensorNodes.values()) nodes.sort((a, b) => a.since - b.since);
  view.edges = view.edges.map(([source, target, kind, label, cut, due], number) => ({
    number, source, target, kind, label, cut, due: Boolean(due), flows: [],
  }));
  for (const [edge, ...entry] of view.flows) view.edges[edge].flows.push(entry);
  view.edgesOf = new Map();
  for (const edge of view.edges) {
    for (const id of [edge.source, edge.target]) {
      if (!view.edgesOf.has(id)) view.edgesOf.set(id, []);
      view.edgesOf.get(id).push(edge);
    }
  }
  view.ownerOf = new Map(); // the op of a grad_fn, the leaf of an AccumulateGrad
  for (const node of view.nodes) if (node.pair) view.ownerOf.set(node.pair, node.id);
  view.ran = new Map(Object.entries(view.ran)); // the event at which each grad_fn first ran in this view
  view.stepsOf = new Map(); // the steps about each node
  view.steps.forEach((step, at) => {
    step.ids = step.lit.map((id) => versionAt(view, id, step.k)).filter((id) => view.nodeOf.has(id));
    for (const id of step.ids) {
      if (!view.stepsOf.has(id)) view.stepsOf.set(id, []);
      view.stepsOf.get(id).push(at);
    }
  });
  return view;
}

function indexTree(tree) {
  tree.groupOf = new Map(tree.groups.map((group) => [group.id, group]));
  tree.homeOf = new Map();
  for (const group of tree.groups) {
    group.children = [];
    for (const member of group.members) tree.homeOf.set(member, group.id);
  }
  for (const group of tree.groups) {
    if (group.parent) tree.groupOf.get(group.parent).children.push(group.id);
  }
}

// Show each step of a loop, or each place of the program as one box.
function useTree(view, rolled) {
  view.rolled = rolled;
  const { groups, closed, groupOf, homeOf } = view.trees[rolled ? "rolled" : "each"];
  Object.assign(view, { groups, closed, groupOf, homeOf, sizes: null });
}

function roll() {
  useTree(app.view, !app.view.rolled);
  app.closed = new Set(app.view.closed);
  app.selected = null;
  tell("view");
  tell("step");
  tell("select");
  return true;
}

// The node of a tensor (`t5`) at an event: there is one node for each version.
function versionAt(view, id, k) {
  if (!id.startsWith("t")) return id;
  const nodes = view.tensorNodes.get(Number(id.slice(1))) || [];
  let found = nodes[0];
  for (const node of nodes) if (node.since <= k) found = node;
  return found ? found.id : id;
}

// Whether a tensor's node is its version at an event: `.grad` belongs to the tensor, and so to its present version.
const isPresent = (node, k) => versionAt(app.view, `t${node.tensor}`, k) === node.id;

// The last event that may be shown: a lesson holds back what its open question asks for.
const held = { until: () => Infinity };

// The error of a node; a lesson holds it back, too.
function errorOf(node) {
  if (!node.error || held.until() === Infinity) return node.error;
  const raised = app.view.steps.find((step) => step.kind === "error" && step.k <= held.until());
  return raised ? node.error : "";
}

// The step up to which one may go that wants to go to a step.
function allowed(step) {
  let at = step;
  while (at > 0 && app.view.steps[at].k > Math.min(held.until(), app.view.lastKnown)) at -= 1;
  return at;
}

// Whether two views have the same groups, as the passes of a loop have.
function areAlike(view, other) {
  const groups = ({ trees }) => JSON.stringify(Object.values(trees).map((tree) => tree.groups.map(({ id, parent, label }) => [id, parent, label])));
  return groups(view) === groups(other);
}

// Show a view: one that is like the present view with the same groups open. If another one is asked for meanwhile, that
// one is shown. Returns whether it may be shown.
async function openView(position) {
  app.asked = position;
  document.body.dataset.busy = "yes";
  const view = await viewAt(position);
  if (app.asked !== position) return true;
  delete document.body.dataset.busy;
  if (app.view && view.steps.length && view.steps[0].k > held.until()) {
    app.asked = app.view.position;
    tell("held");
    return false;
  }
  if (app.view && areAlike(app.view, view)) useTree(view, app.view.rolled);
  else app.closed = new Set(view.closed);
  app.view = view;
  app.selected = null;
  const ended = app.view.steps.findLastIndex((step) => step.kind === "pass_ended");
  app.step = allowed(ended >= 0 ? ended : Math.max(0, app.view.steps.length - 1));
  tell("view");
  tell("step");
  tell("select");
  return true;
}

// Whether a group gets a frame when it is open: it is a scope or a repetition, or it was closed at first.
const isFramed = (group) =>
  group.kind !== "run" || app.view.closed.includes(group.id);

function ancestorsOf(id) {
  const found = [];
  let group = app.view.groupOf.has(id) ? app.view.groupOf.get(id).parent : app.view.homeOf.get(id);
  while (group) {
    found.push(group);
    group = app.view.groupOf.get(group).parent;
  }
  return found; // innermost first
}

// The id that a node or group is drawn as: itself, or the outermost closed group around it.
function shownAs(id) {
  const closed = ancestorsOf(id).filter((group) => app.closed.has(group));
  return closed.length ? closed[closed.length - 1] : id;
}

function select(id, reveal = false) {
  if (id && reveal) {
    const closed = ancestorsOf(id).filter((group) => app.closed.has(group));
    if (closed.length) {
      closed.forEach((group) => app.closed.delete(group));
      tell("fold");
    }
  }
  app.selected = id;
  tell("select", reveal);
}

function fold(id, close = !app.closed.has(id)) {
  if (close) app.closed.add(id);
  else app.closed.delete(id);
  tell("fold", id);
  select(id);
}

function goTo(step) {
  const wanted = allowed(Math.min(Math.max(step, 0), app.view.steps.length - 1));
  if (wanted === app.step || wanted < 0) return;
  app.step = wanted;
  tell("step");
}

// Go to the last step at or before an event.
function goToEvent(k) {
  goTo(app.view.steps.findLastIndex((step) => step.k <= k));
}

const now = () => app.view.steps[app.step] || null;
const moment = () => (now() ? now().k : data.events);
