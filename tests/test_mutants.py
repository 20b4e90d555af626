"""Each mutant of `python -m tests.mutants` still applies to the package, and its tests exist."""

import pytest

from tests.conftest import DEEP
from tests.mutants.__main__ import AREAS
from tests.mutants.mutant import ROOT, Mutant

pytestmark = pytest.mark.tools

EVERY = [mutant for mutants in AREAS.values() for mutant in mutants]


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_package_and_names_existing_tests(mutant: Mutant) -> None:
    mutant.path()
    assert mutant.text != mutant.instead
    assert mutant.tests
    for file in mutant.tests:
        assert file.split("/")[0] not in DEEP, "make test has to find it"
        assert (ROOT / "tests" / file).exists(), file


def test_mutant_names_are_unique() -> None:
    assert len(EVERY) == len({mutant.name for mutant in EVERY})
