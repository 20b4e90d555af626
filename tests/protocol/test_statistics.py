"""Statistics that scripts count per minute: means, peaks, and totals of old minutes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.test_scripts import C, Name

PAIR = C["PAIR"]
#: Minutes for which scripts keep a history in these tests.
KEEP = 5


class Counted(Name):
    """A name for which scripts count events."""

    @property
    def minute(self) -> int:
        return self.now // 60_000

    def counts(self) -> dict[str, int]:
        """Return the counters of this minute by event, without the peak."""
        own = {f.split(":")[1]: int(n) for f, n in self.stats.items() if f != "tidied"}
        return {what: n for what, n in own.items() if what != "p"}

    def count_before(self, what: str, value: int, *ago: int, tidied: int = 3) -> None:
        """Set the counter of the event `what` to `value` in earlier minutes. `ago`: minutes since
        each of them. `tidied`: minutes since a script last added old minutes to the totals."""
        if not self.stats:
            self.hold("other")
            self.end("other")
            self.pass_time(60_000)
        fields = {f"{self.minute - one}:{what}": str(value) for one in ago}
        self.change("stats", tidied=str(self.minute - tidied), **fields)


@pytest.fixture
def x() -> Counted:
    return Counted(keep=KEEP)


def test_statistics_expire_and_are_stored_only_if_a_history_is_kept(x: Counted) -> None:
    x.hold("a")
    ((_, _, _, expiry),) = [row for row in x.names["t:{x}:"] if row[0] == x.keys.stats]
    assert (KEEP + 2) * 60_000 == expiry - x.now
    off = Counted()
    off.hold("a")
    off.ask("b", "try")
    assert {} == off.stats


# Totals of old minutes


@pytest.mark.parametrize("what", "gwrntkcslbump")
@pytest.mark.parametrize("tidied", [1, 3], ids=["in constant use", "after a pause"])
def test_counter_is_added_to_the_totals_when_its_minute_is_too_old(
    x: Counted, what: str, tidied: int
) -> None:
    value = 2 * PAIR + 3500 if what in "wr" else 7
    x.count_before(what, value, KEEP + 1, KEEP, KEEP - 1, tidied=tidied)
    x.hold("a")
    left = [ago for ago in range(10) if x.stats.get(f"{x.minute - ago}:{what}") == str(value)]
    assert [KEEP - 1, KEEP] == left
    expected = {"p": (None, None), "w": ("2", "3500"), "r": ("2", "3500")}.get(what, ("7", None))
    assert expected == (x.stats.get(f"total:{what}"), x.stats.get(f"total:{what}:ms"))


def test_statistics_of_old_minutes_are_merged_into_quarters_of_an_hour() -> None:
    fine, quarter, keep = C["FINE"], C["QUARTER"], C["FINE"] + 60
    x = Counted(keep=keep)
    # Set the clock to one minute before a quarter of an hour begins, for example to 11:59.
    x.pass_time(-(x.now % (quarter * 60_000)) - 60_000)
    for what, value in (("n", 4), ("p", 5), ("w", PAIR + 20)):
        x.count_before(what, value, fine + 1, fine + 2, fine)
    x.count_before("p", 9, fine + 3)
    x.hold("a")
    first = x.minute - fine - quarter
    quarters = {f.removeprefix(f"{first}q:"): n for f, n in x.stats.items() if "q:" in f}
    assert {"n": "8", "p": "9", "w": "2", "w:ms": "40"} == quarters
    assert "4" == x.stats[f"{x.minute - fine}:n"]
    x.end("a")
    x.pass_time((keep - fine + quarter) * 60_000)
    x.hold("b")
    assert ("12", "3", "60") == tuple(x.stats[f"total:{what}"] for what in ("n", "w", "w:ms"))
    assert [] == [field for field in x.stats if field.startswith(f"{first}q")]


def test_script_reads_few_statistics_when_a_name_was_unused_for_weeks(x: Counted) -> None:
    x.count_before("g", 1, 0, tidied=30_000)
    reads: list[Any] = []

    class Reading(x.store):  # type: ignore[name-defined, misc]
        def call(self, *args: Any) -> Any:
            reads.append(args)
            return super().call(*args)

    x.store = Reading
    x.pass_time(60_000)
    x.hold("a")
    assert len(reads) < 100


# What is counted

TIMES = {"expire": 500, "pass": 1000, "silence": C["CLAIM"]}
ASKS: dict[str, Any] = {how: {"how": how} for how in ("try", "skip", "shadow", "again")}
ASKS |= {"hold": {}, "wait": {"lease": 9000}, "full": {"max_waiters": 1}}
ENDS: dict[str, Any] = {"retain": {"hold": 500}}


@pytest.mark.parametrize(
    ("acts", "expected"),
    {
        "a grant": ("hold a", "g"),
        "a rejection": ("hold a; try b", "g n"),
        "a rejection while paused": ("pause; try a", "n u"),
        "a skip": ("hold a; skip b", "g k"),
        "a skip while paused": ("pause; skip a", "k"),
        "too many waiters": ("hold a; wait b; full c", "g n m"),
        "a grant in shadow mode": ("hold a; shadow b", "g s"),
        "a release": ("hold a; release a", "g r"),
        "a handoff": ("hold a; wait b; release a", "g r w"),
        "a timeout": ("hold a; wait b; giveup b", "g t"),
        "a wait that its caller forbids": ("hold a; wait b; withdraw b", "g n"),
        "a timeout while paused": ("pause; wait b; giveup b", "n u"),
        "an undo": ("hold a; wait b; undo b; undo new", "g"),
        "an expired lease": ("hold a; pass; hold b", "g g c"),
        "an unclaimed handoff": ("hold a; wait b c; release a; silence; again c", "g r w w c"),
        "a lost lease": ("hold a; lost a", "g l"),
        "retained permits": ("hold a; retain a; expire; hold b", "g g r"),
    }.values(),
)
def test_each_event_is_counted_exactly_once(x: Counted, acts: str, expected: str) -> None:
    for act in acts.split("; "):
        what, *tokens = act.split(" ")
        if what in TIMES:
            x.pass_time(TIMES[what])
        elif what == "pause":
            x.operate(what)
        for token in tokens:
            x.ask(token, **ASKS[what]) if what in ASKS else x.end(
                token, **ENDS.get(what, {"how": what})
            )
    counted = {what: n // PAIR if what in "wr" else n for what, n in x.counts().items()}
    assert {what: expected.split(" ").count(what) for what in expected.split(" ")} == counted


def test_statistics_contain_how_long_callers_waited_and_held_their_permits(x: Counted) -> None:
    x.hold("a", lease=9000)
    x.pass_time(400)
    x.wait("b")
    x.pass_time(2500)
    x.end("a")
    assert (PAIR + 2500, PAIR + 2900) == (x.counts()["w"], x.counts()["r"])


# Means


@pytest.mark.parametrize(
    ("this", "last", "mean"),
    [
        (0, 2 * PAIR + 3000, "1500"),
        (PAIR + 600, 2 * PAIR + 3000, "1200"),
        (PAIR + 600, 0, "600"),
        (0, 0, ""),
    ],
)
def test_rejection_contains_the_mean_hold_of_the_last_two_minutes(
    x: Counted, this: int, last: int, mean: str
) -> None:
    x.hold("a")
    held = {f"{x.minute}:r": this, f"{x.minute - 1}:r": last, f"{x.minute - 2}:r": 9}
    x.change("stats", **{field: str(sum_) for field, sum_ in held.items() if sum_})
    assert f"no full 0 {mean} 1" == x.ask("b", "try")


# Peaks


@pytest.mark.parametrize("compact", [1, 0], ids=["compact", "expanded"])
def test_peak_is_the_largest_number_of_permits_in_use_during_the_minute(compact: int) -> None:
    x = Counted(keep=KEEP, compact=compact)
    for permits, peak in ((1, "1"), (2, "2"), (3, "3"), (2, "3"), (1, "3")):
        x.hold("a", permits=permits, limit=9)
        assert peak == x.stats[f"{x.minute}:p"]
        x.end("a")
    x.hold("a", limit=9, permits=4)
    x.hold("b", limit=9, permits=3)
    x.end("a")
    x.end("b")
    assert "7" == x.stats[f"{x.minute}:p"]
    x.lose("info")  # as if the name was idle until its keys expired
    x.lose("leases")
    x.hold("a", limit=9)
    assert "7" == x.stats[f"{x.minute}:p"]
    x.pass_time(60_000)
    x.hold("b", limit=9)
    assert "1" == x.stats[f"{x.minute}:p"], "the peak of another minute counts"


def test_writer_counts_as_one_permit_in_the_peak(x: Counted) -> None:
    x.hold("a", permits=0, kind="w", limit=9)
    assert "1" == x.stats[f"{x.minute}:p"]
    x.end("a")
    x.hold("b", "c", kind="w", limit=9)
    assert "2" == x.stats[f"{x.minute}:p"]
