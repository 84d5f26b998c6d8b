"""The unit for systemd: ``systemd-analyze verify`` finds nothing wrong in it, and it runs a command that there is.

Where there is no systemd, the test run says that this was not tried.
"""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ondol.cli.app import _ORDER

UNIT = Path(__file__).parents[2] / "docs" / "deploy" / "ondol.service"
PROGRAM = "/srv/app/.venv/bin/ondol"


def verified(text: str, folder: Path) -> str:
    """What systemd says of a unit; nothing where it is as it should be."""
    here = str(Path(sys.executable).with_name("ondol"))  # it looks whether the program is there
    assert text.count(PROGRAM) == 1
    (folder / "ondol.service").write_text(text.replace(PROGRAM, here))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", folder / "ondol.service"], capture_output=True, text=True,
        timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or done.stderr
    return done.stderr


def test_the_unit_is_one(tmp_path: Path) -> None:
    assert verified(UNIT.read_text(), tmp_path) == ""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0] == PROGRAM
    assert words[1] in _ORDER
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > 10  # longer than a drain


@pytest.mark.parametrize(
    ("right", "wrong", "finds"),
    [
        ("Restart=always", "Restart=sometimes", "restart"),
        ("StateDirectory=", "StateDirectories=", "StateDirectories"),
        ("KillSignal=SIGTERM", "KillSignal=SIGSTOPP", "SIGSTOPP"),
        (PROGRAM, PROGRAM + "-not", "not executable"),
    ],
)
def test_a_fault_in_the_unit_is_found(tmp_path: Path, right: str, wrong: str, finds: str) -> None:
    text = UNIT.read_text()
    assert right in text
    assert finds in verified(text.replace(right, wrong), tmp_path)
