#!/usr/bin/env bash
# At its base point a logarithmic map leaves a small step as it is: its derivative along the manifold is 1. geoopt 0.5.1 gives, in
# float32, the gradient 0 on the Poincaré ball, 0.0003 on the hyperboloid and 141 on the sphere, where a finite difference gives 1
# each time, and NaN for the exponential map of a step of 0 on the sphere. A point that starts at its base stands still or flies off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from importlib.metadata import version

import geoopt
import torch

print("geoopt", version("geoopt"), "torch", torch.__version__.split("+")[0])
ball, hyperboloid, sphere = geoopt.PoincareBall(), geoopt.Lorentz(), geoopt.Sphere()
pole, along, step = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]).double(), 1e-2
seen = {}
for name, manifold, base in (("ball", ball, torch.zeros(3)), ("hyperboloid", hyperboloid, pole), ("sphere", sphere, pole)):
    point = base.clone().requires_grad_()
    manifold.logmap(base, point)[1].backward()
    exact = base.double()
    there, back = (manifold.logmap(exact, manifold.expmap(exact, sign * step * along))[1] for sign in (1, -1))
    seen[name] = point.grad[1].item(), ((there - back) / (2 * step)).item()
    print(f"{name}: logmap has the gradient {seen[name][0]:.6g} at its base, the difference of two points is {seen[name][1]:.4f}")
    assert abs(seen[name][1] - 1) < 0.01
assert seen["ball"][0] == 0
assert 0 < seen["hyperboloid"][0] < 0.01
assert seen["sphere"][0] > 100
tangent = torch.zeros(3, requires_grad=True)
sphere.expmap(pole, tangent)[1].backward()
print("sphere: expmap has the gradient", tangent.grad.tolist(), "at a step of 0")
assert tangent.grad.isnan().any()
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 geoopt==0.5.1 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
