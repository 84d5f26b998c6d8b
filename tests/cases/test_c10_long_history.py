"""C10, the history: a session that is longer than the window opens and answers, and nothing too long is sent twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from kit import NEXT, Conversation, Outside, holds_in_all_cases

from ondol import Agent, Context, ModelError, ModelRequest, RunFailed, Runtime, tool
from ondol.model import ModelOutput
from ondol.providers.script import Script
from ondol.sizes import fits_after
from ondol.testing import Downstream, ScriptedModel, call

WINDOW = 8_000  # tokens of four characters
LONG = "as I said before. " * 890  # about 4,000 tokens
TURNS = 6


@tool(effect="read")
async def page(ctx: Context[Outside], n: int) -> str:
    await ctx.deps.effect(ctx, "page")
    return f"page {n} " * 700  # about 1,200 tokens


class Narrow(Conversation):
    def __init__(self, kind: type[ScriptedModel] = ScriptedModel, /, **scripts: Script) -> None:
        super().__init__({})
        self.of = {said: kind(script, window=WINDOW) for said, script in scripts.items()}
        self.of[NEXT] = ScriptedModel(["hello to you"])


async def grow(db: str) -> None:
    """A session whose history is three times as long as the window."""
    wide = Agent("a", model=ScriptedModel([LONG]))
    async with Runtime(db, agents=[wide]) as rt:
        for n in range(TURNS):
            await rt.run(wide, f"question {n}", session="s")


def overflows(model: Narrow, said: str) -> list[ModelRequest]:
    """The requests that were too long."""
    from ondol.providers.script import estimate_tokens

    return [r for r in model.of[said].requests if estimate_tokens(r) > WINDOW]


def sizes(requests: Sequence[ModelRequest]) -> list[int]:
    return [sum(len(m.text) for m in r.messages) for r in requests]


class CountsNoFurther(ScriptedModel):
    """vLLM since 0.15: it says that the request is longer than what fits, and not by how much."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        try:
            async for output in super().stream(request):
                yield output
        except ModelError as error:
            said = (
                f"This model's maximum context length is {WINDOW} tokens. However, you requested 0 output tokens and "
                f"your prompt contains at least {WINDOW + 1} input tokens, for a total of at least {WINDOW + 1} tokens."
            )
            raise ModelError(error.kind, said) from error


@pytest.mark.parametrize("kind", [ScriptedModel, CountsNoFurther])
async def test_c10_a_history_three_times_the_window_is_shown_in_part_and_the_session_answers(
    db: str, downstream: Downstream, kind: type[ScriptedModel]
) -> None:
    await grow(db)
    model = Narrow(kind, go=["here I am"], again=["still here"])
    agent = Agent("a", model=model)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        for said in ("go", "again"):
            run = await rt.start(agent, said, session="s")
            await run.result()
            first, second = model.of[said].requests
            assert len(overflows(model, said)) == 1
            assert sizes([second]) < sizes([first])
            assert "requests of this conversation, and what followed on them, are not shown" in second.messages[1].text
            assert [m.origin for m in second.messages[1:3]] == ["runtime", None]
            assert second.messages[-1].text == said
            seen = await rt.context(run.id)
            assert seen.matches
            assert [m.text for m in seen.messages] == [m.text for m in second.messages]
        assert len(await (await rt.get_session("s")).messages()) == 2 * TURNS + 4  # nothing is lost of it
        await holds_in_all_cases(rt, db, agent, "s", downstream)


class CountsDigits(ScriptedModel):
    """A token is four characters, and each digit is one: a text's length does not say how many it has."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        text = "".join(m.text for m in request.messages)
        digits = sum(map(str.isdigit, text))
        if (counted := digits + (len(text) - digits) // 4) > WINDOW:
            self.requests.append(request)
            raise ModelError("context_overflow", f"the input has {counted} tokens, the window {WINDOW}")
        async for output in super().stream(request):
            yield output


async def test_c10_a_history_whose_newest_turns_are_heavier_than_they_look_is_made_shorter_until_it_fits(
    db: str, downstream: Downstream
) -> None:
    await grow(db)
    wide = Agent("a", model=ScriptedModel(["0123456789" * 300]))  # 3,000 tokens, and looks like 750
    async with Runtime(db, agents=[wide]) as rt:
        for n in range(3):
            await rt.run(wide, f"number {n}", session="s")
    model = Narrow(CountsDigits, go=["here I am"])
    agent = Agent("a", model=model)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s")
        assert (await run.result()).text == "here I am"
        asked = sizes(model.of["go"].requests)
        assert len(asked) == 3
        assert asked == sorted(asked, reverse=True)
        assert (await rt.context(run.id)).matches
        await holds_in_all_cases(rt, db, agent, "s", downstream)


async def test_c10_a_turn_that_grows_leaves_out_more_of_the_history_before_it_is_too_long_again(
    db: str, downstream: Downstream
) -> None:
    await grow(db)
    model = Narrow(go=[[call("page", n=n)] for n in range(4)] + ["read them all"])
    agent = Agent("a", model=model, tools=[page])
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, "go", session="s")
        assert (await run.result()).text == "read them all"
        assert len(overflows(model, "go")) == 1
        assert len(model.of["go"].requests) == 6
        await holds_in_all_cases(rt, db, agent, "s", downstream, reads=["page"])


async def test_c10_what_is_too_long_by_itself_is_sent_once_and_the_next_turn_works(
    db: str, downstream: Downstream
) -> None:
    model = Narrow(**{LONG * 3: ["never"]})
    agent = Agent("a", model=model)
    async with Runtime(db, agents=[agent], deps=Outside(downstream.url)) as rt:
        run = await rt.start(agent, LONG * 3, session="s")
        with pytest.raises(RunFailed, match="model_context_overflow"):
            await run.result()
        assert len(model.requests) == 1
        await holds_in_all_cases(rt, db, agent, "s", downstream)


OVERFLOWS = [  # 1000 estimated tokens were sent
    ("This model's maximum context length is 8,192 tokens, and you sent 16384", 400),
    ("prompt is too long: 250000 tokens > 200000 maximum", 640),
    ("failed with status 400 (context_overflow): too long", 250),
    ("openai:gpt-4o-2024-08-06 failed with status 400: the maximum is 8000 tokens, 10000 were sent", 640),
    ("anthropic:claude-sonnet-4-20250514 failed with status 400: 250000 tokens > 200000 maximum", 640),
    ("maximum context length is 8192 tokens, you sent 10240 (request id: 20251201123456789012345AbC)", 640),
    ("maximum context length is 8192 tokens, you sent 10240 (request id: 20251201123456789012345)", 640),
    ("model's maximum context length of 8192 tokens. You requested 12288: 10240 from the input and 2048 for it", 533),
    ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease them", 761),
    ("The rendered prompt is 327680 tokens, exceeding the model's 262,144-token context window.", 640),
    ("request (33056 tokens) exceeds the available context size (32768 tokens), try increasing it", 793),
    ("The prompt (length 5120) is longer than the maximum model length of 4096.", 640),
    ("However, your prompt contains at least 8193 input tokens, for a total of at least 8193 tokens.", 500),
    ("(parameter=input_tokens, value=8193): the limit is 8192 tokens, the prompt has at least 8193", 500),
    ("Range of input length should be [1, 98304]", 250),
    ("context window exceeds limit (2013)", 250),
]


@pytest.mark.parametrize(("said", "fits"), OVERFLOWS)
def test_c10_how_much_fits_is_taken_from_what_the_provider_says_or_guessed_with_care(said: str, fits: int) -> None:
    assert abs(fits_after(said, 1000) - fits) <= 1
