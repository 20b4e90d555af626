"""Random clients call the scripts, and the checker finds no violation of its rules.

`tests/support/test_history.py` proves that the checker finds violations.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.support.history import History, judge
from tests.support.workload import FullAtTimes, ModelServer, Workload, call, kinds

#: Maps the title of a run to the names that its random clients use: one name, or all names. In the
#: run "full memory", the server's memory is full at times.
NAMES = {kind.keys.display: [kind] for kind in kinds()}
NAMES |= {"all": kinds(), "full memory": kinds(keep=5)}
SEEN = (
    "denied",
    *("granted at once", "handed over", "reclaimed", "unclaimed", "waited", "dead"),
    *("refused, share", "refused, full", "refused, paused", "downgraded", "kind", "large"),
    "expiries",
)


# Each process that runs one of these tests computes for as long as the random clients work.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.parametrize("calls", [1250, pytest.param(2500, marks=pytest.mark.deep)]),
]


@cache
def ran(names: str, calls: int) -> tuple[Workload, History]:
    random = Workload(FullAtTimes() if names == "full memory" else ModelServer(), 1, NAMES[names])
    random.run(calls)
    return random, judge(random.server.entries)


@pytest.mark.promise(1, 2, 5, 8, 9, 10, 11, 12, 14, 32)
@pytest.mark.parametrize("names", NAMES)
def test_scripts_break_no_rule_when_random_clients_call_them(names: str, calls: int) -> None:
    _, history = ran(names, calls)
    assert not history.violations, history.report()


def test_random_clients_cause_each_event_often(calls: int) -> None:
    counts = sum((ran(names, calls)[1].counts for names in NAMES), Counter[str]())
    assert {} == {event: counts[event] for event in SEEN if counts[event] <= 5}


@pytest.mark.promise(12, 32)
@pytest.mark.parametrize("names", NAMES)
def test_no_key_is_left_after_the_last_lease_and_waiter(names: str, calls: int) -> None:
    random, _ = ran(names, calls)
    random.settle()
    keys = random.kinds[-1].keys
    for _ in range(3):  # each permit that is cleared goes to a waiter, which is cleared next
        for token in list(random.server.contents(keys, keys.info)):
            random.server.run(call("clear", keys, token))
    fields = random.server.contents(keys, keys.info)
    assert [] == [field for field in fields if field.startswith("/")], "a share has left data"
    assert {} == random.server.contents(keys, keys.parked)
    random.pass_time(150)  # until the keys and the tombstones have expired
    assert [] == random.server.left_keys()
