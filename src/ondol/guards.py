"""What does a call of a replay or a fork get, instead of being made?

The rule is in ``replay``; here is what it needs of the store: the outcomes that other runs have recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, assert_never

from ondol import plans, queries, replay, values
from ondol.errors import InvalidInput
from ondol.messages import ToolCall
from ondol.plans import Outcome
from ondol.secret import logger
from ondol.tools import Tool
from ondol.transactions import PlannedCall

if TYPE_CHECKING:
    from ondol.runner import Drive


log = logger("ondol.runner")


class Guard:
    """The guard over the calls of one claimed run. Each recorded success serves one equal call."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._taken: set[str] = set()  # by calls of this process; maybe not yet folded

    async def plan(
        self, call: ToolCall, number: int, reply: int, *, tools: Mapping[str, Tool[..., Any]], stop: str = ""
    ) -> tuple[PlannedCall, Mapping[str, Any] | None]:
        """The plan of a call, as ``plans.plan`` makes it, unless the run replays what has an outcome already."""
        drive = self.drive
        tool = tools.get(call.name)
        ruling = None
        if drive.state.origin is not None and tool is not None and tool.effect not in ("read", "steps"):
            ruling = await self._ruling(call.name, values.digest(values.encode(call.arguments)))
        planned, parsed = plans.plan(
            call, number, reply, stop=stop, run=drive.row.id, tools=tools, context=drive.calls.context,
            vet=drive.calls.vet, now=drive.clock.now(), asks=ruling if isinstance(ruling, str) else None,
        )  # fmt: skip
        if isinstance(ruling, Outcome) and planned.refusal is None:
            return plans.given(planned, ruling), None
        return planned, parsed

    def asks(self, tool: Tool[..., Any], arguments: Mapping[str, Any]) -> str | None:
        """Why a person decides about such a call, whatever the policy and the tool say; None: nobody has to."""
        if tool.effect in ("read", "steps"):
            return None
        hashed = values.digest(values.encode(arguments))
        ruling = replay.rule(self.drive.state, tool.name, hashed, taken=self._taken)
        return ruling.why if isinstance(ruling, replay.Asks) else None

    async def _ruling(self, tool: str, arguments: str) -> Outcome | str | None:
        """The outcome of a write, or why a person decides about it first; None: it is as of any other run."""
        ruling = replay.rule(self.drive.state, tool, arguments, taken=self._taken)
        match ruling:
            case replay.Free():
                return None
            case replay.Asks(why=why):
                return why
            case replay.MakeUp():
                return Outcome("stub", f"(made up: {tool} was not called, as this is a fork that touches nothing)")
            case replay.Reuse(effect=effect):
                found = await self.drive.store.read(queries.recorded_outcome, self.drive.row.tenant, effect)
                if found is None:  # its session was deleted since; the call must not be repeated all the same
                    return f"an equal call succeeded ({effect}), and what it returned was erased"
                self._taken.add(effect)
                return Outcome("recorded", *self._pinned(effect, found), reuses=effect)
            case _:
                assert_never(ruling)

    def _pinned(self, effect: str, found: queries.RecordedOutcome) -> queries.RecordedOutcome:
        """What the call pinned holds for this run too, as far as there is room."""
        try:
            self.drive.calls.check_pins(found.pins)
        except InvalidInput as error:
            log.warning("run %s: effect %s is reused without what it pinned: %s", self.drive.row.id, effect, error)
            return found._replace(pins=())
        return found
