"""The command line: another caller of the same door. ``ondol --help`` lists what it can do."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code: see ``ondol.cli.codes``."""
    from ondol.cli.app import run

    raise SystemExit(run(arguments))
