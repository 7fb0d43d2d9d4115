// Computes positions. Each open group is laid out separately, inner groups first, and is then a box in its
// parent. Edges that leave a group go through a port at its top or bottom.

const PAD = 14; // between a frame and its contents
const HEAD = 24; // the line with the frame's name
const PAIR_GAP = 8; // between an op and its grad_fn

// Returns {w, h, boxes, frames, ties, edges}: boxes by id as {id, x, y, w, h} (x and y of the centre), edges
// with `points` from their source to their target.
function layOut(sizeOf) {
  const plan = new Plan(sizeOf);
  plan.collect();
  plan.connect();
  return plan.solved();
}

class Plan {
  constructor(sizeOf) {
    this.sizeOf = sizeOf;
    this.levels = new Map(); // a frame's id, or "" for the whole picture -> its direct contents
    this.unitOf = new Map(); // the id of a box -> its unit (a box, or two side by side)
    this.edges = new Map();
    this.level("");
  }

  level(id) {
    if (!this.levels.has(id)) {
      const around = id ? this.frameAround(id) : null;
      this.levels.set(id, { id, around, items: [], edges: [], ports: new Map(), depth: 0, as: null });
      if (id) {
        const outer = this.level(around);
        const made = this.levels.get(id);
        made.depth = outer.depth + 1;
        made.as = { frame: id, level: around };
        outer.items.push(made.as);
      }
    }
    return this.levels.get(id);
  }

  // The innermost frame around something; open groups without a frame do not count.
  frameAround(id) {
    return ancestorsOf(id).find((group) => isFramed(app.view.groupOf.get(group))) || "";
  }

  collect() {
    const shown = new Set();
    for (const node of app.view.nodes) shown.add(shownAs(node.id));
    const paired = new Set();
    for (const id of shown) {
      const node = app.view.nodeOf.get(id);
      const pair = node && node.pair && shown.has(node.pair) ? node.pair : null;
      if (pair && this.frameAround(pair) === this.frameAround(id)) paired.add(pair);
    }
    for (const id of shown) {
      if (paired.has(id)) continue;
      const node = app.view.nodeOf.get(id);
      const ids = node && paired.has(node.pair) ? [id, node.pair] : [id];
      const unit = { ids, level: this.frameAround(id), dx: [], w: 0, h: 0 };
      const sizes = ids.map((each) => this.sizeOf(each));
      unit.w = sizes.reduce((sum, size) => sum + size.w, PAIR_GAP * (ids.length - 1));
      unit.h = Math.max(...sizes.map((size) => size.h));
      let left = -unit.w / 2;
      ids.forEach((each, i) => {
        unit.dx.push(left + sizes[i].w / 2);
        left += sizes[i].w + PAIR_GAP;
        this.unitOf.set(each, { unit, dx: unit.dx[i] });
      });
      this.level(unit.level).items.push(unit);
    }
  }

  // The edges between the boxes that are shown. Several of one kind between the same two are merged.
  connect() {
    this.made = new Set(); // outputs of ops: if a view is one, the edge of its op is enough
    for (const edge of app.view.edges) {
      if (edge.kind === "data") this.made.add(shownAs(edge.target));
      const source = shownAs(edge.source);
      const target = shownAs(edge.target);
      if (source === target || isOfData(target)) continue;
      if (app.view.rolled && isMinor(edge) && (source !== edge.source || target !== edge.target)) continue;
      const key = `${edge.kind} ${source} ${target} ${edge.cut}`;
      if (!this.edges.has(key)) {
        this.edges.set(key, { key, source, target, kind: edge.kind, cut: edge.cut, due: false, label: edge.label, members: [], parts: [] });
      }
      const merged = this.edges.get(key);
      merged.members.push(edge);
      merged.due = merged.due || edge.due;
    }
    for (const edge of this.edges.values()) {
      edge.aside = edge.kind === "saved" || (edge.kind === "view" && !edge.cut && this.made.has(edge.target));
      if (!edge.aside) this.route(edge);
    }
  }

  // Split an edge into one part for each level that it crosses. Gradients go up, so their edges are laid out
  // in the reverse direction.
  route(edge) {
    const isGrad = edge.kind === "grad";
    const [upper, lower] = isGrad ? [edge.target, edge.source] : [edge.source, edge.target];
    const [u, l] = [this.unitOf.get(upper), this.unitOf.get(lower)];
    if (u.unit === l.unit) return;
    const above = this.path(u.unit.level);
    const below = this.path(l.unit.level);
    const common = above.find((id) => below.includes(id));
    let end = { item: u.unit, offset: u.dx + apart(upper, edge.kind) };
    for (const id of above.slice(0, above.indexOf(common))) end = this.leave(edge, id, end, lower, isGrad, false);
    let start = { item: l.unit, offset: l.dx + apart(lower, edge.kind) };
    const down = [];
    for (const id of below.slice(0, below.indexOf(common))) start = this.leave(edge, id, start, upper, isGrad, true, down);
    this.part(edge, common, end, start, edge.parts);
    edge.parts.push(...down.reverse());
  }

  leave(edge, id, end, other, isGrad, isTop, parts = edge.parts) {
    const level = this.levels.get(id);
    const key = `${isTop} ${isGrad} ${other}`;
    if (!level.ports.has(key)) {
      const port = { port: key, pin: isTop ? "top" : "bottom", w: 8, h: 0 };
      level.ports.set(key, port);
      level.items.push(port);
    }
    const port = { item: level.ports.get(key), offset: 0 };
    this.part(edge, id, isTop ? port : end, isTop ? end : port, parts);
    return { item: level.as, port: key, of: id };
  }

  part(edge, id, from, to, parts) {
    const level = this.levels.get(id);
    parts.push({ level, number: level.edges.length });
    level.edges.push({ from, to });
  }

  path(id) {
    const found = [id];
    while (id) {
      id = this.levels.get(id).around;
      found.push(id);
    }
    return found;
  }

  solved() {
    const levels = [...this.levels.values()].sort((a, b) => b.depth - a.depth);
    levels.forEach((level) => this.solve(level));
    const result = { boxes: new Map(), frames: [], edges: [], ties: [] };
    for (const level of levels.reverse()) this.put(level, result);
    for (const edge of this.edges.values()) result.edges.push(this.drawn(edge, result));
    const whole = this.levels.get("");
    return { ...result, w: whole.w, h: whole.h };
  }

  solve(level) {
    const positions = new Map(level.items.map((item, i) => [item, i]));
    const boxes = level.items.map((item) => {
      if (!item.frame) return item;
      const inner = this.levels.get(item.frame);
      const title = this.sizeOf(item.frame, true).w + 40;
      item.w = Math.max(inner.w, title) + 2 * PAD;
      item.h = inner.h + 2 * PAD + HEAD;
      item.inset = (item.w - inner.w) / 2;
      return item;
    });
    const offset = (end) => {
      if (!end.port) return end.offset;
      const inner = this.levels.get(end.of);
      return inner.x[inner.items.indexOf(inner.ports.get(end.port))] + end.item.inset - end.item.w / 2;
    };
    const edges = level.edges.map(({ from, to }) => ({
      a: positions.get(from.item), b: positions.get(to.item), ao: offset(from), bo: offset(to),
    }));
    Object.assign(level, inRows(boxes, edges), { ends: edges });
  }

  // Convert the positions in a level to positions in the whole picture; the outer levels are done already.
  put(level, result) {
    level.left ??= 0;
    level.top ??= 0;
    level.items.forEach((item, i) => {
      const x = level.left + level.x[i];
      const y = level.top + level.y[i];
      if (item.frame) {
        const inner = this.levels.get(item.frame);
        inner.left = x - item.w / 2 + item.inset;
        inner.top = y - item.h / 2 + PAD + HEAD;
        inner.edgeTop = y - item.h / 2;
        inner.edgeBottom = y + item.h / 2;
        result.frames.push({ id: item.frame, x, y, w: item.w, h: item.h, depth: inner.depth });
      } else if (item.ids) {
        item.ids.forEach((id, at) => {
          result.boxes.set(id, { id, x: x + item.dx[at], y, ...this.sizeOf(id) });
        });
        if (item.ids.length > 1) result.ties.push(item.ids);
      }
    });
  }

  drawn(edge, { boxes }) {
    const isGrad = edge.kind === "grad";
    const [source, target] = [boxes.get(edge.source), boxes.get(edge.target)];
    if (!edge.parts.length) return { ...edge, points: beside(source, target), parts: null };
    const [upper, lower] = isGrad ? [target, source] : [source, target];
    const points = [[upper.x + apart(upper.id, edge.kind), upper.y + upper.h / 2]];
    edge.parts.forEach(({ level, number }) => {
      const { from, to } = level.edges[number];
      if (from.item.pin) points.push(...this.gate(level, from.item));
      points.push(...level.routes[number].map(([x, y]) => [x + level.left, y + level.top]));
      if (to.item.pin) points.push(...this.gate(level, to.item));
    });
    points.push([lower.x + apart(lower.id, edge.kind), lower.y - lower.h / 2]);
    if (upper.y > lower.y) return { ...edge, points: beside(source, target), parts: null };
    return { ...edge, points: isGrad ? points.reverse() : points, parts: null };
  }

  // The point where an edge crosses a frame: on the frame's line, within its width.
  gate(level, port) {
    const at = level.items.indexOf(port);
    const x = level.left + level.x[at];
    const y = level.top + level.y[at];
    return port.pin === "top" ? [[x, level.edgeTop], [x, y]] : [[x, y], [x, level.edgeBottom]];
  }
}

// At a group, gradients come out right of the middle, and data left of it: both may lead to the same group.
const apart = (id, kind) => (app.view.groupOf.has(id) ? (kind === "grad" ? 9 : kind === "data" ? -9 : 0) : 0);

// What a rolled picture leaves out between its boxes.
const isMinor = (edge) => edge.kind === "saved" || (edge.kind === "view" && !edge.cut);

// Whether a closed group only prepares data: a rollout in it reads tensors of the network, which is not drawn.
const isOfData = (id) => app.view.groupOf.has(id) && app.view.groupOf.get(id).kind === "data";

// From the side of one box to the side of another.
function beside(a, b) {
  const right = b.x >= a.x ? 1 : -1;
  if (Math.abs(a.y - b.y) < (a.h + b.h) / 2) {
    return [[a.x + (right * a.w) / 2, a.y], [b.x - (right * b.w) / 2, b.y]];
  }
  const down = b.y > a.y ? 1 : -1;
  const shift = Math.min(a.w, b.w) / 3;
  return [[a.x + right * Math.min(a.w / 2 - 6, shift), a.y + (down * a.h) / 2], [b.x - right * Math.min(b.w / 2 - 4, shift / 2), b.y - (down * b.h) / 2]];
}

// A smooth line through points that is vertical at each of them.
function curve(points) {
  const [first, ...rest] = points.map(([x, y]) => [round(x), round(y)]);
  let path = `M${first[0]} ${first[1]}`;
  let [x, y] = first;
  for (const [nx, ny] of rest) {
    if (Math.abs(nx - x) < 5 || ny === y) path += `L${nx} ${ny}`;
    else {
      const middle = round((y + ny) / 2);
      path += `C${x} ${middle} ${nx} ${middle} ${nx} ${ny}`;
    }
    [x, y] = [nx, ny];
  }
  return path;
}

const round = (x) => Math.round(x * 10) / 10;
