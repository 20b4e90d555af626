"""Locks with a planted defect, each of which the judge has to catch: who judges is judged, too."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from ..adapter import Adapter, Place
from .correct import SerialLock


class NeverTells(SerialLock):
    """Its lease ends, and it says that it is held."""

    def held(self, grant: Any) -> bool:
        return True


class TellsLate(SerialLock):
    """It says so half a second after another one may have it."""

    def held(self, grant: Any) -> bool:
        return bool(time.monotonic() < grant["until"] + 0.5)


class LosesForFun(SerialLock):
    """It tells of losses that were none."""

    def held(self, grant: Any) -> bool:
        return random.random() < 0.8 and super().held(grant)


class Raises(SerialLock):
    """One acquire in four fails."""

    def acquire(self, wait: float) -> Any:
        if random.random() < 0.25:
            raise OSError("no reason at all")
        return super().acquire(wait)


class GivesUpEarly(SerialLock):
    """It waits for a third of the time that it was given."""

    def acquire(self, wait: float) -> Any:
        return super().acquire(wait / 3)


class LooksThenTakes(Adapter):
    """A file that is there is the lock, in two steps that are not one."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._path = f"{place.folder}/{place.name}.taken"

    def acquire(self, wait: float) -> Any:
        end = time.monotonic() + wait
        while time.monotonic() < end:
            if not os.path.exists(self._path):
                time.sleep(0.001)
                with open(self._path, "w"):
                    return True
            time.sleep(0.002)
        return None

    def release(self, grant: Any) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)


#: Defects of the server that SerialLock asks.
OF_THE_SERVER = (
    "lets all in",
    "one too many",
    "short lease",
    "anybody's release",
    "newest first",
    "forgets one",
    "lost hand-over",
    "slow hand-over",
    "keeps the dead",
    "fence stands",
    "fence goes back",
    "hangs",
    "refuses",
)

#: Defects of the client.
OF_THE_CLIENT = {
    "never tells": NeverTells,
    "tells late": TellsLate,
    "loses for fun": LosesForFun,
    "raises": Raises,
    "gives up early": GivesUpEarly,
    "looks, then takes": LooksThenTakes,
}
