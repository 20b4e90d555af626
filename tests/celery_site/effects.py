"""What tasks did, in a file that no queue and no lock knows of."""

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
    pid: int


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS effects (at REAL, word TEXT, job INT, pid INT)")
    return connection


def note(word: str, job: int) -> None:
    connection = _open(os.environ["CELERY_SITE_EFFECTS"])
    values = (time.monotonic(), word, job, os.getpid())
    connection.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", values)
    connection.close()


class Effects:
    """The file, as the test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _open(str(path)).close()

    def all(self) -> list[Effect]:
        connection = _open(str(self.path))
        rows = connection.execute("SELECT at, word, job, pid FROM effects ORDER BY rowid")
        found = [Effect(*row) for row in rows]
        connection.close()
        return found

    def jobs(self, word: str) -> list[int]:
        return [effect.job for effect in self.all() if effect.word == word]

    def most_at_once(self) -> int:
        """How many ran at the same time; a killed one ends with its process, here at once."""
        running = most = 0
        for effect in self.all():
            running += {"begin": 1, "end": -1}.get(effect.word, 0)
            most = max(most, running)
        return most

    def beside_themselves(self) -> list[int]:
        """The jobs of which two ran at the same time."""
        running: Counter[int] = Counter()
        found = []
        for effect in self.all():
            running[effect.job] += {"begin": 1, "end": -1}.get(effect.word, 0)
            if running[effect.job] > 1:
                found.append(effect.job)
        return found
