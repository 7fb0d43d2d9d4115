"""What is said of the events of a lesson, in Korean: by the English texts, with the same `{parts}`.

Terms of the field (gradient, leaf, node, pass, tangent, upstream) stay as they are, as in Korean courses. A sentence
leads with what it is about and a colon, because particles depend on the sound before them."""

from __future__ import annotations

KOREAN = {
    # names and places
    " and ": ", ",
    "a leaf": "leaf",
    "a number": "숫자",
    "a GradientEdge": "GradientEdge",
    "an input": "입력",
    "an output": "출력",
    "nothing": "없음",
    "another tensor": "다른 텐서",
    "event {event}": "이벤트 {event}",
    "{node} of {name}": "{name}의 {node}",
    "{name} before": "이전 {name}",
    "{name} (version {version})": "{name} (버전 {version})",
    "gradient of {name}": "{name}의 gradient",
    "tangent of {name}": "{name}의 tangent",
    "VJP for {name}": "{name}에 대한 VJP",
    ", line {line}": ", {line}번째 줄",
    " of {expression}": " ({expression})",
    " in {function}": " 함수 {function}",
    "no source location": "소스 위치 없음",
    "where {name} was made": "{name} 생성 위치",
    "where the pass began": "pass가 시작된 곳",
    "where it was entered": "들어온 곳",
    "backward pass {number} of {count}": "backward pass {number}/{count}",
    "forward in {scope}": "순전파: {scope}",
    "forward": "순전파",
    # tensors and ops
    "the gradient that backward starts with is made: {value}": "역전파를 시작하는 gradient: {value}",
    "{name} shares the memory of {other}, outside of the graph": (
        "{name}: 그래프 밖에서 메모리를 공유합니다: {other}"
    ),
    "{maker} made {name}, {what}": "{maker} → {name}: {what}",
    "a leaf that requires grad": "grad를 요구하는 leaf",
    "a leaf that does not require grad": "grad를 요구하지 않는 leaf",
    "which an op made before the recording": "기록하기 전에 연산이 만든 텐서",
    ", made from {name}": " ({name}에서 만듦)",
    "inside {node}: ": "{node} 안에서: ",
    "{call} made {outputs} ({how})": "{call} → {outputs} ({how})",
    "{call} ran ({how})": "{call} 실행 ({how})",
    "{call} changes {what} ({how})": "{call} → {what} ({how})",
    "no node: no input requires grad": "node 없음: grad를 요구하는 입력이 없음",
    "no node: grad mode is off": "node 없음: grad 모드가 꺼져 있음",
    "cut off from the graph": "그래프에서 끊어짐",
    "no node: it is not differentiable": "node 없음: 미분할 수 없음",
    "{node} is now the grad_fn of {outputs}": "{node}: {outputs}의 grad_fn",
    "{node} is made": "{node}: 새 node",
    ", and leads to {targets}": ", 다음 node는 {targets}",
    "no other node": "없음",
    "{how} changes {what}": "{how}: {what}",
    "{name} in place{through}: {change}": "{name} (in-place{through}): {change}",
    " through {name}": ": {name}",
    "still {value}": "그대로 {value}",
    ", version {version}": ", 버전 {version}",
    "{name} now requires grad": "{name}: 이제 grad를 요구합니다",
    "{name} no longer requires grad": "{name}: 더는 grad를 요구하지 않습니다",
    "{name}.grad is {now}, from before the recording": "{name}.grad는 {now} (기록하기 전부터)",
    "{name}.grad is set to {now} (was {was})": "{name}.grad ← {now} (이전 값: {was})",
    "{name}.grad is read: it is None, because {name} is not a leaf and does not retain its gradient": (
        "{name}.grad 읽기: None (leaf가 아니고 gradient를 남기지 않음)"
    ),
    "module {name}": "모듈 {name}",
    "the forward of {name}": "{name}의 forward",
    "enters {scope}": "{scope}: 시작",
    "leaves {scope}": "{scope}: 끝",
    "a scope": "범위",
    "{name} becomes a dual number: value {value}, tangent {tangent}": (
        "{name}: dual number가 됩니다. 값 {value}, tangent {tangent}"
    ),
    "the JVP of {op} gives {name} the tangent {tangent}": "{op}의 JVP: {name}의 tangent는 {tangent}",
    ": {sum}": " = {sum}",
    # backward
    "backward pass {number} begins at {roots}, with gradient {seeds}": (
        "backward pass {number} 시작: 출발점 {roots}, gradient {seeds}"
    ),
    ", for {inputs}": ", 대상 {inputs}",
    "; will keep the graph": "; 그래프를 유지합니다",
    "; the graph is kept": "; 그래프를 유지합니다",
    "; its buffers are freed": "; 버퍼를 비웁니다",
    "{node} receives no gradient": "{node}에 온 gradient가 없습니다",
    "{node} receives {parts}": "{node}에 도착: {parts}",
    "{value} as the gradient of {name}": "{name}의 gradient {value}",
    ", the sum over {count} edges": " (edge {count}개의 합)",
    "{node} gives {parts}": "{node}의 결과: {parts}",
    "{node} gives no gradient": "{node}의 결과: gradient 없음",
    "{value} to {name}": "{name}의 gradient {value}",
    "{value} to {node}": "{node}: {value}",
    ": {rule}": " ({rule})",
    "{name}.grad is now {now} (was None)": "{name}.grad = {now} (이전 값: None)",
    "{name}.grad accumulates: {was} (before) + {came} = {now}": (
        "{name}.grad에 더합니다: {was} (이전 값) + {came} = {now}"
    ),
    "  it receives {value} instead": "  그 대신 {value}을(를) 받습니다",
    "{value} (before) + {came} = ": "{value} (이전 값) + {came} = ",
    " ({position} of {count})": " ({count}개 중 {position}번째)",
    "contribution to {name} by way of {tensor}": "{tensor}을(를) 거친 {name}의 기여분",
    "contribution to {name}": "{name}의 기여분",
    "{sum} so far, {count} of {of} paths": "지금까지 {sum}, 경로 {of}개 중 {count}개",
    "{name} retains its gradient, as retain_grad() asked: {name}.grad is now {value}": (
        "retain_grad()로 gradient를 남깁니다: {name}.grad = {value}"
    ),
    "the error ends backward pass {number}": "backward pass {number} 끝: 오류로 중단",
    "backward pass {number} ends": "backward pass {number} 끝",
    " at {node}": ", {node}에서",
    "{type}{where}: {message}": "오류{where}: {type}: {message}",
    " (it ends the script)": " (프로그램이 끝납니다)",
    # the rows of a stop
    "after": "이후",
    "before": "이전",
    "edges": "edge",
    "error": "오류",
    "flags": "flag",
    "input": "입력",
    "needed": "필요",
    "output": "출력",
    "parameter": "파라미터",
    "passes": "pass별",
    "retained": "남김",
    "reverse": "역전파",
    "saved": "저장",
    "value": "값",
    "waiting": "대기",
    "none came": "오지 않음",
    "not yet known: the node is about to run": "아직 모름: node가 곧 실행됩니다",
    "{count} gradients, each at the node that will take it": "gradient {count}개, 각각 받을 node에서 기다림",
    "{name}: {values}  at {node}": "{name}: {values}  ({node}에서)",
    "{count} gradients wait": "gradient {count}개가 기다립니다",
    "the output of {node}": "{node}의 출력",
    "the other input": "다른 입력",
    ", by the {count} nodes of {expression} together": ", {expression}의 node {count}개를 합쳐",
    "waiting: {name} = {value}": "대기: {name} = {value}",
    "norm {first} → {last} in {passes} passes": "norm {first} → {last}, pass {passes}개",
    "norm {first} → {last} in {passes} of {all} passes": "norm {first} → {last}, pass {all}개 중 {passes}개",
    "{node}{place} saved it at version {version}": "{node}{place}: 버전 {version} 저장",
    "{needed} and has not run yet": "{needed}, 아직 실행 전",
    "{op}, no node": "{op}, node 없음",
    "the gradient of {name} is {gradient} ({event})": "{name}의 gradient는 {gradient} ({event})",
    "the tangent of {name} is {tangent}": "{name}의 tangent는 {tangent}",
    " (sweep by sweep)": " (sweep별로)",
    # why: the chain rule
    "{sentence}: no derivative is involved": "{sentence}: 미분과 관계없습니다",
    "{node}: the chain rule for {expression}{where}": "{node}: {expression}의 연쇄 법칙{where}",
    "none came: taken as 0": "오지 않음: 0으로 봅니다",
    "  {name}: it needs no gradient": "  {name}: gradient가 필요 없습니다",
    "  it arrived along {count} paths; the gradients of all paths are added:": (
        "  경로 {count}개로 왔습니다. 모든 경로의 gradient를 더합니다:"
    ),
    "    {value}  from {node}{of}": "    {value}  ← {node}{of}",
    "  a leaf's gradient ends here: it is added to .grad": "  leaf의 gradient는 여기서 끝납니다: .grad에 더해집니다",
    "summed": "합산",
    "summed over dim {dims}": "dim {dims}에 대해 합산",
    "summed over dims {dims}": "dim {dims}에 대해 합산",
    "{name} was broadcast: its gradient is {summed}": "{name}은(는) broadcast되었습니다. gradient: {summed}",
    "  for {name}:": "  {name}에 대해:",
    "    {value}, from {upstream}": "    {value}, upstream은 {upstream}",
    "    it goes to {node}": "    받는 node: {node}",
    "{name} is a leaf: each gradient that arrives is added to {name}.grad": (
        "{name}: leaf이므로, 도착하는 gradient가 모두 {name}.grad에 더해집니다"
    ),
    "  {sum}: {count} paths lead to {name}; their gradients are added": (
        "  {sum}: {name}에 이르는 경로가 {count}개이고, 그 gradient를 더합니다"
    ),
    "  {now} = {was} (from before) + {came} (this pass)": "  {now} = {was} (이전부터) + {came} (이번 pass)",
    "  backward() adds to .grad and never replaces it; zero_grad() or .grad = None clears it": (
        "  backward()는 .grad에 더할 뿐 바꿔 쓰지 않습니다. 비우려면 zero_grad()나 .grad = None"
    ),
    "  {now}: .grad was None, so it is now this gradient": (
        "  {now}: .grad가 None이었으므로 이 gradient가 그대로 들어갑니다"
    ),
    "backward begins with ∂{name}/∂{name}: {value}": "역전파는 ∂{name}/∂{name}에서 시작합니다: {value}",
    "  the derivative of a scalar by itself is 1; a larger tensor needs backward(gradient=...)": (
        "  스칼라를 자기 자신으로 미분하면 1입니다. 더 큰 텐서에는 backward(gradient=...)가 필요합니다"
    ),
    "{name} is a non-leaf, but retain_grad() made it keep its gradient: {value}": (
        "{name}: leaf가 아니지만 retain_grad()로 gradient를 남깁니다: {value}"
    ),
    "{outputs} has no grad_fn: {reason}": "{outputs}: grad_fn 없음. {reason}",
    "{outputs} requires grad and has grad_fn {node}": "{outputs}: grad를 요구하고, grad_fn은 {node}",
    ", because {names} requires grad": " (이유: grad를 요구하는 입력 {names})",
    ", because {names} require grad": " (이유: grad를 요구하는 입력 {names})",
    "  {name}: it gets no gradient, because it does not require grad": (
        "  {name}: grad를 요구하지 않으므로 gradient를 받지 않습니다"
    ),
    "no formula in the trace": "trace에 식이 없음",
    "  backward will multiply the upstream gradient by this": "  backward에서 upstream gradient에 이것을 곱합니다",
    "  for that it saves {saved}: do not change them in place before backward": (
        "  그래서 {saved}: 저장해 둡니다. backward 전에 in-place로 바꾸면 안 됩니다"
    ),
    "{name} is given the tangent {value}: the direction in which to differentiate": (
        "{name}: tangent {value}를 받습니다. 미분하는 방향입니다"
    ),
    "forward mode: the tangent of {name} = the sum of local derivative × tangent over the inputs": (
        "forward mode: {name}의 tangent = 입력마다 local derivative × tangent를 더한 것"
    ),
    "  the version of {name} is now {version}: a node that saved an earlier one can no longer use it": (
        "  {name}의 버전은 이제 {version}: 이전 버전을 저장한 node는 더는 쓸 수 없습니다"
    ),
    "  {needed} and has not run yet: its backward would fail": "  {needed}, 아직 실행 전: 그 backward는 실패합니다",
    "  the node was made by {expression}{line}": "  이 node를 만든 식: {expression}{line}",
    "  it saved {name} at version {version}, and then ({when}):": (
        "  {name}의 버전 {version}: 저장했는데, 그 뒤에 ({when}):"
    ),
    "  an earlier pass used its saved tensors and freed them: give that pass retain_graph=True": (
        "  앞선 pass가 저장된 텐서를 쓰고 비웠습니다: 그 pass에 retain_graph=True를 줍니다"
    ),
    "an infinity": "inf",
    "  {what} in {name} comes from {carriers}": "  {name}의 {what}: {carriers}에서 왔습니다",
    "  {what} in {name} first appears here: no input has one": (
        "  {name}의 {what}: 여기서 처음 나옵니다. 입력에는 없습니다"
    ),
    ", but {names} contains infinities": " (다만 {names}에 inf가 있음)",
    # why x.grad: what it is, or why it is None or 0
    "{event} makes {name}; at the end:": "{name}: {event}에서 만들어집니다. 끝에서는:",
    "  (who {name}.grad goes to its last change)": "  (who {name}.grad: 마지막 변경으로 갑니다)",
    "{name}.grad: {name} does not exist yet": "{name}.grad: 텐서가 아직 없습니다",
    " ({event} makes it)": " ({event}에서 만들어집니다)",
    "{name}.grad is not None here: {value}": "{name}.grad는 여기서 None이 아닙니다: {value}",
    "; {event} will set it": " ({event}에서 채워집니다)",
    "{name}.grad is None: {reason}": "{name}.grad는 None입니다: {reason}",
    "{name}.grad is 0: it was set to 0 at {when}": "{name}.grad는 0입니다: {when}에서 0으로 바뀌었습니다",
    "{name}.grad is 0: {node} of {of}{where}, gave 0 for an upstream gradient that is not 0": (
        "{name}.grad는 0입니다: {of}의 {node}{where}, 0이 아닌 upstream gradient에 0을 주었습니다"
    ),
    "{name}.grad is 0: {reason}": "{name}.grad는 0입니다: {reason}",
    "the pass began with 0": "pass가 0으로 시작했습니다",
    "the gradients of its paths cancel": "경로들의 gradient가 서로 지웁니다",
    "none of its inputs requires grad": "grad를 요구하는 입력이 없음",
    "grad mode was off, as under torch.no_grad()": "grad 모드가 꺼져 있음 (torch.no_grad() 등)",
    "detach() cut it off from the graph": "detach()가 그래프에서 끊음",
    "its result is not differentiable": "결과를 미분할 수 없음",
    "it was set to None at {when}": "{when}에서 None으로 바뀌었습니다",
    "{name} does not require grad": "{name}: grad를 요구하지 않습니다",
    "it was made without requires_grad=True": "requires_grad=True 없이 만들어짐",
    (
        "{name} is a non-leaf since {when}. That made a new tensor of the leaf {name}; update the leaf in place "
        "instead: with torch.no_grad(): {name} -= ..."
    ): (
        "{name}: {when}부터 leaf가 아닙니다. leaf {name} 대신 새 텐서가 만들어졌습니다. leaf를 in-place로 고칩니다: "
        "with torch.no_grad(): {name} -= ..."
    ),
    "only leaves keep their gradient; call {name}.retain_grad() before backward()": (
        "gradient는 leaf에만 남습니다. backward() 전에 {name}.retain_grad()를 부릅니다"
    ),
    "{name} is a non-leaf: an op made it. Its gradient passed at {event} ({value}), but {advice}": (
        "{name}: 연산이 만들었으므로 leaf가 아닙니다. gradient는 {event}에서 지나갔습니다 ({value}). {advice}"
    ),
    "{name} is a non-leaf (an op made it); {advice}": "{name}: 연산이 만들었으므로 leaf가 아닙니다. {advice}",
    " (and no backward pass has begun yet)": " (아직 backward pass가 시작되지 않았습니다)",
    "pass {number} computed only the gradients of {asked}": "pass {number}: {asked}의 gradient만 계산했습니다",
    ".{how} is outside of the graph": ".{how}: 그래프 밖",
    "the path from it to {root} is cut at {when}: {how}": "{root}까지의 경로가 끊어졌습니다. {when}: {how}",
    "the root": "출발점",
    "no path of grad_fns leads from {root} to it: {root} was not computed from it": (
        "{root}에서 오는 grad_fn 경로가 없습니다: {root} 계산에 쓰이지 않았습니다"
    ),
    "no backward pass has begun yet": "아직 backward pass가 시작되지 않았습니다",
    "backward pass {number} has not reached it yet": "backward pass {number}: 아직 여기까지 오지 않았습니다",
    "torch.autograd.grad() returns the gradients and does not change .grad": (
        "torch.autograd.grad()는 gradient를 돌려줄 뿐 .grad를 바꾸지 않습니다"
    ),
    "  and so are those of {names}": "  다음도 같습니다: {names}",
    "… and {count} more": "… 외 {count}개",
    "{count} more": "{count}개 더",
    "each leaf that requires grad has a gradient": "grad를 요구하는 leaf에 모두 gradient가 있습니다",
    "  {name} has not changed since {event}, although a gradient came to it {count}×": (
        "  {name}: gradient가 왔지만 ({count}번), {event} 뒤로 값이 바뀌지 않았습니다"
    ),
    "NaN or inf in the gradient of {names}: ! goes to where it begins": (
        "{names}의 gradient에 NaN/inf가 있습니다: !로 처음 나온 곳에 갑니다"
    ),
    "  {name}.grad is the sum over {count} passes since {event}: nothing cleared it between them": (
        "  {name}.grad: {event}부터 pass {count}개의 합입니다. 그 사이에 비워지지 않았습니다"
    ),
    # forward and reverse mode side by side
    (
        "forward sweep {sweep} of {sweeps} (events {first} to {last}) beside backward pass {run} of {runs} "
        "(from event {begins})"
    ): (
        "forward sweep {sweep}/{sweeps} (이벤트 {first}~{last})와 backward pass {run}/{runs} (이벤트 {begins}부터)"
    ),
    "   … and {count} more": "   … 외 {count}개",
    "tangents go down the table, from the inputs; gradients go up, from the output;": (
        "tangent는 입력에서 아래로, gradient는 출력에서 위로 갑니다;"
    ),
    "the sum of tangent × gradient over the inputs equals tangent × gradient of the output:": (
        "입력마다 tangent × gradient를 더하면 출력의 tangent × gradient와 같습니다:"
    ),
}
