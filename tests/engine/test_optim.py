"""Optimizers and schedulers: literal steps, and the same path as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradviz import engine

OPTIMIZERS: dict[str, Callable] = {
    "SGD": lambda o, p: o.SGD(p, lr=0.05),
    "SGD momentum": lambda o, p: o.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "SGD nesterov": lambda o, p: o.SGD(p, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "Adam": lambda o, p: o.Adam(p, lr=0.05),
    "Adam amsgrad": lambda o, p: o.Adam(p, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True),
    "AdamW": lambda o, p: o.AdamW(p, lr=0.05, weight_decay=0.2, maximize=True),
    "NAdam": lambda o, p: o.NAdam(p, lr=0.05, weight_decay=0.1),
    "NAdam decoupled": lambda o, p: o.NAdam(p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": lambda o, p: o.RAdam(p, lr=0.05, weight_decay=0.1, betas=(0.8, 0.9)),
    "Adamax": lambda o, p: o.Adamax(p, lr=0.05, weight_decay=0.1),
    "RMSprop": lambda o, p: o.RMSprop(p, lr=0.02),
    "RMSprop centered": lambda o, p: o.RMSprop(p, lr=0.02, momentum=0.9, centered=True, weight_decay=0.1),
    "Adagrad": lambda o, p: o.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5, weight_decay=0.1),
    "Adadelta": lambda o, p: o.Adadelta(p, lr=0.9, weight_decay=0.1),
}

# Where x = 1 with loss x² stands after three steps (PyTorch 2.13).
THREE_STEPS = {"SGD": 0.9**3, "Adam": 0.850312, "AdamW": 1.118953, "RMSprop": 0.580866, "Adagrad": 0.802714}


def loss_of(w: Any, b: Any) -> Any:
    return ((w * w).sum() * b - b).sum() ** 2 + (b**2).sum()


def path(torch: Any, make: Callable, steps: int = 20) -> list[np.ndarray]:
    w = torch.tensor([[0.5, -1.0], [0.3, 0.2]], requires_grad=True)
    b = torch.tensor([0.7, -0.1], requires_grad=True)
    optimizer = make(torch.optim, [{"params": [w]}, {"params": [b], "lr": 0.01}])
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(w, b).backward()
        optimizer.step()
        seen += [w.detach().numpy().copy(), b.detach().numpy().copy()]
    return seen


@pytest.mark.torch
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_go_where_torchs_go(name: str) -> None:
    torch = pytest.importorskip("torch")
    for ours, theirs in zip(path(engine, OPTIMIZERS[name]), path(torch, OPTIMIZERS[name]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_print_and_remember_as_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    for library in (engine, torch):
        x = library.tensor([1.0], requires_grad=True)
        optimizer = OPTIMIZERS[name](library.optim, [x])
        (x * x).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()
        seen.append((repr(optimizer), saved["param_groups"], sorted(saved["state"].get(0, {}))))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", THREE_STEPS)
def test_three_steps_downhill(name: str) -> None:
    x = engine.tensor(1.0, requires_grad=True)
    optimizer = OPTIMIZERS[name](engine.optim, [x])
    for _ in range(3):
        optimizer.zero_grad()
        (x * x).backward()
        optimizer.step()
    assert x.item() == pytest.approx(THREE_STEPS[name], abs=1e-5)


def test_adams_first_step_is_its_rate_whatever_the_gradient() -> None:
    for scale in (1e-3, 1.0, 1e3):
        x = engine.tensor([1.0], requires_grad=True)
        optimizer = engine.optim.Adam([x], lr=0.1)
        (x * scale).sum().backward()
        optimizer.step()
        assert x.item() == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_optimizer_goes_on_as_if_it_had_not_stopped(name: str) -> None:
    def run(stop_at: int | None) -> list[float]:
        x = engine.tensor([1.0, -2.0], requires_grad=True)
        optimizer = OPTIMIZERS[name](engine.optim, [x])
        for i in range(6):
            if i == stop_at:
                saved = optimizer.state_dict()
                optimizer = OPTIMIZERS[name](engine.optim, [x])
                optimizer.load_state_dict(saved)
            optimizer.zero_grad()
            (x**2).sum().backward()
            optimizer.step()
        return x.tolist()

    assert run(3) == run(None)


def test_a_closure_computes_the_loss() -> None:
    x = engine.tensor([1.0], requires_grad=True)
    optimizer = engine.optim.SGD([x], lr=0.1)

    def closure() -> engine.Tensor:
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert x.item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o, x: o.SGD([], lr=0.1), "optimizer got an empty parameter list"),
        (lambda o, x: o.SGD([x], lr=-1), "Invalid learning rate: -1"),
        (lambda o, x: o.Adam([x], betas=(1.0, 0.9)), "Invalid beta parameter at index 0: 1.0"),
        (lambda o, x: o.Adam([x], eps=-1), "Invalid epsilon value: -1"),
        (lambda o, x: o.SGD([x], nesterov=True), "Nesterov momentum requires a momentum"),
        (lambda o, x: o.SGD([x * 2], lr=0.1), "can't optimize a non-leaf Tensor"),
        (lambda o, x: o.SGD([{"params": [x]}, {"params": [x]}]), "some parameters appear in more than one"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make(engine.optim, engine.ones(2, requires_grad=True))


SCHEDULERS: dict[str, Callable] = {
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5], 0.3),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda n: 1 / (n + 1)),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda n: 0.9),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 0.8, 4),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 5, 0.01),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=16),
    "OneCycleLR linear": lambda s, o: s.OneCycleLR(o, 0.5, epochs=4, steps_per_epoch=4, anneal_strategy="linear"),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 3),
    "CyclicLR triangular2": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 2, 4, mode="triangular2"),
    "CyclicLR exp_range": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 3, mode="exp_range", gamma=0.9),
    "CyclicLR by a function": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 3, scale_fn=lambda n: 1 / n),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, total_iters=4), s.ExponentialLR(o, 0.9)]),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 8), s.StepLR(o, 2)], [4, 10]
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_rates_are_torchs(name: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    for library in (engine, torch):
        x = library.ones(1, requires_grad=True)
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(library.optim, kind)([x], lr=0.1, **settings)
        scheduler = SCHEDULERS[name](library.optim.lr_scheduler, optimizer)
        rates = []
        for _ in range(15):
            group = optimizer.param_groups[0]
            rates.append((group["lr"], group["momentum"] if kind == "SGD" else group["betas"][0]))
            optimizer.step()
            scheduler.step()
        seen.append(np.array(rates))
        assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-9)


@pytest.mark.torch
def test_a_warm_restart_can_be_told_the_epoch() -> None:
    torch = pytest.importorskip("torch")
    seen = []
    for library in (engine, torch):
        optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
        scheduler = library.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2)
        rates = []
        for epoch in (0.5, 2.9, 3, 4.25, 8.9, 9, 20):
            scheduler.step(epoch)
            rates.append(optimizer.param_groups[0]["lr"])
        seen.append(rates)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-9)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_a_plateau_lowers_the_rate_as_in_torch(mode: str, threshold_mode: str) -> None:
    torch = pytest.importorskip("torch")
    metrics = [3.0, 2.5, 2.5, 2.6, 2.4999, 2.5, 2.6, 2.0, 2.1, 2.2, 2.3, 2.2, 2.2, 2.2]
    seen = []
    for library in (engine, torch):
        optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
        scheduler = library.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, 0.5, 1, threshold_mode=threshold_mode, cooldown=1, min_lr=0.1
        )
        rates = []
        for metric in metrics:
            scheduler.step(metric)
            rates.append(optimizer.param_groups[0]["lr"])
        seen.append(rates)
    assert seen[0] == seen[1]


def test_rates_by_hand() -> None:
    optimizer = engine.optim.SGD([engine.ones(1, requires_grad=True)], lr=1.0)
    scheduler = engine.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.torch
@pytest.mark.parametrize("settings", [{"lr": 0.2}, {"lr": 0.5, "max_iter": 4, "history_size": 2}])
def test_lbfgs_goes_where_torchs_goes(settings: dict) -> None:
    torch = pytest.importorskip("torch")

    def went(t: Any) -> list:
        x = t.tensor([-1.2, 1.0], dtype=t.float64, requires_grad=True)
        w = t.tensor([0.5], dtype=t.float64, requires_grad=True)
        optimizer = t.optim.LBFGS([x, w], **settings)
        seen, calls = [], []

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (1 - x[0]) ** 2 + 2 * (x[1] - x[0] ** 2) ** 2 + (w * x[0] - 1).square().sum()
            loss.backward()
            calls.append(loss.item())
            return loss

        for _ in range(5):
            seen += [optimizer.step(closure).item(), *x.tolist(), *w.tolist()]
        return seen + calls

    np.testing.assert_allclose(went(engine), went(torch), rtol=1e-9)


def test_lbfgs_says_what_it_has_not() -> None:
    x = engine.zeros(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no line search"):
        engine.optim.LBFGS([x], line_search_fn="strong_wolfe")
    with pytest.raises(TypeError, match="closure"):
        engine.optim.LBFGS([x]).step()


def test_an_optimizer_of_ones_own_remembers_in_a_state_that_begins_empty() -> None:
    w = engine.ones(2, requires_grad=True)
    optimizer = engine.optim.Adam([w], lr=0.1)
    optimizer.state[w]["old"] = engine.zeros(2)
    (w * w).sum().backward()
    del optimizer.state[w]["old"]
    optimizer.step()
    assert int(optimizer.state[w]["step"]) == 1


def test_a_rate_for_each_group_rises_to_its_own() -> None:
    def rates(library: Any) -> list[list[float]]:
        a, b = library.ones(2, requires_grad=True), library.ones(1, requires_grad=True)
        optimizer = library.optim.SGD([{"params": [a]}, {"params": [b]}], lr=0.1, momentum=0.9)
        scheduler = library.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 1.0], total_steps=5)
        found = []
        for _ in range(4):
            optimizer.step()
            scheduler.step()
            found.append([group["lr"] for group in optimizer.param_groups])
        return found

    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(rates(engine), rates(torch))


def test_milestones_read_from_a_file_go_on() -> None:
    optimizer = engine.optim.SGD([engine.ones(1, requires_grad=True)], lr=1.0)
    scheduler = engine.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2])
    saved = scheduler.state_dict()
    scheduler.load_state_dict({**saved, "milestones": dict(saved["milestones"])})
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
