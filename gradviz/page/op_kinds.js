// Kinds of ops: how a row's functions of numbers become a function of tensors, and its derivative. A kind has `forward`,
// which gives the elements of the result, and `backward`, which gives those of the gradient of each input.
//
// A tensor is { shape, x: its elements }.

const size = (shape) => shape.reduce((a, b) => a * b, 1);
const zeros = (count) => new Array(count).fill(0);
const at = (dim, { length }) => (dim < 0 ? dim + length : dim);
const strides = (shape) => shape.map((one, i) => size(shape.slice(i + 1)));

// The places in memory of a view's elements, in order.
function places([offset, steps, shape]) {
  let found = [offset];
  shape.forEach((count, i) => {
    found = found.flatMap((place) => Array.from({ length: count }, (none, n) => place + n * steps[i]));
  });
  return found;
}

// The steps through a tensor that is broadcast to a shape.
function wide(from, shape) {
  const own = strides(from);
  const more = shape.length - from.length;
  return shape.map((one, i) => (i < more || from[i - more] === 1 ? 0 : own[i - more]));
}

const broadcast = (x, shape) => places([0, wide(x.shape, shape), shape]);
const permuted = (shape, dims) => [0, dims.map((dim) => strides(shape)[at(dim, shape)]), dims.map((dim) => shape[at(dim, shape)])];

function swapped(shape, a, b) {
  const dims = shape.map((one, i) => i);
  if (shape.length) [dims[at(a, shape)], dims[at(b, shape)]] = [at(b, shape), at(a, shape)];
  return permuted(shape, dims);
}

// The view of some elements: of each dimension where they begin, their step and their number, 0 for one alone.
function taken(shape, parts) {
  const own = strides(shape);
  const kept = parts.map((part, i) => [...part, i]).filter((part) => part[2] > 0);
  const offset = parts.reduce((all, [begin], i) => all + begin * own[i], 0);
  return [offset, kept.map(([, step, , i]) => step * own[i]), kept.map((part) => part[2])];
}

function each(f, ...backs) {
  const at = (xs, shape) => xs.map((x) => broadcast(x, shape));
  const values = (xs, from, i) => xs.map((x, j) => x.x[from[j][i]]);
  return {
    forward(xs, o, shape) {
      const from = at(xs, shape);
      return zeros(size(shape)).map((none, i) => f(...values(xs, from, i), o));
    },
    backward(g, z, xs, o, shape) {
      const from = at(xs, shape);
      return xs.map((x, j) => {
        if (!backs[j]) return null;
        const found = zeros(x.x.length);
        g.forEach((one, i) => (found[from[j][i]] += backs[j](one, z[i], ...values(xs, from, i), o)));
        return found;
      });
    },
  };
}

// A loss: a function of each pair of two tensors of one shape, and its derivative by the first.
function loss(f, d) {
  const isSame = (x, y) => x.shape.join() === y.shape.join();
  return {
    forward([x, y], o) {
      if (!isSame(x, y)) throw new RangeError("a loss of two shapes");
      const found = x.x.map((one, i) => f(one, y.x[i]));
      return o.reduction === "none" ? found : [o.reduction === "sum" ? sum(found) : mean(found)];
    },
    backward(g, z, [x, y], o) {
      const weight = o.reduction === "mean" ? 1 / x.x.length : 1;
      const found = x.x.map((one, i) => weight * d(g[g.length > 1 ? i : 0], one, y.x[i]));
      return [found, found.map((one) => -one)];
    },
  };
}

// The places of the elements that belong together along some dimensions (null: all), a list for each group.
function groups({ shape }, dim) {
  const dims = dim === null || dim === undefined ? shape.map((one, i) => i) : [dim].flat().map((one) => at(one, shape));
  const [inner, outer] = [true, false].map((inside) => {
    const own = shape.map((one, i) => i).filter((i) => dims.includes(i) === inside);
    return places([0, own.map((i) => strides(shape)[i]), own.map((i) => shape[i])]);
  });
  return outer.map((base) => inner.map((place) => base + place));
}

function over(f, back) {
  return {
    forward: ([x], o) => groups(x, o.dim).map((group) => f(group.map((place) => x.x[place]), o)),
    backward(g, z, [x], o) {
      const found = zeros(x.x.length);
      groups(x, o.dim).forEach((group, n) => {
        const list = group.map((place) => x.x[place]);
        group.forEach((place, i) => (found[place] = back(g[n], z[n], list[i], list, i, o)));
      });
      return [found];
    },
  };
}

function along(f, back) {
  const put = (x, o, act) => {
    const found = zeros(x.x.length);
    for (const group of groups(x, o.dim)) act(group).forEach((one, i) => (found[group[i]] = one));
    return found;
  };
  const pick = (list, group) => group.map((place) => list[place]);
  return {
    forward: ([x], o) => put(x, o, (group) => f(pick(x.x, group))),
    backward: (g, z, [x], o) => [put(x, o, (group) => back(pick(g, group), pick(z, group)))],
  };
}

// Elements at other places; `view` gives their offset, steps and shape.
function moved(view) {
  const from = (x, o, shape) => {
    const found = view(x, o, shape);
    if (size(found[2]) !== size(shape)) throw new RangeError("another shape than was recorded");
    return places(found);
  };
  return {
    forward: ([x], o, shape) => from(x, o, shape).map((place) => x.x[place]),
    backward(g, z, [x], o, shape) {
      const found = zeros(x.x.length);
      from(x, o, shape).forEach((place, i) => (found[place] += g[i]));
      return [found];
    },
  };
}

// Tensors one behind the other along a dimension.
function joined(dim) {
  const pieces = (xs, o, shape, act) => {
    const outer = size(shape.slice(0, dim(xs[0], o)));
    for (let n = 0; n < outer; n += 1) {
      xs.forEach((x, j) => {
        const inner = x.x.length / outer;
        for (let i = 0; i < inner; i += 1) act(j, n * inner + i);
      });
    }
  };
  return {
    forward(xs, o, shape) {
      const found = [];
      pieces(xs, o, shape, (j, place) => found.push(xs[j].x[place]));
      return found;
    },
    backward(g, z, xs, o, shape) {
      const found = xs.map((x) => zeros(x.x.length));
      let n = 0;
      pieces(xs, o, shape, (j, place) => (found[j][place] = g[n++]));
      return found;
    },
  };
}

// The product of two lists as matrices of m × k and k × n, of which each lies in memory by the steps of its rows and columns.
function multiply(x, [xi, xl], y, [yl, yj], [m, k, n]) {
  return zeros(m * n).map((none, place) => {
    const [i, j] = [Math.floor(place / n), place % n];
    let all = 0;
    for (let l = 0; l < k; l += 1) all += x[i * xi + l * xl] * y[l * yl + j * yj];
    return all;
  });
}

// A product of matrices; a vector is a row on the left and a column on the right. Of a layer the second lies turned.
function product(isLayer = false) {
  const sizes = (x, y) => {
    if (y.shape.length > 2 || (x.shape.length > 2 && !isLayer)) throw new RangeError("more than two dimensions");
    const k = x.shape.at(-1);
    return [x.x.length / k, k, y.x.length / k];
  };
  return {
    forward([x, y], o, shape) {
      const [m, k, n] = sizes(x, y);
      if (m * n !== size(shape)) throw new RangeError("another shape than was recorded");
      return multiply(x.x, [k, 1], y.x, isLayer ? [1, k] : [n, 1], [m, k, n]);
    },
    backward(g, z, [x, y]) {
      const [m, k, n] = sizes(x, y);
      const ofX = multiply(g, [n, 1], y.x, isLayer ? [k, 1] : [1, n], [m, n, k]);
      return [ofX, isLayer ? multiply(g, [1, n], x.x, [k, 1], [n, m, k]) : multiply(x.x, [1, k], g, [n, 1], [k, m, n])];
    },
  };
}

// b + x · y, or of a layer x · yᵀ + b, where x has rows of any number and b may be missing.
function affine(isLayer) {
  const parts = (xs) => (isLayer ? [xs[2], xs[0], xs[1]] : xs);
  const plain = product(isLayer);
  return {
    forward(xs, o, shape) {
      const [b, x, y] = parts(xs);
      const found = plain.forward([x, y], o, shape);
      const from = b ? broadcast(b, shape) : [];
      return b ? found.map((one, i) => one + b.x[from[i]]) : found;
    },
    backward(g, z, xs, o, shape) {
      const [b, x, y] = parts(xs);
      const ofB = b ? zeros(b.x.length) : null;
      if (b) broadcast(b, shape).forEach((place, i) => (ofB[place] += g[i]));
      const [ofX, ofY] = plain.backward(g, z, [x, y]);
      return isLayer ? [ofX, ofY, ofB] : [ofB, ofX, ofY];
    },
  };
}
