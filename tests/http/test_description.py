"""The description of the door is the door: as it is served, shipped and printed, and as schemathesis tries it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest
from door import door

from ondol import Agent, Runtime
from ondol.errors import CODES
from ondol.http import examples
from ondol.http.problems import STATUS
from ondol.testing import Process, ScriptedModel

ROOT = Path(__file__).parents[2]
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "1")  # a route; the torture tries more


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_shipped_and_documented_is_what_is_served(reference: ModuleType) -> None:
    described = reference.described()
    how = "run: python scripts/reference.py"
    assert (ROOT / "docs" / "openapi.json").read_text() == reference.openapi_text(described), how
    assert (ROOT / "docs" / "http.md").read_text() == reference.reference_text(described), how
    assert described["openapi"] == "3.1.0"


async def test_each_example_is_taken(db: str, reference: ModuleType) -> None:
    """By a door that has nothing of what it names: what is refused is not how it is written."""
    described = reference.described()
    assert set(examples.BODIES) == {
        o["operationId"] for path in described["paths"].values() for o in path.values() if "requestBody" in o
    }
    numbers = itertools.count()
    agents = [Agent("support", model=ScriptedModel(lambda _: "hello"))]
    async with Runtime(db, agents=agents) as rt, door(rt) as http:
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                given = operation.get("parameters", [])
                named = {p["name"]: str(p["example"]) for p in given if "example" in p}
                assert all(p["name"] in named for p in given if p.get("required") and p["name"] != "message"), path
                address = path.format_map({"message": "m1"} | {k: quote(v, safe="") for k, v in named.items()})
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                for example in content.get("examples", {None: {"value": None}}).values():
                    headers = {p["name"]: p["example"] for p in given if p["in"] == "header" and "example" in p}
                    headers |= {"If-Match": "*"} if method == "post" and "runs" in path else {}
                    if "Idempotency-Key" in headers:  # each is another operation here
                        headers["Idempotency-Key"] = f'"{next(numbers)}"'
                    query = {p["name"]: p["example"] for p in given if p["in"] == "query" and "example" in p}
                    if "events" in path:
                        continue  # it goes on until one leaves
                    answer = await http.client.request(
                        method, address, json=example["value"], headers=headers, params=query
                    )
                    assert answer.status_code not in (400, 405, 415, 422, 428, 500), (method, address, answer.text)


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(CODES)


@pytest.mark.long
async def test_schemathesis_finds_no_answer_that_is_not_described(tmp_path: Path) -> None:
    server = Path(__file__).with_name("schema_app.py")
    async with Process([server], env={"ONDOL_DB": f"sqlite:///{tmp_path / 'ondol.db'}"}) as process:
        port = (await process.line("ready")).split()[1]
        command = [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(ROOT / "schemathesis.toml"), "run",
            f"http://127.0.0.1:{port}/openapi.json", "--max-examples", EXAMPLES, "--seed", "17", "--no-color",
            "--request-timeout", "20",
        ]  # fmt: skip
        done = await _run(command, tmp_path)
        assert done.returncode == 0, done.stdout + process.errors
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert re.search(rf"✅ +{phase}", done.stdout), done.stdout


async def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    import asyncio

    return await asyncio.to_thread(subprocess.run, command, cwd=cwd, capture_output=True, text=True, timeout=200)
