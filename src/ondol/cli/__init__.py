"""The command line: another caller of the same door. ``ondol --help`` lists what it can do."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code: see ``ondol.cli.codes``."""
    try:
        from ondol.cli.app import run

        code = run(arguments)
    except KeyboardInterrupt:  # before there was a command: it takes a moment to load
        code = 130
    raise SystemExit(code)
