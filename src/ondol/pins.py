"""What is pinned in a session: texts that its models are shown in every request, word for word?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from ondol import values
from ondol.errors import InvalidInput, NotFound
from ondol.sizes import weight_of_text

MOST = 50  # pins of one session
LONGEST = 4_000  # characters of one
LONGEST_TOGETHER = 20_000


class Pinned(NamedTuple):
    """``at`` is microseconds since 1970. ``by`` is a person, or the tool that pinned it."""

    id: str
    text: str
    by: str
    at: int


class Pins(NamedTuple):
    """The pins of a session, the oldest first. Numbers are not used again."""

    pinned: tuple[Pinned, ...] = ()
    next: int = 1

    @property
    def texts(self) -> list[str]:
        return [p.text for p in self.pinned]

    def with_texts(self, texts: Iterable[str], by: str, at: int) -> Pins:
        """With these pinned too. What is pinned already stays as it is."""
        pinned, following = list(self.pinned), self.next
        for text in texts:
            if text not in (p.text for p in pinned):
                pinned.append(Pinned(f"p{following}", text, by, at))
                following += 1
        return Pins(tuple(pinned), following)

    def without(self, pin: str) -> Pins:
        """Raises NotFound."""
        left = tuple(p for p in self.pinned if p.id != pin)
        if len(left) == len(self.pinned):
            raise NotFound(f"there is no pin {pin!r} in this session: 'ondol sessions pins' lists them")
        return self._replace(pinned=left)


def checked(text: Any) -> str:
    """Raises InvalidInput for what cannot be pinned."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"a pin must be a text that says something, got {text!r}")
    if len(text) > LONGEST:
        raise InvalidInput(f"a pin may have {LONGEST} characters, this one has {len(text)}: shorten it")
    return values.valid(text.strip())


def bounded(pins: Pins) -> Pins:
    """Raises InvalidInput where there is no room for more."""
    check_room(pins.texts)
    return pins


def check_room(texts: Collection[str], room: int | None = None) -> None:
    """Raises InvalidInput where so many are not kept, or weigh more than ``room``, which a budget leaves for them."""
    size = sum(map(len, texts))
    if len(texts) > MOST or size > LONGEST_TOGETHER:
        raise InvalidInput(
            f"a session has room for {MOST} pins of together {LONGEST_TOGETHER} characters: unpin something first"
        )
    if room is not None and sum(map(weight_of_text, texts)) > room:
        raise InvalidInput("pins may take half of the agent's budget: unpin something first, or raise the budget")


def dumps(pins: Pins) -> str:
    return values.dumps({"next": pins.next, "pins": [p._asdict() for p in pins.pinned]})


def loads(stored: str | None) -> Pins:
    if stored is None:
        return Pins()
    raw = values.loads(stored)
    return Pins(tuple(Pinned(**p) for p in raw["pins"]), raw["next"])
