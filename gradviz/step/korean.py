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
    "{events} events, {passes} backward pass": "이벤트 {events}개, backward pass {passes}개",
    "{events} events, {passes} backward passes": "이벤트 {events}개, backward pass {passes}개",
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
    "no such key: {key} (? for help)": "그런 키는 없습니다: {key} (?는 도움말)",
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
    # the list of lessons
    "lesson": "수업",
    "questions": "질문",
}


TEXTS: Mapping[str, Mapping[str, str]] = {
    "en": {},
    "ko": {**EVENTS, **KOREAN},
}  # by language and English text


def said(language: str, text: str, **parts: object) -> str:
    """A text of the stepper in a language, with its `{parts}` filled in."""
    known = TEXTS[language].get(text, text)
    return known.format(**parts) if parts else known
