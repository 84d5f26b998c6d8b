"""The files that run a server: what reads them finds nothing wrong, and they name commands that there are.

Each linter is shown to find a fault that is put into the file. That of systemd is in ``test_systemd``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ondol.cli.app import _ORDER

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
PROGRAMS = Path(sys.executable).parent


def hadolint(file: Path) -> str:
    """What it finds; nothing where the file is as it should be."""
    return _found([str(PROGRAMS / "hadolint"), "--no-color", str(file)])


def compose_schema(file: Path) -> str:
    """What the schema of the Compose specification does not allow."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return _found(command)


def _found(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode == 0) == (done.stdout.strip() in ("", "ok -- validation done")), done
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_dockerfile() -> None:
    assert hadolint(DEPLOY / "Dockerfile") == ""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert lines[0].startswith("FROM python:")
    user = next(n for n, line in enumerate(lines) if line.startswith("USER "))
    assert all(line.split()[0] not in ("RUN", "COPY") for line in lines[user:])  # who serves owns no program
    command = re.fullmatch(r"CMD (\[.*\])", lines[-1])
    assert command is not None
    words = yaml.safe_load(command[1])
    assert words[0] == "ondol"
    assert words[1] in _ORDER


@pytest.mark.parametrize(
    ("line", "wrong", "finds"),
    [
        ("STOPSIGNAL SIGTERM\n", "STOPSIGNALS SIGTERM\n", "missing whitespace"),
        ("FROM python:3.13-slim\n", "FROM python\n", "DL3006"),
        ("WORKDIR /srv/app\n", "WORKDIR srv/app\n", "DL3000"),
    ],
)
def test_a_fault_in_the_dockerfile_is_found(tmp_path: Path, line: str, wrong: str, finds: str) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert line in text
    (tmp_path / "Dockerfile").write_text(text.replace(line, wrong))
    assert finds in hadolint(tmp_path / "Dockerfile")


def test_the_compose_file() -> None:
    assert compose_schema(DEPLOY / "compose.yaml") == ""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    (service,) = compose["services"].values()
    assert service["volumes"] == ["data:/data"]
    assert set(compose["volumes"]) == {"data"}
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.parametrize(
    ("right", "wrong", "finds"),
    [
        ("restart: always", "restart: [always]", "restart"),
        ("env_file:", "env_files:", "env_files"),
        ("interval: 10s", "intervall: 10s", "intervall"),
    ],
)
def test_a_fault_in_the_compose_file_is_found(tmp_path: Path, right: str, wrong: str, finds: str) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert right in text
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
    assert finds in compose_schema(tmp_path / "compose.yaml")
