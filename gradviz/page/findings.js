// The findings of `gradviz check`: a list that leads to each.

function startFindings() {
  const found = data.findings;
  const button = $("findings");
  button.hidden = !found.length;
  button.textContent = said(found.length === 1 ? "{count} finding" : "{count} findings", { count: found.length });
  button.classList.toggle("note", found.every((finding) => finding.severity === "note"));
  button.addEventListener("click", () => showFindings());
  $("findings-list").replaceChildren(...found.map(findingRow));
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#findings, #findings-list")) showFindings(false);
  });
}

function showFindings(show = $("findings-list").hidden) {
  if (!data.findings.length && !show) return undefined;
  if (!data.findings.length) return say(said("gradviz check has found nothing in this run, or was not asked"));
  $("findings-list").hidden = !show;
  $("findings").setAttribute("aria-expanded", String(show));
  if (show) $("findings-list").querySelector("button").focus();
  return undefined;
}

function findingRow(finding) {
  return element("li", {},
    element("button", { type: "button", class: finding.severity, onclick: () => goToFinding(finding) },
      element("b", {}, `${finding.number} ${finding.severity} ${finding.rule}`), element("span", { class: "place" }, finding.place),
      element("span", { class: "what" }, finding.message), element("code", {}, finding.fix),
      finding.replayed ? element("span", { class: "what" }, finding.replayed) : ""));
}

// Show the pass of a finding, select what it is about, and say its sentence in the panel. If the picture has nothing of
// it, go to its event; if the page does not have its pass, show its line of the source.
async function goToFinding(finding) {
  showFindings(false);
  const position = heldPasses.get(finding.pass);
  const isElsewhere = position === undefined && finding.pass && heldPasses.size && !heldPasses.has(null);
  if (isElsewhere) goToPass(finding.pass);
  else if (position !== undefined && data.held[app.asked] !== finding.pass) await openPass(position);
  const { view } = app;
  const own = [`f${finding.number}`, ...finding.ids, ...finding.tensors.map((tensor) => versionAt(view, `t${tensor}`, moment()))];
  const id = own.find((one) => view.nodeOf.has(one));
  const at = finding.event === null || isElsewhere ? -1 : view.steps.findIndex((step) => step.k >= finding.event);
  if (at >= 0 && !id) goTo(at);
  select(id || null, true);
  app.finding = finding;
  showPanel();
  if (finding.at) showPlace(finding.at, `${finding.number} ${finding.rule}`);
  else if (!id && at < 0 && !isElsewhere) say(said("finding {number} has no place in this picture: {place}", finding));
}

// The finding that was asked for, as the panel says it.
function findingFacts() {
  const { finding } = app;
  return element("div", { class: `finding-told ${finding.severity}` },
    element("h2", {}, `${finding.number} ${finding.severity} ${finding.rule}`), element("p", {}, finding.message),
    element("p", {}, element("code", {}, finding.fix)), finding.replayed ? element("p", {}, finding.replayed) : "");
}

// Open the page at its first fault, unless it was asked for another pass.
async function startAtFault() {
  const first = data.findings.find((finding) => finding.severity !== "note");
  if (first && [null, app.view.pass].includes(first.pass)) await goToFinding(first);
  fitSmall();
}
