"""What `python -m tests.plants` plants still has its place in the package, and tests to find it."""

import pytest

from tests.conftest import DEEP
from tests.plants.__main__ import ROOMS
from tests.plants.plant import ROOT, Plant

EVERY = [plant for plants in ROOMS.values() for plant in plants]


@pytest.mark.parametrize("plant", EVERY, ids=lambda plant: plant.name)
def test_a_plant_has_its_place_and_its_tests(plant: Plant) -> None:
    plant.check()
    assert plant.text != plant.instead
    for node in plant.tests:
        file, _, name = node.partition("::")
        assert file.split("/")[0] not in DEEP, "make test has to find it"
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, node


def test_no_two_plants_have_one_name() -> None:
    assert len(EVERY) == len({plant.name for plant in EVERY})
