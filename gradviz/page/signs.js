// The legend: a sample of every kind of box and line, drawn as in the picture.

const BOXES = [
  ["leaf wants", "leaf that requires grad: backward adds to its .grad"],
  ["leaf wants has-grad", "leaf with a gradient in its .grad"],
  ["leaf", "leaf that does not require grad: data"],
  ["tensor wants", "non-leaf: an operation computed it"],
  ["tensor wants root", "root: backward() begins here"],
  ["op", "operation"],
  ["op passive", "operation whose inputs do not require grad"],
  ["op astray", "operation that no root was computed from"],
  ["grad_fn", "grad_fn, that has not run yet"],
  ["grad_fn ran", "grad_fn, that has run"],
  ["grad_fn error", "an error was raised here"],
  ["op finding", "gradviz check found something here"],
  ["group", "folded: a module, a repetition, a chain"],
  ["now tensor", "the present event is about this"],
];
const LINES = [
  ["data", "data", "data"],
  ["grad", "grad", "next_functions: no gradient yet"],
  ["grad flowed", "grad", "a gradient has flowed"],
  ["grad flowed odd", "grad", "NaN or infinity in it"],
  ["saved", "saved", "saved for backward"],
  ["view", "view", "on the same memory"],
  ["mutation", "mutation", "changed in place"],
  ["data cut", "stop", "no gradient goes through: detached"],
  ["data cut due", "due", "a gradient was due, and stops here"],
];

const sample = (...parts) => svg("svg", { width: 46, height: 22, viewBox: "0 0 46 22", "aria-hidden": "true" }, ...parts);

function startSigns() {
  const boxes = BOXES.map(([kind, meaning]) => [sample(svg("g", { class: `node ${kind}` }, svg("rect", { x: 4, y: 3, width: 38, height: 16, rx: 5, class: "box" }))), meaning]);
  const lines = LINES.map(([kind, tip, meaning]) => [sample(svg("path", { class: `edge ${kind}`, d: "M3 11H42", "marker-end": `url(#tip-${tip})` })), meaning]);
  $("signs-list").replaceChildren(...[...boxes, ...lines].map(([drawn, meaning]) => element("li", {}, drawn, element("span", {}, said(meaning)))));
}

function showSigns(show = !$("signs-box").open) {
  const box = $("signs-box");
  if (show) box.showModal();
  else box.close();
}
