"""The description of the door is the door: as it is served, shipped and printed, and as schemathesis tries it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ondol.errors import CODES
from ondol.http.problems import STATUS
from ondol.testing import Process

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


async def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    import asyncio

    return await asyncio.to_thread(subprocess.run, command, cwd=cwd, capture_output=True, text=True, timeout=200)
