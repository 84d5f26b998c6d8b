"""The five minutes of the README, word for word: from ``pip install`` to an unknown effect settled in a browser.

The folder and the environment begin empty, the commands are those of the page, and so are the words that are written
and pressed in the browser. Where there is no Chromium it ends before the last part, and the test run says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CHROMIUM
from pages import FIVE_MINUTES, ROOT, Typed, blocks, environment, looks_like, part, play, typed
from playwright.sync_api import Page, expect, sync_playwright

INSTALLING = 300.0  # seconds
PATIENCE = 20_000  # milliseconds in which a page must show what happened
IN_A_BROWSER = "### In a browser"


@pytest.mark.long
def test_five_minutes_from_pip_install_to_an_unknown_effect_settled_in_the_browser(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page = (ROOT / "README.md").read_text()
    section = part(page, FIVE_MINUTES)
    last = part(section, IN_A_BROWSER)
    first = "\n" * page[: page.index(section)].count("\n") + section.replace(last, "")
    assert "not run" not in section
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs, folder = tmp_path / "venv" / "bin", tmp_path / "work"
    folder.mkdir()
    (folder / "ondol").symlink_to(ROOT)
    for block in blocks(first):
        play(block, "README.md", folder, programs, INSTALLING)
    (folder / "ondol").unlink()  # what was installed does not need it
    if CHROMIUM:
        images = request.config.getoption("--screenshots")
        in_a_browser(last, folder, programs, Path(images) if images else None)


def in_a_browser(section: str, folder: Path, programs: Path, images: Path | None) -> None:
    with_crash, again = (command for block in blocks(section) for command in typed(block.body))
    told = re.sub(r"^```.*?^```", "", section, flags=re.M | re.S)
    said, start, approve, where, happened = re.findall(r"`([^`\n]+)`", told)
    before = {file: (folder / file).read_text().count("\n") for file in ("payments.txt", where)}
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE)
        wrong: list[str] = []
        context.on("weberror", lambda e: wrong.append(str(e.error)))
        page = context.new_page()
        with served(with_crash, folder, programs) as (server, address):
            context.on("request", lambda r: r.url.startswith(address) or wrong.append(f"asked {r.url}"))
            page.goto(address)
            page.fill("textarea[name=text]", said)
            page.click(f"button:has-text('{start}')")
            run = page.get_attribute(".foot a.id", "href")
            tab = context.new_page()
            tab.goto(f"{address}{run}")
            shows(tab, "live", "#link")
            page.click(f"button:has-text('{approve}')", no_wait_after=True)
            assert server.wait(60) == -signal.SIGKILL
            shows(tab, "the server is away", "#link")
        assert (folder / "payments.txt").read_text().count("\n") == before["payments.txt"] + 1
        with served(again, folder, programs, address.rpartition(":")[2]):
            shows(tab, "The process ended here", ".k-gap")  # nobody loads it
            shows(tab, "kim@example.com", ".card.ask .args")
            shows(tab, "unknown", ".k-tool.s-unknown")
            shows(tab, "live", "#link")
            assert "kim@example.com" in (folder / where).read_text().splitlines()[-1]
            if images is not None:
                images.mkdir(parents=True, exist_ok=True)
                tab.screenshot(path=images / "crash.png", full_page=True)
                home = context.new_page()
                home.goto(address)
                home.screenshot(path=images / "needs-you.png")
            tab.fill("input[name=evidence]", f"it is in {where}")
            tab.click(f"button:has-text('{happened}')")
            shows(tab, "completed", "#title")
            shows(tab, "I paid 30.00 back and told the customer.", "#timeline")
            tab.goto(f"{address}/effects?state=unknown")
            shows(tab, "No effect is like that.", "main")
        browser.close()
    assert wrong == []
    for file, lines in before.items():
        assert (folder / file).read_text().count("\n") == lines + 1, file


def shows(page: Page, words: str, where: str) -> None:
    expect(page.locator(where)).to_contain_text(words, timeout=PATIENCE)


@contextlib.contextmanager
def served(line: Typed, folder: Path, programs: Path, port: str = "0") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that goes on until it is stopped, as it stands there, and the address that it prints."""
    env = environment(programs) | {"ONDOL_PORT": port}  # the one of the page may be taken on this machine
    command = ["bash", "-c", f"exec 2>&1; {line.command}"]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            printed = server.stdout.readline()
            assert looks_like(line.shown, printed.strip()), printed
            (address,) = re.findall(r"http://\S+", printed)
            yield server, address
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
