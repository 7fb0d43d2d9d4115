"""Short programs, drawn at random, and all that can be seen of one as it runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

# Each line makes {n} of {a} and {b}, which are there already; `t` is the library, `seen` what hooks saw.
LINES = """
    {n} = {a} * {b}
    {n} = {a} + {b}
    {n} = {a} / {b}
    {n} = {a} - 2
    {n} = 3 / ({a} * {a} + 1)
    {n} = -{a}
    {n} = {a} ** 3
    {n} = {a}.abs() ** {b}
    {n} = {a} @ {b}
    {n} = {a}.sin()
    {n} = {a}.exp().clamp(max=5)
    {n} = {a}.abs().sqrt()
    {n} = {a}.log1p()
    {n} = {a}.sum(0, keepdim=True)
    {n} = {a}.mean()
    {n} = {a}.max(0).values
    {n} = {a}.min()
    {n} = {a}.median()
    {n} = {a}.amax(0)
    {n} = {a}.prod()
    {n} = {a}.norm()
    {n} = {a}.std(0)
    {n} = {a}.var(0, unbiased=False)
    {n} = {a}.logsumexp(0)
    {n} = {a}.cumsum(0)
    {n} = {a}.cumprod(0)
    {n} = {a}.sort(0).values
    {n} = {a}.topk(1, 0).values
    {n} = t.logaddexp({a}, {b})
    {n} = t.hypot({a}, {b})
    {n} = t.where({a} > 0.5, {a}, {b})
    {n} = t.cat([{a}, {b}])
    {n} = t.stack([{a}, {a}]).sum(0)
    {n} = t.addcmul({a}, {b}, {b}, value=0.5)
    {n} = t.nn.functional.softmax({a}, -1)
    {n} = t.nn.functional.gelu({a})
    {n} = t.nn.functional.normalize({a}, dim=0)
    {n} = t.nn.functional.linear({a}, {b})
    {n} = t.nn.functional.mse_loss({a}, {b})
    {n} = {a}.t()
    {n} = {a}[0]
    {n} = {a}[..., :1]
    {n} = {a}[[0, 1]]
    {n} = {a}.view(-1)
    {n} = {a}.flatten()
    {n} = {a}.expand(3, *{a}.shape)
    {n} = {a}.unsqueeze(0).squeeze(0)
    {n} = {a}.chunk(2)[0]
    {n} = {a}.unbind(0)[-1]
    {n} = {a}.narrow(0, 0, 1)
    {n} = {a}.diagonal()
    {n} = {a}.flip(0)
    {n} = {a}.roll(1, 0)
    {n} = {a}.tril()
    {n} = {a}.masked_fill({a} > 1, 0.5)
    {n} = {a}.masked_select({b} > 0)
    {n} = {a}.index_select(0, t.tensor([1, 0, 1]))
    {n} = {a}.clone()
    {n} = {a}.detach()
    {n} = {a}.data * 1
    {n} = {a}.detach().requires_grad_()
    {n} = {a}.requires_grad_(False) if {a}.is_leaf else {a}
    with t.no_grad(): {n} = {a} * 2
    {a}.mul_(1.5); {n} = {a}
    {a}.add_({b}); {n} = {a}
    {a}.div_({b} * {b} + 1); {n} = {a}
    {a}.zero_(); {n} = {a}
    {a}.fill_({b}.mean()); {n} = {a}
    {a}.copy_({b}); {n} = {a}
    {a}[0] = {b}.mean(); {n} = {a}
    {a}[0].mul_(2); {n} = {a}
    {n} = {a}.relu_()
    {n} = {a}.tanh_()
    {n} = {a}.clamp_(-0.5, 0.5)
    {n} = {a}.mul(2).sub_({b})
    {n} = {a}.sigmoid(); {n}.retain_grad()
    {a}.retain_grad(); {n} = {a} ** 2
    {a}.register_hook(lambda g: seen.append(g.tolist())); {n} = {a} * 1
""".strip().splitlines()
SHAPES = [(3, 2), (3, 2), (2,), (2, 2)]


def drawn(seed: int) -> list[str]:
    """A program of two to seven lines."""
    choose = random.Random(seed)
    names = [f"v{i}" for i in range(len(SHAPES))]
    lines = []
    for i in range(choose.randint(2, 7)):
        line, a, b = choose.choice(LINES), choose.choice(names), choose.choice(names)
        names.append(f"w{i}")
        lines.append(line.strip().format(a=a, b=b, n=names[-1]))
    return lines


def place(tensor: Any) -> tuple:
    node = tensor.grad_fn
    names = None if node is None else [n and n.name() for n, _ in node.next_functions]
    return None if node is None else node.name(), names, tensor.is_leaf, tensor.requires_grad, tensor._version


def shown(gradient: Any) -> Any:
    """The numbers of a gradient; None for zeros too, which PyTorch leaves out here and there."""
    return None if gradient is None or not gradient.any() else gradient.tolist()


def ran(t: Any, lines: list[str], seed: int) -> list:
    """All that can be seen of a program: of each line, and of the backward pass after the last."""
    numbers = np.random.default_rng(seed)
    seen: list = []
    known: dict[str, Any] = {"t": t, "seen": seen}
    for i, shape in enumerate(SHAPES):
        values = numbers.normal(size=shape)
        known[f"v{i}"] = t.tensor(values, dtype=t.float64, requires_grad=i != 2)
    leaves = [known[f"v{i}"] for i in range(len(SHAPES)) if i != 2]
    made: list = []
    try:
        for i, line in enumerate(lines):
            exec(line, known)
            made.append(known[f"w{i}"])
            seen += [line, place(made[-1]), made[-1].tolist()]
        roots = [tensor for tensor in made if tensor.requires_grad][-2:]
        if not roots:
            return seen
        loss = sum((root * root).sum() for root in roots)
        loss.backward(retain_graph=True)
        seen += [shown(tensor.grad) for tensor in leaves]
        once = t.autograd.grad(
            loss, [leaf for leaf in leaves if leaf.requires_grad], create_graph=True, allow_unused=True
        )
        again = [g for g in once if g is not None and g.requires_grad]
        if again and seed % 3 == 0 and not any("zero_" in line or "fill_" in line for line in lines):
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            twice = t.autograd.grad(sum((g * g).sum() for g in again), wanted, allow_unused=True)
            seen += [shown(g) for g in twice]
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        seen += [isinstance(error, RuntimeError), str(error).split(". ")[0].split("[")[0]]
    return seen
