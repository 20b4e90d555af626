"""The record of what tasks did, in a SQLite file that is independent of the broker and Redis."""

import os
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Effect(NamedTuple):
    at: float
    word: str
    job: int


def _execute(path: str, statement: str, values: tuple[object, ...] = ()) -> list[Effect]:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS effects (at REAL, word TEXT, job INT)")
    rows = [Effect(*row) for row in connection.execute(statement, values)]
    connection.close()
    return rows


def note(word: str, job: int) -> None:
    values = (time.monotonic(), word, job)
    _execute(os.environ["CELERY_SITE_EFFECTS"], "INSERT INTO effects VALUES (?, ?, ?)", values)


class Effects:
    """The record, for a test to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Effect]:
        return _execute(str(self.path), "SELECT at, word, job FROM effects ORDER BY rowid")

    def jobs(self, word: str) -> list[int]:
        return [effect.job for effect in self.all() if effect.word == word]

    def most_at_once(self, of_one_job: bool = False) -> int:
        """Return the max number of runs at the same time, of all jobs or of a single job."""
        running, most = Counter[int](), 0
        for effect in self.all():
            key = effect.job if of_one_job else 0
            running[key] += {"begin": 1, "end": -1}.get(effect.word, 0)
            most = max(most, running[key])
        return most
