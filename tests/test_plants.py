"""What `python -m tests.plants` plants still has its place in the package, and tests to find it."""

import ast

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
        found = those_of_make_test(text)
        assert name.partition("[")[0] in found if name else found, node


def those_of_make_test(text: str) -> set[str]:
    """The tests of a module but for those marked as deep, which `make test` leaves out."""
    made = [
        one
        for one in ast.parse(text).body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {one.name for one in made if one.name.startswith("test_") and not is_deep(one)}


def is_deep(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(mark) == "pytest.mark.deep" for mark in test.decorator_list)


def test_a_test_that_is_left_out_finds_no_plant() -> None:
    text = "@pytest.mark.deep\ndef test_a(): ...\n\nasync def test_b(): ...\n\ndef help(): ...\n"
    assert {"test_b"} == those_of_make_test(text)


def test_no_two_plants_have_one_name() -> None:
    assert len(EVERY) == len({plant.name for plant in EVERY})
