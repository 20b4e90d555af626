"""Steps of a quorum say what the scripts read."""

import pytest

from django_redis_sync.engine.quorum.steps import undo
from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Grant, Run

KEYS = keys_of("test", "x", None, 7)
GRANT = Grant("t", 1, 1, 0.0, 30.0, 30.0, False)


@pytest.mark.parametrize(
    "step",
    [
        plans.releasing(KEYS, GRANT, 0, 1.0),
        plans.renewing(KEYS, GRANT, 30.0, 1, 1.0),
        plans.undoing(KEYS, "t"),
    ],
    ids=lambda step: step.verb,
)
def test_an_undo_of_any_step_has_every_argument_in_its_place(step: Run) -> None:
    words = scripts.header(scripts.read("release"), "ARGV")
    given = dict(zip(words, undo(step, 1).argv, strict=True))
    expected = {"token": "t", "how": "undo", "bury": 1, "mark": "-", "keep": KEYS.keep}
    assert expected == {word: given[word] for word in expected}
