// A pass, computed again from the values that enter it.

const rounded = (list, dtype) => (dtype === "float32" ? list.map(Math.fround) : list);
const isNear = (one, other, dtype, scale) =>
  Object.is(one, other) || one === other || Math.abs(one - other) <= (dtype === "float32" ? 1e-4 : 1e-9) * scale;

// The elements that a tensor with some name in the page's data has.
const numbersOf = (list) => list.map(Number);

// All values and gradients of a pass; `entered` are the elements of what enters it, by tensor.
function computedPass(again, entered) {
  const values = new Map();
  const sums = new Map();
  const flows = new Map();
  for (const { t, shape, dtype } of again.leaves) values.set(t, { shape, dtype, x: rounded(entered.get(t), dtype) });
  const inputs = (call) => call.in.map((one) => (Array.isArray(one) ? { shape: [], x: one } : values.get(one)));
  for (const call of again.calls) {
    const x = rounded(ROWS[call.op][1].forward(inputs(call), call.o, call.shape), call.dtype);
    if (x.length !== size(call.shape)) throw new RangeError("another shape than was recorded");
    values.set(call.out, { shape: call.shape, dtype: call.dtype, x });
  }
  const add = (t, list) => {
    const { dtype } = values.get(t);
    const before = sums.get(t);
    sums.set(t, rounded(before ? before.map((one, i) => one + list[i]) : list, dtype));
  };
  for (const [t, list] of again.roots) add(t, numbersOf(list));
  for (const call of [...again.calls].reverse()) {
    const g = sums.get(call.out);
    if (!g || !call.flows.some(Boolean)) continue;
    const parts = ROWS[call.op][1].backward(g, values.get(call.out).x, inputs(call), call.o, call.shape);
    call.flows.forEach((flow, i) => {
      if (!flow) return;
      const part = rounded(parts[i], values.get(call.in[i]).dtype);
      flows.set(flow, { t: call.in[i], x: part });
      add(call.in[i], part);
    });
  }
  return { values, sums, flows };
}

const recordedLeaves = (again) => new Map(again.leaves.map(({ t, x }) => [t, numbersOf(x)]));

// Whether elements are those that were recorded, or have the root mean square that was.
function agrees(list, told, dtype) {
  if (told === null) return true;
  if (!Array.isArray(told)) {
    const rms = Math.sqrt(mean(list.map((x) => x * x)));
    return isNear(rms, Number(told), dtype, Number(told));
  }
  const scale = Math.max(0, ...told.map((one) => Math.abs(Number(one))).filter(Number.isFinite));
  return list.length === told.length && list.every((one, i) => isNear(one, Number(told[i]), dtype, scale));
}

// Whether the page computes what was recorded.
function isReproduced(again) {
  try {
    const { values, sums, flows } = computedPass(again, recordedLeaves(again));
    const calls = again.calls.every((call) => {
      const ran = call.flows.every((flow, i) => {
        if (!flow || !flow[1]) return true;
        return flows.has(flow) && agrees(flows.get(flow).x, flow[1], values.get(call.in[i]).dtype);
      });
      return ran && agrees(values.get(call.out).x, call.is, call.dtype);
    });
    return calls && again.grads.every(({ t, is }) => sums.has(t) && agrees(sums.get(t), is, values.get(t).dtype));
  } catch (error) {
    if (error instanceof RangeError || error instanceof TypeError) return false;
    throw error;
  }
}
