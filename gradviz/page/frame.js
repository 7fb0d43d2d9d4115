// In a frame, as a notebook's widget has it: the page says where it is, and goes where it is told.

const isFramedPage = window.parent !== window;

function sayWhere() {
  const step = now();
  const where = { pass: app.view.pass || 0, event: step ? step.k + 1 : 0, selected: app.selected || "", sentence: step ? step.text : "" };
  window.parent.postMessage({ gradviz: where }, "*"); // a page in a notebook has no origin that could be named
}

async function goWhere(message) {
  const where = message.data && message.data.gradviz;
  if (message.source !== window.parent || typeof where !== "object" || where === null) return;
  const position = data.held.findIndex((held) => held === where.pass);
  if (position >= 0 && position !== app.view.position) await openPass(position);
  if (where.event > 0) goToEvent(where.event - 1);
  const { nodeOf, groupOf } = app.view;
  if (nodeOf.has(where.selected) || groupOf.has(where.selected)) select(where.selected, true);
  else if (where.selected === "") select(null);
  sayWhere();
}

function startFrame() {
  if (!isFramedPage) return;
  on("step", sayWhere);
  on("select", sayWhere);
  window.addEventListener("message", goWhere);
  sayWhere();
}
