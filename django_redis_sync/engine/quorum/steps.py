"""Steps of a plan, as each server of a quorum is asked them."""

from __future__ import annotations

from ...protocol.plans import UNDO_BUDGET, Run
from ...protocol.scripts import said


def undo(step: Run, bury: int) -> Run:
    """The undo of all that the token of a step has, on a server."""
    keep = said(step.verb, step.argv)["keep"]
    return Run("release", step.keys, (step.argv[0], "0", keep, "undo", bury), UNDO_BUDGET)


def with_fence(step: Run, fence: str) -> Run:
    token, _, *rest = step.argv
    return step._replace(argv=(token, fence, *rest))
