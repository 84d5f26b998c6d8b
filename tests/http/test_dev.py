"""``ondol dev``: a saved file starts the app again, nobody is refused meanwhile, and running runs go on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from ondol.testing import Process

APP = '''
import asyncio
from ondol import Agent, tool
from ondol.testing import ScriptedModel, call

@tool(effect="read")
async def look() -> str:
    """Look, until the test says so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()

agent = Agent("agent", instructions="VERSION", model=ScriptedModel([[call("look")], "done"]), tools=[look])
'''


async def test_a_saved_file_starts_the_app_again_and_the_run_goes_on(db: str, tmp_path: Path) -> None:
    file, looking, go = tmp_path / "app.py", asyncio.Event(), asyncio.Event()

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        looking.set()
        await go.wait()
        writer.write(b"seen")
        writer.close()

    async with await asyncio.start_server(meet, "127.0.0.1", 0) as meeting:
        app = APP.replace("PORT", str(meeting.sockets[0].getsockname()[1]))
        file.write_text(app.replace("VERSION", "one"))
        command = ["-m", "ondol", "dev", str(file), "--port", "0"]
        async with Process(command, env={"ONDOL_DB": db}, cwd=tmp_path) as process:
            url = (await process.line("serving agent on")).rpartition(" ")[2]
            async with httpx.AsyncClient(base_url=url, timeout=40) as client:
                run = (await client.post("/v1/runs", json={"agent": "agent", "input": "go"})).json()["id"]
                await looking.wait()
                file.write_text(app.replace("VERSION", "two"))
                assert (await process.line("serving agent on")).rpartition(" ")[2] == url
                (agent,) = (await client.get("/v1/agents")).json()["items"]
                assert agent["instructions"] == "two"
                go.set()
                ended = await client.get(f"/v1/runs/{run}/result", params={"wait": 30})
                assert ended.json()["text"] == "done"
            process._popen.send_signal(signal.SIGINT)
            assert await process.wait() == 130
