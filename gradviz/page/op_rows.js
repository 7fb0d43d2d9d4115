// The ops that the page can compute again: what each takes (`call_signatures.py` reads it), its value and its derivatives.
// The functions that make a row are in `op_kinds.js`: `each` works element by element, `over` makes one number of many,
// `along` many of as many, `moved` takes elements from other places.
//
// A derivative is given the gradient g, the result z, the inputs x, y and the other arguments o; in `over` also the list
// that a number was made of, and the place of x in it.

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const sum = (list) => list.reduce((a, b) => a + b, 0);
const mean = (list) => sum(list) / list.length;
const spread = (list, o, middle = mean(list)) => sum(list.map((one) => (one - middle) ** 2)) / (list.length - o.correction);
const most = (list) => list.reduce((a, b) => (a !== a || a > b ? a : b));
const least = (list) => list.reduce((a, b) => (a !== a || a < b ? a : b));
const softmax = (list) => {
  const top = most(list);
  const grown = list.map((x) => Math.exp(x - top));
  const all = sum(grown);
  return grown.map((x) => x / all);
};
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const between = (x, low, high) => Math.min(Math.max(x, low), high);

// The error function, by its series of positive terms.
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [term, all] = [x, x];
  for (let n = 1; n < 150; n += 1) all += term *= (2 * x * x) / (2 * n + 1);
  return ((2 * all) / Math.sqrt(Math.PI)) * Math.exp(-x * x);
}

// The share of a normal distribution below x, and its density; or as `tanh` approximates it.
function cdf(x, how) {
  if (how === "none") return [(1 + erf(x / Math.SQRT2)) / 2, Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI)];
  const [c, t] = [Math.sqrt(2 / Math.PI), Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))];
  return [(1 + t) / 2, ((1 - t * t) * c * (1 + 3 * 0.044715 * x * x)) / 2];
}

function softmaxBack(g, z) {
  const all = sum(g.map((one, i) => one * z[i]));
  return z.map((one, i) => one * (g[i] - all));
}
function normalizeBack(g, z, list, o) {
  if (power(o) !== 2) throw new RangeError("another norm");
  const along = norm(list, o) > o.eps ? sum(g.map((one, i) => one * z[i])) : 0;
  return g.map((one, i) => (one - along * z[i]) / Math.max(norm(list, o), o.eps));
}
function logSum(list) {
  const top = most(list);
  return top + Math.log(sum(list.map((x) => Math.exp(x - top))));
}
const half = (g, x, y, wins) => (x === y ? g / 2 : wins ? g : 0);
const share = (g, z, x, list) => (x === z ? g / list.filter((one) => one === z).length : 0);
const chosen = (g, z, x, list, at, o) => (o.dim === null ? share(g, z, x, list) : list.indexOf(z) === at ? g : 0);
const same = () => moved(({ shape }) => [0, strides(shape), shape]);
const lastTwo = moved(({ shape }) => swapped(shape, shape.length - 1, Math.max(0, shape.length - 2)));
const oneOf = (shape, dim, part) => taken(shape, shape.map((size, i) => (i === at(dim, shape) ? part(size) : [0, 1, size])));

const logOr = (x) => Math.max(Math.log(x), -100); // PyTorch's bound
const huber = (d, beta) => (Math.abs(d) < beta ? [(d * d) / beta / 2, d / beta] : [Math.abs(d) - beta / 2, Math.sign(d)]);
const lastDims = ({ shape }, { length }) => shape.map((one, i) => i).slice(shape.length - length);
const otherDims = ({ shape }) => shape.map((one, i) => i).filter((i) => i !== 1);
const lessLogSum = (list, all = logSum(list)) => list.map((x) => x - all);
const logSoftmax = along((list) => lessLogSum(list), (g, z, x, o, all = sum(g)) => z.map((one, i) => g[i] - Math.exp(one) * all));
const power = ({ p, ord }) => ({ fro: 2, inf: Infinity })[ord ?? p] ?? Number(ord ?? p);

// The norm of a list, and its derivative by x, which is one of it.
function norm(list, o) {
  const p = power(o);
  if (p === Infinity) return most(list.map(Math.abs));
  return sum(list.map((x) => Math.abs(x) ** p)) ** (1 / p);
}
function normSlope(g, z, x, list, at, o) {
  if (power(o) === Infinity) return share(g, z, Math.abs(x), list.map(Math.abs)) * Math.sign(x);
  return z === 0 ? 0 : g * Math.sign(x) * (Math.abs(x) / z) ** (power(o) - 1);
}

const products = (list) => list.map(((all) => (x) => (all *= x))(1));

// The gradient of element i of a list from those of its products: of each product the others of its factors.
function productsBack(g, list, i) {
  let all = list.slice(0, i).reduce((a, b) => a * b, 1);
  return list.slice(i).reduce((back, x, j) => back + g[i + j] * (all *= j ? x : 1), 0);
}

// The part of a dimension that is the nth of some, of sizes that are given, or all of one size but the last.
function piece({ shape }, o, sizes) {
  const begin = Array.isArray(sizes) ? sum(sizes.slice(0, o.nth)) : o.nth * sizes;
  return oneOf(shape, o.dim, (all) => [begin, 1, Array.isArray(sizes) ? sizes[o.nth] : Math.min(sizes, all - begin)]);
}
const split = () => moved((x, o) => piece(x, o, o.sizes));

// The places of the elements of a matrix for which `isKept` says so of the column less the row; −1 for others.
const triangle = (isKept) => picked(([x], o) => {
  const [rows, columns] = x.shape.slice(-2);
  return x.x.map((none, i) => (isKept((i % columns) - (Math.floor(i / columns) % rows), o) ? i : -1));
});
const turnedBack = ({ shape }, dims) => taken(shape, shape.map((size, i) => (dims.map((dim) => at(dim, shape)).includes(i) ? [size - 1, -1, size] : [0, 1, size])));
const dropped = {
  forward: ([x], o) => x.x.map((one, i) => one * (o.factors?.[i] ?? 1)),
  backward: (g, z, xs, o) => [g.map((one, i) => one * (o.factors?.[i] ?? 1))],
};


const largestOf = (count, within) => over(most, (g, z, x, list, at) => (list.indexOf(z) === at ? g : 0), windows(count, within));
const meanOf = (count, within, number = (list) => list.length) => over((list, o) => sum(list) / number(list, o), (g, z, x, list, at, o) => g / number(list, o), windows(count, within));

// The frame that `pad` puts around the last dimensions, given from the last one backward: its width before and after each.
function sides({ shape }, pad) {
  const back = (n) => shape.map((none, i) => pad[2 * (shape.length - 1 - i) + n] ?? 0);
  return [back(0), back(1)];
}

const ROWS = {
  add: ["x number#; alpha=1", each((x, y, o) => x + o.alpha * y, (g) => g, (g, z, x, y, o) => g * o.alpha)],
  sub: ["x number#; alpha=1", each((x, y, o) => x - o.alpha * y, (g) => g, (g, z, x, y, o) => -g * o.alpha)],
  rsub: ["x other#; alpha=1", each((x, y, o) => y - o.alpha * x, (g, z, x, y, o) => -g * o.alpha, (g) => g)],
  mul: ["x number#", each((x, y) => x * y, (g, z, x, y) => g * y, (g, z, x) => g * x)],
  div: ["x number#", each((x, y) => x / y, (g, z, x, y) => g / y, (g, z, x, y) => (-g * z) / y)],
  rdiv: ["x other#", each((x, y) => y / x, (g, z, x) => (-g * z) / x)],
  pow: ["x exponent#", each((x, y) => x ** y, (g, z, x, y) => (y === 0 ? 0 : g * y * x ** (y - 1)), (g, z, x) => (z === 0 ? 0 : g * z * Math.log(x)))],
  maximum: ["x y", each((x, y) => Math.max(x, y), (g, z, x, y) => half(g, x, y, x > y), (g, z, x, y) => half(g, x, y, y > x))],
  minimum: ["x y", each((x, y) => Math.min(x, y), (g, z, x, y) => half(g, x, y, x < y), (g, z, x, y) => half(g, x, y, y < x))],
  neg: ["x", each((x) => -x, (g) => -g)],
  rpow: ["x other#", each((x, y) => y ** x, (g, z, x, y) => (z === 0 ? 0 : g * z * Math.log(y)))],
  lerp: ["x y weight#", each((x, y, w) => x + w * (y - x), (g, z, x, y, w) => g * (1 - w), (g, z, x, y, w) => g * w, (g, z, x, y) => g * (y - x))],
  addcmul: ["x y w; value=1", each((x, y, w, o) => x + o.value * y * w, (g) => g, (g, z, x, y, w, o) => g * o.value * w, (g, z, x, y, w, o) => g * o.value * y)],
  addcdiv: ["x y w; value=1", each((x, y, w, o) => x + (o.value * y) / w, (g) => g, (g, z, x, y, w, o) => (g * o.value) / w, (g, z, x, y, w, o) => (-g * o.value * y) / (w * w))],
  exp: ["x", each(Math.exp, (g, z) => g * z)],
  expm1: ["x", each(Math.expm1, (g, z) => g * (z + 1))],
  log: ["x", each(Math.log, (g, z, x) => g / x)],
  log1p: ["x", each(Math.log1p, (g, z, x) => g / (x + 1))],
  log2: ["x", each(Math.log2, (g, z, x) => g / (x * Math.LN2))],
  log10: ["x", each(Math.log10, (g, z, x) => g / (x * Math.LN10))],
  sqrt: ["x", each(Math.sqrt, (g, z) => g / (2 * z))],
  rsqrt: ["x", each((x) => 1 / Math.sqrt(x), (g, z) => -0.5 * g * z ** 3)],
  square: ["x", each((x) => x * x, (g, z, x) => 2 * g * x)],
  reciprocal: ["x", each((x) => 1 / x, (g, z) => -g * z * z)],
  abs: ["x", each(Math.abs, (g, z, x) => g * Math.sign(x))],
  sign: ["x", each(Math.sign, () => 0)],
  long: ["x", each(Math.trunc)],
  sin: ["x", each(Math.sin, (g, z, x) => g * Math.cos(x))],
  cos: ["x", each(Math.cos, (g, z, x) => -g * Math.sin(x))],
  tan: ["x", each(Math.tan, (g, z) => g * (1 + z * z))],
  atan: ["x", each(Math.atan, (g, z, x) => g / (1 + x * x))],
  sinh: ["x", each(Math.sinh, (g, z, x) => g * Math.cosh(x))],
  cosh: ["x", each(Math.cosh, (g, z, x) => g * Math.sinh(x))],
  tanh: ["x", each(Math.tanh, (g, z) => g * (1 - z * z))],
  sigmoid: ["x", each(sigmoid, (g, z) => g * z * (1 - z))],
  relu: ["x", each((x) => Math.max(x, 0), (g, z) => (z <= 0 ? 0 : g))],
  relu6: ["x", each((x) => between(x, 0, 6), (g, z, x) => (x > 0 && x < 6 ? g : 0))],
  hardtanh: ["x; min_val=-1.0 max_val=1.0", each((x, o) => between(x, o.min_val, o.max_val), (g, z, x, o) => (x > o.min_val && x < o.max_val ? g : 0))],
  elu: ["x; alpha=1.0 scale=1.0 input_scale=1.0", each((x, o) => o.scale * (x > 0 ? x : o.alpha * Math.expm1(x * o.input_scale)), (g, z, x, o) => g * o.scale * (x > 0 ? 1 : o.alpha * o.input_scale * Math.exp(x * o.input_scale)))],
  celu: ["x; alpha=1.0", each((x, o) => (x > 0 ? x : o.alpha * Math.expm1(x / o.alpha)), (g, z, x, o) => (x > 0 ? g : g * Math.exp(x / o.alpha)))],
  gelu: ["x; approximate='none'", each((x, o) => x * cdf(x, o.approximate)[0], (g, z, x, o) => g * (cdf(x, o.approximate)[0] + x * cdf(x, o.approximate)[1]))],
  erf: ["x", each(erf, (g, z, x) => (2 * g * Math.exp(-x * x)) / Math.sqrt(Math.PI))],
  mish: ["x", each((x) => x * Math.tanh(softplus(x)), (g, z, x) => g * (Math.tanh(softplus(x)) + x * sigmoid(x) * (1 - Math.tanh(softplus(x)) ** 2)))],
  log_sigmoid: ["x", each((x) => -softplus(-x), (g, z, x) => g * sigmoid(-x))],
  leaky_relu: ["x; negative_slope=0.01", each((x, o) => (x > 0 ? x : x * o.negative_slope), (g, z, x, o) => (x > 0 ? g : g * o.negative_slope))],
  silu: ["x", each((x) => x * sigmoid(x), (g, z, x) => g * sigmoid(x) * (1 + x * (1 - sigmoid(x))))],
  softplus: ["x; beta=1 threshold=20", each((x, o) => (x * o.beta > o.threshold ? x : Math.log1p(Math.exp(x * o.beta)) / o.beta), (g, z, x, o) => (x * o.beta > o.threshold ? g : g * sigmoid(x * o.beta)))],
  clamp: ["x; min=None max=None", each((x, o) => Math.min(Math.max(x, o.min ?? -Infinity), o.max ?? Infinity), (g, z, x, o) => (x < (o.min ?? -Infinity) || x > (o.max ?? Infinity) ? 0 : g))],
  clamp_min: ["x; min", each((x, o) => Math.max(x, o.min), (g, z, x, o) => (x < o.min ? 0 : g))],
  clamp_max: ["x; max", each((x, o) => Math.min(x, o.max), (g, z, x, o) => (x > o.max ? 0 : g))],
  gt: ["x y", each((x, y) => +(x > y))],
  ge: ["x y", each((x, y) => +(x >= y))],
  lt: ["x y", each((x, y) => +(x < y))],
  le: ["x y", each((x, y) => +(x <= y))],
  where: ["c x y", each((c, x, y) => (c ? x : y), null, (g, z, c) => (c ? g : 0), (g, z, c) => (c ? 0 : g))],
  eq: ["x other#", each((x, y) => +(x === y))],
  ne: ["x other#", each((x, y) => +(x !== y))],
  masked_fill: ["x mask value#", each((x, mask, y) => (mask ? y : x), (g, z, x, mask) => (mask ? 0 : g), null, (g, z, x, mask) => (mask ? g : 0))],
  dropout: ["x; p=0.5 training=True factors=None", dropped],
  detach: ["x", each((x) => x)],
  clone: ["x", same()],
  copy: ["x y", each((x, y) => y, () => 0, (g) => g)],
  zero: ["x", each(() => 0, () => 0)],
  fill: ["x value#", each((x, y) => y, () => 0, (g) => g)],
  mse_loss: ["x y weight#?=1; reduction='mean'", loss((x, y, w) => w * (x - y) ** 2, (g, z, x, y, w) => 2 * g * w * (x - y), (g, z, x, y, w) => 2 * g * w * (y - x))],
  l1_loss: ["x y weight#?=1; reduction='mean'", loss((x, y, w) => w * Math.abs(x - y), (g, z, x, y, w) => g * w * Math.sign(x - y), (g, z, x, y, w) => g * w * Math.sign(y - x))],
  smooth_l1_loss: ["x y; reduction='mean' beta=1.0", loss((x, y, o) => huber(x - y, o.beta)[0], (g, z, x, y, o) => g * huber(x - y, o.beta)[1], (g, z, x, y, o) => -g * huber(x - y, o.beta)[1])],
  huber_loss: ["x y; reduction='mean' delta=1.0", loss((x, y, o) => o.delta * huber(x - y, o.delta)[0], (g, z, x, y, o) => g * o.delta * huber(x - y, o.delta)[1], (g, z, x, y, o) => -g * o.delta * huber(x - y, o.delta)[1])],
  binary_cross_entropy: ["x y weight#?=1; reduction='mean'", loss((x, y, w) => -w * (y * logOr(x) + (1 - y) * logOr(1 - x)), (g, z, x, y, w) => (g * w * (x - y)) / Math.max(x * (1 - x), 1e-12), (g, z, x, y, w) => g * w * (logOr(1 - x) - logOr(x)))],
  binary_cross_entropy_with_logits: ["x y; weight=1.0 pos_weight=1.0 reduction='mean'", loss((x, y, o) => o.weight * ((1 - y) * x + (1 + (o.pos_weight - 1) * y) * softplus(-x)), (g, z, x, y, o) => g * o.weight * (1 - y - (1 + (o.pos_weight - 1) * y) * sigmoid(-x)), (g, z, x, y, o) => g * o.weight * ((o.pos_weight - 1) * softplus(-x) - x))],
  nll_loss: ["x target weight?=1; ignore_index=-100 reduction='mean'", ofClasses],
  nll_loss2d: ["x target weight?=1; ignore_index=-100 reduction='mean'", ofClasses],
  cross_entropy: ["x target weight?=1; ignore_index=-100 reduction='mean' label_smoothing=0.0", ofScores(logSoftmax)],
  layer_norm: ["x weight?=1 bias?=0; normalized_shape eps=1e-05", normed((x, weight, o) => lastDims(x, o.normalized_shape))],
  native_layer_norm: ["x weight bias; eps", normed((x, weight) => lastDims(x, weight.shape))],
  batch_norm: ["x weight?=1 bias?=0; training momentum=0.1 eps=1e-05", byChannel(normed(otherDims))],
  native_batch_norm: ["x weight bias; eps", byChannel(normed(otherDims))],
  batch_norm_fixed: ["x mean var weight?=1 bias?=0; training=False momentum=0.1 eps=1e-05", byChannel(each((x, m, v, w, b, o) => ((x - m) / Math.sqrt(v + o.eps)) * w + b, (g, z, x, m, v, w, b, o) => (g * w) / Math.sqrt(v + o.eps), null, null, (g, z, x, m, v, w, b, o) => (g * (x - m)) / Math.sqrt(v + o.eps), (g) => g))],
  sum: ["x; dim=None keepdim=False", over(sum, (g) => g)],
  mean: ["x; dim=None keepdim=False", over(mean, (g, z, x, list) => g / list.length)],
  prod: ["x; dim=None keepdim=False", over((list) => list.reduce((a, b) => a * b, 1), (g, z, x, list, at) => list.reduce((a, b, i) => (i === at ? a : a * b), g))],
  var: ["x; dim=None correction=1 keepdim=False", over(spread, (g, z, x, list, at, o) => (2 * g * (x - mean(list))) / (list.length - o.correction))],
  std: ["x; dim=None correction=1 keepdim=False", over((list, o) => Math.sqrt(spread(list, o)), (g, z, x, list, at, o) => (g * (x - mean(list))) / (z * (list.length - o.correction)))],
  amax: ["x; dim=None keepdim=False", over(most, share)],
  amin: ["x; dim=None keepdim=False", over(least, share)],
  max: ["x; dim=None keepdim=False nth", over((list, o) => (o.nth ? list.indexOf(most(list)) : most(list)), chosen)],
  min: ["x; dim=None keepdim=False nth", over((list, o) => (o.nth ? list.indexOf(least(list)) : least(list)), chosen)],
  argmax: ["x; dim=None keepdim=False", over((list) => list.indexOf(most(list)))],
  argmin: ["x; dim=None keepdim=False", over((list) => list.indexOf(least(list)))],
  vector_norm: ["x; p=2 dim=None keepdim=False ord=None", over(norm, normSlope)],
  linalg_vector_norm: ["x; ord=2 dim=None keepdim=False", over(norm, normSlope)],
  linalg_norm: ["x; ord=2", over(norm, normSlope)],
  logsumexp: ["x; dim keepdim=False", over(logSum, (g, z, x) => g * Math.exp(x - z))],
  softmax: ["x; dim", along(softmax, softmaxBack)],
  safe_softmax: ["x; dim", along(softmax, softmaxBack)],
  log_softmax: ["x; dim", logSoftmax],
  normalize: ["x; p=2.0 dim=1 eps=1e-12", along((list, o) => list.map((x) => x / Math.max(norm(list, o), o.eps)), normalizeBack)],
  cumprod: ["x; dim", along(products, (g, z, list) => list.map((x, i) => productsBack(g, list, i)))],
  cumsum: ["x; dim", along((list) => list.map((x, i) => sum(list.slice(0, i + 1))), (g) => g.map((x, i) => sum(g.slice(i))))],
  reshape: ["x; shape", same()],
  view: ["x; size", same()],
  flatten: ["x; start_dim=0 end_dim=-1", same()],
  squeeze: ["x; dim=None", same()],
  unsqueeze: ["x; dim", same()],
  contiguous: ["x", same()],
  ravel: ["x", same()],
  unsafe_view: ["x; shape", same()],
  view_as: ["x other", same()],
  float: ["x", same()],
  double: ["x", same()],
  swapaxes: ["x; dim0 dim1", moved(({ shape }, o) => swapped(shape, o.dim0, o.dim1))],
  t: ["x", lastTwo],
  T: ["x", moved(({ shape }) => permuted(shape, shape.map((size, i) => shape.length - 1 - i)))],
  mT: ["x", lastTwo],
  transpose: ["x; dim0 dim1", moved(({ shape }, o) => swapped(shape, o.dim0, o.dim1))],
  permute: ["x; dims", moved(({ shape }, o) => permuted(shape, o.dims))],
  expand: ["x; size", moved((x, o, shape) => [0, wide(x.shape, shape), shape])],
  select: ["x; dim index", moved(({ shape }, o) => oneOf(shape, o.dim, (size) => [at(o.index, { length: size }), 1, 0]))],
  narrow: ["x; dim start length", moved(({ shape }, o) => oneOf(shape, o.dim, () => [o.start, 1, o.length]))],
  getitem: ["x; index", moved(({ shape }, o) => taken(shape, o.index))],
  index: ["x; index", moved(({ shape }, o) => taken(shape, o.index))],
  unbind: ["x; dim=0 nth", moved(({ shape }, o) => oneOf(shape, o.dim, () => [o.nth, 1, 0]))],
  chunk: ["x; chunks dim=0 nth", moved((x, o) => piece(x, o, Math.ceil(x.shape[at(o.dim, x.shape)] / o.chunks)))],
  split: ["x; sizes dim=0 nth", split()],
  split_with_sizes: ["x; sizes dim=0 nth", split()],
  unsafe_split: ["x; sizes dim=0 nth", split()],
  flip: ["x; dims", moved((x, o) => turnedBack(x, [o.dims].flat()))],
  triu: ["x; diagonal=0", triangle((d, o) => d >= o.diagonal)],
  tril: ["x; diagonal=0", triangle((d, o) => d <= o.diagonal)],
  gather: ["x index; dim", picked(([x, index], o) => chosenAlong(x, index, o.dim, true))],
  index_select: ["x index; dim", picked(([x, index], o) => chosenAlong(x, index, o.dim, false))],
  taken_at: ["x index second?", picked(([x, ...indices]) => chosenAt(x, indices))],
  embedding: ["index x; norm_type=2.0", picked(([index, x]) => chosenAt(x, [index]), 1)],
  cat: ["*x; dim=0", joined((x, o) => at(o.dim, x.shape))],
  stack: ["*x; dim=0", joined((x, o) => at(o.dim, { length: x.shape.length + 1 }))],
  einsum: ["*x; equation", summed(lettered)],
  outer: ["x y", summed((xs) => lettered(xs, { equation: "i,j->ij" }))],
  dot: ["x y", product()],
  bmm: ["x y", product()],
  mv: ["x y", product()],
  mm: ["x y", product()],
  matmul: ["x y", product()],
  addmm: ["b x y", biased(product())],
  addmv: ["b x y", biased(product())],
  baddbmm: ["b x y", biased(product())],
  linear: ["x w b?=0", biased(product(true), [2, 0, 1])],
  conv1d: ["x w b?=0; stride=1 padding=0 dilation=1 groups=1", convolution()],
  conv2d: ["x w b?=0; stride=1 padding=0 dilation=1 groups=1", convolution()],
  convolution: ["x w b?=0; stride=1 padding=0 dilation=1 groups=1", convolution()],
  conv_transpose1d: ["x w b?=0; stride=1 padding=0 output_padding=0 groups=1 dilation=1", convolution(plainTransposed)],
  conv_transpose2d: ["x w b?=0; stride=1 padding=0 output_padding=0 groups=1 dilation=1", convolution(plainTransposed)],
  convolution_transposed: ["x w b?=0; size stride padding dilation groups", convolution(plainTransposed)],
  pad: ["x; pad mode='constant' value=0", picked(([x], o) => framed(x.shape, ...sides(x, o.pad)))],
  constant_pad_nd: ["x; before after value=0", picked(([x], o) => framed(x.shape, o.before, o.after))],
  max_pool1d: ["x; kernel_size stride=None padding=0 dilation=1 ceil_mode=False", largestOf(1, sliding)],
  max_pool2d: ["x; kernel_size stride=None padding=0 dilation=1 ceil_mode=False", largestOf(2, sliding)],
  adaptive_max_pool2d: ["x; size", largestOf(2, covering)],
  avg_pool1d: ["x; kernel_size stride=None padding=0 count_include_pad=True", meanOf(1, sliding, (list, o) => o.kernel_size)],
  avg_pool2d: ["x; kernel_size stride=None padding=0 count_include_pad=True", meanOf(2, sliding, (list, o) => size(perDim(o.kernel_size, 2)))],
  adaptive_avg_pool1d: ["x; output_size", meanOf(1, covering)],
  adaptive_avg_pool2d: ["x; output_size", meanOf(2, covering)],
};
