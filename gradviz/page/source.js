// The program's source, with the site of the step or of the selected node marked.

const shownSource = { file: -1, from: 0, to: 0, rows: new Map(), marked: [] };
const AROUND = 300; // the lines shown on each side of the marked one, in a long file

// place: [file, line, col, end col] or with an end line: [file, line, end line, col, end col, function]
function showPlace(place, why) {
  const [file, line, endLine, col, endCol, inside] = place.length === 4
    ? [place[0], place[1], place[1], place[2], place[3], ""] : place;
  const about = data.files[file];
  openFile(file, line);
  shownSource.marked.forEach((row) => row.classList.remove("marked"));
  shownSource.marked.forEach((row) => row.lastChild.replaceChildren(row.lastChild.textContent));
  shownSource.marked = [];
  for (let number = line; number <= Math.min(endLine, line + 30); number++) {
    const row = shownSource.rows.get(number);
    if (!row) continue;
    row.classList.add("marked");
    shownSource.marked.push(row);
    const text = about.lines[number - 1];
    if (col < 0 || col === undefined || col === null) continue;
    const from = number === line ? col : text.length - text.trimStart().length;
    const to = number === endLine ? endCol : text.length;
    if (to > from) row.lastChild.replaceChildren(text.slice(0, from), element("mark", {}, text.slice(from, to)), text.slice(to));
  }
  $("source-title").textContent = `${about.name}:${line}` + (inside && inside !== "<module>" ? said(" in {function}", { function: inside }) : "") + (why ? ` · ${why}` : "");
  const first = shownSource.marked[0];
  if (first) {
    const pane = $("source");
    const [top, bottom] = [first.offsetTop, first.offsetTop + first.offsetHeight];
    if (top < pane.scrollTop + 30 || bottom > pane.scrollTop + pane.clientHeight - 30) pane.scrollTop = top - pane.clientHeight / 2;
  } else if (!about.lines.length) $("source").replaceChildren(element("p", { class: "hint" }, said("The source was not kept.")));
}

function openFile(file, line) {
  const inside = line >= shownSource.from && line <= shownSource.to;
  if (shownSource.file === file && inside) return;
  const lines = data.files[file].lines;
  const from = Math.max(1, line - AROUND);
  const to = Math.min(lines.length, line + AROUND);
  Object.assign(shownSource, { file, from, to, marked: [], rows: new Map() });
  const rows = [];
  for (let number = from; number <= to; number++) {
    const row = element("div", { class: "line" }, element("span", { class: "number" }, String(number)), element("code", {}, lines[number - 1]));
    shownSource.rows.set(number, row);
    rows.push(row);
  }
  $("source").replaceChildren(...rows);
}

function showNoPlace(text) {
  $("source-title").textContent = text;
  shownSource.marked.forEach((row) => row.classList.remove("marked"));
  shownSource.marked = [];
}

on("step", () => {
  const step = now();
  if (!step) return;
  const place = data.sites[step.site];
  if (place) showPlace(place, step.why);
  else showNoPlace(said("this event has no source location"));
});

on("select", () => {
  const node = app.selected && app.view.nodeOf.get(app.selected);
  if (node && node.at) showPlace(node.at, "");
});
