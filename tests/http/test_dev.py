"""``ondol dev``: a saved file starts the app again, nobody is refused meanwhile, and running runs go on."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
from http_served import until

from ondol.testing import Process

APP = '''
import asyncio
from pathlib import Path
from ondol import Agent, tool
from ondol.testing import ScriptedModel, call

HERE = Path(__file__).parent

@tool(effect="read")
async def look() -> str:
    """Look, until the file is there."""
    (HERE / "looking").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return "seen"

agent = Agent("agent", instructions="VERSION", model=ScriptedModel([[call("look")], "done"]), tools=[look])
'''


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def test_a_saved_file_starts_the_app_again_and_the_run_goes_on(db: str, tmp_path: Path) -> None:
    file, port = tmp_path / "app.py", free_port()
    file.write_text(APP.replace("VERSION", "one"))
    command = ["-m", "ondol", "dev", str(file), "--port", str(port)]
    async with (
        Process(command, env={"ONDOL_DB": db}, cwd=tmp_path) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=40) as client,
    ):
        await process.line("serving agent on")
        run = (await client.post("/v1/runs", json={"agent": "agent", "input": "go"})).json()["id"]
        await until((tmp_path / "looking").exists)
        file.write_text(APP.replace("VERSION", "two"))
        await process.line("serving agent on")
        (agent,) = (await client.get("/v1/agents")).json()["items"]
        assert agent["instructions"] == "two"
        (tmp_path / "go").touch()
        ended = await client.get(f"/v1/runs/{run}/result", params={"wait": 30})
        assert ended.json()["text"] == "done"
        process._popen.send_signal(signal.SIGINT)
        assert await process.wait() == 130
