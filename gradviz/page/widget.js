// The page of a trace in a cell of a notebook: its place is that of the widget in Python, either way.

const PLACE = { pass: "pass_number", event: "event", selected: "selected" };

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.style.cssText = "width: 100%; border: 1px solid #8884; border-radius: 8px";
  frame.style.height = `${model.get("height")}px`;
  frame.srcdoc = model.get("page");
  const place = () => Object.fromEntries(Object.entries(PLACE).map(([name, trait]) => [name, model.get(trait)]));
  let isOpen = false;
  let known = ""; // the place that the page has said

  const lead = () => {
    if (isOpen && JSON.stringify(place()) !== known) frame.contentWindow.postMessage({ gradviz: place() }, "*");
  };
  const hear = (message) => {
    const where = message.source === frame.contentWindow && message.data && message.data.gradviz;
    if (!where) return;
    const isFirst = !isOpen;
    isOpen = true;
    if (isFirst && Object.values(place()).some(Boolean)) {
      lead(); // a part of the place was chosen before the page was there
      return;
    }
    for (const [name, trait] of Object.entries(PLACE)) model.set(trait, where[name]);
    model.set("sentence", where.sentence);
    known = JSON.stringify(place());
    model.save_changes();
  };

  window.addEventListener("message", hear);
  for (const trait of Object.values(PLACE)) model.on(`change:${trait}`, lead);
  el.append(frame);
  return () => {
    window.removeEventListener("message", hear);
    for (const trait of Object.values(PLACE)) model.off(`change:${trait}`, lead);
  };
}

export default { render };
