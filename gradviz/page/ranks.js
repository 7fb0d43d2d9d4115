// Lays out a small graph in rows: from boxes and edges to positions. The four steps of Sugiyama's method.

const GAP_X = 26;
const GAP_Y = 34;
const BEND = 10; // the width of an edge where it crosses a row
const LONG = 60; // rows; a longer edge may cross them anywhere

// items: {w, h, pin}, edges: {a, b, ao, bo}: indices of items, and the distances of the edge's ends right of
// their centres. Returns {w, h, x, y, routes}: the centres of the items, and for each edge the points between
// its ends.
function inRows(items, edges) {
  const count = items.length;
  const forward = acyclic(count, edges);
  const rank = ranksOf(items, forward);
  const cells = items.map((item, i) => ({ i, w: item.w, rank: rank[i], up: [], down: [] }));
  const chains = edges.map(() => []);
  forward.forEach(({ a, b, ao, bo, edge }) => {
    if (a === b) return;
    const span = rank[b] - rank[a];
    if (span > LONG) return;
    let from = cells[a];
    let offset = ao;
    for (let r = rank[a] + 1; r < rank[b]; r++) {
      const bend = { i: -1, w: BEND, rank: r, up: [], down: [] };
      cells.push(bend);
      chains[edge].push(bend);
      link(from, bend, offset, 0);
      from = bend;
      offset = 0;
    }
    link(from, cells[b], offset, bo);
  });
  const rows = ordered(cells);
  place(rows);
  return measured(items, edges, rows, cells, chains, forward);
}

function link(from, to, fromOffset, toOffset) {
  const bends = (from.i < 0) + (to.i < 0);
  const weight = bends === 2 ? 8 : bends === 1 ? 3 : 2;
  from.down.push({ cell: to, own: fromOffset, other: toOffset, weight });
  to.up.push({ cell: from, own: toOffset, other: fromOffset, weight });
}

// The edges; edges that would close a cycle are reversed.
function acyclic(count, edges) {
  const out = Array.from({ length: count }, () => []);
  edges.forEach((edge, number) => out[edge.a].push([edge.b, number]));
  const seen = new Uint8Array(count);
  const turned = new Set();
  for (let start = 0; start < count; start++) {
    if (seen[start]) continue;
    const stack = [[start, 0]];
    seen[start] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      const next = out[top[0]][top[1]++];
      if (!next) {
        seen[top[0]] = 2;
        stack.pop();
      } else if (seen[next[0]] === 1) turned.add(next[1]);
      else if (!seen[next[0]]) {
        seen[next[0]] = 1;
        stack.push([next[0], 0]);
      }
    }
  }
  return edges.map(({ a, b, ao = 0, bo = 0 }, edge) =>
    turned.has(edge) ? { a: b, b: a, ao: bo, bo: ao, edge, turned: true } : { a, b, ao, bo, edge },
  );
}

// The row of each item: as high as its edges allow; a source is as close to its first reader as possible.
function ranksOf(items, edges) {
  const count = items.length;
  const out = Array.from({ length: count }, () => []);
  const missing = new Int32Array(count);
  const sources = new Uint8Array(count).fill(1);
  for (const { a, b } of edges) {
    if (a === b) continue;
    out[a].push(b);
    missing[b]++;
    sources[b] = 0;
  }
  const begin = items.some((item) => item.pin === "top") ? 1 : 0;
  const rank = Int32Array.from(items, (item) => (item.pin === "top" ? 0 : begin));
  const order = [];
  for (let i = 0; i < count; i++) if (!missing[i]) order.push(i);
  for (let at = 0; at < order.length; at++) {
    for (const next of out[order[at]]) {
      rank[next] = Math.max(rank[next], rank[order[at]] + 1);
      if (!--missing[next]) order.push(next);
    }
  }
  let last = 0;
  items.forEach((item, i) => {
    if (item.pin !== "bottom") last = Math.max(last, rank[i]);
  });
  items.forEach((item, i) => {
    if (item.pin === "bottom") rank[i] = last + 1;
  });
  for (const i of order.reverse()) {
    if (sources[i] && !items[i].pin && out[i].length) {
      rank[i] = Math.max(rank[i], Math.min(...out[i].map((next) => rank[next])) - 1);
    }
  }
  return rank;
}

// The cells of each row from left to right, ordered so that few edges cross.
function ordered(cells) {
  const rows = [];
  const seen = new Set();
  const visit = (start) => {
    const stack = [start];
    while (stack.length) {
      const cell = stack.pop();
      if (seen.has(cell)) continue;
      seen.add(cell);
      (rows[cell.rank] ||= []).push(cell);
      for (let i = cell.down.length - 1; i >= 0; i--) stack.push(cell.down[i].cell);
    }
  };
  cells.filter((cell) => !cell.up.length).forEach(visit);
  cells.forEach(visit);
  for (let r = 0; r < rows.length; r++) rows[r] ||= [];
  number(rows);
  const sweeps = cells.length > 4000 ? 4 : cells.length > 800 ? 10 : 20;
  let best = rows.map((row) => row.slice());
  let least = crossings(rows);
  for (let sweep = 0; sweep < sweeps && least > 0; sweep++) {
    const down = sweep % 2 === 0;
    for (let step = 1; step < rows.length; step++) {
      sortRow(rows[down ? step : rows.length - 1 - step], down ? "up" : "down");
    }
    if (cells.length <= 800) exchange(rows);
    const found = crossings(rows);
    if (found < least) {
      least = found;
      best = rows.map((row) => row.slice());
    }
  }
  number(best);
  return best;
}

const number = (rows) => rows.forEach((row) => row.forEach((cell, at) => (cell.at = at)));

// Sort a row by the mean position of each cell's neighbours; a cell without neighbours keeps its position.
function sortRow(row, side) {
  for (const cell of row) {
    const near = cell[side];
    cell.key = near.length
      ? near.reduce((sum, { cell: other, other: offset }) => sum + other.at + offset / 1000, 0) / near.length
      : -1;
  }
  const free = row.filter((cell) => cell.key >= 0 || cell[side].length).sort((a, b) => a.key - b.key);
  let next = 0;
  const result = row.map((cell) => (cell[side].length ? free[next++] : cell));
  result.forEach((cell, at) => {
    row[at] = cell;
    cell.at = at;
  });
}

// Swap adjacent cells in a row if that removes crossings.
function exchange(rows) {
  for (const row of rows) {
    for (let at = 0; at + 1 < row.length; at++) {
      const [left, right] = [row[at], row[at + 1]];
      let gain = 0;
      for (const side of ["up", "down"]) {
        for (const { cell: a, other: ao } of left[side]) {
          for (const { cell: b, other: bo } of right[side]) {
            gain += Math.sign(a.at + ao / 1000 - b.at - bo / 1000);
          }
        }
      }
      if (gain > 0) {
        [row[at], row[at + 1]] = [right, left];
        right.at = at;
        left.at = at + 1;
      }
    }
  }
}

// The number of crossing edges, by counting inversions row by row.
function crossings(rows) {
  let total = 0;
  for (let r = 0; r + 1 < rows.length; r++) {
    const tree = new Int32Array(rows[r + 1].length + 1);
    let entered = 0;
    for (const cell of rows[r]) {
      const ends = cell.down.map((edge) => edge.cell.at);
      for (const end of ends) {
        let before = 0;
        for (let i = end + 1; i > 0; i -= i & -i) before += tree[i];
        total += entered - before;
      }
      for (const end of ends) {
        entered++;
        for (let i = end + 1; i < tree.length; i += i & -i) tree[i]++;
      }
    }
  }
  return total;
}

// The horizontal position of each cell of each row: close to its neighbours, without overlaps.
function place(rows) {
  for (const row of rows) {
    let right = 0;
    for (const cell of row) {
      cell.x = right + cell.w / 2;
      right += cell.w + GAP_X;
    }
    for (const cell of row) cell.x -= right / 2;
  }
  const rounds = rows.length > 1000 ? 6 : 14;
  for (let round = 0; round < rounds; round++) {
    const down = round % 2 === 0;
    const both = round >= rounds - 4;
    for (let step = 0; step < rows.length; step++) {
      settle(rows[down ? step : rows.length - 1 - step], both ? ["up", "down"] : [down ? "up" : "down"]);
    }
  }
}

// Move the cells of a row as close as possible to the positions their neighbours want (weighted least
// squares), in order and without overlaps: cells that push each other are pooled.
function settle(row, sides) {
  const blocks = [];
  let shift = 0;
  row.forEach((cell, at) => {
    let weight = 0;
    let sum = 0;
    for (const side of sides) {
      for (const edge of cell[side]) {
        weight += edge.weight;
        sum += edge.weight * (edge.cell.x + edge.other - edge.own);
      }
    }
    if (!weight) [weight, sum] = [0.05, 0.05 * cell.x];
    if (at) shift += (row[at - 1].w + cell.w) / 2 + gap(row[at - 1], cell);
    cell.shift = shift;
    let block = { weight, sum: sum - weight * shift, from: at };
    while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const before = blocks.pop();
      block = { weight: before.weight + block.weight, sum: before.sum + block.sum, from: before.from };
    }
    blocks.push(block);
  });
  blocks.forEach((block, b) => {
    const end = b + 1 < blocks.length ? blocks[b + 1].from : row.length;
    for (let at = block.from; at < end; at++) row[at].x = block.sum / block.weight + row[at].shift;
  });
}

const gap = (a, b) => (a.i < 0 && b.i < 0 ? 6 : a.i < 0 || b.i < 0 ? 14 : GAP_X);

function measured(items, edges, rows, cells, chains, forward) {
  let left = Infinity;
  let right = -Infinity;
  for (const cell of cells) {
    left = Math.min(left, cell.x - cell.w / 2);
    right = Math.max(right, cell.x + cell.w / 2);
  }
  if (!cells.length) left = right = 0;
  let top = 0;
  const x = new Float64Array(items.length);
  const y = new Float64Array(items.length);
  rows.forEach((row, r) => {
    const height = Math.max(0, ...row.map((cell) => (cell.i < 0 ? 0 : items[cell.i].h)));
    for (const cell of row) {
      cell.top = top;
      cell.bottom = top + height;
      if (cell.i >= 0) {
        x[cell.i] = cell.x - left;
        y[cell.i] = top + height / 2;
      }
    }
    top += height + (r + 1 < rows.length ? gapBelow(row, rows[r + 1], items) : 0);
  });
  const routes = edges.map((_, number) => {
    const points = chains[number].flatMap((bend) => [
      [bend.x - left, bend.top],
      [bend.x - left, bend.bottom],
    ]);
    return forward[number].turned ? points.reverse() : points;
  });
  return { w: right - left, h: top, x, y, routes };
}

// Rows are further apart if edges go far sideways, and close together if one has only ports.
function gapBelow(row, next, items) {
  const onlyPorts = (cells) => cells.every((cell) => cell.i < 0 || items[cell.i].pin);
  let widest = 0;
  for (const cell of row) {
    for (const edge of cell.down) widest = Math.max(widest, Math.abs(edge.cell.x + edge.other - cell.x - edge.own));
  }
  return (onlyPorts(row) || onlyPorts(next) ? GAP_Y / 2 : GAP_Y) + Math.min(50, widest / 18);
}
