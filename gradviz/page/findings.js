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

// Show the pass of a finding, and select what it is about; if the picture has nothing of it, go to its event.
async function goToFinding(finding) {
  showFindings(false);
  const position = heldPasses.get(finding.pass);
  if (position === undefined && finding.pass && heldPasses.size && !heldPasses.has(null)) return goToPass(finding.pass);
  if (position !== undefined && data.held[app.asked] !== finding.pass) await openPass(position);
  const { view } = app;
  const id = [...finding.ids, ...finding.tensors.map((tensor) => versionAt(view, `t${tensor}`, moment()))].find((one) => view.nodeOf.has(one));
  const at = finding.event === null ? -1 : view.steps.findIndex((step) => step.k >= finding.event);
  if (at >= 0 && !id) goTo(at);
  select(id || null, true);
  if (finding.at) showPlace(finding.at, `${finding.number} ${finding.rule}`);
  if (!id && at < 0) say(said("finding {number} has no place in this picture: {place}", finding));
  return undefined;
}
