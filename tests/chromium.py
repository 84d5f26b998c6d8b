"""Which browser do the tests of the console use? One that is installed here: what a library would bring is not."""

from __future__ import annotations

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
