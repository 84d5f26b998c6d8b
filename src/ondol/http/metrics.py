"""What does the process do right now? Numbers in the text form of OpenMetrics 1.0."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondol.http.drain import Drain
from ondol.runtime import Runtime

MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds until an answer begins
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")  # that an address here may have
_NAMED = frozenset({*METHODS, "OPTIONS"})  # of others there is no end: each would take memory for ever
_COUNTED = 1000  # of what waits; a longer queue is shown as this long


class Metrics:
    """Counts requests as they pass; the rest is read when it is asked for."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(_BUCKETS) + 1)
        self._seconds = 0.0

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = asyncio.get_running_loop().time()

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    took = asyncio.get_running_loop().time() - began
                    self._requests[scope["method"] if scope["method"] in _NAMED else "?", message["status"]] += 1
                    self._buckets[bisect.bisect_left(_BUCKETS, took)] += 1
                    self._seconds += took
                await send(message)

            await app(scope, receive, sending)

        return counting

    async def text(self, rt: Runtime, drain: Drain, tenant: str) -> str:
        lines = ["# TYPE ondol_http_requests counter", "# HELP ondol_http_requests Answers, by method and status."]
        for (method, status), n in sorted(self._requests.items()):
            lines.append(f'ondol_http_requests_total{{method="{method}",status="{status}"}} {n}')
        lines += [
            "# TYPE ondol_http_answer_seconds histogram", "# UNIT ondol_http_answer_seconds seconds",
            "# HELP ondol_http_answer_seconds Time until an answer began.",
        ]  # fmt: skip
        ends = [*(f"{b:g}" for b in _BUCKETS), "+Inf"]
        sums = list(itertools.accumulate(self._buckets))
        lines += [f'ondol_http_answer_seconds_bucket{{le="{end}"}} {n}' for end, n in zip(ends, sums, strict=True)]
        lines += [f"ondol_http_answer_seconds_count {sums[-1]}", f"ondol_http_answer_seconds_sum {self._seconds:.6f}"]
        asks = await rt.asks(limit=_COUNTED, tenant=tenant)
        gauges = {
            "ondol_streams": ("Event streams that are open in this process.", drain.streams),
            "ondol_drives": ("This process drives runs: 1.", int(rt.drives)),
            "ondol_draining": ("This process is about to stop: 1.", int(drain.begun)),
            "ondol_asks_open": (f"Asks that wait for a person, up to {_COUNTED}.", len(asks)),
            "ondol_effects_unknown": (
                "Those of them about an effect of which nobody knows the outcome.",
                sum(ask.kind == "unknown_effect" for ask in asks),
            ),
        }  # fmt: skip
        for name, (help, value) in gauges.items():
            lines += [f"# TYPE {name} gauge", f"# HELP {name} {help}", f"{name} {value}"]
        lines += [
            "# TYPE ondol_runs gauge",
            f"# HELP ondol_runs Runs that have not ended, up to {_COUNTED} a state.",
        ]
        for state in ("queued", "running", "waiting", "parked"):
            n = len(await rt.runs(state=state, limit=_COUNTED, tenant=tenant))
            lines.append(f'ondol_runs{{state="{state}"}} {n}')
        return "\n".join([*lines, "# EOF", ""])
