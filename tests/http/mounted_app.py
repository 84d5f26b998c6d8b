"""The app of ``serving_app``, mounted in an application of somebody's own, under a plain uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from serving_app import rt
from uvicorn.config import LOGGING_CONFIG


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with rt:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/agents", rt.asgi())

if __name__ == "__main__":
    LOGGING_CONFIG["handlers"]["default"]["stream"] = "ext://sys.stdout"  # where a test waits for the address
    uvicorn.run(app, port=0)
