"""The sentences of the events of a lesson in Korean. Terms of the field (gradient, leaf, node, pass, tangent) stay as
they are. A sentence leads with what it is about and a colon, because particles depend on the sound before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.events.kinds import (
    LEAF,
    REQUIRES_GRAD,
    VIEW,
    Accumulated,
    ErrorRaised,
    GradAssigned,
    GradRead,
    Kind,
    Mutated,
    NodeMade,
    OpRan,
    PassBegan,
    PassEnded,
    Produced,
    Received,
    RequiresGradChanged,
    Retained,
    ScopeEntered,
    ScopeLeft,
    TangentPushed,
    TensorMade,
)
from gradviz.query.cuts import Reason, why_no_node
from gradviz.words.escape import clean
from gradviz.words.jvp import in_numbers
from gradviz.words.parts import call_of, chain_rule, changes, flags_of, grad_before, padded
from gradviz.words.stop import Stop

_LONGEST = 44  # longer expressions are not quoted

# --- forward


def _tensor_made(stop: Stop, event: TensorMade) -> str:
    if event.how == "gradient":
        return f"역전파를 시작하는 gradient: {stop.brief(event.tensor)}"
    name, flags = stop.called(event.tensor), stop.moment.flags(event.tensor)
    maker = stop.words.expression(event.site, _LONGEST)
    if flags & VIEW:
        return f"{maker or name}: 그래프 밖에서 다른 텐서와 메모리를 공유합니다"
    said = "grad를 요구하는 leaf" if flags & REQUIRES_GRAD else "grad를 요구하지 않는 leaf"
    if not flags & LEAF:
        said = "기록하기 전에 연산이 만든 텐서"
    return f"{maker or clean(event.how)} → {name}: {said}"


_NO_NODE = {
    Reason.NOTHING_REQUIRES_GRAD: "node 없음: grad를 요구하는 입력이 없음",
    Reason.GRAD_MODE_OFF: "node 없음: grad 모드가 꺼져 있음",
    Reason.DETACHED: "그래프에서 끊어짐",
    Reason.NOT_DIFFERENTIABLE: "node 없음: 미분할 수 없음",
}


def _op_ran(stop: Stop, event: OpRan) -> str:
    outputs = ", ".join(map(stop.called, event.outputs))
    inside = f"{stop.running} 안에서: " if stop.running else ""
    node = stop.query.nodes.main_of_op(event.index)
    how = stop.words.node_name(node) if node else _NO_NODE[why_no_node(stop.query, event)]
    call = call_of(stop, event)
    gives = changes(stop) if stop.written else outputs
    return f"{inside}{call} 실행 ({how})" if call == gives else f"{inside}{call} → {gives} ({how})"


def _node_made(stop: Stop, event: NodeMade) -> str:
    outputs = ", ".join(stop.called(tensor) for tensor in event.outputs if tensor)
    targets = dict.fromkeys(stop.words.node_name(edge.node) for edge in event.edges if edge.node)
    whose = f"{outputs}의 grad_fn" if outputs else "새 node"
    return f"{clean(event.grad_fn)}: {whose}, 다음 node는 {', '.join(targets) or '없음'}"


def _mutated(stop: Stop, event: Mutated) -> str:
    return f"{clean(event.how)}: {changes(stop)}"


def _requires_grad_changed(stop: Stop, event: RequiresGradChanged) -> str:
    required = stop.moment.flags(event.tensor) & REQUIRES_GRAD
    told = "이제 grad를 요구합니다" if required else "더는 grad를 요구하지 않습니다"
    return f"{stop.called(event.tensor)}: {told}"


def _grad_assigned(stop: Stop, event: GradAssigned) -> str:
    now = stop.brief(event.grad) if event.grad else "None"
    return f"{stop.called(event.tensor)}.grad ← {now} (이전 값: {grad_before(stop, event.tensor)})"


def _grad_read(stop: Stop, event: GradRead) -> str:
    return f"{stop.called(event.tensor)}.grad 읽기: None (leaf가 아니고 gradient를 남기지 않음)"


_SCOPES = {"module": "모듈 {}", "function": "{}의 forward"}


def _scope(event: ScopeEntered) -> str:
    name, cls = clean(event.name), clean(event.type)
    return _SCOPES.get(event.kind, "{}").format(name) + (f" ({cls})" if cls != name else "")


def _scope_entered(stop: Stop, event: ScopeEntered) -> str:
    return f"{_scope(event)}: 시작"


def _scope_left(stop: Stop, event: ScopeLeft) -> str:
    return f"{_scope(stop.scope)}: 끝" if stop.scope is not None else "끝"


def _tangent(stop: Stop, event: TangentPushed) -> str:
    name, tangent = stop.called(event.tensor), stop.brief(event.tangent)
    if event.how == "make_dual":
        return f"{name}: dual number가 됩니다. 값 {stop.brief(event.tensor)}, tangent {tangent}"
    sums = in_numbers(stop, event)
    return f"{clean(event.how)}의 JVP: {name}의 tangent는 {tangent}" + (f" = {sums}" if sums else "")


# --- backward


def _pass_began(stop: Stop, event: PassBegan) -> str:
    roots = ", ".join(stop.end(root.tensor) for root in event.roots)
    seeds = ", ".join(stop.brief(root.gradient) for root in event.roots)
    what = f"backward pass {event.number} 시작: 출발점 {roots}, gradient {seeds}"
    if event.inputs:
        what += f", 대상 {', '.join(map(stop.end, event.inputs))}"
    return what + flags_of(event, "; 그래프를 유지합니다")


def _received(stop: Stop, event: Received) -> str:
    tensors = padded(stop.node_tensors, len(event.gradients))
    given = [(g, t) for g, t in zip(event.gradients, tensors, strict=True) if g]
    if not given:
        return f"{stop.node_name}에 온 gradient가 없습니다"
    parts = ", ".join(f"{stop.called(t) if t else '출력'}의 gradient {stop.brief(g)}" for g, t in given)
    return f"{stop.node_name}에 도착: {parts}{_sum(stop, event)}"


def _sum(stop: Stop, event: Received) -> str:
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) < 2 or len(event.gradients) != 1:
        return ""
    return " = " + " + ".join(stop.brief(delivery.gradient) for delivery in arrivals)


def _produced(stop: Stop, event: Produced) -> str:
    told = [_given(stop, event, i) for i, flow in enumerate(event.flows) if flow.gradient]
    return (
        f"{stop.node_name}의 결과: {', '.join(told)}" if told else f"{stop.node_name}의 결과: gradient 없음"
    )


def _given(stop: Stop, event: Produced, i: int) -> str:
    flow, made, rule = event.flows[i], stop.node_made, chain_rule(stop, event, i)
    tensor = made.edges[i].tensor if made is not None and i < len(made.edges) else 0
    to = f"{stop.called(tensor)}의 gradient" if tensor else stop.words.node_name(flow.node)
    return f"{to} {stop.brief(flow.gradient)}" + (f" ({rule})" if rule else "")


def _accumulated(stop: Stop, event: Accumulated) -> str:
    name, was, now = stop.called(event.tensor), grad_before(stop, event.tensor), stop.brief(event.grad)
    if was == "None":
        return f"{name}.grad = {now} (이전 값: None)"
    return f"{name}.grad에 더합니다: {was} + {stop.brief_before(event.gradient)} = {now}"


def _retained(stop: Stop, event: Retained) -> str:
    return f"retain_grad()로 gradient를 남깁니다: {stop.called(event.tensor)}.grad = {stop.brief(event.grad)}"


def _pass_ended(stop: Stop, event: PassEnded) -> str:
    run = stop.moment.pass_info
    if stop.k and stop.trace.kinds[stop.k - 1] == Kind.ERROR:
        return f"backward pass {event.number} 끝: 오류로 중단"
    graph = flags_of(stop.query.passes.began(run.number), "; 그래프를 유지합니다") if run is not None else ""
    return f"backward pass {event.number} 끝{graph or '; 버퍼를 비웁니다'}"


def _error(stop: Stop, event: ErrorRaised) -> str:
    where = f", {stop.words.node_name(event.node)}에서" if event.node else ""
    first = clean(event.message.strip().split("\n")[0].split(". ")[0])
    return f"오류{where}: {clean(event.type)}: {first}" + ("" if event.in_pass else " (프로그램이 끝납니다)")


KOREAN_SENTENCES: dict[type, Callable[[Stop, Any], str]] = {
    TensorMade: _tensor_made,
    OpRan: _op_ran,
    NodeMade: _node_made,
    Mutated: _mutated,
    RequiresGradChanged: _requires_grad_changed,
    GradAssigned: _grad_assigned,
    GradRead: _grad_read,
    ScopeEntered: _scope_entered,
    ScopeLeft: _scope_left,
    TangentPushed: _tangent,
    PassBegan: _pass_began,
    Received: _received,
    Produced: _produced,
    Accumulated: _accumulated,
    Retained: _retained,
    PassEnded: _pass_ended,
    ErrorRaised: _error,
}
