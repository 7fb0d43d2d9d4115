#!/usr/bin/env bash
# x[[0, 0]] = v writes two values to one place, and the last one stays. Only it has a part in the result, and JAX 0.10.2 gives the
# gradient to it alone. PyTorch 2.13.0 gives the same gradient to the value that was overwritten, in an assignment, index_put and
# index_copy alike.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import jax
import jax.numpy as jnp
import torch


def assigned(v):
    x = torch.zeros(3)
    x[[0, 0]] = v
    return x


places = torch.tensor([0, 0])
print("torch", torch.__version__.split("+")[0], "jax", version("jax"))
for name, written in (
    ("x[[0, 0]] = v", assigned),
    ("index_put", lambda v: torch.zeros(3).index_put((places,), v)),
    ("index_copy", lambda v: torch.zeros(3).index_copy(0, places, v)),
):
    v = torch.tensor([1.0, 2.0], requires_grad=True)
    result = written(v)
    result.sum().backward()
    print(f"torch, {name}: {result.tolist()}, gradient of v {v.grad.tolist()}")
    assert result.tolist() == [2.0, 0.0, 0.0]
    assert v.grad.tolist() == [1.0, 1.0]
values = jnp.array([1.0, 2.0])
result = jnp.zeros(3).at[jnp.array([0, 0])].set(values)
gradient = jax.grad(lambda v: jnp.zeros(3).at[jnp.array([0, 0])].set(v).sum())(values)
print(f"jax, x.at[[0, 0]].set(v): {result.tolist()}, gradient of v {gradient.tolist()}")
assert result.tolist() == [2.0, 0.0, 0.0]
assert gradient.tolist() == [0.0, 1.0]
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/environment/bin/python" -W ignore "$folder/program.py"
