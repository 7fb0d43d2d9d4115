// The overview: the whole picture, small, in a corner, with a frame around what is on the screen. A click or a drag moves
// there. It shows only while the picture is larger than the screen.

const OVERVIEW = { w: 150, h: 420, lowest: 260 }; // its largest size; below this height the stage has no room for it
let overviewScale = 0;

const outline = (part) => {
  const [x, y, w, h] = [part.x - part.w / 2, part.y - part.h / 2, part.w, part.h].map((length) => round(length * overviewScale));
  return `M${x} ${y}h${Math.max(w, 1)}v${Math.max(h, 1)}h${-Math.max(w, 1)}z`;
};

function drawOverview() {
  const { w, h, boxes, frames } = picture.layout;
  overviewScale = Math.min(OVERVIEW.w / Math.max(w, 1), Math.min(OVERVIEW.h, 0.6 * Math.max(stageSize().h, OVERVIEW.lowest)) / Math.max(h, 1));
  const small = $("overview");
  small.setAttribute("width", Math.ceil(w * overviewScale));
  small.setAttribute("height", Math.ceil(h * overviewScale));
  const isClosed = (box) => app.view.groupOf.has(box.id);
  const all = [...boxes.values()];
  small.replaceChildren(
    svg("path", { class: "frames", d: frames.map(outline).join("") }),
    svg("path", { class: "boxes", d: all.filter((box) => !isClosed(box)).map(outline).join("") }),
    svg("path", { class: "groups", d: all.filter(isClosed).map(outline).join("") }),
    svg("rect", { class: "seen" }),
  );
  showSeen(eye());
}

// Show which part of the picture is on the screen.
function showSeen({ x, y, k }) {
  const { w, h } = stageSize();
  const layout = picture.layout;
  const seen = document.querySelector("#overview .seen");
  if (!layout || !seen) return;
  const isWhole = x >= 0 && y >= 0 && x + layout.w * k <= w && y + layout.h * k <= h;
  $("overview").classList.toggle("needless", isWhole || h < OVERVIEW.lowest);
  const [left, top] = [Math.max(0, -x / k), Math.max(0, -y / k)];
  const size = { width: Math.min(layout.w, (w - x) / k) - left, height: Math.min(layout.h, (h - y) / k) - top };
  for (const [name, length] of Object.entries({ x: left, y: top, ...size })) seen.setAttribute(name, round(Math.max(0, length * overviewScale)));
}

function startOverview() {
  const small = $("overview");
  const move = (event) => {
    event.stopPropagation();
    if (event.type === "pointermove" && !event.buttons) return;
    const corner = small.getBoundingClientRect();
    zoom.translateTo(stage, (event.clientX - corner.left) / overviewScale, (event.clientY - corner.top) / overviewScale);
  };
  small.addEventListener("pointerdown", (event) => {
    small.setPointerCapture(event.pointerId);
    move(event);
  });
  small.addEventListener("pointermove", move);
  for (const kind of ["mousedown", "touchstart", "click", "dblclick"]) small.addEventListener(kind, (event) => event.stopPropagation());
}
