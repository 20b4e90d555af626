"""A file in which the tasks record what they did. It does not depend on Redis."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Effect(NamedTuple):
    at: float
    word: str
    job: int


def note(word: str, job: int) -> None:
    with open(os.environ["CELERY_SITE_EFFECTS"], "a") as file:
        file.write(f"{time.monotonic()},{word},{job}\n")


class Effects:
    """Reads what tasks have recorded in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self) -> list[Effect]:
        rows = (line.split(",") for line in self.path.read_text().splitlines())
        return [Effect(float(at), word, int(job)) for at, word, job in rows]

    def jobs(self, word: str) -> list[int]:
        return [effect.job for effect in self.all() if effect.word == word]

    def most_at_once(self, of_one_job: bool = False) -> int:
        """Return the highest number of jobs that ran at the same time. If `of_one_job` is True,
        return the highest number of runs of a single job at the same time."""
        running, most = Counter[int](), 0
        for effect in self.all():
            key = effect.job if of_one_job else 0
            running[key] += {"begin": 1, "end": -1, "stop": -1}.get(effect.word, 0)
            most = max(most, running[key])
        return most
