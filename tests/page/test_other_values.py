"""Other values on the page of a small graph: what it computes is what the engine computes with them."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gradviz.cli.drawing import write_page
from gradviz.graph.build import build
from gradviz.page import computing, in_short
from gradviz.page.other_values import other_values, rows
from gradviz.sources.record import record
from gradviz.tracefile import open_trace
from gradviz.words import Words

pytestmark = pytest.mark.slow  # a browser computes

X = [[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]]
OTHER_X = [[-2.0, 1.25, 0.5], [0.125, -3.5, 1.75]]
Y = [[1.5, 2.5, 0.5], [0.75, 1.25, 3.0]]
OTHER_Y = [[2.0, 0.5, 1.75], [3.0, 0.25, 1.5]]

# For each row a program in x and y, of 2 × 3 elements each: y has positive ones. Of rows that only PyTorch's recording
# has the name begins with "torch".
PROGRAMS = {
    "add": "torch.add(x, y, alpha=3) + x[0] + 1.5",
    "sub": "torch.sub(x, y[1:], alpha=2) - 0.5",
    "rsub": "2 - x",
    "mul": "x * y[0] * 0.3",
    "div": "x / y / 3",
    "torch rdiv": "2 / y",
    "pow": "x**3 + x**0 + y**x",
    "maximum": "torch.maximum(x, y)",
    "minimum": "torch.minimum(x, y)",
    "neg": "-x",
    "exp": "x.exp()",
    "expm1": "x.expm1()",
    "log": "y.log()",
    "log1p": "y.log1p()",
    "log2": "y.log2()",
    "log10": "y.log10()",
    "sqrt": "y.sqrt()",
    "rsqrt": "y.rsqrt()",
    "torch square": "x.square()",
    "reciprocal": "x.reciprocal()",
    "abs": "x.abs()",
    "sign": "x.sign() * y",
    "torch long": "x.long() * y",
    "sin": "x.sin()",
    "cos": "x.cos()",
    "tan": "x.tan()",
    "atan": "x.atan()",
    "sinh": "x.sinh()",
    "cosh": "x.cosh()",
    "tanh": "x.tanh()",
    "sigmoid": "x.sigmoid()",
    "relu": "x.relu()",
    "leaky_relu": "F.leaky_relu(x, 0.2)",
    "silu": "F.silu(x)",
    "softplus": "F.softplus(x, 2, 1)",
    "clamp": "x.clamp(min=-1) + x.clamp(0, 2)",
    "torch gt": "torch.where(x > y, x, y)",
    "torch ge": "torch.where(x >= 0.5, x, y)",
    "torch lt": "torch.where(x < y, x, 2 * y)",
    "torch le": "torch.where(x <= y, y, x)",
    "torch where": "torch.where(x > 0, x * 2, y)",
    "torch eq": "torch.where(x == 0.5, x, y)",
    "torch ne": "torch.where(x != 0.5, x, y)",
    "torch masked_fill": "x.masked_fill(y > 1.4, -1.5) + x.masked_fill(y > 1.4, float('-inf')).softmax(1)",
    "torch dropout": "F.dropout(x, 0.5) * y + F.dropout(x, 0.5, training=False)",
    "torch rpow": "2**x + 0.5**x",
    "torch lerp": "torch.lerp(x, y, 0.3) + torch.lerp(x, y, x)",
    "torch addcmul": "torch.addcmul(x, x, y, value=2)",
    "torch addcdiv": "torch.addcdiv(x, x, y, value=2)",
    "torch relu6": "F.relu6(3 * x)",
    "hardtanh": "F.hardtanh(x) + F.hardtanh(x, 0, 2.5)",
    "elu": "F.elu(x) + F.elu(x, 0.5)",
    "celu": "F.celu(x, 0.5)",
    "gelu": "F.gelu(x) + F.gelu(x, approximate='tanh')",
    "erf": "x.erf()",
    "mish": "F.mish(x)",
    "log_sigmoid": "F.logsigmoid(x)",
    "clamp_min": "F.margin_ranking_loss(x, y, y)",
    "torch clamp_max": "torch.clamp_max(x, 1.0)",
    "detach": "x * x.detach()",
    "clone": "x.clone()",
    "mse_loss": "F.mse_loss(x, y) + F.mse_loss(x, y, reduction='sum') + F.mse_loss(x, y, reduction='none')",
    "torch l1_loss": "F.l1_loss(x, y)",
    "torch smooth_l1_loss": "F.smooth_l1_loss(x, y) + F.smooth_l1_loss(x, y, reduction='none', beta=2)",
    "torch huber_loss": "F.huber_loss(x, y) + F.huber_loss(x, y, reduction='sum', delta=2)",
    "torch binary_cross_entropy": "F.binary_cross_entropy(x.sigmoid(), y / 4, y.detach(), reduction='none')",
    "binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x, y) * y",
    "torch nll_loss": "F.nll_loss(x, torch.tensor([2, 0])) + F.nll_loss(x, torch.tensor([1, -100]), y[0].detach())",
    "nll_loss": "F.nll_loss(x, torch.tensor([2, 0])) + F.nll_loss(x, torch.tensor([1, -100]), y[0].detach())"
    " + F.nll_loss(x, torch.tensor([1, 0]), ignore_index=0, reduction='sum') + F.cross_entropy(x[0], torch.tensor(1))"
    " + F.cross_entropy(x, torch.tensor([1, 2]), reduction='none')[0] + F.nll_loss(x, x.argmax(1))",
    "nll_loss2d": "F.cross_entropy(x[None], torch.tensor([[1, 0, 1]]))"
    " + F.cross_entropy(y[None], torch.tensor([[1, 0, 9]]), y[:, 0].detach(), ignore_index=9)",
    "torch cross_entropy": "F.cross_entropy(x, torch.tensor([2, 0])) + F.cross_entropy(x[0], torch.tensor(1))"
    " + F.cross_entropy(x, torch.tensor([1, 1]), y[1].detach(), reduction='none', label_smoothing=0.1)[0]"
    " + F.cross_entropy(x, torch.tensor([1, 0]), y[1].detach(), label_smoothing=0.1)"
    " + F.cross_entropy(x[None], torch.tensor([[1, 0, 1]])) + F.cross_entropy(x, y.detach(), label_smoothing=0.2)",
    "torch layer_norm": "F.layer_norm(x, (3,), y[0], y[1]) * y + F.layer_norm(x, (2, 3)) * x",
    "native_layer_norm": "F.layer_norm(x, (3,), y[0], y[1]) * y",
    "torch batch_norm": "F.batch_norm(x.t(), None, None, y[:, 0], y[:, 1], True) * y.t()"
    " + torch.nn.BatchNorm1d(1)(x.reshape(3, 1, 2)).reshape(3, 2) * x.t()",
    "native_batch_norm": "F.batch_norm(x[:, :, None].reshape(3, 2, 1), None, None, y[0, :2], y[1, :2], True)[:, :, 0]"
    " * y.t()",
    "torch batch_norm_fixed": "F.batch_norm(x.T[None], y[0, :3].detach(), y[1].detach(), y[0], y[1])[0].T"
    " + F.batch_norm(x, y[0].detach(), y[1].detach())",
    "sum": "x.sum() + x.sum(1, keepdim=True) + x.sum((0, 1))",
    "mean": "x.mean() + x.mean(0)",
    "prod": "x.prod() + x.prod(1, keepdim=True)",
    "var": "x.var() + x.var(1, keepdim=True)",
    "std": "x.std() + x.std(0)",
    "amax": "x.amax(1, keepdim=True)",
    "amin": "x.amin(0)",
    "max": "x.max() + x.max(1, keepdim=True).values + x.max(1, keepdim=True).indices * y",
    "min": "x.min() + x.min(0).values + x.min(0).indices * y",
    "torch argmax": "x.argmax() * y + x.argmax(1, keepdim=True) * x",
    "torch argmin": "x.argmin() * y",
    "vector_norm": "x.norm() + x.norm(p=1, dim=1, keepdim=True) + x.norm(p=3, dim=0) + x.norm(float('inf'))",
    "torch linalg_vector_norm": "torch.linalg.vector_norm(x, dim=0)",
    "torch linalg_norm": "torch.linalg.norm(x)",
    "torch normalize": "F.normalize(x) * y + F.normalize(x, dim=0)",
    "logsumexp": "x.logsumexp(1, keepdim=True)",
    "softmax": "x.softmax(1) * y",
    "log_softmax": "x.log_softmax(0) * y + F.cross_entropy(x, y.detach(), y[1].detach())",
    "cumsum": "x.cumsum(1) * y",
    "cumprod": "x.cumprod(1) * y",
    "safe_softmax": "F.scaled_dot_product_attention(x, y, x + y)",
    "reshape": "x.reshape(3, 2) @ y",
    "torch view": "x.view(3, 2) @ y",
    "torch flatten": "x.flatten() * y.flatten()",
    "squeeze": "x[:1].squeeze() * y",
    "unsqueeze": "x.unsqueeze(1) * y",
    "t": "x.t() @ y",
    "torch T": "x.T @ y",
    "torch mT": "x.mT @ y",
    "transpose": "x.transpose(0, -1) @ y",
    "permute": "x.permute(1, 0) @ y",
    "expand": "x[0].expand(2, 3) * y",
    "select": "x.select(1, -1)[:, None] * y",
    "torch narrow": "x.narrow(1, 1, 1) * y",
    "torch getitem": "x[1, 2] * y + x[..., -1:] * x[:, ::2].sum() + x[1]",
    "getitem": "x[1, 2] * y + x[..., -1:] * x[:, ::2].sum() + x[1]",
    "index": "x.narrow(1, 0, 2).sum() * y",
    "cat": "torch.cat([x, y, x], 1).reshape(3, 6).softmax(0)",
    "stack": "torch.stack([x, y], -1).softmax(0)",
    "unbind": "x.unbind()[1] * y + x.unbind(1)[0].sum() * x.unbind(1)[2].sum()",
    "torch chunk": "x.chunk(2, 1)[1] * x.chunk(2, 1)[0].sum() * y",
    "torch split": "x.split(2, 1)[1] * x.split([1, 2], dim=1)[1].sum() * y",
    "torch split_with_sizes": "x.split_with_sizes([1, 2], 1)[1].sum() * y",
    "torch unsafe_split": "x.unsafe_split(2, 1)[1] * y",
    "flip": "x.flip(0) * y + x.flip(0, 1)",
    "triu": "x.triu() * y + x.triu(1)",
    "tril": "x.tril(-1) * y",
    "torch gather": "x.gather(1, torch.tensor([[2, 0, 0], [1, 1, 0]])) * y",
    "torch index_select": "x.index_select(1, torch.tensor([2, 0, 0])) * y",
    "torch taken_at": "x[torch.tensor([1, 1, 0])][:2] * y + x[torch.tensor([0, -1]), torch.tensor([2, 1])].sum()",
    "torch embedding": "F.embedding(torch.tensor([1, 1]), x) * y",
    "torch einsum": "torch.einsum('ij,kj->ik', x, y)[:, :1] + torch.einsum('ij,ij,i->', x, y, x[:, 0])",
    "torch outer": "torch.outer(x[0], y[1])",
    "bmm": "torch.bmm(x[None], y.t()[None])",
    "torch matmul": "x.reshape(2, 1, 3) @ y.t() + x[None] @ y[0] + y.reshape(2, 3, 1).mT @ x.reshape(2, 3, 1)",
    "torch addmv": "torch.addmv(x[:, 0], x, y[0])",
    "torch baddbmm": "torch.baddbmm(x[None, :, :2], x[None], y.t()[None])",
    "torch ravel": "x.ravel() * y.ravel()",
    "torch view_as": "x.view_as(y) * y",
    "torch copy": "(x * 1).copy_(y) * y",
    "torch zero": "(x * 2).zero_() + (x * 3).add_(y, alpha=2).sub_(1).clamp_(-1, 3)",
    "torch fill": "(y * 1).fill_(2) * x",
    "torch float": "(x.double() * 2).float() * y",
    "torch double": "x.double() * y",
    "torch swapaxes": "x.swapaxes(0, 1) @ y",
    "unsafe_view": "x[None] @ y.t()",
    "dot": "torch.dot(x[0], y[1]) * x",
    "mv": "x @ y[0]",
    "mm": "x @ y.t()",
    "addmm": "torch.addmm(x[0, :2], x, y.t())",
    "torch linear": "F.linear(x, y, x[0, :2]) + F.linear(x, y) + F.linear(x[1], y, y[1, :2])",
    # Images of one channel, and of two.
    "torch conv1d": "F.conv1d(x, y[None, :, :2], y[0, :1], padding='same')"
    " + F.conv1d(x[None], y[:, None], stride=2, padding=2, groups=2)[:, :, 1:].sum()",
    "torch conv2d": "F.conv2d(x[None, None], y[None, None, :, :2], y[1, :1], padding=(1, 2), dilation=(2, 1)).sum()"
    " + F.conv2d(x[None], y[None, None], stride=(2, 1), padding=1) + F.conv2d(x[None], y[None, None], padding='valid')",
    "convolution": "F.conv2d(x[None, None], y[None, None, :, :2], y[1, :1], stride=2, padding=(1, 2), dilation=(2, 1))"
    " + F.conv1d(x[None], y[:, None], padding=1, groups=2).sum()",
    "torch conv_transpose1d": "F.conv_transpose1d(x, y[:, None], y[0, :1], stride=2, padding=1, output_padding=1)"
    " + F.conv_transpose1d(x[None], y.reshape(2, 3, 1), groups=2, dilation=2)[:, :, :1].sum()",
    "torch conv_transpose2d": "F.conv_transpose2d(x[None, None], y[None, None], y[1, :1], (2, 1), (1, 0), 0, 1, 2)",
    "convolution_transposed": "F.conv_transpose2d(x[None], y[None, None], y[1, :1], (2, 1), (1, 0), dilation=(1, 2))"
    " + F.conv_transpose1d(x[None], y.reshape(2, 3, 1), groups=2).sum()",
    "torch pad": "F.pad(x, (1, 0, 0, 2)) * F.pad(y, (0, 1, 0, 2))",
    "constant_pad_nd": "F.conv2d(x[None], y[None, None, :, :2], padding='same') * F.pad(y, (0, 1))[:, 1:]",
    "torch max_pool1d": "F.max_pool1d(x * y, 2, padding=1) + F.max_pool1d(x, 2, ceil_mode=True)",
    "max_pool2d": "F.max_pool2d(x[None] * y, 2, stride=1, padding=1) + F.max_pool1d(x, 3)[0]",
    "adaptive_max_pool2d": "F.adaptive_max_pool2d((x * y)[None], (1, 2))",
    "torch avg_pool1d": "F.avg_pool1d(x, 2, 1, padding=1)[:, :3] * y + F.avg_pool1d(x[None], 2)[0]",
    "avg_pool2d": "F.avg_pool2d(x[None] * y, 2) + F.avg_pool1d(x, 3)[0]",
    "torch adaptive_avg_pool1d": "F.adaptive_avg_pool1d(x, 2) * y[:, 1:]",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(x[None], (1, 2)) * y[:, 1:]",
}
ROWS = {name.removeprefix("torch ") for name in PROGRAMS}
WRITTEN = """\
import {torch} as torch
import {torch}.nn.functional as F

x = torch.tensor({x}, requires_grad=True)
y = torch.tensor({y}, requires_grad=True)
torch.manual_seed(0)
z = {program}
loss = (z * z).sum() + z.sum()
loss.backward()
"""
COMPUTED = """([again, others]) => {
  const entered = passAgain.recordedLeaves(again);
  for (const [name, list] of Object.entries(others)) entered.set(Number(name), list);
  const { values, sums, flows } = passAgain.computedPass(again, entered);
  return {
    reproduced: passAgain.isReproduced(again),
    values: again.calls.map((call) => call.outs.map(({ t }) => [...values.get(t).x])),
    grads: again.grads.map(({ t }) => [...sums.get(t)]),
    flows: again.calls.map((call) => call.flows.map((flow) => (flows.has(flow) ? [...flows.get(flow).x] : null))),
  };
}"""


def recorded(tmp_path: Path, name: str, text: str) -> Path:
    """The trace of a program."""
    script, trace = tmp_path / f"{name}.py", tmp_path / f"{name}.gradviz"
    script.write_text(text)
    with record(trace):
        exec(compile(text, str(script), "exec"), {"__name__": "__main__"})
    return trace


def again_of(tmp_path: Path, name: str, text: str) -> dict[str, Any]:
    """What the page of a program has to compute its pass again, as the page reads it."""
    with open_trace(recorded(tmp_path, name, text)) as trace:
        words = Words(trace)
        (one,) = trace.passes
        return json.loads(json.dumps(other_values(words, build(words.query, one.number), one)))


@pytest.fixture(scope="module")
def empty_tab(browser: Any) -> Any:
    """A tab for scripts."""
    tab = browser.new_page()
    yield tab
    tab.close()


def assert_near(computed: Any, told: Any) -> None:
    """Compare elements, or their root mean square, with those that were recorded."""
    if told is None:
        return
    if not isinstance(told, list):
        computed, told = [math.sqrt(sum(one * one for one in computed) / len(computed))], [told]
    told = [float(one) for one in told]
    scale = max((abs(one) for one in told if math.isfinite(one)), default=0.0)
    assert computed == pytest.approx(told, rel=1e-5, abs=1e-6 * scale, nan_ok=True)


def test_each_row_has_a_program() -> None:
    assert rows().keys() - ROWS == {"contiguous"}  # recordings name them mm and clone, or not at all


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_computes_what_the_engine_does_with_other_values(name: str, empty_tab: Any, tmp_path: Path) -> None:
    engine = "torch" if name.startswith("torch ") else "gradviz.engine"
    pytest.importorskip(engine)
    program = PROGRAMS[name]
    was, now = (
        again_of(tmp_path, run, WRITTEN.format(torch=engine, x=x, y=y, program=program))
        for run, x, y in (("was", X, Y), ("now", OTHER_X, OTHER_Y))
    )
    assert "reason" not in was, was
    assert name.removeprefix("torch ") in {call["op"] for call in was["calls"]}
    others = {leaf["t"]: other["x"] for leaf, other in zip(was["leaves"], now["leaves"], strict=True)}
    script = computing({call["op"] for call in was["calls"]})
    found = empty_tab.evaluate(f"(given) => {{ {script}\nreturn ({COMPUTED})(given); }}", [was, others])
    assert found["reproduced"]
    for call, values, flows in zip(now["calls"], found["values"], found["flows"], strict=True):
        for out, value in zip(call["outs"], values, strict=True):
            assert_near(value, out["is"])
        for flow, told in zip(flows, call["flows"], strict=True):
            if told is not None and told[1] is not None:
                assert_near(flow, told[1])
            elif told is None:
                assert flow is None
    assert len(now["grads"]) >= 1
    for gradient, told in zip(found["grads"], now["grads"], strict=True):
        assert_near(gradient, told["is"])


NETWORKS = {
    "of layers": "addmm add mse_loss mul relu softmax sum t tanh",
    "of convolutions": "conv2d relu max_pool2d avg_pool2d flatten linear cross_entropy",
    "of transposed convolutions": "conv_transpose2d batch_norm relu tanh conv2d leaky_relu mse_loss",
    "of attention": "linear gelu layer_norm matmul softmax transpose view mul add cross_entropy embedding dropout",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_page_has_only_what_its_ops_need(name: str) -> None:
    script = computing(set(NETWORKS[name].split()))
    assert ("softmaxBack" in script) == ("softmax" in NETWORKS[name].split())
    assert ("framed" in script) == ("conv2d" in script)
    assert not any(line.startswith((" ", "//")) for line in script.splitlines())
    shown = files("gradviz.page").joinpath("other_values.js").read_text(encoding="utf-8")
    assert len(script) + len(in_short(shown)) < 25_000


def test_a_weight_of_classes_follows_what_it_is_made_of(tmp_path: Path) -> None:
    program = "F.cross_entropy(x, y.softmax(1), y[1].detach())"
    again = again_of(tmp_path, "weighted", WRITTEN.format(torch="gradviz.engine", x=X, y=Y, program=program))
    assert len(again["leaves"]) == 2  # x and y: what is made of them is computed


def test_a_script_in_short_means_the_same() -> None:
    script = '// why\nconst f = (a) => (b) => {\n  return `${a} - ${b}` + " = " + (a - -b); // why\n};\n'
    assert in_short(script) == 'const f=a=>b=>{\nreturn `${a} - ${b}`+" = "+(a - -b)\n};\n'


def test_a_gradient_that_cancels_out_is_compared_with_what_flowed_in(tmp_path: Path, empty_tab: Any) -> None:
    again = again_of(
        tmp_path,
        "cancelled",
        "import gradviz.engine as torch\n"
        "x = torch.tensor([0.3, -2.1, 1.7], requires_grad=True)\n"
        "x.softmax(0).sum().backward()\n",
    )
    (grad,) = again["grads"]
    script = computing({call["op"] for call in again["calls"]})
    reproduced = f"(again) => {{ {script}\nreturn passAgain.isReproduced(again); }}"
    flow = again["calls"][0]["flows"][0]
    grad["is"] = flow[1] = [4e-8, -3e-8, 2e-8]  # as rounding may leave it
    assert empty_tab.evaluate(reproduced, again)
    grad["is"] = flow[1] = [4e-5, -3e-8, 2e-8]
    assert not empty_tab.evaluate(reproduced, again)


def test_what_would_take_long_is_computed_soon_or_not_at_all(tmp_path: Path, empty_tab: Any) -> None:
    script = computing({"log_softmax", "cumprod", "layer_norm", "einsum"})
    seconds = empty_tab.evaluate(
        f"""() => {{
          {script.replace("return { computedPass", "return { ROWS, computedPass")}
          const x = {{ shape: [3000], x: Array.from({{ length: 3000 }}, (none, i) => 1 + Math.sin(i) / 9) }};
          const one = {{ shape: [], x: [1] }};
          const o = {{ dim: 0, eps: 1e-5, normalized_shape: [3000] }};
          const since = performance.now();
          for (const op of ["log_softmax", "cumprod", "layer_norm"]) {{
            const row = passAgain.ROWS[op][1];
            const z = row.forward([x, one, one], o, x.shape);
            row.backward(x.x, z, [x, one, one], o, x.shape);
          }}
          return (performance.now() - since) / 1000;
        }}"""
    )
    assert seconds < 5
    many = f"""() => {{
      {script.replace("return { computedPass", "return { ROWS, computedPass")}
      const x = {{ shape: [64], x: Array(64).fill(1) }};
      passAgain.ROWS.einsum[1].forward([x, x, x, x], {{ equation: "a,b,c,d->" }}, []);
    }}"""
    with pytest.raises(Exception, match="too many products"):
        empty_tab.evaluate(many)


# --- the page in a browser


SMALL = """\
import gradviz.engine as torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
w = torch.tensor(3.0, requires_grad=True)
y = x * w
y.retain_grad()
loss = (y**2).sum()
loss.backward()
with torch.no_grad():
    w -= 0.1 * w.grad
"""


class Tab:
    """A page of a program in a browser, and what went wrong in it."""

    def __init__(self, browser: Any, tmp_path: Path, text: str) -> None:
        with open_trace(recorded(tmp_path, "small", text)) as trace:
            write_page(trace, lambda number: build(trace, number), None, tmp_path / "small.html")
        self.tab = browser.new_page(viewport={"width": 1280, "height": 720})
        self.wrong: list[str] = []
        self.tab.on("console", lambda told: self.wrong.append(told.text) if told.type == "error" else 0)
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.goto((tmp_path / "small.html").as_uri())
        self.tab.wait_for_selector("body[data-ready]")

    def set(self, name: str, value: str) -> None:
        """Type a value into the field of an element."""
        self.tab.locator(f'#tried input[type="number"][aria-label="{name}"]').fill(value)

    def shown(self) -> str:
        """All that the picture and the panels say."""
        return "\n".join(self.tab.locator("#graph text, #facts, #sentence, #notes").all_text_contents())

    def box(self, name: str) -> str:
        """What stands in the box of a tensor."""
        return self.tab.locator(f'#nodes > g:has(text:text-is("{name}"))').first.text_content()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """Opens the page of a program; when the test is over, nothing may have gone wrong in it."""
    tabs: list[Tab] = []

    def open_page(text: str) -> Tab:
        tabs.append(Tab(browser, tmp_path, text))
        return tabs[-1]

    yield open_page
    for one in tabs:
        assert one.wrong == []
        one.tab.close()


def test_values_and_gradients_follow_a_value_that_is_typed(opened: Any) -> None:
    page = opened(SMALL)
    page.tab.keyboard.press("v")
    page.set("w", "5")
    assert "scalar = 5" in page.box("w")
    assert ".grad = 50" in page.box("w")  # Σ 2 x² w
    assert "[2] = [5, 10]" in page.box("y")
    assert ".grad = [10, 20]" in page.box("y")  # retained
    assert ".grad = [50, 100]" in page.box("x")
    assert "scalar = 125" in page.box("loss")


def test_a_value_is_dragged_by_the_keyboard(opened: Any) -> None:
    page = opened(SMALL)
    page.tab.keyboard.press("v")
    page.tab.locator('#tried input[aria-label="w"]').first.focus()
    page.tab.locator("#tried-drag").focus()
    page.tab.keyboard.press("ArrowRight")
    assert "scalar = 3.06" in page.box("w")
    assert ".grad = 30.6" in page.box("w")


def test_a_number_is_pulled_by_the_pointer(opened: Any) -> None:
    page = opened(SMALL)
    field = page.tab.locator('#tried input[type="number"][aria-label="w"]')
    box = field.bounding_box()
    page.tab.mouse.move(box["x"] + 10, box["y"] + 10)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 11, box["y"] + 10)
    assert "scalar = 3" in page.box("w")  # so far it is a click
    page.tab.mouse.move(box["x"] + 60, box["y"] + 10, steps=5)
    assert "scalar = 6" in page.box("w")  # 50 pixels, of 0.06 each
    assert ".grad = 60" in page.box("w")
    page.tab.mouse.move(box["x"] - 140, box["y"] + 10)  # far outside of the field
    assert "scalar = -6" in page.box("w")
    page.tab.mouse.up()
    page.tab.mouse.move(box["x"] + 10, box["y"] + 10)
    assert "scalar = -6" in page.box("w")


def test_the_arrows_step_a_number_and_the_slider_is_always_in_sight(opened: Any) -> None:
    page = opened("import gradviz.engine as torch\nx = torch.ones(30, requires_grad=True)\n(x * x).sum().backward()\n")
    page.tab.keyboard.press("v")
    assert page.tab.locator("#tried-drag").bounding_box()["y"] < 720
    page.tab.locator('#tried input[type="number"]').first.press("ArrowUp")
    page.tab.keyboard.press("Shift+ArrowDown")
    assert page.tab.locator('#tried input[type="number"]').first.input_value() == "0.82"


def test_no_number_of_the_recording_stays_beside_other_values(opened: Any) -> None:
    page = opened(SMALL)
    recorded = page.tab.locator("#graph").text_content()
    assert "[3, 6]" in recorded
    page.set("x[0]", "0.125")
    page.set("x[1]", "0.25")
    count = int(page.tab.get_attribute("#slider", "max")) + 1
    seen = ""
    page.tab.keyboard.press("Escape")
    page.tab.locator("#stage").focus()
    page.tab.keyboard.press("Home")
    for _ in range(count):
        seen += page.shown()
        page.tab.keyboard.press("ArrowRight")
    assert ".grad = [2.25, 4.5]" in seen
    for stale in ("[3, 6]", "[18, 36]", "[6, 12]", "= 45", "= 30", "[9, 36]", "= 0 "):
        assert stale not in seen


def test_nothing_is_shown_behind_the_end_of_the_pass_until_values_are_set_back(opened: Any) -> None:
    page = opened(SMALL)
    page.set("w", "5")
    page.tab.keyboard.press("Escape")
    page.tab.locator("#stage").focus()
    page.tab.keyboard.press("End")
    assert "ends" in page.tab.inner_text("#sentence")
    before = page.tab.inner_text("#position")
    page.tab.keyboard.press("k")
    assert "set them back first" in page.tab.inner_text("#note")
    page.tab.click("#tried-back")
    assert "scalar = 3" in page.box("w")
    page.tab.locator("#stage").focus()
    page.tab.keyboard.press("End")
    assert page.tab.inner_text("#position") != before


def test_values_set_back_give_the_page_as_it_was(opened: Any) -> None:
    page = opened(SMALL)
    page.tab.keyboard.press("Home")
    as_recorded = page.shown()
    page.set("w", "5")
    assert page.shown() != as_recorded
    page.set("w", "3")
    assert page.shown() == as_recorded


def test_what_a_tensor_was_before_and_after_an_op_in_place_follows(opened: Any) -> None:
    page = opened(
        "import gradviz.engine as torch\nx = torch.tensor(2.0, requires_grad=True)\n"
        "y = x * x\nz = y + 1\ny.mul_(3)\ny += 1\n(y * z.detach()).backward()\n"
    )
    page.set("x", "3")
    assert {"scalar = 9", "scalar = 28", "scalar = 10"} <= set(page.shown().splitlines())
    assert ".grad = 180" in page.box("x")  # 3 · 2 x · z
    seen = set()
    page.tab.locator("#stage").focus()
    page.tab.keyboard.press("Home")
    for _ in range(int(page.tab.get_attribute("#slider", "max"))):
        seen |= set(page.shown().splitlines())
        page.tab.keyboard.press("ArrowRight")
    assert {"scalar = 9", "scalar = 27", "scalar = 28"} <= seen
    assert not {"scalar = 4", "scalar = 12", "scalar = 13", "scalar = 5"} & seen


def test_a_gradient_is_added_to_that_of_an_earlier_pass(opened: Any) -> None:
    page = opened(
        "import gradviz.engine as torch\n"
        "x = torch.tensor(2.0, requires_grad=True)\n"
        "(x * 3).backward()\n"
        "y = x * x\n"
        "y.backward()\n"
    )
    page.tab.keyboard.press("]")
    page.tab.wait_for_selector("body:not([data-busy])")
    page.set("x", "10")
    assert ".grad = 23" in page.box("x")  # 3 of the recording, and 2 x


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("y = x.sort().values", "sort is no operation that the page can compute"),
        ("y = torch.div(x, 0.3, rounding_mode='floor') + x", "is no call that the page can compute"),
        ("y = x * 2; v = y[:1]; y.mul_(3); y = v + 1", "in place"),
        ("y = x * 2\nwith torch.no_grad(): y.mul_(3)", "y was changed in place"),
        ("y = x * torch.ones(2, 100).sum(1); y.register_hook(lambda g: 2 * g)", "hooks change its gradients"),
        ("y = x * torch.ones(2, dtype=torch.int32)", "dtype int32"),
        ("y = x * torch.ones(65, 2)", "the elements of torch.ones(65, 2) are not in the trace"),
    ],
)
def test_a_pass_that_cannot_be_computed_says_why(opened: Any, program: str, reason: str) -> None:
    page = opened(
        "import gradviz.engine as torch\nimport gradviz.engine.nn.functional as F\n"
        f"x = torch.tensor([1.0, 2.0], requires_grad=True)\n{program}\ny.sum().backward()\n"
    )
    told = page.tab.inner_text("#facts")
    assert "No other values can be tried here:" in told
    assert reason in told
    assert page.tab.locator("#tried input").count() == 0
    assert "passAgain = " not in page.tab.content()  # the scripts are not even there


def test_a_page_that_computes_other_numbers_than_were_recorded_offers_nothing(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradviz.page import other_values

    numbers = other_values._numbers
    monkeypatch.setattr(other_values, "_expected", lambda value: [2 * one for one in numbers(value.array)])
    page = opened(SMALL)
    assert "this page computes other numbers than were recorded" in page.tab.inner_text("#facts")
    assert page.tab.locator("#tried input").count() == 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("x[:, torch.tensor([1, 0])]", "the trace does not tell which elements"),
        ("x[torch.tensor([1, 0])]", "the trace does not tell which elements"),  # of a square: it may be x[:, i]
        ("x[x > 1]", "the trace does not tell which elements"),
        ("F.dropout(x * torch.zeros(2, 2)).relu()", "the trace does not tell which elements of"),
        ("F.binary_cross_entropy_with_logits(x, x.detach(), pos_weight=torch.ones(2))", "is no call"),
    ],
)
def test_what_the_trace_of_a_run_of_torch_leaves_open_is_not_guessed(program: str, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    again = again_of(
        tmp_path,
        "open",
        "import torch\nimport torch.nn.functional as F\n"
        f"x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)\n{program}.sum().backward()\n",
    )
    assert reason in again["reason"]


def test_a_side_of_where_that_is_a_number_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for program, place in (("torch.where(x > 1, x, 7.0)", 2), ("torch.where(x > 1, 7.0, x)", 1)):
        text = f"import torch\nx = torch.tensor([1.0, 2.0], requires_grad=True)\n{program}.sum().backward()\n"
        again = again_of(tmp_path, "sides", text)
        (where,) = (call for call in again["calls"] if call["op"] == "where")
        assert where["in"][place] == [7.0]


@pytest.mark.parametrize(
    "arguments",
    ["1e999", "alpha=1e999", "alpha={1}", "alpha=1j", "alpha=b'x'", "(" * 150, "1,2,3,4", "...", "alpha=10**9"],
)
def test_arguments_that_are_no_plain_numbers_are_refused(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradviz.page import other_values

    read = other_values.written_arguments
    monkeypatch.setattr(other_values, "written_arguments", lambda text: read(arguments))
    text = SMALL.replace("y = x * w", "y = torch.add(x, w)")
    assert "is no call that the page can compute" in again_of(tmp_path, "odd", text)["reason"]
