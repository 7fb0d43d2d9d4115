#!/usr/bin/env bash
# Label −1 or −100 often means "no label here". optax 0.2.8 takes −1 for the last class, as an index of NumPy, without a word. Of
# −100, and of a label beyond the last class, the loss is NaN, but the gradient is finite: it is that of no class, which pushes
# all logits down. So a training goes on under a loss of NaN, and learns from what was to be ignored.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax

print("jax", version("jax"), "optax", version("optax"))
logits = jnp.array([[0.0, 1.0, 2.0]])
seen = {}
for label in (2, -1, 3, -100):
    loss, gradient = jax.value_and_grad(
        lambda x: optax.softmax_cross_entropy_with_integer_labels(x, jnp.array([label])).sum()
    )(logits)
    seen[label] = float(loss), gradient[0]
    print(f"label {label}: loss {float(loss):.4f}, gradient {[round(float(g), 4) for g in gradient[0]]}")
assert seen[-1][0] == seen[2][0]
assert (seen[-1][1] == seen[2][1]).all()
for label in (3, -100):
    assert jnp.isnan(seen[label][0])
    assert jnp.allclose(seen[label][1], jax.nn.softmax(logits[0]))
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/environment/bin/python" -W ignore "$folder/program.py"
