"""The files that run a server can be read by what reads them, and name commands that there are."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import yaml

from ondol.cli.app import _ORDER

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"


def ondol_words(line: str) -> list[str]:
    words = shlex.split(line)
    return words[next(n for n, w in enumerate(words) if w.endswith("ondol")) + 1 :]


def test_the_unit_of_systemd() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "ondol.service")
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    service = unit["Service"]
    assert ondol_words(service["ExecStart"])[0] in _ORDER
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > 10  # longer than a drain


def test_the_dockerfile() -> None:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "CMD"}
    assert {line.split()[0] for line in lines} <= known
    assert lines[0].startswith("FROM python:")
    assert lines.index("USER ondol") < len(lines) - 1  # not as root
    command = re.fullmatch(r"CMD (\[.*\])", lines[-1])
    assert command is not None
    assert yaml.safe_load(command[1])[:2] == ["ondol", "serve"]


def test_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    (service,) = compose["services"].values()
    assert service["volumes"] == ["data:/data"]
    assert set(compose["volumes"]) == {"data"}
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
