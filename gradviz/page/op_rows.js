// The ops that the page can compute again: what each takes (`call_signatures.py` reads it), its value and its derivatives.
// The functions that make a row are in `op_kinds.js`: `each` works element by element, `over` makes one number of many,
// `along` many of as many, `moved` takes elements from other places.
//
// A derivative is given the gradient g, the result z, the inputs x, y and the other arguments o; in `over` also the list
// that a number was made of, and the place of x in it.

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const sum = (list) => list.reduce((a, b) => a + b, 0);
const mean = (list) => sum(list) / list.length;
const spread = (list, o) => sum(list.map((one) => (one - mean(list)) ** 2)) / (list.length - o.correction);
const most = (list) => list.reduce((a, b) => (a !== a || a > b ? a : b));
const least = (list) => list.reduce((a, b) => (a !== a || a < b ? a : b));
const softmax = (list) => {
  const grown = list.map((x) => Math.exp(x - most(list)));
  return grown.map((x) => x / sum(grown));
};
const half = (g, x, y, wins) => (x === y ? g / 2 : wins ? g : 0);
const share = (g, z, x, list) => (x === z ? g / list.filter((one) => one === z).length : 0);
const chosen = (g, z, x, list, at, o) => (o.dim === null ? share(g, z, x, list) : list.indexOf(z) === at ? g : 0);
const same = () => moved(({ shape }) => [0, strides(shape), shape]);
const lastTwo = moved(({ shape }) => swapped(shape, shape.length - 1, Math.max(0, shape.length - 2)));
const oneOf = (shape, dim, part) => taken(shape, shape.map((size, i) => (i === at(dim, shape) ? part(size) : [0, 1, size])));

const ROWS = {
  add: ["x y; alpha=1", each((x, y, o) => x + o.alpha * y, (g) => g, (g, z, x, y, o) => g * o.alpha)],
  sub: ["x y; alpha=1", each((x, y, o) => x - o.alpha * y, (g) => g, (g, z, x, y, o) => -g * o.alpha)],
  rsub: ["x other#; alpha=1", each((x, y, o) => y - o.alpha * x, (g, z, x, y, o) => -g * o.alpha, (g) => g)],
  mul: ["x y", each((x, y) => x * y, (g, z, x, y) => g * y, (g, z, x) => g * x)],
  div: ["x y", each((x, y) => x / y, (g, z, x, y) => g / y, (g, z, x, y) => (-g * z) / y)],
  rdiv: ["x other#", each((x, y) => y / x, (g, z, x) => (-g * z) / x)],
  pow: ["x exponent#", each((x, y) => x ** y, (g, z, x, y) => (y === 0 ? 0 : g * y * x ** (y - 1)), (g, z, x) => (z === 0 ? 0 : g * z * Math.log(x)))],
  maximum: ["x y", each((x, y) => Math.max(x, y), (g, z, x, y) => half(g, x, y, x > y), (g, z, x, y) => half(g, x, y, y > x))],
  minimum: ["x y", each((x, y) => Math.min(x, y), (g, z, x, y) => half(g, x, y, x < y), (g, z, x, y) => half(g, x, y, y < x))],
  neg: ["x", each((x) => -x, (g) => -g)],
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
  sin: ["x", each(Math.sin, (g, z, x) => g * Math.cos(x))],
  cos: ["x", each(Math.cos, (g, z, x) => -g * Math.sin(x))],
  tan: ["x", each(Math.tan, (g, z) => g * (1 + z * z))],
  atan: ["x", each(Math.atan, (g, z, x) => g / (1 + x * x))],
  sinh: ["x", each(Math.sinh, (g, z, x) => g * Math.cosh(x))],
  cosh: ["x", each(Math.cosh, (g, z, x) => g * Math.sinh(x))],
  tanh: ["x", each(Math.tanh, (g, z) => g * (1 - z * z))],
  sigmoid: ["x", each(sigmoid, (g, z) => g * z * (1 - z))],
  relu: ["x", each((x) => Math.max(x, 0), (g, z) => (z <= 0 ? 0 : g))],
  leaky_relu: ["x; negative_slope=0.01", each((x, o) => (x > 0 ? x : x * o.negative_slope), (g, z, x, o) => (x > 0 ? g : g * o.negative_slope))],
  silu: ["x", each((x) => x * sigmoid(x), (g, z, x) => g * sigmoid(x) * (1 + x * (1 - sigmoid(x))))],
  softplus: ["x; beta=1 threshold=20", each((x, o) => (x * o.beta > o.threshold ? x : Math.log1p(Math.exp(x * o.beta)) / o.beta), (g, z, x, o) => (x * o.beta > o.threshold ? g : g * sigmoid(x * o.beta)))],
  clamp: ["x; min=None max=None", each((x, o) => Math.min(Math.max(x, o.min ?? -Infinity), o.max ?? Infinity), (g, z, x, o) => (x < (o.min ?? -Infinity) || x > (o.max ?? Infinity) ? 0 : g))],
  gt: ["x y", each((x, y) => +(x > y))],
  ge: ["x y", each((x, y) => +(x >= y))],
  lt: ["x y", each((x, y) => +(x < y))],
  le: ["x y", each((x, y) => +(x <= y))],
  where: ["c x y", each((c, x, y) => (c ? x : y), null, (g, z, c) => (c ? g : 0), (g, z, c) => (c ? 0 : g))],
  detach: ["x", each((x) => x)],
  clone: ["x", same()],
  mse_loss: ["x y; reduction='mean'", loss((x, y) => (x - y) ** 2, (g, x, y) => 2 * g * (x - y))],
  l1_loss: ["x y; reduction='mean'", loss((x, y) => Math.abs(x - y), (g, x, y) => g * Math.sign(x - y))],
  sum: ["x; dim=None keepdim=False", over(sum, (g) => g)],
  mean: ["x; dim=None keepdim=False", over(mean, (g, z, x, list) => g / list.length)],
  prod: ["x; dim=None keepdim=False", over((list) => list.reduce((a, b) => a * b, 1), (g, z, x, list, at) => list.reduce((a, b, i) => (i === at ? a : a * b), g))],
  var: ["x; dim=None correction=1 keepdim=False", over(spread, (g, z, x, list, at, o) => (2 * g * (x - mean(list))) / (list.length - o.correction))],
  std: ["x; dim=None correction=1 keepdim=False", over((list, o) => Math.sqrt(spread(list, o)), (g, z, x, list, at, o) => (g * (x - mean(list))) / (z * (list.length - o.correction)))],
  amax: ["x; dim=None keepdim=False", over(most, share)],
  amin: ["x; dim=None keepdim=False", over(least, share)],
  max: ["x; dim=None keepdim=False", over(most, chosen)],
  min: ["x; dim=None keepdim=False", over(least, chosen)],
  logsumexp: ["x; dim keepdim=False", over((list) => most(list) + Math.log(sum(list.map((x) => Math.exp(x - most(list))))), (g, z, x) => g * Math.exp(x - z))],
  softmax: ["x; dim", along(softmax, (g, z) => z.map((one, i) => one * (g[i] - sum(g.map((each, j) => each * z[j])))))],
  log_softmax: ["x; dim", along((list) => softmax(list).map(Math.log), (g, z) => z.map((one, i) => g[i] - Math.exp(one) * sum(g)))],
  cumsum: ["x; dim", along((list) => list.map((x, i) => sum(list.slice(0, i + 1))), (g) => g.map((x, i) => sum(g.slice(i))))],
  reshape: ["x; shape", same()],
  view: ["x; size", same()],
  flatten: ["x; start_dim=0 end_dim=-1", same()],
  squeeze: ["x; dim=None", same()],
  unsqueeze: ["x; dim", same()],
  contiguous: ["x", same()],
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
  cat: ["*x; dim=0", joined((x, o) => at(o.dim, x.shape))],
  stack: ["*x; dim=0", joined((x, o) => at(o.dim, { length: x.shape.length + 1 }))],
  dot: ["x y", product()],
  mv: ["x y", product()],
  mm: ["x y", product()],
  matmul: ["x y", product()],
  addmm: ["b x y", affine(false)],
  linear: ["x w b?", affine(true)],
};
