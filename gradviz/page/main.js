// Starts the page: clicks and keys, the header, the first view.

const KEYS = [
  ["← →", "previous, next event"],
  ["Shift ← →", "previous, next backward event"],
  ["Home End", "first, last event"],
  ["Space", "play, pause"],
  ["b", "beginning of the backward pass"],
  ["g", "next leaf whose .grad is set"],
  ["[ ]", "previous, next pass"],
  ["n", "the first NaN"],
  ["e", "the first error"],
  ["f", "the findings of gradviz check"],
  ["/", "search"],
  ["↑ ↓", "select the node before, after the selected one"],
  ["Enter", "fold or unfold the selected group"],
  ["+ − 0", "zoom in, out, show all"],
  ["w a s d", "move the picture"],
  ["u U", "unfold, fold everything"],
  ["r", "loops: each step, or one box for each place"],
  ["c", "chart of gradient norms"],
  ["v", "other values: what becomes of the gradients"],
  ["k", "gates and wires, as in a textbook, or the graph"],
  ["m", "what the boxes and lines mean"],
  ["t", "light or dark"],
  ["l", "copy a link to this view"],
  ["Esc", "deselect, close"],
  ["?", "these keys"],
];

// Show a message for a short time.
function say(text) {
  const note = $("note");
  note.textContent = text;
  note.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (note.hidden = true), 6000);
}

// Whether what is shown was recorded; says so if it is not.
function isRecorded() {
  const isSo = app.view.lastKnown === Infinity;
  if (!isSo) say(said("this is known of the recorded values only: set them back first"));
  return isSo;
}

// --- clicks

function startClicks() {
  $("stage").addEventListener("click", (event) => {
    const hit = event.target.closest("[data-id]");
    const id = hit ? hit.dataset.id : null;
    if (id && event.target.closest(".sign")) fold(id);
    else select(id);
  });
  $("stage").addEventListener("dblclick", (event) => {
    const hit = event.target.closest("[data-id]");
    if (hit && app.view.groupOf.has(hit.dataset.id)) fold(hit.dataset.id);
  });
  const buttons = {
    "zoom-in": () => zoomBy(1.3), "zoom-out": () => zoomBy(1 / 1.3), "zoom-all": () => fit(),
    "fold-all": () => foldAll(true), "unfold-all": () => foldAll(false), help: () => showHelp(),
    roll: () => rollAndFit(), theme: ACTS.t, link: ACTS.l, "first-nan": ACTS.n, "first-error": ACTS.e,
    "book-toggle": () => toggleBook(), signs: () => showSigns(),
  };
  for (const [id, act] of Object.entries(buttons)) $(id).addEventListener("click", act);
}

function rollAndFit() {
  roll();
  fit(false);
}

const MOST_SHOWN = 6000;

// Unfold groups, the outer ones first, but those with which the picture would be too large. Returns whether there are any.
function unfoldWhatFits(groups) {
  let shown = picture.layout.boxes.size;
  const isFolded = (group) => app.closed.has(group.id) && group.kind !== "place" && !ancestorsOf(group.id).some((around) => app.closed.has(around));
  const outerFirst = [...groups].sort((a, b) => ancestorsOf(a.id).length - ancestorsOf(b.id).length);
  let areLeft = false;
  for (const group of outerFirst.filter((one) => app.closed.has(one.id))) {
    if (!isFolded(group)) continue;
    if (shown + group.members.length > MOST_SHOWN) areLeft = true;
    else {
      shown += group.members.length;
      app.closed.delete(group.id);
    }
  }
  return areLeft;
}

// Fold all groups, or unfold them as far as the picture does not get too large.
function foldAll(close) {
  const groups = app.view.groups;
  const framed = groups.filter(isFramed);
  if (close) framed.forEach((group) => app.closed.add(group.id));
  else if (unfoldWhatFits(groups)) say(said("more than {count} nodes would show: the rest stays folded", { count: counted(MOST_SHOWN) }));
  tell("fold");
  fit(false);
}

// --- keys

function showHelp(show = !$("help-box").open) {
  const box = $("help-box");
  if (show) box.showModal();
  else box.close();
}

// Select a neighbour of the selected node: a source (-1) or a target.
function walk(direction) {
  const from = app.selected ? shownAs(app.selected) : null;
  if (!from) {
    const first = [...picture.layout.boxes.values()].sort((a, b) => a.y - b.y)[0];
    if (first) select(first.id);
    return;
  }
  const [own, other] = direction > 0 ? ["source", "target"] : ["target", "source"];
  const edge = ["data", "mutation", "view", "grad"].flatMap((kind) => {
    const [mine, theirs] = kind === "grad" ? [other, own] : [own, other];
    return picture.edges.filter((one) => one.kind === kind && one[mine] === from).map((one) => one[theirs]);
  })[0];
  if (edge) select(edge);
}

const move = (dx, dy) => () => moveBy(dx, dy);

const isBackward = (step) => step.phase.startsWith("backward");

const ACTS = {
  ArrowLeft: () => goTo(app.step - 1),
  ArrowRight: () => goTo(app.step + 1),
  "Shift ArrowLeft": () => jump(-1, isBackward),
  "Shift ArrowRight": () => jump(1, isBackward),
  ArrowUp: () => walk(-1),
  ArrowDown: () => walk(1),
  Home: () => goTo(0),
  End: () => goTo(app.view.steps.length - 1),
  b: () => goTo(Math.max(0, app.view.steps.findLastIndex((step) => step.kind === "pass_began"))),
  g: () => jump(1, (step) => step.kind === "accumulated"),
  "[": () => nextPass(-1),
  "]": () => nextPass(1),
  "/": () => $("search").focus(),
  "+": () => zoomBy(1.3),
  "=": () => zoomBy(1.3),
  "-": () => zoomBy(1 / 1.3),
  0: () => fit(),
  w: move(0, 80),
  a: move(80, 0),
  s: move(0, -80),
  d: move(-80, 0),
  u: () => foldAll(false),
  "Shift U": () => foldAll(true),
  r: () => rollAndFit(),
  n: () => isRecorded() && goToFirst("nan"),
  e: () => isRecorded() && goToFirst("error"),
  t: () => paint(app.theme === "dark" ? "light" : "dark"),
  l: () => copyLink(),
  c: () => !$("chart-toggle").hidden && isRecorded() && toggleChart(),
  v: () => (whyFixed() ? say(whyFixed()) : isAsked() ? say(said("Answer the question first.")) : openTried()),
  k: () => isRecorded() && toggleBook(),
  f: () => isRecorded() && showFindings(),
  m: () => showSigns(),
  "?": () => showHelp(),
  Escape: () => ($("findings-list").hidden ? select(null) : showFindings(false)),
};

// Keys that a focused element handles itself.
function isTaken(event) {
  const tag = event.target.tagName;
  if (event.target.closest("#tried")) return event.key !== "Escape";
  if (tag === "SELECT" || event.target.matches('[type="search"], [type="text"]')) return true;
  if (event.target.id === "slider") return !["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) && event.key.startsWith("Page");
  return tag === "BUTTON" && (event.key === " " || event.key === "Enter");
}

function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTaken(event)) return;
    if ($("help-box").open || $("signs-box").open) return;
    if (isLessonKey(event.key)) {
      event.preventDefault();
      return;
    }
    const name = event.shiftKey && (event.key.startsWith("Arrow") || event.key === "U") ? `Shift ${event.key}` : event.key;
    const act = ACTS[name];
    if (act) {
      event.preventDefault();
      if (!["w", "a", "s", "d", "+", "-", "=", "0", "?", "/", "k", "m", "v"].includes(name)) play(false);
      act();
    } else if (event.key === " ") {
      event.preventDefault();
      play();
    } else if (event.key === "Enter" && app.selected && app.view.groupOf.has(app.selected)) {
      event.preventDefault();
      fold(app.selected);
    }
  });
}

// --- the start

// Which passes the page holds, if there are more.
function heldTold() {
  const held = data.held.filter((pass) => pass !== null).sort((a, b) => a - b);
  if (!held.length || held.length >= data.passes.length) return "";
  const some = held.length > 6 ? [...held.slice(0, 4), "…", held.at(-1)] : held;
  const told = said("{held} of {count} passes are in this page: {some}", { held: held.length, count: counted(data.passes.length), some: some.join(", ") });
  return data.missing ? `${told}; ${data.missing}` : told;
}

function showNotes() {
  const view = app.view;
  const parts = [];
  if (view.error && held.until() === Infinity) parts.push(element("span", { class: "odd" }, view.error));
  if (view.leftOut) parts.push(element("span", {}, said(view.leftOut === 1 ? "{count} operation of the run outside this pass" : "{count} operations of the run outside this pass", { count: counted(view.leftOut) })));
  if (heldTold()) parts.push(element("span", {}, heldTold()));
  for (const note of view.notes) parts.push(element("span", {}, note));
  $("notes").replaceChildren(...parts);
  $("notes").hidden = !parts.length;
  $("graph").setAttribute("aria-label", said(view.pass === null ? "The graph: {nodes} nodes, {edges} edges" : "The graph of pass {pass}: {nodes} nodes, {edges} edges", { pass: view.pass, nodes: view.nodes.length, edges: view.edges.length }));
  $("roll").setAttribute("aria-pressed", view.rolled);
  $("roll").hidden = Object.values(view.trees).every((tree) => !tree.groups.length);
  const foldable = view.groups.some(isFramed);
  $("fold-all").hidden = $("unfold-all").hidden = !foldable;
}

function showSelected(reveal) {
  const shown = app.selected ? shownAs(app.selected) : null;
  if (shown) $("stage").setAttribute("aria-activedescendant", `box-${shown}`);
  else $("stage").removeAttribute("aria-activedescendant");
  $("spoken").textContent = app.selected ? said("{name} selected", { name: nameOf(app.selected) }) : "";
  if (shown) bringIntoView(shown, reveal);
}

on("view", showNotes);
on("select", showSelected);

async function start() {
  $("script").textContent = data.script || data.trace;
  $("keys").replaceChildren(...KEYS.flatMap(([keys, what]) => fact(keys, said(what))));
  startSigns();
  startZoom();
  startOverview();
  startPasses();
  app.quiet = true;
  await openView(data.shown);
  app.quiet = false;
  startClicks();
  startKeys();
  startReplay();
  startSearch();
  startFirsts();
  startFindings();
  fit(false);
  if (!location.hash && !data.lesson) await startAtFault();
  await startLink();
  await startLesson();
  startFrame();
  document.body.dataset.ready = "yes";
}

start();
