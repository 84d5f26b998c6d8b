"""The app of ``serving_app``, mounted in an application of somebody's own, under a plain uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from serving_app import rt


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with rt:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/agents", rt.asgi())

if __name__ == "__main__":
    uvicorn.run(app, port=0)
