"""The errors of differentiation. Each has PyTorch's message, and a note that says what to do.

The advice is a note (PEP 678). A traceback shows notes, but a program that prints the exception prints PyTorch's
message alone.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import torch_type_name


def with_advice(error: Exception, advice: str) -> Exception:
    """The error, with advice as a note."""
    error.add_note(f"gradviz: {advice}")
    return error


def backward_twice(node_name: str) -> Exception:
    """The error of a node that has to run, but whose saved tensors are freed."""
    error = RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already been freed). Saved intermediate values of the graph are freed when you call "
        ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
        "graph a second time or if you need to access saved tensors after calling backward."
    )
    return with_advice(error, f"the node is {node_name}; give retain_graph=True to the first of the two calls.")


def after_freeing() -> Exception:
    """The error of hooks for a saved tensor that is freed."""
    return RuntimeError(
        "Calling register_hooks on a saved tensor after it has been freed. Saved intermediate values of the graph "
        "are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward "
        "through the graph a second time or if you need to access saved variables after calling backward."
    )


def mutated_since_saved(node: Any, maker: Any, array: np.ndarray, expected: int, found: int) -> Exception:
    """The error of a tensor that was modified in place after `node` saved it. `maker` is the node that made it, None
    for a leaf; `expected` and `found` are versions."""
    name = re.sub(r"torch\.(Bool|Complex\w+)Tensor", r"CPU\1Type", torch_type_name(np.asarray(array).dtype))
    kind = f"[{name} {list(np.shape(array))}]"
    origin = "" if maker is None else f", which is output 0 of {re.sub('Backward[0-9]*$', '', maker.name())},"
    error = RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{kind}{origin} is at version {found}; expected version {expected} instead. Hint: enable anomaly "
        "detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    return with_advice(
        error,
        f"{node.label} saved it; replace the in-place operation that came after (x += 1, x.add_(1)) by its "
        "out-of-place form, or clone() the tensor before.",
    )


def detached_since_saved(node: Any) -> Exception:
    """The error of a tensor that was detached in place by `detach_()` after `node` saved it."""
    error = RuntimeError(
        "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
        "This is not supported, please use out-of-place `.detach()` instead"
    )
    return with_advice(error, f"{node.label} saved it.")


def no_grad_fn(position: int) -> Exception:
    """The error of backward() on a tensor that does not require grad."""
    error = RuntimeError(f"element {position} of tensors does not require grad and does not have a grad_fn")
    return with_advice(
        error,
        "nothing it was computed from requires grad, or the graph was cut on the way: look for detach(), "
        "no_grad(), .data, .item() or numpy() before it.",
    )


def implicit_gradient() -> Exception:
    """The error of backward() without a gradient on a tensor of more than one element."""
    return with_advice(
        RuntimeError("grad can be implicitly created only for scalar outputs"),
        "reduce the output with .sum() or .mean(), or pass gradient= with a tensor of its shape.",
    )


def unused_input(position: int) -> Exception:
    """The error of autograd.grad() for a tensor that the outputs do not depend on, at that position of `inputs`."""
    return RuntimeError(
        f"The differentiated Tensor at index {position} appears to not have been used in the graph. "
        "Set allow_unused=True if this is the desired behavior."
    )


def gradient_shape(position: int, node_name: str, got: tuple, expected: tuple) -> Exception:
    """The error of a node that returned a gradient of the wrong shape."""
    return RuntimeError(
        f"Function {node_name} returned an invalid gradient at index {position} - got {list(got)} but "
        f"expected shape compatible with {list(expected)}"
    )


def nan_gradient(node: Any, nr: int) -> Exception:
    """The error of a node that returned NaN in anomaly mode."""
    inputs = ", ".join(f"{tuple(tensor.shape)}" for tensor, _ in node.saved() if tensor is not None)
    return with_advice(
        RuntimeError(f"Function '{node.name()}' returned nan values in its {nr}th output."),
        f"the formula of its derivative has no value there{f' (saved: {inputs})' if inputs else ''}; "
        "`gradviz trace` names the line that it comes from.",
    )


def inference_saved() -> Exception:
    """The error of an op that would save a tensor made in inference mode for its backward."""
    return with_advice(
        RuntimeError(
            "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
            "computation tracked by autograd."
        ),
        "clone the tensor to get a normal one, or use `no_grad` in the place of `inference_mode`.",
    )


def leaf_view_in_place() -> Exception:
    """The error of an in-place operation on a view of a leaf that requires grad."""
    error = RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    return with_advice(error, "wrap the update in `with no_grad():`, or compute a new tensor instead.")


def leaf_in_place() -> Exception:
    """The error of an in-place operation on a leaf that requires grad, outside of no_grad."""
    return with_advice(
        RuntimeError("a leaf Variable that requires grad is being used in an in-place operation."),
        "wrap the update in `with no_grad():`, or compute a new tensor instead.",
    )
