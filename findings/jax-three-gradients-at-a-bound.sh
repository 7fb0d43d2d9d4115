#!/usr/bin/env bash
# Four functions of JAX 0.10.2 keep x between two bounds, and are x between them. At a bound their gradients are not the same:
# jnp.clip gives a half, jax.nn.hard_tanh 1, jax.lax.clamp and jax.nn.relu6 0. So a parameter that starts at a bound stands still,
# moves, or moves half as fast, by the name that the function goes by.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import jax
import jax.numpy as jnp

print("jax", version("jax"))
forms = {
    "jnp.clip": (lambda x: jnp.clip(x, -1.0, 1.0), -1.0, 1.0),
    "jax.lax.clamp": (lambda x: jax.lax.clamp(-1.0, x, 1.0), -1.0, 1.0),
    "jax.nn.hard_tanh": (jax.nn.hard_tanh, -1.0, 1.0),
    "jax.nn.relu6": (jax.nn.relu6, 0.0, 6.0),
}
seen = {}
for name, (form, low, high) in forms.items():
    seen[name] = [float(jax.grad(form)(bound)) for bound in (low, high)]
    inside = float(jax.grad(form)((low + high) / 2))
    assert inside == 1.0
    print(f"{name}: {seen[name][0]} at {low}, {inside} between, {seen[name][1]} at {high}")
assert seen["jnp.clip"] == [0.5, 0.5]
assert seen["jax.nn.hard_tanh"] == [1.0, 1.0]
assert seen["jax.nn.relu6"] == [0.0, 0.0]
assert seen["jax.lax.clamp"] == [0.0, 0.0]
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/environment/bin/python" -W ignore "$folder/program.py"
