// The labels of edges, each where it covers no box, no title and no other label.

const LABEL = 12; // the height of a label
const STRIP = 64; // the height of the strips in which labels look for a free place

// The labels of edges, given as [edge, text]. What is looked at and what stops a gradient that was due has the first choice of a place and
// is always labelled; any other label without a place is left out: the details of its boxes say the same.
function edgeLabels(wanted) {
  const taken = new Strips();
  const isNeeded = ([edge]) => edge.due || /now|near|odd/.test(edge.state);
  const inOrder = [...wanted.filter(isNeeded), ...wanted.filter((one) => !isNeeded(one))];
  return inOrder.map(([edge, text]) => edgeLabel(edge, text, isNeeded([edge]), taken)).filter(Boolean);
}

function edgeLabel(edge, text, isNeeded, taken) {
  const isData = edge.kind === "data" && !edge.cut && apart(edge.source, "data") && apart(edge.target, "data");
  const width = widthOf(text, edge.kind === "grad" ? "odd" : "fact") + 6;
  const place = freePlace(edge.points, width, isData, taken) || (isNeeded && [...middleOf(edge.points), isData]);
  if (!place) return null;
  const [x, y, isLeft] = place;
  taken.add(besideEdge(x, y, width, isLeft));
  const made = svg("text", { x: round(x + (isLeft ? -6 : 6)), y: round(y + 4), class: `edge-label ${isLeft ? "left " : ""}${edge.kind} ${edge.due ? "cut" : ""} ${edge.state}` });
  made.textContent = text;
  return made;
}

const besideEdge = (x, y, width, isLeft) => ({ left: isLeft ? x - width : x + 6, right: isLeft ? x - 6 : x + width, top: y - LABEL / 2, bottom: y + LABEL / 2 });

// Where a label covers no box, no title and no label in `taken`, and on which side of its edge; null if nowhere.
function freePlace(points, width, leftFirst, taken) {
  for (const [x, y] of alongEdge(points)) {
    for (const isLeft of [leftFirst, !leftFirst]) {
      const space = besideEdge(x, y, width, isLeft);
      if (picture.obstacles.isFree(space) && taken.isFree(space)) return [x, y, isLeft];
    }
  }
  return null;
}

// Places on an edge: its middle, the middles of its parts, and then a quarter of each part from its ends.
function* alongEdge(points) {
  const parts = points.slice(1).map((end, at) => [points[at], end]);
  yield middleOf(points);
  for (const [[x, y], [endX, endY]] of parts) yield [(x + endX) / 2, (y + endY) / 2];
  for (const [[x, y], [endX, endY]] of parts) {
    for (const [across, along] of [[0.16, 0.3], [0.84, 0.7]]) yield [x + (endX - x) * across, y + (endY - y) * along]; // on the curve
  }
}

// Rectangles of the picture, by the horizontal strips that they lie in.
class Strips {
  constructor() {
    this.strips = new Map();
  }

  static *of({ top, bottom }) {
    for (let strip = Math.floor(top / STRIP); strip <= Math.floor(bottom / STRIP); strip += 1) yield strip;
  }

  add(space) {
    for (const strip of Strips.of(space)) {
      if (!this.strips.has(strip)) this.strips.set(strip, []);
      this.strips.get(strip).push(space);
    }
  }

  isFree({ left, right, top, bottom }) {
    return ![...Strips.of({ top, bottom })].some((strip) => (this.strips.get(strip) || []).some((other) =>
      right > other.left && left < other.right && bottom > other.top && top < other.bottom));
  }
}

// What a label of an edge must not cover: the boxes, and the titles of the frames.
function obstaclesOf({ boxes, frames }) {
  const found = new Strips();
  for (const { x, y, w, h } of boxes.values()) found.add({ left: x - w / 2, right: x + w / 2, top: y - h / 2, bottom: y + h / 2 });
  for (const { id, x, y, w, h } of frames) {
    const [left, top] = [x - w / 2, y - h / 2];
    found.add({ left, right: left + 34 + widthOf(titleOf(app.view.groupOf.get(id)), "name"), top, bottom: top + HEAD });
  }
  return found;
}

function middleOf(points) {
  const half = Math.floor(points.length / 2);
  const [a, b] = [points[half - 1], points[half]];
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
}
