"""Steps of a plan, as each server of a quorum is asked them."""

from __future__ import annotations

from ...protocol.plans import UNDO_BUDGET, Run


def undo(step: Run, bury: int) -> Run:
    """The undo of all that the token of a step has, on a server."""
    token, keep = step.argv[0], step.argv[-1]
    return Run("release", step.keys, (token, "0", "undo", bury, 0, "-", keep), UNDO_BUDGET)


def with_fence(step: Run, fence: str) -> Run:
    token, _, *rest = step.argv
    return step._replace(argv=(token, fence, *rest))


def keys_with(step: Run, token: str, wire: str) -> tuple[str, ...]:
    """The step's keys for another token: only the wake list's ends with it."""
    return tuple(
        key[: -len(token)] + wire if token and key.endswith(f":{token}") else key
        for key in step.keys
    )
