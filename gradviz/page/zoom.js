// Pan and zoom, by d3-zoom. The picture moves as a whole; text that is too small to read is hidden.

const zoom = d3.zoom().scaleExtent([0.02, 4]).clickDistance(4).filter((event) =>
  !event.button && (event.ctrlKey ? event.type === "wheel" : !(event.shiftKey && event.type === "wheel")));
const stage = d3.select("#stage");
const eye = () => d3.zoomTransform(stage.node()); // {x, y, k}: where the picture's corner is, and its scale

const stageSize = () => ({ w: stage.node().clientWidth, h: stage.node().clientHeight });
const zoomBy = (factor) => zoom.scaleBy(stage, factor);
const moveBy = (dx, dy) => zoom.translateBy(stage, dx / eye().k, dy / eye().k);

function look({ x, y, k }) {
  $("world").setAttribute("transform", `translate(${round(x)} ${round(y)}) scale(${k.toFixed(4)})`);
  stage.classed("far", !isReadable(k)).classed("further", k < 0.28);
  showSeen({ x, y, k });
}

// Where the notes over the picture end.
const belowNotes = () => ($("notes").hidden ? 0 : $("notes").offsetTop + $("notes").offsetHeight + 6);

const spareMargin = 24;
const topOfPicture = () => Math.max(spareMargin, belowNotes());
const isReadable = (scale) => scale >= 0.5;

// The scale at which the whole picture is on the screen.
function wholeScale({ w, h }, layout) {
  return Math.min((w - 2 * spareMargin) / Math.max(layout.w, 1), (h - topOfPicture() - spareMargin) / Math.max(layout.h, 1));
}

// Show a small picture whole, if it can be read so.
function fitSmall() {
  if (app.view.small && isReadable(wholeScale(stageSize(), picture.layout))) fit();
}

// Show the whole picture; of a large one, show the beginning as large as is readable.
function fit(all = true) {
  const { w, h } = stageSize();
  const layout = picture.layout;
  if (!layout || !w) return;
  const [top, whole] = [topOfPicture(), wholeScale({ w, h }, layout)];
  const k = Math.min(1.25, Math.max(whole, zoom.scaleExtent()[0], all ? 0 : 0.8));
  let x = (w - layout.w * k) / 2;
  if (x < 0) {
    const first = [...layout.boxes.values()].reduce((a, b) => (b.y < a.y ? b : a));
    x = Math.max(Math.min(w / 2 - first.x * k, spareMargin), w - spareMargin - layout.w * k);
  }
  const y = layout.h * k < h ? Math.max((h - layout.h * k) / 2, top) : top;
  zoom.transform(stage, d3.zoomIdentity.translate(x, y).scale(k));
}

// Move the picture just enough to bring something into view.
function bringIntoView(id, middle = false) {
  const box = id && (picture.layout.boxes.get(id) || picture.layout.frames.find((frame) => frame.id === id));
  if (!box) return;
  const { w, h } = stageSize();
  if (middle && !isReadable(eye().k)) zoom.scaleTo(stage, 0.8);
  const [x, y] = eye().apply([box.x, box.y]);
  const [dx, dy] = [(box.w * eye().k) / 2 + 20, (box.h * eye().k) / 2 + 20];
  moveBy(x - dx < 0 || x + dx > w ? w / 2 - x : 0, y - dy < 0 || y + dy > h ? h / 2 - y : 0);
}

// Keep something at its position on the screen while the picture is redrawn.
function whereIs(id) {
  const box = picture.layout && (picture.layout.boxes.get(id) || picture.layout.frames.find((frame) => frame.id === id));
  return box ? eye().apply([box.x, box.y - box.h / 2]) : null;
}

function keepAt(id, place) {
  const at = whereIs(id);
  if (place && at) moveBy(place[0] - at[0], place[1] - at[1]);
}

function startZoom() {
  const isHeld = (event) => Boolean(event.sourceEvent) && event.sourceEvent.type !== "wheel";
  zoom.on("zoom", (event) => {
    look(event.transform);
    if (isHeld(event)) stage.classed("dragging", true);
  });
  zoom.on("end", () => stage.classed("dragging", false));
  stage.call(zoom).on("dblclick.zoom", null);
  stage.on("wheel.aside", (event) => {
    if (event.ctrlKey || !event.shiftKey) return;
    event.preventDefault();
    moveBy(-event.deltaX - event.deltaY, 0);
  }, { passive: false });
}
