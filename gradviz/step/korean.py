"""The stepper's own words in a Korean lesson: keys, help, the ends of pages, messages. Terms of the field stay as they
are, as they do in Korean courses."""

from __future__ import annotations

from collections.abc import Mapping

from gradviz.words.korean import KOREAN as EVENTS

KOREAN = {
    # the last line
    "next": "다음",
    "back": "이전",
    "backward": "역전파",
    "why": "이유",
    "who": "누가 바꿨나",
    "command": "명령",
    "help": "도움말",
    "forward op": "순전파 연산",
    "over": "건너뛰기",
    "continue": "계속",
    "break": "중단점",
    "search": "찾기",
    "info": "정보",
    "undo": "되돌리기",
    "quit": "나가기",
    # the ends of pages
    "Press any key to continue.": "아무 키나 누르면 계속합니다.",
    "Space goes on, any other key leaves.": "Space는 다음으로, 다른 키는 닫기입니다.",
    "Part {part} of {count}: Space for the next, any other key to leave.": (
        "{count}쪽 중 {part}쪽: Space는 다음 쪽, 다른 키는 닫기입니다."
    ),
    "Part {part} of {count}: b for the previous, any other key to leave.": (
        "{count}쪽 중 {part}쪽: b는 앞쪽, 다른 키는 닫기입니다."
    ),
    # what to do first
    "{count} backward pass": "backward pass {count}개",
    "{count} backward passes": "backward pass {count}개",
    ", {errors} error, the last at event {last}": ", 오류 {errors}개: 이벤트 {last}",
    ", {errors} errors, the last at event {last}": ", 오류 {errors}개, 마지막은 이벤트 {last}",
    "the next and the previous event; B the next backward pass": "다음 이벤트와 이전 이벤트. B는 다음 backward pass",
    "why a gradient is None, or how it came about (type : first)": (
        "gradient가 왜 None인지, 어떻게 나왔는지 (먼저 :를 누릅니다)"
    ),
    "the first event with NaN or inf, or the first error; then y": (
        "NaN이나 inf가 처음 나온 이벤트, 또는 첫 오류. 그다음 y"
    ),
    "the line that last changed w; again: the change before that": "w를 마지막으로 바꾼 줄. 다시 하면 그 전의 변경",
    "everything else": "나머지 모두",
    # messages
    "this is the last event": "마지막 이벤트입니다",
    "this is the first event": "첫 이벤트입니다",
    "reading all {events} events …": "이벤트 {events}개를 모두 읽는 중 …",
    "no such key: {key}. n next, b back, B backward pass, y why, : command, ? all keys": (
        "그런 키는 없습니다: {key}. n 다음, b 이전, B 역전파, y 이유, : 명령, ? 모든 키"
    ),
    "no NaN or infinity in this run": "이 실행에는 NaN도 inf도 없습니다",
    ", but an error: here it is (y or why explains it)": ". 오류는 여기입니다 (y 또는 why로 이유를 봅니다)",
    "{name} changed here": "{name}: 여기서 바뀌었습니다",
    ", its first change": " (첫 변경)",
    ", {count} earlier change": " (이전 변경 {count}개)",
    ", {count} earlier changes": " (이전 변경 {count}개)",
    "{name} changed here, for the first time": "{name}: 여기서 처음 바뀌었습니다",
    "{name} is not there yet: {change}": "{name}: 아직 없습니다. {change}",
    "no event changes it": "바꾸는 이벤트가 없습니다",
    # info
    "event {event} of {count}: {kind}, thread {thread}": "이벤트 {event}/{count}: {kind}, 스레드 {thread}",
    "  at {place}": "  위치 {place}",
    "no event of the trace makes it": "만드는 이벤트가 없습니다",
    "{event} makes it": "{event}에서 만들어집니다",
    "{name} does not exist yet at {event}: {there}": "{name}: {event}에는 아직 없습니다. {there}",
    "{name} (tensor {tensor})": "{name} (텐서 {tensor})",
    "made": "생성",
    "changed at": "변경",
    ".grad at": ".grad 변경",
    ", … {count} in all": ", … 모두 {count}개",
    # the help
    "Keys and commands": "키와 명령",
    "  Type : and a command with its argument, such as :until grad.rms < 1e-7": (
        "  :를 누르고 명령과 인자를 씁니다. 예: :until grad.rms < 1e-7"
    ),
    "  :help VERB explains one verb, :help fields lists the fields of predicates": (
        "  :help VERB는 명령 하나를 설명하고, :help fields는 조건식의 필드를 보여줍니다"
    ),
    "  Time: ● here  ✗ error  ! NaN or inf  ◆ breakpoint  * bookmark  ~ in place": (
        "  시간: ● 현재  ✗ 오류  ! NaN/inf  ◆ 중단점  * 책갈피  ~ in-place"
    ),
    "  keys: {keys}": "  키: {keys}",
    "Along the events": "이벤트를 따라",
    "the next event": "다음 이벤트",
    "the previous event": "이전 이벤트",
    "the first event": "첫 이벤트",
    "the last event": "마지막 이벤트",
    "event N (or type the number alone), or a bookmark": "이벤트 N (번호만 써도 됩니다), 또는 책갈피",
    "where you were before the last move": "마지막 이동 전의 자리",
    "By scope: module, custom Function, pass": "범위를 따라: 모듈, 사용자 정의 Function, pass",
    "the next event of this scope, skipping inner scopes": "이 범위의 다음 이벤트 (안쪽 범위는 건너뜀)",
    "the previous event of this scope, likewise": "이 범위의 이전 이벤트 (마찬가지)",
    "into the next scope or pass": "다음 범위나 pass 안으로",
    "into the previous scope or pass, at its end": "이전 범위나 pass의 끝으로",
    "to the end of this scope": "이 범위의 끝으로",
    "to the beginning of this scope": "이 범위의 처음으로",
    "the next event at this place (in a loop)": "같은 자리의 다음 이벤트 (반복문에서)",
    "the previous event at this place": "같은 자리의 이전 이벤트",
    "where the next backward pass begins": "다음 backward pass의 시작",
    "where the previous backward pass begins": "이전 backward pass의 시작",
    "the next forward op": "다음 순전파 연산",
    "the previous forward op": "이전 순전파 연산",
    "To what you look for": "찾는 것으로",
    "stop at: log, w, line 12, nan, mutation, PREDICATE": "멈출 곳: log, w, line 12, nan, mutation, 조건식",
    "stop where a tensor or its .grad changes": "텐서나 .grad가 바뀌는 곳에서 멈춤",
    "delete breakpoint N, or all": "중단점 N 또는 모두 지우기",
    "forward to the next breakpoint": "다음 중단점까지 앞으로",
    "back to the previous breakpoint": "이전 중단점까지 뒤로",
    "forward to where it is true: grad.rms < 1e-7": "참이 되는 곳까지 앞으로: grad.rms < 1e-7",
    "back to where it is true": "참이 되는 곳까지 뒤로",
    "the first event with a NaN or an infinity": "NaN이나 inf가 처음 나온 이벤트",
    "the last change of a tensor; again: the one before": "텐서의 마지막 변경. 다시 하면 그 전의 변경",
    "an op, a name, 8x3, a line; empty: again": "연산, 이름, 8x3, 줄 찾기. 비우면 다시",
    "the same, backwards": "같은 것을 뒤로",
    "a bookmark here": "여기에 책갈피",
    "the bookmarks": "책갈피 목록",
    "In a lesson (gradviz learn)": "수업에서 (gradviz learn)",
    "to the question that is open": "지금 질문으로",
    "answer it: 0.6, [1, 2], None, yes": "답하기: 0.6, [1, 2], None, 예",
    "show the answer": "답 보기",
    "To understand": "이해하려면",
    "the chain rule here; why w.grad: how it came about": "여기의 연쇄 법칙. why w.grad: 그 값이 나온 과정",
    "all about this event, or about a tensor": "이 이벤트나 텐서에 관한 모든 것",
    "elements: w, w.grad, w[0, :3]": "원소: w, w.grad, w[0, :3]",
    "p x.sum(): Python in the paused script (debug only)": "p x.sum(): 멈춘 프로그램에서 Python 실행 (debug에서만)",
    "this VJP against finite differences (debug only)": "이 VJP를 수치 미분과 비교 (debug에서만)",
    "all leaves, by made, norm, change or name": "모든 leaf를 생성, 크기, 변화, 이름 순서로",
    "scroll the table of leaves down": "leaf 표를 아래로",
    "scroll the table of leaves up": "leaf 표를 위로",
    "who called this place, with each line": "이 자리를 부른 곳들과 그 줄",
    "the path from tensor A to B": "텐서 A에서 B까지의 경로",
    "tangents and gradients of one function side by side": "한 함수의 tangent와 gradient를 나란히",
    "write this state to FILE: .svg, .png or .txt": "이 상태를 FILE에 쓰기: .svg, .png, .txt",
    "this list; help VERB; help fields": "이 목록. help VERB, help fields",
    "leave (also Ctrl-C and Ctrl-D)": "나가기 (Ctrl-C, Ctrl-D도)",
    # the screen
    "graph": "그래프",
    "getting started": "시작하기",
    "leaves": "leaf",
    "gradient norm in each pass": "pass별 gradient norm",
    "forward and reverse": "forward mode와 reverse mode",
    "  … and {count} more": "  … 외 {count}개",
    "  no leaf yet": "  아직 leaf가 없습니다",
    "event {event} of {count}": "이벤트 {event}/{count}",
    "{number} of {count}": "{number}/{count}",
    "events of this pass": "이 pass의 이벤트",
    "events of this forward part": "이 순전파 부분의 이벤트",
    "NaN or inf": "NaN/inf",
    "breakpoint": "중단점",
    "bookmark": "책갈피",
    "write in place": "in-place 쓰기",
    # where a lesson stops
    "{count} event": "이벤트 {count}개",
    "{count} events": "이벤트 {count}개",
    " ({events} so far)": " (지금까지 {events})",
    " ({events} before it)": " (이전에 {events})",
    " ({events} after it)": " (이후에 {events})",
    "breakpoint {number}: {text}": "중단점 {number}: {text}",
    "breakpoint {number}: where {name} changes": "중단점 {number}: {name}, 바뀌는 곳",
    "all breakpoints deleted": "중단점을 모두 지웠습니다",
    "breakpoint {number} deleted": "중단점 {number}: 지웠습니다",
    "Breakpoints": "중단점 목록",
    "no breakpoints: break nan, break log, break line 12, watch w, ...": (
        "중단점이 없습니다: break nan, break log, break line 12, watch w, ..."
    ),
    "no breakpoint on the way": "가는 길에 중단점이 없습니다",
    "there are no breakpoints (break nan)": "중단점이 없습니다 (break nan)",
    "there is no breakpoint {number} (there are: {known})": "중단점 {number}: 없습니다 (있는 것: {known})",
    "break {form} takes a name without quotes: {name}": "break {form}: 이름은 따옴표 없이 씁니다: {name}",
    "to stop where {name} changes: watch {name}": "{name}: 바뀌는 곳에서 멈추려면 watch {name}",
    "{word} is not an op, a node or a tensor here; break takes: {ways}, or a predicate": (
        "{word}: 여기의 연산, node, 텐서가 아닙니다. break에 쓸 수 있는 것: {ways}, 조건식"
    ),
    "never after this event: {text}": "이 이벤트 뒤에는 없습니다: {text}",
    "never before this event: {text}": "이 이벤트 앞에는 없습니다: {text}",
    "unknown: this trace has no values (--values none); record it with --values stats": (
        "알 수 없음: 이 trace에는 값이 없습니다 (--values none). --values stats로 기록합니다"
    ),
    "nothing to search for: /log, /w, /8x3, /12 (a line)": "찾을 것이 없습니다: /log, /w, /8x3, /12 (줄)",
    "a search cannot contain both kinds of quotes": "찾는 말에 두 가지 따옴표를 함께 쓸 수 없습니다",
    "no later event of this scope": "이 범위에는 다음 이벤트가 없습니다",
    "no earlier event of this scope": "이 범위에는 이전 이벤트가 없습니다",
    "this event is in no scope and in no pass": "이 이벤트는 범위나 pass 안에 있지 않습니다",
    "this scope does not end in the trace": "이 범위는 trace 안에서 끝나지 않습니다",
    "this scope does not begin in the trace": "이 범위는 trace 안에서 시작하지 않습니다",
    "no scope or pass begins after this event": "이 이벤트 뒤에 시작하는 범위나 pass가 없습니다",
    "no scope or pass ends before this event": "이 이벤트 앞에 끝나는 범위나 pass가 없습니다",
    "no later event at this place": "이 자리에는 다음 이벤트가 없습니다",
    "no earlier event at this place": "이 자리에는 이전 이벤트가 없습니다",
    "no backward pass begins after this event": "이 이벤트 뒤에 시작하는 backward pass가 없습니다",
    "no backward pass begins before this event": "이 이벤트 앞에 시작하는 backward pass가 없습니다",
    "no forward op runs after this event": "이 이벤트 뒤에 실행되는 순전파 연산이 없습니다",
    "no forward op runs before this event": "이 이벤트 앞에 실행되는 순전파 연산이 없습니다",
    "there is no event {event}: the trace has {count}, from 1": (
        "이벤트 {event}: 없습니다. trace에는 1부터 {count}까지 있습니다"
    ),
    "a NaN": "NaN",
    "the only event with {what}": "{what}: 이벤트는 이것뿐입니다",
    "the first of {events} with {what}: y (why) explains its origin": (
        "{what}: {events} 중 첫 번째. y (why)로 어디서 왔는지 봅니다"
    ),
    "number {number} of {events} with {what}: y (why) explains its origin": (
        "{what}: {events} 중 {number}번째. y (why)로 어디서 왔는지 봅니다"
    ),
    "this event has no place in the source": "이 이벤트는 소스에 자리가 없습니다",
    # bookmarks and files
    "a bookmark is not a number: {name}": "책갈피 이름은 숫자가 아닙니다: {name}",
    "bookmark {name}: event {event} (goto {name})": "책갈피 {name}: 이벤트 {event} (goto {name})",
    "no bookmarks: mark NAME makes one here": "책갈피가 없습니다: mark NAME으로 여기에 만듭니다",
    "Bookmarks": "책갈피 목록",
    "wrote {file}: the state after event {event}": "{file}: 이벤트 {event} 뒤의 상태를 썼습니다",
    "cannot write {file}: {reason}": "{file}: 쓸 수 없습니다: {reason}",
    "only .txt files can be written here": "여기서는 .txt 파일만 쓸 수 있습니다",
    # the path between two tensors
    "path takes two tensors: path x loss": "path에는 텐서 두 개가 필요합니다: path x loss",
    "{one} and {other} are the same tensor": "{one}, {other}: 같은 텐서입니다",
    "no path leads from {start} to {end}: neither was computed from the other": (
        "{start} → {end}: 경로가 없습니다. 어느 쪽도 다른 쪽에서 계산되지 않았습니다"
    ),
    "{start} → {end}: {count} path": "{start} → {end}: 경로 {count}개",
    "{start} → {end}: {count} paths, the shortest:": "{start} → {end}: 경로 {count}개, 가장 짧은 것:",
    "  the gradient of {name} is the sum over all {count}": "  {name}의 gradient: 경로 {count}개 모두의 합",
    "{op}, and the gradient is cut off here: no node": "{op}: node가 없어서 gradient가 여기서 끊깁니다",
    "    … {count} lines …": "    … {count}줄 …",
    # the leaves and their elements
    "as they were made": "생성 순서",
    "by the norm of their gradient": "gradient norm 순서",
    "by their last change": "마지막 변경 순서",
    "by name": "이름 순서",
    "{count} leaf {order} (a: by {next})": "leaf {count}개, {order} (a: 다음은 {next})",
    "{count} leaves {order} (a: by {next})": "leaf {count}개, {order} (a: 다음은 {next})",
    "leaves are ordered by {orders}: not by {order}": "leaf 순서는 {orders}: {order} 순서는 없습니다",
    "leaves from number {first} of {count}": "leaf {count}개 중 {first}번부터",
    "changed": "변경",
    "{name} is None here": "{name}: 여기서는 None입니다",
    "{name} has no value here": "{name}: 여기서는 값이 없습니다",
    "its elements were not kept: record it with --values full": (
        "원소는 기록되지 않았습니다: --values full로 기록합니다"
    ),
    "there is no page {number}: {name} has {count} page, from 1": (
        "{number}쪽: 없습니다. {name}: 1부터 {count}쪽까지"
    ),
    "there is no page {number}: {name} has {count} pages, from 1": (
        "{number}쪽: 없습니다. {name}: 1부터 {count}쪽까지"
    ),
    " (Space, or print {name} page {number}: the next)": " (Space 또는 print {name} page {number}: 다음)",
    "elements {first} to {end} of {size}, page {number} of {count}": (
        "원소 {size}개 중 {first}~{end}, {number}/{count}쪽"
    ),
    "an index is like [0, :3, -1], not [{text}]": "인덱스는 [0, :3, -1]처럼 씁니다: [{text}] 꼴은 없습니다",
    "the step of a slice is not 0": "slice의 간격은 0이 될 수 없습니다",
    # what cannot be done
    "not a number: {text}": "숫자가 아닙니다: {text}",
    "no tensor is called {name}: {hint}": "{name}: 그런 텐서는 없습니다. {hint}",
    "did you mean {name}?": "혹시 {name}?",
    "known names: {names}": "있는 이름: {names}",
    "no tensor of this run has a name; t12 is tensor number 12": (
        "이 실행의 텐서에는 이름이 없습니다. t12는 12번 텐서입니다"
    ),
    "unknown command {name}: did you mean {near}?": "모르는 명령 {name}: 혹시 {near}?",
    "unknown command {name}: the commands are {names}": "모르는 명령 {name}: 있는 명령은 {names}",
    "{verb} takes no argument: {argument}": "{verb}: 인자가 없는 명령입니다: {argument}",
    "{verb} needs an argument: {usage}": "{verb}: 인자가 필요합니다: {usage}",
    # the fields of predicates
    "break and until take a predicate over the event, such as": "break와 until에는 이벤트의 조건식을 씁니다. 예:",
    "  parts: and, or, not, ( ); == != < <= > >=; ~ for texts that contain": (
        "  쓸 수 있는 것: and, or, not, ( ); == != < <= > >=; ~는 글자가 들어 있는지"
    ),
    "numbers": "숫자",
    "texts": "글자",
    "true or false": "참/거짓",
    "what the event made or changed in place: an op's outputs, a new tensor, a mutated one": (
        "이벤트가 만들거나 in-place로 바꾼 것: 연산의 출력, 새 텐서, 바뀐 텐서"
    ),
    "the inputs of an op": "연산의 입력",
    "the gradients of the event: received, produced, accumulated, retained, assigned": (
        "이벤트의 gradient: 받은 것, 내놓은 것, 더해진 것, 남긴 것, 넣은 것"
    ),
    "the tangent that was pushed": "밀어 보낸 tangent",
    "the line in the source": "소스의 줄",
    "the event's number, from 1": "이벤트 번호, 1부터",
    "the backward pass, 0 in forward": "backward pass, 순전파에서는 0",
    "the version that a write made": "쓰기로 생긴 버전",
    "the number of scopes and passes around the event": "이벤트를 둘러싼 범위와 pass의 수",
    "the op's name": "연산 이름",
    "the node's name": "node 이름",
    "the kind of the event": "이벤트 종류",
    "the name of the tensor that the event is about": "이벤트가 다루는 텐서의 이름",
    "the same, but only of parameters": "마찬가지, 파라미터만",
    "the source file's name": "소스 파일 이름",
    "the module or custom Function": "모듈이나 사용자 정의 Function",
    "the hook's name": "hook 이름",
    "the maker or writer (ones, SGD)": "만들거나 쓴 것 (ones, SGD)",
    "the shape of a new tensor, as 8x3": "새 텐서의 shape, 8x3처럼",
    "a value or gradient of the event has a NaN": "이벤트의 값이나 gradient에 NaN이 있음",
    "... or an infinity": "... 또는 inf",
    "a tensor was changed in place": "텐서가 in-place로 바뀜",
    "outside of any backward pass": "backward pass 밖",
    "inside a backward pass": "backward pass 안",
    "an exception left a backward pass or ended the script": "예외가 backward pass나 프로그램을 끝냄",
    # predicates that are wrong
    "the text that begins at column {column} has no closing quote": (
        "{column}열에서 시작한 글자에 닫는 따옴표가 없습니다"
    ),
    "= at column {column}: write == to compare": "{column}열의 =: 비교에는 ==를 씁니다",
    "cannot understand {text} at column {column}": "{column}열: 알 수 없는 글자입니다: {text}",
    'a predicate is missing, such as: grad.rms < 1e-7, op == "log" and out.min <= 0': (
        '조건식이 없습니다. 예: grad.rms < 1e-7, op == "log" and out.min <= 0'
    ),
    "{text} at column {column} does not belong there: join parts with and, or": (
        "{column}열의 {text}: 여기에 올 수 없습니다. 조건은 and, or로 잇습니다"
    ),
    "the predicate is nested too deeply": "조건식의 괄호가 너무 깊습니다",
    "a closing ) is missing": "닫는 괄호 )가 없습니다",
    "{text} has no comparison": "{text}: 비교가 없습니다",
    "{field} has to be compared, as in {example}": "{field}: 비교해야 합니다. 예: {example}",
    "{text}: compare with a number or a text in quotes": "{text}: 숫자나 따옴표로 묶은 글자와 비교합니다",
    "{text}: one side has to be a field": "{text}: 한쪽은 필드여야 합니다",
    "{field} is true or false: write {field}, or not {field}": (
        "{field}: 참/거짓입니다. {field} 또는 not {field}로 씁니다"
    ),
    "{field} is a number, {text} is text": "{field}: 숫자입니다. {text}: 글자입니다",
    "{field} is text: compare it with ==, != or ~ (contains)": (
        "{field}: 글자입니다. ==, !=, ~ (들어 있음)로 비교합니다"
    ),
    "{field} is a number: ~ (contains) is for text": "{field}: 숫자입니다. ~ (들어 있음)는 글자에 씁니다",
    "the field has to be on the left of ~": "필드는 ~의 왼쪽에 있어야 합니다",
    "something is missing at the end": "끝에 무엇이 빠졌습니다",
    "a field is missing before {text} at column {column}": "{column}열의 {text} 앞에 필드가 없습니다",
    "text needs quotes: {text}": "글자에는 따옴표가 필요합니다: {text}",
    "there is no field {field}: did you mean {names}?": "{field}: 그런 필드는 없습니다. 혹시 {names}?",
    "there is no field {field}: this tensor has {names}": "{field}: 그런 필드는 없습니다. 이 텐서에 있는 것: {names}",
    "there is no field {field}: the fields are {names} (help fields)": (
        "{field}: 그런 필드는 없습니다. 있는 필드: {names} (help fields)"
    ),
    # the list of lessons
    "lesson": "수업",
    "questions": "질문",
}


TEXTS: Mapping[str, Mapping[str, str]] = {
    "en": {},
    "ko": {**EVENTS, **KOREAN},
}  # by language and English text


def said(language: str, text: str, /, **parts: object) -> str:
    """A text of the stepper in a language, with its `{parts}` filled in."""
    known = TEXTS[language].get(text, text)
    return known.format(**parts) if parts else known
