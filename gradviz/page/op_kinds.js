// Kinds of ops: how a row's functions of numbers become a function of tensors, and its derivative. A kind has `forward`,
// which gives the elements of the result, and `backward`, which gives those of the gradient of each input.
//
// A tensor is { shape, x: its elements }.

const size = (shape) => shape.reduce((a, b) => a * b, 1);
const range = (begin, length, step = 1) => Array.from({ length }, (none, i) => begin + i * step);
const zeros = (count) => new Array(count).fill(0);
const at = (dim, { length }) => (dim < 0 ? dim + length : dim);
const strides = (shape) => shape.map((one, i) => size(shape.slice(i + 1)));

// The places in memory of a view's elements, in order.
function places([offset, steps, shape]) {
  let found = [offset];
  shape.forEach((count, i) => {
    found = found.flatMap((place) => range(place, count, steps[i]));
  });
  return found;
}

// The steps through a tensor that is broadcast to a shape; `own` are its steps.
function wide(from, shape, own = strides(from)) {
  const more = shape.length - from.length;
  return shape.map((one, i) => (i < more || from[i - more] === 1 ? 0 : own[i - more]));
}

const broadcast = (x, shape) => places([0, wide(x.shape, shape), shape]);

// The shape that tensors of two shapes are broadcast to.
function together(one, other) {
  const [long, short] = one.length > other.length ? [one, other] : [other, one];
  return long.map((count, i) => (count === 1 ? (short[i - long.length + short.length] ?? 1) : count));
}

const permuted = (shape, dims) => [0, dims.map((dim) => strides(shape)[at(dim, shape)]), dims.map((dim) => shape[at(dim, shape)])];

function swapped(shape, a, b) {
  const dims = shape.map((one, i) => i);
  if (shape.length) [dims[at(a, shape)], dims[at(b, shape)]] = [at(b, shape), at(a, shape)];
  return permuted(shape, dims);
}

// The places in x of elements that integers choose along a dimension: `index` has one for each element of the result
// (`isEach`), or one for each of its elements along that dimension.
function chosenAlong(x, index, dim, isEach) {
  const own = strides(x.shape);
  const along = at(dim, x.shape);
  const shape = isEach ? index.shape : x.shape.map((count, i) => (i === along ? index.x.length : count));
  const which = isEach ? index.x : places([0, shape.map((one, i) => +(i === along)), shape]).map((i) => index.x[i]);
  return places([0, own.map((step, i) => (i === along ? 0 : step)), shape]).map((place, i) => place + which[i] * own[along]);
}

// The places in x of elements that tensors of integers choose along its first dimensions.
function chosenAt(x, indices) {
  const shape = indices.map((index) => index.shape).reduce(together);
  const own = strides(x.shape);
  const bases = indices.map((index, dim) => broadcast(index, shape).map((i) => at(index.x[i], { length: x.shape[dim] }) * own[dim]));
  const rest = places([0, own.slice(indices.length), x.shape.slice(indices.length)]);
  return bases[0].flatMap((none, i) => rest.map((place) => place + sum(bases.map((base) => base[i]))));
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

// A loss: what `each` gives, of which the sum or the mean is taken if `reduction` says so.
function loss(f, ...backs) {
  const plain = each(f, ...backs);
  const shapeOf = (xs) => xs.map((x) => x.shape).reduce(together);
  return {
    forward: (xs, o) => reduced(plain.forward(xs, o, shapeOf(xs)), o.reduction),
    backward(g, z, xs, o) {
      const each = plain.forward(xs, o, shapeOf(xs));
      return plain.backward(shares(g, each.length, o.reduction), each, xs, o, shapeOf(xs));
    },
  };
}

// What a loss makes of the values of each of its terms, and which gradient each of them gets.
const reduced = (list, reduction) => (reduction === "none" ? list : [sum(list) / (reduction === "mean" ? list.length : 1)]);
const shares = (g, count, reduction) => (reduction === "none" ? g : zeros(count).fill(g[0] / (reduction === "mean" ? count : 1)));

// The places of the elements that belong together along some dimensions (null: all), a list for each group.
function groups({ shape }, dim) {
  const dims = dim === null || dim === undefined ? shape.map((one, i) => i) : [dim].flat().map((one) => at(one, shape));
  const [inner, outer] = [true, false].map((inside) => {
    const own = shape.map((one, i) => i).filter((i) => dims.includes(i) === inside);
    return places([0, own.map((i) => strides(shape)[i]), own.map((i) => shape[i])]);
  });
  return outer.map((base) => inner.map((place) => base + place));
}

function over(f, back, groupsOf = (x, o) => groups(x, o.dim)) {
  return {
    forward: ([x], o, shape) => groupsOf(x, o, shape).map((group) => f(group.map((place) => x.x[place]), o)),
    backward(g, z, [x], o, shape) {
      const found = zeros(x.x.length);
      groupsOf(x, o, shape).forEach((group, n) => {
        const list = group.map((place) => x.x[place]);
        group.forEach((place, i) => (found[place] += back(g[n], z[n], list[i], list, i, o)));
      });
      return [found];
    },
  };
}

// A size for each of `count` dimensions: an argument may be one number for all.
const perDim = (value, count) => (value?.length > 1 ? value : zeros(count).fill([value].flat()[0]));

// The places of the elements in each window over the last dimensions of x. `within` gives the places along one of them,
// which may lie outside: of the nth window, by the size of the dimension and the number of its windows.
const windows = (count, within) => (x, o, shape) => {
  const own = strides(x.shape).slice(-count);
  const bases = places([0, strides(x.shape).slice(0, -count), x.shape.slice(0, -count)]);
  const parts = x.shape.slice(-count).map((size, dim) =>
    Array.from({ length: shape.at(dim - count) }, (none, n) =>
      within(o, count)(n, size, shape.at(dim - count), dim).filter((place) => place >= 0 && place < size).map((place) => place * own[dim])));
  return bases.flatMap((base) => parts.reduce((found, part) => found.flatMap((group) => part.map((more) => group.flatMap((place) => more.map((step) => place + step)))), [[base]]));
};

const sliding = (o, count) => {
  const [kernel, stride, padding, dilation] = [o.kernel_size, o.stride ?? o.kernel_size, o.padding, o.dilation ?? 1].map((one) => perDim(one, count));
  return (n, size, all, dim) => range(n * stride[dim] - padding[dim], kernel[dim], dilation[dim]);
};

// Windows of as equal sizes as can be, which cover a dimension.
const covering = () => (n, size, all) => {
  const begin = Math.floor((n * size) / all);
  return range(begin, Math.ceil(((n + 1) * size) / all) - begin);
};

function along(f, back) {
  const put = (x, o, act) => {
    const found = zeros(x.x.length);
    for (const group of groups(x, o.dim)) act(group).forEach((one, i) => (found[group[i]] = one));
    return found;
  };
  const pick = (list, group) => group.map((place) => list[place]);
  return {
    forward: ([x], o) => put(x, o, (group) => f(pick(x.x, group), o)),
    backward: (g, z, [x], o) => [put(x, o, (group) => back(pick(g, group), pick(z, group), pick(x.x, group), o))],
  };
}

// Elements of the input `source` from other places, which `from` gives in order; below 0 there is none, but a 0.
function picked(from, source = 0) {
  const found = (xs, o, shape) => {
    const list = from(xs, o, shape);
    if (list.length !== size(shape)) throw new RangeError("another shape than was recorded");
    return list;
  };
  return {
    forward: (xs, o, shape) => found(xs, o, shape).map((place) => (place < 0 ? 0 : xs[source].x[place])),
    backward(g, z, xs, o, shape) {
      const back = zeros(xs[source].x.length);
      found(xs, o, shape).forEach((place, i) => (place < 0 ? 0 : (back[place] += g[i])));
      return xs.map((x, j) => (j === source ? back : null));
    },
  };
}

// The elements of a view; `view` gives their offset, steps and shape.
const moved = (view) => picked(([x], o, shape) => places(view(x, o, shape)));

// The places in a tensor of the elements of a larger one, which frames it; −1 for those of the frame.
const framed = (shape, before, after) =>
  shape.reduce((found, count, i) => found.flatMap((place) => range(-before[i], before[i] + count + after[i]).map((n) => (place < 0 || n < 0 || n >= count ? -1 : place + n * strides(shape)[i]))), [0]);

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

// Sums of products of an element of each input. `plan` gives the number of turns of nested loops, and for each input and
// for the result the step that each loop makes in it.
const MOST_PRODUCTS = 1e6; // as each change of a value computes them

function summed(plan) {
  const walked = (xs, o, shape) => {
    const [loops, ...steps] = plan(xs, o, shape);
    if (size(loops) > MOST_PRODUCTS) throw new RangeError("too many products");
    if (size(loops.filter((count, i) => steps.at(-1)[i])) !== size(shape)) throw new RangeError("another shape than was recorded");
    return steps.map((step) => places([0, step, loops]));
  };
  return {
    forward(xs, o, shape) {
      const from = walked(xs, o, shape);
      const found = zeros(size(shape));
      from.pop().forEach((place, i) => (found[place] += xs.reduce((all, x, j) => all * x.x[from[j][i]], 1)));
      return found;
    },
    backward(g, z, xs, o, shape) {
      const from = walked(xs, o, shape);
      const to = from.pop();
      return xs.map((x, j) => {
        const found = zeros(x.x.length);
        to.forEach((place, i) => (found[from[j][i]] += xs.reduce((all, other, l) => (l === j ? all : all * other.x[from[l][i]]), g[place])));
        return found;
      });
    },
  };
}

// A product of matrices, of which there may be many; a vector is a row on the left and a column on the right. Of a layer
// the second lies turned.
const product = (isLayer = false) => summed(([x, y]) => {
  const left = x.shape.length < 2 ? [1, ...x.shape] : x.shape;
  const [, steps, right] = y.shape.length < 2 ? [0, [1, 1], [...y.shape, 1]] : isLayer ? swapped(y.shape, 0, 1) : [0, strides(y.shape), y.shape];
  const [[m, k], n] = [left.slice(-2), right.at(-1)];
  const many = together(left.slice(0, -2), right.slice(0, -2));
  const ofRight = wide(right, [...many, k, n], steps);
  const ofResult = strides([...many, m, n]);
  return [
    [...many, m, k, n],
    [...wide(left, [...many, m, k]), 0],
    [...ofRight.slice(0, -2), 0, ...ofRight.slice(-2)],
    [...ofResult.slice(0, -1), 0, ofResult.at(-1)],
  ];
});

// A sum of products as `einsum` writes it: "ij,jk->ik".
function lettered(xs, { equation }) {
  const [left, right] = equation.replaceAll(" ", "").split("->");
  const names = left.split(",");
  const letters = [...new Set(left.replaceAll(",", ""))];
  const result = right ?? letters.filter((letter) => left.split(letter).length === 2).sort().join("");
  const count = (letter) => xs.map((x, j) => x.shape[names[j].indexOf(letter)]).find((one) => one !== undefined);
  const step = (name, shape) => letters.map((letter) => sum(strides(shape).filter((one, i) => name[i] === letter)));
  const loops = letters.map(count);
  return [loops, ...xs.map((x, j) => step(names[j], x.shape)), step(result, [...result].map(count))];
}

// What `plain` makes of x and y, plus b; `order` gives the places of b, x and y among the inputs, `turned` the b that is
// broadcast.
function biased(plain, order = [0, 1, 2], turned = (b) => b) {
  return {
    forward(xs, o, shape) {
      const [b, x, y] = order.map((i) => xs[i]);
      const from = broadcast(turned(b, y), shape);
      return plain.forward([x, y], o, shape).map((one, i) => one + b.x[from[i]]);
    },
    backward(g, z, xs, o, shape) {
      const [b, x, y] = order.map((i) => xs[i]);
      const ofB = zeros(b.x.length);
      broadcast(turned(b, y), shape).forEach((place, i) => (ofB[place] += g[i]));
      const found = [ofB, ...plain.backward(g, z, [x, y], o, shape)];
      return xs.map((one, i) => found[order.indexOf(i)]);
    },
  };
}

// The frame of zeros around the input of a convolution, the sum of products over what is framed, and its two inputs.
function windowed([x, w], o, shape) {
  const [, inner, ...kernel] = w.shape;
  const [inside, outside] = [x.shape, shape].map((one) => (one.length < w.shape.length ? [1, ...one] : one));
  const [stride, dilation] = [o.stride, o.dilation].map((one) => perDim(one, kernel.length));
  const reach = kernel.map((count, i) => dilation[i] * (count - 1));
  const padding = { valid: 0, same: reach.map((one) => Math.floor(one / 2)) }[o.padding] ?? o.padding;
  const before = [0, 0, ...perDim(padding, kernel.length)];
  const after = [0, 0, ...reach.map((one, i) => Math.max(0, (outside[i + 2] - 1) * stride[i] + one + 1 - inside[i + 2] - before[i + 2]))];
  const wide = inside.map((count, i) => before[i] + count + after[i]);
  const [ofX, ofW, ofZ] = [wide, w.shape, outside].map(strides);
  const none = kernel.map(() => 0);
  const per = outside[1] / o.groups;
  const frame = picked(() => framed(inside, before, after));
  const products = summed(() => [
    [outside[0], o.groups, per, ...outside.slice(2), inner, ...kernel],
    [ofX[0], inner * ofX[1], 0, ...ofX.slice(2).map((step, i) => step * stride[i]), ofX[1], ...ofX.slice(2).map((step, i) => step * dilation[i])],
    [0, per * ofW[0], ofW[0], ...none, ofW[1], ...ofW.slice(2)],
    [ofZ[0], per * ofZ[1], ofZ[1], ...ofZ.slice(2), 0, ...none],
  ]);
  return [frame, products, [{ shape: wide, x: frame.forward([x], o, wide) }, w]];
}

const plainConvolution = {
  forward(xs, o, shape) {
    const [, products, factors] = windowed(xs, o, shape);
    return products.forward(factors, o, shape);
  },
  backward(g, z, xs, o, shape) {
    const [frame, products, factors] = windowed(xs, o, shape);
    const [ofX, ofW] = products.backward(g, z, factors, o, shape);
    return [frame.backward(ofX, z, xs, o, factors[0].shape)[0], ofW];
  },
};
const convolution = (plain = plainConvolution) => biased(plain, [2, 0, 1], (b, { shape }) => ({ shape: [...b.shape, ...(b.shape.length ? shape.slice(2).fill(1) : [])] }));

// What a convolution from the result to x makes of a gradient: each element of x is given to all of its window.
const plainTransposed = {
  forward: ([x, w], o, shape) => plainConvolution.backward(x.x, null, [{ shape, x: zeros(size(shape)) }, w], o, x.shape)[0],
  backward(g, z, [x, w], o, shape) {
    const given = [{ shape, x: g }, w];
    return [plainConvolution.forward(given, o, x.shape), plainConvolution.backward(x.x, null, given, o, x.shape)[1]];
  },
};

// A loss that knows the class of each group of elements along dimension 1 (of a vector: 0): by its number, or by shares.
const classDim = (x) => (x.shape.length > 1 ? 1 : 0);

function weighed([x, target, weight], o) {
  const isNumbered = target.shape.length < x.shape.length;
  const smooth = o.label_smoothing || 0;
  const of = (i) => weight.x[weight.x.length > 1 ? i : 0];
  const found = groups(x, classDim(x)).map((group, n) => {
    const known = isNumbered ? target.x[n] : -1;
    const isLeftOut = isNumbered && known === o.ignore_index;
    const share = (i) => (isNumbered ? +(i === known) : target.x[group[i]]) * (1 - smooth) + smooth / group.length;
    return { group, counts: isLeftOut ? 0 : isNumbered ? of(known) : 1, shares: group.map((place, i) => (isLeftOut ? 0 : of(i) * share(i))) };
  });
  return [found, { sum: 1, mean: sum(found.map((one) => one.counts)) }[o.reduction]];
}

// The negative log-likelihood of the classes, of logarithms of probabilities.
const ofClasses = {
  forward(xs, o) {
    const [found, all] = weighed(xs, o);
    const losses = found.map(({ group, shares }) => -sum(group.map((place, i) => (shares[i] ? shares[i] * xs[0].x[place] : 0))));
    return all === undefined ? losses : [sum(losses) / all];
  },
  backward(g, z, xs, o) {
    const [found, all] = weighed(xs, o);
    const back = zeros(xs[0].x.length);
    found.forEach(({ group, shares }, n) => group.forEach((place, i) => (back[place] = (-shares[i] * g[all === undefined ? n : 0]) / (all ?? 1))));
    return [back, null, null];
  },
};

// The same of any numbers: `plain` makes logarithms of probabilities of them.
function ofScores(plain) {
  const inner = (xs) => [{ ...xs[0], x: plain.forward(xs, { dim: classDim(xs[0]) }, xs[0].shape) }, ...xs.slice(1)];
  return {
    forward: (xs, o) => ofClasses.forward(inner(xs), o),
    backward(g, z, xs, o) {
      const within = inner(xs);
      const [back] = ofClasses.backward(g, z, within, o);
      return [plain.backward(back, within[0].x, [xs[0]], { dim: classDim(xs[0]) }, xs[0].shape)[0], null, null];
    },
  };
}

// A kind whose other inputs have an element for each channel, which is dimension 1 of the first.
function byChannel(kind) {
  const turned = ([x, ...others]) => [x, ...others.map((one) => (one.shape.length ? { ...one, shape: [...one.shape, ...x.shape.slice(2).map(() => 1)] } : one))];
  return {
    forward: (xs, ...more) => kind.forward(turned(xs), ...more),
    backward: (g, z, xs, ...more) => kind.backward(g, z, turned(xs), ...more),
  };
}

// Elements of mean 0 and variance 1 along some dimensions, times a weight, and a bias added.
function normed(dimsOf) {
  const parts = ([x, weight, bias], o) => {
    const dims = dimsOf(x, weight, o);
    const from = (one) => broadcast(one, x.shape);
    const found = groups(x, dims).map((group) => {
      const list = group.map((place) => x.x[place]);
      const scale = 1 / Math.sqrt(spread(list, { correction: 0 }) + o.eps);
      const middle = mean(list);
      return { group, scale, standard: list.map((one) => (one - middle) * scale) };
    });
    return { found, weight, bias, ofWeight: from(weight), ofBias: from(bias) };
  };
  return {
    forward(xs, o) {
      const { found, weight, bias, ofWeight, ofBias } = parts(xs, o);
      const result = zeros(xs[0].x.length);
      for (const { group, standard } of found) {
        group.forEach((place, i) => (result[place] = standard[i] * weight.x[ofWeight[place]] + bias.x[ofBias[place]]));
      }
      return result;
    },
    backward(g, z, xs, o) {
      const { found, weight, ofWeight, ofBias } = parts(xs, o);
      const backs = xs.map((one) => zeros(one.x.length));
      for (const { group, scale, standard } of found) {
        const list = group.map((place) => g[place] * weight.x[ofWeight[place]]);
        const along = mean(list.map((one, i) => one * standard[i]));
        const middle = mean(list);
        group.forEach((place, i) => {
          backs[0][place] = scale * (list[i] - middle - standard[i] * along);
          backs[1][ofWeight[place]] += g[place] * standard[i];
          backs[2][ofBias[place]] += g[place];
        });
      }
      return backs;
    },
  };
}
