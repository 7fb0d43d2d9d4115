"""Predicates over events: the language, and that its columns say what the events say one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradviz.events import kinds as k
from gradviz.query import Query
from gradviz.query.predicate import Predicate, PredicateError
from gradviz.query.predicate_columns import FIELDS, TraceFields
from gradviz.tracefile import Trace, open_trace
from tests.step.test_step import CUBE, EVERYTHING, LOOP, lesson


@pytest.fixture(params=[CUBE, LOOP, EVERYTHING], ids=["cube", "loop", "everything"])
def columns(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with open_trace(lesson(tmp_path, request.param)) as trace:
        yield TraceFields(Query(trace))


def holding(columns: TraceFields, text: str) -> list[int]:
    return np.flatnonzero(Predicate(text).mask(columns)).tolist()


def folded(trace: Trace, wanted: Any) -> list[int]:
    return [event.index for event in trace if wanted(event)]


def gradients_of(event: k.Event) -> tuple[int, ...]:
    match event:
        case k.Received():
            return tuple(g for g in event.gradients if g)
        case k.Produced():
            return tuple(flow.gradient for flow in event.flows if flow.gradient)
        case k.Accumulated() | k.Retained() | k.GradAssigned():
            return (event.grad,) if event.grad else ()
        case k.Hooked():
            return (event.after,)
    return ()


def written(trace: Trace, event: k.Event) -> tuple[int, ...]:
    """The tensors that an event wrote over: an op those of its outputs that were there before."""
    if isinstance(event, k.OpRan):
        return tuple(t for t in event.outputs if trace.born(t) < event.index)
    return (event.tensor,) if isinstance(event, k.Mutated) else ()


def test_a_kind_and_an_op_are_those_of_the_events(columns: TraceFields) -> None:
    assert holding(columns, 'kind == "op"') == folded(columns.trace, lambda e: isinstance(e, k.OpRan))
    for op in ("log", "pow", "addmm", "mul", "sum"):
        assert holding(columns, f"op == '{op}'") == folded(
            columns.trace, lambda e, op=op: isinstance(e, k.OpRan) and e.op == op
        )


def test_a_mutation_is_an_event_that_wrote_over_a_tensor(columns: TraceFields) -> None:
    trace = columns.trace
    assert holding(columns, "mutation") == folded(trace, lambda e: bool(written(trace, e)))
    assert holding(columns, "version > 0") == folded(
        trace, lambda e: any(trace.snapshot(t, at=e.index).version > 0 for t in written(trace, e))
    )


def test_a_view_of_what_was_written_over_is_no_write(tmp_path: Path) -> None:
    text = "x = torch.ones(2)\nx.add_(1)\ny = x.view(1, 2)\n"
    with open_trace(lesson(tmp_path, text)) as trace:
        (add, view) = (e.index for e in trace if isinstance(e, k.OpRan))
        assert trace.snapshot(trace.event(view).outputs[0]).version == 1
        columns = TraceFields(Query(trace))
        assert holding(columns, "version > 0") == holding(columns, "mutation") == [add]


@pytest.mark.parametrize("statistic", ["min", "max", "mean", "rms"])
def test_gradients_are_compared_as_they_were_at_the_event(columns: TraceFields, statistic: str) -> None:
    trace = columns.trace

    def some(event: k.Event) -> bool:
        found = [trace.snapshot(gradient, at=event.index) for gradient in gradients_of(event)]
        return any(s is not None and getattr(s.stats, statistic) > 0.5 for s in found)

    expected = folded(trace, some)
    assert holding(columns, f"grad.{statistic} > 0.5") == expected
    assert holding(columns, f"0.5 < grad.{statistic}") == expected


def test_outputs_and_inputs_are_compared_as_they_were(columns: TraceFields) -> None:
    trace = columns.trace

    def outputs(event: k.Event) -> tuple[int, ...]:
        return event.outputs if isinstance(event, k.OpRan) else (getattr(event, "tensor", 0),)

    def some(tensors: tuple[int, ...], at: int) -> bool:
        found = [trace.snapshot(t, at=at) for t in tensors if t]
        return any(s is not None and s.stats.max > 1 for s in found)

    made = (k.OpRan, k.TensorMade, k.Mutated)
    assert holding(columns, "out.max > 1") == folded(trace, lambda e: isinstance(e, made) and some(outputs(e), e.index))
    assert holding(columns, "in.max > 1") == folded(
        trace, lambda e: isinstance(e, k.OpRan) and some(e.inputs, e.index - 1)
    )


def test_names_are_those_that_the_source_gives(columns: TraceFields) -> None:
    trace, names = columns.trace, columns.query.names
    tensors = np.arange(1, int(trace.states.tensors.max()) + 1)
    for tensor, code in zip(tensors.tolist(), names.all.codes_of(tensors).tolist(), strict=True):
        assert (names.all.labels[code] or None) == names.of(tensor), tensor
    for name in ("x", "y", "loss", "model.2.weight"):
        expected = folded(
            trace,
            lambda e, name=name: any(
                names.of(t) == name for t in (*getattr(e, "outputs", ()), getattr(e, "tensor", 0)) if t
            ),
        )
        about = holding(columns, f'name == "{name}" and (not grad_fn ~ "Backward" or kind == "op" or kind == "node")')
        assert about == expected


def test_depth_and_pass_are_those_of_the_moments(columns: TraceFields) -> None:
    for index in range(columns.count):
        moment = columns.query.at(index)
        run = moment.pass_info
        around = moment.scopes
        assert columns.column("pass").values[index] == (run.number if run else 0)
        codes = columns.column("scope")
        assert codes.values[codes.codes[index]] == (around[-1].name if around else "")
        borders = (k.ScopeEntered, k.ScopeLeft, k.PassBegan, k.PassEnded)
        inside = len(around) + len(columns.query.passes.nesting.around(index, moment.thread))
        own = isinstance(columns.trace.event(index), borders)
        assert columns.column("depth").values[index] == inside - own


def test_a_line_counts_for_the_calls_within_it(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, LOOP)) as trace:
        columns = TraceFields(Query(trace))
        line = 1 + LOOP.splitlines().index("    loss = (model(x) ** 2).mean()")
        found = holding(columns, f'line == {line} and op == "addmm"')
        assert len(found) == 6
        assert len(holding(columns, f'line == {line} and grad_fn == "AddmmBackward0" and backward')) == 12


def test_nan_and_inf_are_found_where_they_are_told(tmp_path: Path) -> None:
    text = """\
x = torch.tensor([0.0, 1.0], requires_grad=True)
y = torch.log(x)
z = (y * 0).sum()
z.backward()
"""
    with open_trace(lesson(tmp_path, text)) as trace:
        columns = TraceFields(Query(trace))
        assert [e.op for e in map(trace.event, holding(columns, "inf and forward"))] == ["log"]
        assert [e.op for e in map(trace.event, holding(columns, "nan and forward"))] == ["mul", "sum"]
        assert holding(columns, "nan and backward") == folded(
            trace,
            lambda e: any((s := trace.snapshot(g, at=e.index)) is not None and s.stats.nan for g in gradients_of(e)),
        )
        assert holding(columns, "nan and backward")


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_can_be_asked_for(field: str, tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, EVERYTHING)) as trace:
        columns = TraceFields(Query(trace))
        for test in (f"{field} == 1", f'{field} == "a"', field):
            try:
                predicate = Predicate(test)
            except PredicateError:
                continue
            assert predicate.mask(columns).shape == (trace.count,)
            return
        raise AssertionError(f"no way to ask for {field}")


def test_parts_are_joined_as_in_python(columns: TraceFields) -> None:
    everything = set(range(columns.count))
    a, b, c = (set(holding(columns, text)) for text in ('kind == "op"', "backward", "out.max > 1"))
    join = 'kind == "op" and not backward or out.max > 1'
    assert set(holding(columns, join)) == (a - b) | c
    assert set(holding(columns, 'kind == "op" and not (backward or out.max > 1)')) == a - (b | c)
    assert set(holding(columns, "not not backward")) == b
    assert set(holding(columns, 'not (kind == "op")')) == everything - a
    assert set(holding(columns, "2 <= event < 5")) == {1, 2, 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a predicate is missing, such as: grad.rms < 1e-7"),
        ("grad.rsm < 1", "there is no field grad.rsm: did you mean grad.rms?"),
        ("grad.what < 1", "there is no field grad.what: this tensor has min, max, mean, rms"),
        ("lin == 3", "did you mean line?"),
        ("zzz > 1", "there is no field zzz: the fields are out.rms"),
        ("grad.rms <", "something is missing at the end"),
        ("grad.rms = 1", "= at column 10: write == to compare"),
        ("grad.rms < 'a'", "grad.rms is a number, a is text"),
        ("op < 'a'", "op is text: compare it with ==, != or ~"),
        ("op == log", 'text needs quotes: op == "log"'),
        ("op", 'op has to be compared, as in op == "..."'),
        ("nan == 1", "nan is true or false: write nan, or not nan"),
        ("(nan", "a closing ) is missing"),
        ("nan inf", "inf at column 5 does not belong there: join parts with and, or"),
        ("op == 'log", "the text that begins at column 7 has no closing quote"),
        ("__import__('os')", "there is no field __import__"),
        ("nan; inf", "cannot understand ; inf at column 4"),
        ("3 < 4", "one side has to be a field"),
        ("line == event", "compare with a number or a text in quotes"),
        ("(" * 200 + "nan", "nested too deeply"),
        ("\x1b[31m == 1", "cannot understand ?[31m == 1"),
    ],
)
def test_a_wrong_predicate_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(PredicateError) as told:
        Predicate(text)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_tensor_without_a_statistic_gets_one_suggested() -> None:
    with pytest.raises(PredicateError, match=r"there is no field grad: did you mean grad\.absmax\?"):
        Predicate("grad > 3")


@pytest.mark.parametrize("text", ['"grad.rms > 1"', "'grad.rms > 1'"])
def test_a_predicate_may_stand_in_quotes(text: str) -> None:
    assert Predicate(text).fields == {"grad.rms"}


def test_the_quotes_of_texts_are_not_those_of_the_predicate() -> None:
    assert Predicate('"log" == op or op == "exp"').fields == {"op"}
