"""In which threads does the runtime wait for files?

Not in those of the application (``asyncio.to_thread``): it may have filled them, with tools that wait there above all,
and a result in hand would not be durable before one of these ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """What the function gives, in a thread of its own; where there is none left, in one of the application's."""
    doing, done = partial(contextvars.copy_context().run, work, *args, **kwargs), Future[T]()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(doing())
            except BaseException as error:  # it is for whoever waits
                done.set_exception(error)

    try:
        threading.Thread(target=run, name="for-ondol", daemon=True).start()
    except RuntimeError:
        return asyncio.get_running_loop().run_in_executor(None, doing)
    return asyncio.wrap_future(done)
