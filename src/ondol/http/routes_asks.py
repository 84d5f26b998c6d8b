"""The routes of asks and effects: what waits for a person, what tools did, and how both are decided."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from ondol.bodies import AskBody, EffectBody, ask_body, effect_body
from ondol.effects import EffectState
from ondol.handles import AskState
from ondol.http import replies, routing
from ondol.http.replies import Json
from ondol.http.requests import After, DecideAsk, IfMatch, Limit, ResolveEffect, caller_in, etag, matched
from ondol.http.service import Service, Word

AskId = Annotated[str, Path(description="The id of an ask.", min_length=1)]
EffectId = Annotated[str, Path(description="The id of an effect.", min_length=1)]
AskOrder = Literal["oldest_first", "newest_first"]


class Asks(TypedDict):
    items: list[AskBody]
    next: str | None


class Effects(TypedDict):
    items: list[EffectBody]
    next: str | None


def routes(service: Service) -> APIRouter:
    router = routing.router("asks and effects")

    @router.get("/asks", responses={200: {"model": Asks}, **routing.problems()})
    async def list_asks(
        request: Request, run: str | None = None, session: str | None = None, user: str | None = None,
        state: AskState | Literal["all"] = "open",
        order: Annotated[AskOrder, Query(description="By the time of opening.")] = "oldest_first",
        after: After = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """What waits for a person."""
        found = await service.asks(
            caller_in(request), run=run, session=session, user=user, state=None if state == "all" else state,
            after=after or None, newest_first=order == "newest_first", limit=limit,
        )  # fmt: skip
        return replies.page(found, ask_body)

    @router.get("/asks/{ask}", responses={200: {"model": AskBody}, **routing.problems()})
    async def get_ask(request: Request, ask: AskId) -> Response:
        """One ask. Its `ETag` is the hash of its arguments."""
        found = await service.ask(caller_in(request), ask)
        return Json(ask_body(found), headers={"etag": etag(found.arguments_hash)})

    @router.post("/asks/{ask}/decision", responses={200: {"model": AskBody}, **routing.problems()})
    async def decide_ask(request: Request, ask: AskId, body: DecideAsk, if_match: IfMatch = None) -> Response:
        """Decide an ask, once. `If-Match` is the hash of the arguments that the person saw."""
        value = body.value if "value" in body.model_fields_set else ...  # null is an answer
        word = Word(
            kind=body.decision, arguments=body.arguments, value=value, result=body.result, evidence=body.evidence,
            reason=body.reason, by=body.by,
        )  # fmt: skip
        decided = await service.decide(caller_in(request), ask, word, seen=matched(if_match))
        return Json(ask_body(decided), headers={"etag": etag(decided.arguments_hash)})

    @router.get("/effects", responses={200: {"model": Effects}, **routing.problems()})
    async def list_effects(
        request: Request, run: str | None = None, session: str | None = None,
        state: Annotated[EffectState | None, Query(description="Only those in this state.")] = None,
        after: After = None, limit: Limit = 50,
    ) -> Response:  # fmt: skip
        """The ledger of tool calls: those of the newest runs first, of each in call order."""
        found = await service.effects(
            caller_in(request), run=run, session=session, state=state, after=after or None, limit=limit
        )
        return replies.page(found, effect_body)

    @router.get("/effects/{effect}", responses={200: {"model": EffectBody}, **routing.problems()})
    async def get_effect(request: Request, effect: EffectId) -> Response:
        """One effect."""
        return Json(effect_body(await service.effect(caller_in(request), effect)))

    @router.post("/effects/{effect}/resolution", responses={200: {"model": EffectBody}, **routing.problems()})
    async def resolve_effect(request: Request, effect: EffectId, body: ResolveEffect) -> Response:
        """Settle an unknown effect, by the word of somebody who looked."""
        word = Word(kind=body.outcome, result=body.result, evidence=body.evidence, by=body.by)
        return Json(effect_body(await service.resolve(caller_in(request), effect, word)))

    return router
