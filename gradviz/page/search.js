// Search: by name, operation, grad_fn, shape, file:line, scope.

const search = { found: [], at: -1, hits: new Set() }; // hits: what is drawn of the found
const MOST_FOUND = 200;

// All searchable texts of a node, in lower case.
function searchText(node) {
  node.searched ??= [
    nameOf(node.id), node.id, node.op, node.gradFn, node.scope, node.base, placeOf(node), node.dtype,
    node.shape === undefined ? "" : `[${node.shape.join(", ")}] [${node.shape.join(",")}] ${node.shape.join("x")} ${node.shape.join("×")}`,
    node.kind, node.args, node.tensor !== undefined && node.leaf ? "is_leaf" : "", node.wants ? "requires_grad" : "",
  ].filter(Boolean).join("\n").toLowerCase();
  return node.searched;
}

// The matches of a search: all its words must occur. The best come first: an equal name, then a name that
// begins with the text.
function find(text) {
  const words = text.trim().toLowerCase().replace(/,\s+/g, ",").split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const found = [];
  for (const group of app.view.groups) {
    const all = `${group.label}\n${group.scope}\n${group.kind}`.toLowerCase();
    if (words.every((word) => all.includes(word))) found.push([rank(group.label, text), group.id]);
  }
  for (const node of app.view.nodes) {
    const all = searchText(node);
    if (words.every((word) => all.includes(word))) found.push([rank(nameOf(node.id), text), node.id]);
  }
  return found.sort((a, b) => a[0] - b[0]).map(([, id]) => id);
}

function rank(name, text) {
  const [small, wanted] = [name.toLowerCase(), text.trim().toLowerCase()];
  return small === wanted ? 0 : small.startsWith(wanted) ? 1 : small.includes(wanted) ? 2 : 3;
}

function showFound() {
  const text = $("search").value;
  search.found = find(text);
  search.at = -1;
  const list = $("found");
  list.replaceChildren(...search.found.slice(0, MOST_FOUND).map((id, at) => result(id, at)));
  list.hidden = !text.trim();
  $("search").setAttribute("aria-expanded", String(!list.hidden));
  if (text.trim() && !search.found.length) list.append(element("li", { class: "hint" }, said("nothing found")));
  if (search.found.length > MOST_FOUND) list.append(element("li", { class: "hint" }, said("and {count} more", { count: search.found.length - MOST_FOUND })));
  $("stage").classList.toggle("searching", Boolean(text.trim()));
  markHits();
}

// Mark the boxes that show what was found; all others are dimmed while there is a search.
function markHits() {
  search.hits = new Set(search.found.map(shownAs));
  for (const [id, drawn] of picture.nodes) drawn.g.classList.toggle("hit", search.hits.has(id));
}

// The kind of a node; of a grad_fn, with what it is about.
const kindOf = (node) =>
  said(PLAIN_KINDS[node.kind]) + (node.kind === "grad_fn" && node.base ? ` ${said("of {expression}", { expression: node.base })}` : "");

function result(id, at) {
  const node = app.view.nodeOf.get(id);
  const about = node
    ? [kindOf(node), node.shape === undefined ? "" : shapeText(node), placeOf(node)].filter(Boolean).join(" · ")
    : said(GROUP_KINDS[app.view.groupOf.get(id).kind]);
  return element("li", { role: "option", id: `found-${at}`, "aria-selected": "false", onmousedown: (event) => event.preventDefault(), onclick: () => take(at) },
    element("b", {}, nameOf(id)), element("span", {}, about));
}

function take(at) {
  if (!search.found.length) return;
  search.at = (at + Math.min(search.found.length, MOST_FOUND)) % Math.min(search.found.length, MOST_FOUND);
  [...$("found").querySelectorAll("[role=option]")].forEach((item, i) => {
    item.setAttribute("aria-selected", String(i === search.at));
    if (i === search.at) item.scrollIntoView({ block: "nearest" });
  });
  $("search").setAttribute("aria-activedescendant", `found-${search.at}`);
  select(search.found[search.at], true);
}

function endSearch() {
  $("search").value = "";
  showFound();
  $("stage").focus();
}

function startSearch() {
  const box = $("search");
  box.addEventListener("input", showFound);
  box.addEventListener("keydown", (event) => {
    const acts = { ArrowDown: () => take(search.at + 1), ArrowUp: () => take(search.at < 0 ? search.found.length - 1 : search.at - 1), Enter: () => take(search.at + (event.shiftKey ? -1 : 1)), Escape: endSearch };
    if (!acts[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    acts[event.key]();
  });
  box.addEventListener("blur", () => ($("found").hidden = true));
  box.addEventListener("focus", () => ($("found").hidden = !box.value.trim()));
}

on("view", showFound);
on("fold", markHits);
