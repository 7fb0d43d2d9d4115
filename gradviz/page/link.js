// The address restores the view (`#pass=3&event=12&open=g1&theme=dark`); the first NaN and the first error; the theme.

// --- the first NaN, the first error

function startFirsts() {
  const { nan, inf, error } = data.firsts;
  $("first-nan").hidden = !nan && !inf;
  if (!nan && inf) $("first-nan").textContent = said("First inf");
  $("first-error").hidden = !error;
}

async function goToFirst(what) {
  const place = data.firsts[what] || (what === "nan" ? data.firsts.inf || data.firsts.written : null);
  const none = what === "error" ? "no error in this run" : data.values ? "no NaN and no infinity in this run" : "not known: no values were recorded (--values none)";
  if (!place) return say(said(none));
  const [position, at] = place;
  if (position < 0) return say(said("it is at event {event}, in a pass that this page does not hold", { event: at + 1 }));
  if (app.view.position !== position) await openPass(position);
  select(null);
  goTo(at);
}

// --- the theme

const darkRule = () => [...document.styleSheets[0].cssRules].find((rule) => rule.media && rule.cssText.includes("--ground"));

function paint(theme) {
  app.theme = theme;
  darkRule().media.mediaText = theme === "dark" ? "all" : "not all";
  document.documentElement.style.colorScheme = theme;
  tell("theme");
}

// --- the link

// The view as the part of an address behind #.
function written() {
  const { view, closed, selected } = app;
  const usual = new Set(view.closed);
  const parts = {
    pass: view.pass === null ? "" : view.pass,
    event: now() ? now().k + 1 : "",
    rolled: view.rolled ? 1 : 0,
    open: [...usual].filter((id) => !closed.has(id)).join(","),
    shut: [...closed].filter((id) => !usual.has(id)).join(","),
    select: selected || "",
    theme: app.chosen ? app.theme : "",
  };
  return "#" + Object.entries(parts).filter(([, what]) => what !== "").map(([name, what]) => `${name}=${what}`).join("&");
}

// Restore a view. What this page does not have is left out.
async function restore(text) {
  const asked = new Map(text.replace(/^#/, "").split("&").map((part) => part.split("=")));
  const pass = asked.get("pass");
  const position = data.held.findIndex((held) => String(held) === pass);
  if (position >= 0 && position !== app.view.position) await openPass(position);
  if (["0", "1"].includes(asked.get("rolled")) && app.view.rolled !== (asked.get("rolled") === "1")) roll();
  app.closed = new Set(app.view.closed);
  const ids = (name) => (asked.get(name) || "").split(",").filter((id) => app.view.groupOf.has(id));
  for (const id of ids("open")) app.closed.delete(id);
  for (const id of ids("shut")) app.closed.add(id);
  tell("fold");
  if (["dark", "light"].includes(asked.get("theme"))) {
    app.chosen = true;
    paint(asked.get("theme"));
  }
  const k = Number(asked.get("event")) - 1;
  if (k >= 0) goToEvent(k);
  const chosen = asked.get("select");
  select(app.view.nodeOf.has(chosen) || app.view.groupOf.has(chosen) ? chosen : null);
  fit(false);
  const about = app.selected || (k >= 0 && now() && now().ids[0]);
  if (about) bringIntoView(shownAs(about), true);
}

function keepAddress() {
  clearTimeout(keepAddress.timer);
  keepAddress.timer = setTimeout(() => {
    try {
      history.replaceState(null, "", written());
    } catch {
      // inside a notebook the page has no address of its own
    }
  }, 150);
}

function copyLink() {
  const link = location.href.replace(/#.*/, "") + written();
  const shown = () => say(`${said("the address of this view:")} ${link}`);
  if (navigator.clipboard) navigator.clipboard.writeText(link).then(() => say(said("copied the link to this view")), shown);
  else shown();
}

async function startLink() {
  app.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (location.hash) await restore(location.hash);
  on("theme", () => (app.chosen = true));
  for (const what of ["view", "step", "select", "fold", "theme"]) on(what, keepAddress);
  window.addEventListener("hashchange", () => location.hash !== written() && restore(location.hash));
}
