"""What may a tool of steps ask a person, and what is the answer in Python?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ondol import schemas, values
from ondol.errors import InvalidInput
from ondol.ids import checked_text
from ondol.secret import redact

LONGEST = timedelta(days=365)  # that an answer can be waited for


@dataclass(frozen=True, slots=True)
class Question:
    """Words, the type of the answer, what it is by default (``...``: nothing), and how long it may take.

    Raises:
        InvalidInput: it cannot be asked like this.
    """

    words: str
    type: Any
    default: Any = ...
    expires: timedelta | None = None

    def __post_init__(self) -> None:
        if not checked_text("the question", self.words).strip():
            raise InvalidInput("the question is empty: say what is asked")
        if self.expires is not None and not isinstance(self.expires, timedelta):
            raise InvalidInput(f"expires must be a timedelta, got {self.expires!r}")
        if self.expires is not None and not timedelta(0) < self.expires <= LONGEST:
            raise InvalidInput(f"expires must be longer than nothing and at most {LONGEST.days} days")
        if self.default is not ... and self.expires is None:
            raise InvalidInput("default= is the answer when nobody answers in time: say expires= too")


class AnswerType:
    """The type of an answer, and its JSON ``schema``. Raises InvalidInput for what is no type of a JSON value."""

    def __init__(self, type_: Any) -> None:
        from pydantic import TypeAdapter

        try:
            self._adapter: Any = TypeAdapter(schemas.at_once(type_))
            self.schema = schemas.schema_of(self._adapter)
        except BaseException as error:  # the type's own hooks are the user's code, and may raise anything
            shown, why = values.plain_text(values.encode(type_)), values.error_text(error)
            raise InvalidInput(f"schema={shown} is no type that a person can answer with: {why}") from error

    def read(self, given: Any) -> Any:
        """What a person said, in JSON's own types, as a value of the type. Raises InvalidInput."""
        try:
            return self._adapter.validate_json(json.dumps(given), strict=True)
        except BaseException as error:  # a validator is the user's code, and may raise anything
            raise InvalidInput(redact(f"it does not fit: {schemas.mismatch(error, 'the answer')}")) from error

    def written(self, value: Any) -> Any:
        """A value of the type in JSON's own types. Raises InvalidInput."""
        given = schemas.in_json(value)
        schemas.recorded(given)
        schemas.is_read_as_it_is(value, self.read(given))
        return given
