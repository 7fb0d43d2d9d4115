// The panel of a pass: its loss, a bar for the gradient of each layer, and how much the step behind the pass changed it.

function passPanel() {
  const { summary } = app.view;
  if (!summary || held.until() < Infinity) return null; // a lesson asks for what it says
  const parts = [element("h3", {}, app.view.pass === null ? said("The run") : said("Pass {number}", { number: app.view.pass }))];
  if (summary.loss) parts.push(element("p", {}, `${summary.loss[0]} = `, shownNumber(summary.loss[1])));
  if (summary.layers.length) parts.push(layerTable(summary.layers));
  return element("div", { class: "pass" }, parts);
}

const shownNumber = (value) => (value === "odd" ? element("span", { class: "odd" }, said("not finite")) : String(value));

function layerTable(layers) {
  const norms = layers.map(([, norm]) => norm).filter(isNumber);
  const logs = norms.map(Math.log10);
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  // One bar is as long as the largest norm; the least is short, and ten times less is as much shorter everywhere.
  const decades = Math.max(most - least, 1);
  const width = (norm) => 100 - (85 * (most - Math.log10(norm))) / decades;
  const changes = layers.some(([, , change]) => change !== null);
  return element("table", { class: "layers" },
    element("thead", {}, element("tr", {}, element("th", {}, said("layer")), element("th", { colspan: 2 }, said("norm of its gradient")), changes ? element("th", { title: said("of the norm of its parameters") }, said("step changes")) : null)),
    element("tbody", {}, layers.map(([name, norm, change]) =>
      element("tr", {},
        element("th", { scope: "row" }, layerLink(name)),
        element("td", { class: "strip" }, isNumber(norm) ? barOf(width(norm)) : null),
        element("td", { class: norm === "odd" ? "odd" : "grad" }, norm === "odd" ? said("not finite") : String(norm)),
        changes ? element("td", {}, change === null ? "" : change === "odd" ? element("span", { class: "odd" }, said("not finite")) : percent(change)) : null))));
}

const percent = (share) => `${Number((100 * share).toPrecision(3))} %`;

function barOf(width) {
  return svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: Math.max(width, 1), height: 8 }));
}

// The name of a layer, which leads to its box if the picture has one, else to its first parameter.
function layerLink(layer) {
  const name = layer.replace(" (own)", "");
  const path = (text) => text.replaceAll("/", ".");
  const group = app.view.groups.find((one) => one.scope && path(one.scope) === name);
  const leaf = app.view.nodes.find((node) => node.leaf && node.wants && (node.name === name || (node.name || "").startsWith(`${name}.`)));
  const target = group || leaf;
  const text = element("bdi", {}, layer);
  return target ? element("button", { class: "link path", type: "button", title: layer, onclick: () => select(target.id, true) }, text) : element("span", { class: "path", title: layer }, text);
}
