// Pan and zoom. The picture moves as a whole; text that is too small to read is hidden.

const eye = { x: 0, y: 0, scale: 1 };
const LEAST = 0.02;
const MOST = 4;

function look() {
  $("world").setAttribute("transform", `translate(${round(eye.x)} ${round(eye.y)}) scale(${eye.scale.toFixed(4)})`);
  const stage = $("stage");
  stage.classList.toggle("far", eye.scale < 0.5);
  stage.classList.toggle("further", eye.scale < 0.28);
}

const stageSize = () => ({ w: $("stage").clientWidth, h: $("stage").clientHeight });

function zoomTo(scale, x = stageSize().w / 2, y = stageSize().h / 2) {
  const wanted = Math.min(Math.max(scale, LEAST), MOST);
  eye.x = x - ((x - eye.x) * wanted) / eye.scale;
  eye.y = y - ((y - eye.y) * wanted) / eye.scale;
  eye.scale = wanted;
  look();
}

// Show the whole picture; of a large one, show the beginning as large as is readable.
function fit(all = true) {
  const { w, h } = stageSize();
  const layout = picture.layout;
  if (!layout || !w) return;
  const margin = 24;
  const whole = Math.min((w - 2 * margin) / Math.max(layout.w, 1), (h - 2 * margin) / Math.max(layout.h, 1));
  eye.scale = Math.min(1.25, Math.max(whole, all ? LEAST : 0.8));
  eye.x = (w - layout.w * eye.scale) / 2;
  eye.y = layout.h * eye.scale < h ? (h - layout.h * eye.scale) / 2 : margin;
  if (layout.w * eye.scale > w) {
    const first = [...layout.boxes.values()].reduce((a, b) => (b.y < a.y ? b : a));
    eye.x = Math.max(Math.min(w / 2 - first.x * eye.scale, margin), w - margin - layout.w * eye.scale);
  }
  look();
}

// Move the picture just enough to bring something into view.
function bringIntoView(id, middle = false) {
  const box = id && (picture.layout.boxes.get(id) || picture.layout.frames.find((frame) => frame.id === id));
  if (!box) return;
  const { w, h } = stageSize();
  if (middle && eye.scale < 0.5) zoomTo(0.8);
  const x = eye.x + box.x * eye.scale;
  const y = eye.y + box.y * eye.scale;
  const [dx, dy] = [(box.w * eye.scale) / 2 + 20, (box.h * eye.scale) / 2 + 20];
  if (x - dx < 0 || x + dx > w) eye.x += w / 2 - x;
  if (y - dy < 0 || y + dy > h) eye.y += h / 2 - y;
  look();
}

// Keep something at its position on the screen while the picture is redrawn.
function whereIs(id) {
  const box = picture.layout && (picture.layout.boxes.get(id) || picture.layout.frames.find((frame) => frame.id === id));
  return box ? [eye.x + box.x * eye.scale, eye.y + (box.y - box.h / 2) * eye.scale] : null;
}

function keepAt(id, place) {
  const at = whereIs(id);
  if (!place || !at) return;
  eye.x += place[0] - at[0];
  eye.y += place[1] - at[1];
  look();
}

const pointers = new Map();
let dragged = false;
let spread = 0;

function startZoom() {
  const stage = $("stage");
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    if (event.ctrlKey || !event.shiftKey) {
      const unit = event.deltaMode === 1 ? 30 : 1;
      zoomTo(eye.scale * Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
    } else {
      eye.x -= event.deltaX + event.deltaY;
      look();
    }
  }, { passive: false });
  stage.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    dragged = false;
    spread = spreadOf();
  });
  window.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const [dx, dy] = [event.clientX - before[0], event.clientY - before[1]];
    if (!dragged && Math.hypot(dx, dy) < 4) return;
    dragged = true;
    stage.classList.add("dragging");
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (pointers.size === 1) {
      eye.x += dx;
      eye.y += dy;
      look();
    } else {
      const now = spreadOf();
      if (spread && now) zoomTo((eye.scale * now) / spread);
      spread = now;
    }
  });
  for (const end of ["pointerup", "pointercancel"]) {
    window.addEventListener(end, (event) => {
      pointers.delete(event.pointerId);
      if (!pointers.size) stage.classList.remove("dragging");
    });
  }
  new ResizeObserver(() => look()).observe(stage);
}

function spreadOf() {
  const [a, b] = [...pointers.values()];
  return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0;
}
