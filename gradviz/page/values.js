// Values of tensors and gradients of edges at an event. Python computed all of them; here they are only
// looked up.

// The last of some sorted entries [event, ...] that is not after event k.
function entryAt(entries, k) {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] <= k) low = middle + 1;
    else high = middle;
  }
  const entry = low ? entries[low - 1] : null;
  return entry && entry.length > 1
    ? { text: entry[1], brief: entry[2], norm: entry[3], odd: Boolean(entry[4]), k: entry[0] }
    : null;
}

const NONE = { v: [], g: [] };
const tensorOf = (node) => app.view.tensors[node.tensor] || NONE;
const clipped = (node, k) => (node.until !== undefined && node.until < k ? node.until : k);

// A tensor's value; null if it does not exist yet, or is unknown.
const valueOf = (node, k) => entryAt(tensorOf(node).v, clipped(node, k));

// A tensor's .grad; null for None.
const gradOf = (node, k) => entryAt(tensorOf(node).g, clipped(node, k));

// The gradient that moved along an edge; null if none has yet.
const flowOf = (edge, k) => entryAt(edge.flows, k);

const isThere = (node, k) => node.since <= k;
const hasRun = (node, k) => app.view.ran.has(node.id) && app.view.ran.get(node.id) <= k;

// Whether a node shows its .grad: it is a leaf that requires grad, or has a .grad at any event.
const showsGrad = (node) =>
  node.tensor !== undefined && ((node.leaf && node.wants) || tensorOf(node).g.some((entry) => entry.length > 1));

// The size of a gradient's norm relative to the others of this view: 0.06 to 1, logarithmic.
function relativeSize(norm) {
  if (norm === null || norm === undefined) return 1;
  if (!(norm > 0)) return 0.06;
  const [least, most] = normRange(app.view);
  if (!(most > least)) return 1;
  return 0.2 + (0.8 * Math.log(norm / least)) / Math.log(most / least);
}

function normRange(view) {
  if (!view.normRange) {
    let least = Infinity;
    let most = 0;
    for (const tensor of Object.values(view.tensors)) {
      for (const entry of tensor.g) {
        if (entry[3] > 0) {
          least = Math.min(least, entry[3]);
          most = Math.max(most, entry[3]);
        }
      }
    }
    view.normRange = [Math.max(least, most * 1e-6), most];
  }
  return view.normRange;
}

const sizesText = (node) => (node.shape === undefined ? "?" : node.shape.length ? `[${node.shape.join(", ")}]` : "scalar");

const shapeText = (node) =>
  sizesText(node) + (node.dtype && node.dtype !== "float32" ? ` ${node.dtype}` : "");

function nameOf(id) {
  const group = app.view.groupOf.get(id);
  if (group) return group.label;
  const node = app.view.nodeOf.get(id);
  if (!node) return id;
  if (node.kind === "op") return node.name || node.op || "?";
  if (node.kind === "grad_fn") return node.gradFn || node.name || id;
  return node.name || node.called || `t${node.tensor}`;
}

const placeOf = (node) =>
  node.at ? `${data.files[node.at[0]].name}:${node.at[1]}` : "";
