"""Which part of what was said is a model shown, and in what form?

Rules only. A ``View`` is a handful of places; what a model sees follows from it and from the stored messages, so the
same request can be built again at any time. ``relieve`` moves those places until a request fits. Nothing is ever cut
between a call and its result, nor inside the calls of one answer, and what the model has not answered yet is shown
as it is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ondol import payloads, values
from ondol.messages import Attachment, Message, Reasoning, ToolResponse, runtime_note
from ondol.sizes import weight_of, weight_of_attachment

READ_MORE = "read_more"  # the tool that shows again what is left out; see ``outputs``


class View(NamedTuple):
    """How far back what is shown. Places are sequences of a session; a run's own messages follow on its history.

    Messages before ``since`` are not shown. Of those before ``detail`` finished calls are only named, before
    ``reasoning`` reasoning is left out, before ``results`` long results are only references, and before ``payloads``
    images, files and the like.
    """

    since: int = 0
    detail: int = 0
    reasoning: int = 0
    results: int = 0
    payloads: int = 0

    def dumps(self) -> dict[str, int]:
        """As it stands in the journal: without what is zero."""
        return {name: place for name, place in self._asdict().items() if place}

    @property
    def last(self) -> int:
        """From this place on everything is shown as it is."""
        return max(self)


class Summary(NamedTuple):
    """``text`` stands for the messages below the place ``since``. ``by`` names the model that wrote it, if one did."""

    since: int = 0
    text: str = ""
    by: str = ""


class Item(NamedTuple):
    """A message at its place, and how much of a request it takes as it is (see ``sizes``)."""

    place: int
    message: Message
    weight: int


class Form(NamedTuple):
    """What is shown of a message (none, one, or one with a note behind it), and how much of a request that takes."""

    messages: tuple[Message, ...]
    weight: int


#: By the place of a message and what is cut of it: the message, and its form.
MadeForms: TypeAlias = dict[tuple[int, bool, bool, bool], tuple[Message, Form]]


def reference(place: int, part: int | None = None) -> str:
    """What ``read_more`` is given to show a message, or an attachment of it, again."""
    return f"m{place}" if part is None else f"m{place}.{part}"


_REFERENCE = re.compile(r"m(\d{1,15})(?:\.(\d{1,4}))?")


def place_of(given: str) -> tuple[int, int | None] | None:
    """The place that a reference names, and the part; None for what is no such reference."""
    found = _REFERENCE.fullmatch(given.strip().lower())
    return None if found is None else (int(found[1]), None if found[2] is None else int(found[2]))


# --- what is shown ----------------------------------------------------------------------------------------------


class Forms:
    """The messages of a conversation in the forms that views give them; each form is made once.

    ``repeatable`` names the tools that may be called again: of their results nothing is lost that cannot be had anew.
    ``made`` are the forms that were made of these messages before.
    """

    def __init__(self, items: Sequence[Item], repeatable: Collection[str], made: MadeForms | None = None) -> None:
        self.items, self._repeatable = items, repeatable
        self._made: MadeForms = {} if made is None else made

    def shown(self, view: View) -> Iterator[Form]:
        """What the view shows, in order."""
        finished: list[Item] = []
        last = view.last
        for item in self.items:
            if item.place < view.since:
                continue
            if item.place < view.detail and is_detail(item.message):
                finished.append(item)
                continue
            if finished:
                yield self._named(finished)
                finished = []
            yield Form((item.message,), item.weight) if item.place >= last else self._form(item, view)
        if finished:
            yield self._named(finished)

    def size(self, view: View) -> int:
        return sum(form.weight for form in self.shown(view))

    def messages(self, view: View) -> list[Message]:
        return [message for form in self.shown(view) for message in form.messages]

    def _form(self, item: Item, view: View) -> Form:
        cuts = item.place < view.reasoning, item.place < view.results, item.place < view.payloads
        key = item.place, *cuts
        known = self._made.get(key)
        if known is None or known[0] is not item.message:  # what was to be committed there was another one
            reduced = _reduced(item, *cuts, self._repeatable)
            weight = item.weight if reduced[:1] == (item.message,) else sum(map(weight_of, reduced))
            known = self._made[key] = item.message, Form(reduced, weight)
        return known[1]

    def _named(self, finished: Sequence[Item]) -> Form:
        note = runtime_note(named_calls(finished, self._repeatable))
        return Form((note,), weight_of(note))


def is_detail(message: Message) -> bool:
    """Is it a call, or the result of one?"""
    return message.role == "tool" or bool(message.calls)


_WORTH_IT = 400  # characters of a result from which on a reference is shorter


def _reduced(
    item: Item, reasoning: bool, results: bool, payloads: bool, repeatable: Collection[str]
) -> tuple[Message, ...]:
    """The message without what is cut there. What people attached is named in a note of the runtime behind it: their
    own words stay as they are."""
    parts: list[Any] = []
    named: list[str] = []
    for n, part in enumerate(item.message.parts):
        match part:
            case Reasoning() if reasoning:
                continue
            case ToolResponse() if results and (part.name in repeatable or part.blob is not None):
                parts.append(_as_reference(part, item.place))
            case ToolResponse() if payloads:
                parts.append(_without_payloads(part, item.place))
            case Attachment() if payloads and is_heavy_part(part):
                if item.message.role != "tool":  # a result names what is attached to it
                    named.append(_named_attachment(part, item.place, n))
            case _:
                parts.append(part)
    if len(parts) == len(item.message.parts) and all(a is b for a, b in zip(parts, item.message.parts, strict=True)):
        return (item.message,)
    kept = (replace(item.message, parts=tuple(parts)),) if parts else ()
    return (*kept, runtime_note("[Note from the runtime, not from the user] " + " ".join(named))) if named else kept


def _as_reference(part: ToolResponse, place: int) -> ToolResponse:
    length = part.blob.length if part.blob is not None else len(part.text)
    if len(part.text) <= _WORTH_IT:
        return part
    again = f'{READ_MORE}(reference="{reference(place)}")'
    return replace(part, response=f"[{length} characters, left out by now: {again} shows them again]", blob=None)


def _named_attachment(part: Attachment, place: int, n: int) -> str:
    again = f'{READ_MORE}(reference="{reference(place, n)}")'
    return (
        f"[attachment {values.valid(part.name)}, {values.valid(part.media_type)}, {part.size} bytes, sha256 "
        f"{part.digest[:12]}: it was shown before, and {again} shows it again]"
    )


_BASE64 = re.compile(
    r"(?:data:[\w./+-]*;base64,)?[A-Za-z0-9+/_\-\r\n]{500,}={0,2}\s*"
)  # long, and nothing that anybody reads


def _is_base64(text: str) -> bool:
    return len(text) > 500 and _BASE64.fullmatch(text) is not None


def _without_payloads(part: ToolResponse, place: int) -> ToolResponse:
    """The result with a reference in the place of each long text in base64."""
    if type(part.response) is str and not _is_base64(part.response):
        return part

    shorter = _shorter(part.response, place)
    return part if shorter == part.response else replace(part, response=shorter)


def _shorter(encoded: Any, place: int) -> Any:
    match encoded:
        case str() if _is_base64(encoded):
            again = f'{READ_MORE}(reference="{reference(place)}")'
            return f"[{len(encoded)} characters of base64, left out by now: {again} shows them again]"
        case dict() if payloads.is_mark(encoded):
            again = f'{READ_MORE}(reference="{reference(place)}")'
            return f"[{encoded['media_type']}, {encoded['size']} bytes, shown before: {again} shows it again]"
        case {values.TAG: "bytes", "v": str(inner)}:
            shorter = _shorter(inner, place)
            return encoded if shorter is inner else shorter
        case dict():
            return {k: _shorter(v, place) for k, v in encoded.items()}
        case list():
            return [_shorter(v, place) for v in encoded]
        case _:
            return encoded


_HEAVY = 4_000  # bytes of text that an attachment weighs from which on it is not sent again
_LARGE = 1_000  # bytes that it has, at least


def is_heavy_part(part: Attachment) -> bool:
    return weight_of_attachment(part) >= _HEAVY and part.size >= _LARGE


def is_heavy(message: Message) -> bool:
    """Does it hold what is not sent again once the model has answered: an image, a file, base64 in a result?"""
    for part in message.parts:
        if isinstance(part, Attachment) and is_heavy_part(part):
            return True
        if isinstance(part, ToolResponse) and _without_payloads(part, 0) is not part:
            return True
    return False


def named_calls(finished: Sequence[Item], repeatable: Collection[str], room: int = 4_000) -> str:
    """A note in the place of finished calls: which writes were made and what became of them, and how to read all."""
    calls, results = {}, {}
    for item in finished:
        for part in item.message.parts:
            if isinstance(part, ToolResponse):
                results[part.id] = part
        for call in item.message.calls:
            calls[call.id] = call
    writes = [call for call in calls.values() if call.name not in repeatable]
    reads = len(calls) - len(writes)
    first, last = reference(finished[0].place), reference(finished[-1].place)
    how = f'{READ_MORE}(reference="{first}")' + ("" if first == last else f" up to {last}")
    lines = [f"[Note from the runtime, not from the user] Calls made here are left out by now ({how} shows them):"]
    for shown in (80, 30):
        told = [_named_call(call, results.get(call.id), shown) for call in writes]
        if sum(map(len, told)) <= room:
            break
    else:
        fewer = told[len(told) - room // 100 :]
        told = [f"- {len(told) - len(fewer)} earlier writes", *fewer]
    if reads:
        told.append(f"- {reads} reads")
    return "\n".join([*lines, *told])


def _named_call(call: Any, result: ToolResponse | None, shown: int) -> str:
    arguments = values.excerpt(values.plain_text(values.encode(call.arguments)), shown, lambda *_: "…")
    came = "no result" if result is None else values.excerpt(result.text, shown, lambda *_: "…")
    came = ("failed or refused: " if result is not None and result.error else "") + came
    return f"- {call.name}({arguments}): {came}".replace("\n", " ")


# --- relief -----------------------------------------------------------------------------------------------------


class Room(NamedTuple):
    """``limit``: the weight that a request may have; one that has more is relieved down to ``target``, if it can be.

    The last ``keep`` turns before the current one stay as long as the limit can be kept without them going. ``carried``
    is what the words in the place of turns that go may weigh.
    """

    limit: int
    target: int
    keep: int = 0
    carried: int = 0


class Relief(NamedTuple):
    view: View
    size: int


LOSSLESS = ("results", "reasoning")  # nothing goes that cannot be had again
LEVELS = (*LOSSLESS, "detail", "since")


def relieve(forms: Forms, view: View, own: int, fixed: int, room: Room, levels: Collection[str] = LEVELS) -> Relief:
    """The view with which the request fits, or with which it is as small as it gets.

    In this order: results that can be had again become references, reasoning of earlier turns goes, finished calls are
    only named, and turns from the first on go, as far as these ``levels`` are allowed. ``own`` is the place where the
    current turn begins, which never goes; ``fixed`` weighs what is in the request beside the messages.
    """

    def size(candidate: View) -> int:
        carried = room.carried if candidate.since > view.since else 0
        return fixed + carried + forms.size(candidate)

    now = view
    for level in ("results", "reasoning", "detail"):
        if size(now) <= room.target:
            break
        if level not in levels:
            continue
        now = _moved(now, level, _STOPS[level](forms.items, own), size, room.target)
    if "since" in levels and size(now) > room.limit:
        turns = [*(place for place in turn_starts(forms.items) if place < own), own]
        early = turns[: len(turns) - room.keep] if room.keep else turns
        now = _moved(now, "since", early, size, room.target)
        if size(now) > room.limit:
            now = _moved(now, "since", turns, size, room.limit)
    return Relief(now, size(now))


def _moved(view: View, level: str, stops: Iterable[int], size: Callable[[View], int], target: int) -> View:
    """The view with this place moved to the first stop with which the target is kept, or to the last one."""
    views = [view._replace(**{level: stop}) for stop in stops if stop > getattr(view, level)]
    if not views:
        return view
    return views[min(bisect_left(views, True, key=lambda v: size(v) <= target), len(views) - 1)]


def _results(items: Sequence[Item], own: int) -> list[int]:
    last = _last_answer(items)
    return [i.place + 1 for i in items[:last] if i.message.role == "tool"]


def _reasoning(items: Sequence[Item], own: int) -> list[int]:
    """Reasoning of the current turn belongs to its calls: providers want it back."""
    with_reasoning = (i for i in items if any(isinstance(p, Reasoning) for p in i.message.parts))
    return [i.place + 1 for i in with_reasoning if i.place < own]


def _detail(items: Sequence[Item], own: int) -> list[int]:
    """Behind each answer with all its results."""
    last, stops = _last_answer(items), []
    for n, item in enumerate(items[:last]):
        if is_detail(item.message) and items[n + 1].message.role != "tool":
            stops.append(item.place + 1)
    return stops


_STOPS: Mapping[str, Callable[[Sequence[Item], int], list[int]]] = {
    "results": _results, "reasoning": _reasoning, "detail": _detail,
}  # fmt: skip


def _last_answer(items: Sequence[Item]) -> int:
    """The index of the last answer; what follows on it the model has not seen yet."""
    return max((n for n, i in enumerate(items) if i.message.role == "assistant"), default=0)


def turn_starts(items: Sequence[Item]) -> list[int]:
    """The places where turns begin: at what the user said, or at the runtime's note before it.

    Every call before such a place has its result before it, so a request may begin there.
    """
    starts = [n for n, i in enumerate(items) if i.message.role == "user" and i.message.origin is None]
    return [items[n - 1 if n and items[n - 1].message.origin == "runtime" else n].place for n in starts]
