// The texts on a page whose contrast with what is behind them is below that of WCAG AA, and how many were looked at.
() => {
  const parse = (text) => {
    const n = (text.match(/[\d.e-]+/g) || []).map(Number);
    const scale = text.startsWith("color(") ? 1 : 255;
    return [n[0] / scale, n[1] / scale, n[2] / scale, n.length > 3 ? n[3] : 1];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((behind, layer) => over(layer, behind), [1, 1, 1, 1]);
  };
  let checked = 0;
  const faint = [];
  for (const text of document.querySelectorAll("body *")) {
    const own = [...text.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["SCRIPT", "STYLE", "OPTION"].includes(text.tagName) || !text.getClientRects().length) continue;
    if (text.closest(".unborn, :disabled, .unseen")) continue; // of what is not there yet the picture is pale
    const look = getComputedStyle(text);
    if (look.visibility === "hidden") continue;
    let fore, back;
    if (text.namespaceURI.endsWith("svg")) {
      fore = parse(look.fill);
      const box = text.parentElement.querySelector(":scope > .box");
      back = box ? parse(getComputedStyle(box).fill) : look.paintOrder.startsWith("stroke") ? parse(look.stroke) : ground(text.closest("section, body"));
      fore = over([fore[0], fore[1], fore[2], fore[3] * Number(look.fillOpacity)], back);
    } else { back = ground(text); fore = over(parse(look.color), back); }
    const r = ratio(fore, back);
    checked += 1;
    if (r < 4.5) faint.push([r.toFixed(2), text.textContent.slice(0, 40)]);
  }
  return { checked, faint };
}
