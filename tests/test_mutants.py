"""The guards that ``make mutants`` takes away are still where it looks for them."""

from __future__ import annotations

import pytest
from mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_guard_is_in_its_file_and_its_tests_exist(mutant: Mutant) -> None:
    assert mutant.guard in (ROOT / "src" / "ondol" / mutant.file).read_text()
    assert mutant.guard != mutant.gone
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert not name or f"def {name.rpartition('::')[2]}(" in (ROOT / file).read_text()
