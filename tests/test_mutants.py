"""Each mutant of `python -m tests.mutants` still applies to the package, and its tests exist."""

import pytest

from tests.conftest import DEEP
from tests.mutants.__main__ import ROOMS
from tests.mutants.plant import ROOT, Plant

pytestmark = pytest.mark.tools

EVERY = [plant for plants in ROOMS.values() for plant in plants]


@pytest.mark.parametrize("plant", EVERY, ids=lambda plant: plant.name)
def test_mutant_applies_to_the_package_and_names_existing_tests(plant: Plant) -> None:
    plant.path()
    assert plant.text != plant.instead
    assert plant.tests
    for file in plant.tests:
        assert file.split("/")[0] not in DEEP, "make test has to find it"
        assert (ROOT / "tests" / file).exists(), file


def test_mutant_names_are_unique() -> None:
    assert len(EVERY) == len({plant.name for plant in EVERY})
