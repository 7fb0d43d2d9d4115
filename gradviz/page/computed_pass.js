// A pass, computed again from the values that enter it.

// Of a gradient whose terms cancel out, rounding is left: it is compared to within this share of the largest term.
const rounding = (dtype) => (dtype === "float32" ? 1e-6 : 1e-14);
const largest = (list) => list.map(Math.abs).filter(Number.isFinite).reduce((a, b) => Math.max(a, b), 0);

const rounded = (list, dtype) => (dtype === "float32" ? list.map(Math.fround) : list);
const isNear = (one, other, dtype, scale, error) =>
  Object.is(one, other) || one === other || Math.abs(one - other) <= (dtype === "float32" ? 1e-4 : 1e-9) * scale + error;

// The elements that a tensor with some name in the page's data has.
const numbersOf = (list) => list.map(Number);

// All values and gradients of a pass; `entered` are the elements of what enters it, by tensor.
function computedPass(again, entered) {
  const values = new Map();
  const sums = new Map();
  const flows = new Map();
  const noise = new Map(); // of a sum of gradients: how much of it may be what rounding has left
  for (const { t, shape, dtype } of again.leaves) values.set(t, { shape, dtype, x: rounded(entered.get(t), dtype) });
  const inputs = (call) => call.in.map((one) => (Array.isArray(one) ? { shape: [], x: numbersOf(one) } : values.get(one)));
  const others = (call, out) => ({ ...call.o, nth: out.nth });
  for (const call of again.calls) {
    for (const out of call.outs) {
      const { t, shape, dtype } = out;
      const x = rounded(ROWS[call.op][1].forward(inputs(call), others(call, out), shape), dtype);
      if (x.length !== size(shape)) throw new RangeError("another shape than was recorded");
      values.set(t, { shape, dtype, x });
    }
  }
  const add = (t, list) => {
    const { dtype } = values.get(t);
    const before = sums.get(t);
    sums.set(t, rounded(before ? before.map((one, i) => one + list[i]) : list, dtype));
  };
  for (const [t, list] of again.roots) add(t, numbersOf(list));
  for (const call of [...again.calls].reverse()) {
    const reached = call.outs.filter(({ t }) => sums.has(t));
    if (!reached.length || !call.flows.some(Boolean)) continue;
    const all = largest(reached.flatMap(({ t }) => sums.get(t)));
    const left = sum(reached.map(({ t }) => noise.get(t) || 0));
    const parts = reached.map((out) => {
      const { backward } = ROWS[call.op][1];
      return backward(sums.get(out.t), values.get(out.t).x, inputs(call), others(call, out), out.shape);
    });
    call.flows.forEach((flow, i) => {
      if (!flow) return;
      const { dtype } = values.get(call.in[i]);
      const part = rounded(parts.map((one) => one[i]).reduce((a, b) => a.map((one, n) => one + b[n])), dtype);
      const gain = all > left ? largest(part) / all : 1;
      const error = Math.max(all * rounding(dtype), left * gain);
      flows.set(flow, { t: call.in[i], x: part, error });
      noise.set(call.in[i], (noise.get(call.in[i]) || 0) + error);
      add(call.in[i], part);
    });
  }
  return { values, sums, flows, noise };
}

const recordedLeaves = (again) => new Map(again.leaves.map(({ t, x }) => [t, numbersOf(x)]));

// Whether elements are those that were recorded, or have the root mean square that was, but for an error.
function agrees(list, told, dtype, error = 0) {
  if (told === null) return true;
  if (!Array.isArray(told)) {
    const rms = Math.sqrt(mean(list.map((x) => x * x)));
    return isNear(rms, Number(told), dtype, Number(told), error);
  }
  const scale = largest(numbersOf(told));
  return list.length === told.length && list.every((one, i) => isNear(one, Number(told[i]), dtype, scale, error));
}

// Whether the page computes what was recorded.
function isReproduced(again) {
  try {
    const { values, sums, flows, noise } = computedPass(again, recordedLeaves(again));
    const calls = again.calls.every((call) => {
      const ran = call.flows.every((flow, i) => {
        if (!flow || !flow[1]) return true;
        const found = flows.get(flow);
        return found && agrees(found.x, flow[1], values.get(call.in[i]).dtype, found.error);
      });
      return ran && call.outs.every(({ t, is, dtype }) => agrees(values.get(t).x, is, dtype));
    });
    return calls && again.grads.every(({ t, is }) => sums.has(t) && agrees(sums.get(t), is, values.get(t).dtype, noise.get(t)));
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) return false;
    throw error;
  }
}
