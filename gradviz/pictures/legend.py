"""The legend: one example of everything that a picture can show."""

from __future__ import annotations

from gradviz.pictures.scene import Link, Scene, Thing

_Row = tuple[str, str, str]  # classes, name, meaning

_TENSORS: tuple[_Row, ...] = (
    ("leaf requires-grad has-grad", "leaf", "requires grad: backward sets its .grad"),
    ("leaf requires-grad has-grad shared", "shared leaf", "several ops read it: its gradients add up"),
    ("leaf", "leaf", "does not require grad: data"),
    ("leaf frozen", "frozen parameter", "does not require grad"),
    (
        "leaf requires-grad unreached",
        "leaf, never reached",
        "requires grad, but this pass gave it no gradient",
    ),
    ("tensor requires-grad version", "leaf", "the same leaf after an update in place"),
    ("tensor requires-grad", "non-leaf", "computed from a tensor that requires grad"),
    ("tensor requires-grad retained has-grad", "non-leaf", "retains its gradient"),
    ("tensor requires-grad root", "root", "backward() began here"),
    ("tensor", "tensor", "not computed from a tensor that requires grad"),
    ("leaf requires-grad reference", "w", "drawn again, near its use"),
)
_OPS: tuple[_Row, ...] = (
    ("op", "op", "of the forward pass"),
    ("op passive", "op", "its inputs do not require grad"),
    ("op in-place", "op_", "changed its input in place"),
    ("op cut", "detach", "a gradient was due, and stops at it"),
    ("grad_fn", "MulBackward0", "grad_fn: a node of the backward graph"),
    ("grad_fn root", "AddBackward0", "the root of the pass"),
    ("grad_fn accumulate filled", "AccumulateGrad", "adds to a leaf's .grad"),
    ("grad_fn idle", "LogBackward0", "did not run in this pass"),
    ("grad_fn error", "DivBackward0", "an error was raised here"),
    ("op finding", "log", "gradviz check found something here"),
    ("gate", "all_reduce · 2 ranks", "the gradient went through it, between ranks"),
    ("group", "layers ×12", "folded: a repetition, a chain of ops"),
    ("group module", "cell · GRUCell ×12", "a module, called so many times"),
    ("group place", "tanh ×12", "a place in the program, that ran so many times"),
)
_LINES: tuple[tuple[str, str], ...] = (
    ("data", "data"),
    ("data aliases", "data, in shared memory (a view)"),
    ("mutation", "changed in place"),
    ("saved", "saved for backward"),
    ("data cut", "no gradient goes back: detached"),
    ("data cut due", "a gradient was due, and stops here"),
    ("tie", "an operation and its grad_fn"),
)
_GRADIENTS: tuple[tuple[str, str], ...] = (
    ("grad flowed m4", "gradient, among the largest"),
    ("grad flowed m3", "a tenth of it"),
    ("grad flowed m2", "a hundredth"),
    ("grad flowed m1", "a thousandth"),
    ("grad flowed m0", "less"),
    ("grad flowed zero", "all zeros"),
    ("grad flowed odd", "NaN or inf in it"),
    ("grad", "next_functions: no gradient"),
)


def legend() -> Scene:
    """A scene with one example of everything, and its meaning."""
    scene = Scene(["legend: every kind of node and line"])
    _add_column(scene, "tensors", _TENSORS)
    _add_column(scene, "operations and nodes", _OPS)
    _add_chain(scene, "lines", _LINES)
    _add_chain(scene, "gradients: larger is wider", _GRADIENTS)
    return scene


def _add_column(scene: Scene, title: str, rows: tuple[_Row, ...]) -> None:
    _add_spacer(scene, title)
    above = ""
    for classes, name, meaning in rows:
        thing = Thing(
            f"l{len(scene.things)}", classes.split(), [("name", name), ("args", meaning)], name, title
        )
        scene.things[thing.id] = thing
        if above:
            scene.links.append(_link(scene, above, thing.id, "hidden", []))
        above = thing.id


def _add_chain(scene: Scene, title: str, rows: tuple[tuple[str, str], ...]) -> None:
    _add_spacer(scene, title)
    above = ""
    for classes, meaning in (("", ""), *rows):
        thing = Thing(f"l{len(scene.things)}", ["dot"], [], meaning, title)
        scene.things[thing.id] = thing
        if above:
            scene.links.append(_link(scene, above, thing.id, f"{classes} straight", [meaning]))
        above = thing.id


def _add_spacer(scene: Scene, title: str) -> None:
    """Make all frames begin at the same height."""
    name = f"l{len(scene.things)}"
    scene.things[name] = Thing(name, ["spacer"], [], "", title)


def _link(scene: Scene, source: str, target: str, classes: str, label: list[str]) -> Link:
    return Link(f"e{len(scene.links)}", source, target, classes.split(), label, "".join(label))
