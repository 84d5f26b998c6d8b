"""Where are the files that a wheel carries and that are written outside of the package?"""

from __future__ import annotations

from pathlib import Path


def packed(written: str) -> Path:
    """The folder ``written`` of the repository: packed beside this module, or in a checkout where it was written.

    What is packed under which name, ``pyproject.toml`` says.
    """
    here = Path(__file__)
    beside = here.parent / "packed" / written
    return beside if beside.is_dir() else here.parents[3] / written
