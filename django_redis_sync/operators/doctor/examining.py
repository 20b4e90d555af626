"""The examination: every look at every node, however the others end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from redis.exceptions import ResponseError

from ... import conf
from ...engine.drivers import error_of
from ...engine.wire import RIGHTS, turned_away
from ...exceptions import SyncError, Unavailable
from ...protocol.plans import Failure
from . import neighbours, servers
from .findings import Finding, failed, refused, silent, together

About = TypeVar("About")


def examine(*, using: str | None = None) -> list[Finding]:
    """All findings, of every level. Unavailable when Redis can't be reached; when it is there
    and turns us away, that is the only finding.

    Of a Cluster every node with slots is asked. A silent node is a finding, as long as another
    answers.
    """
    alias = using or conf.current().cache
    by_node: list[tuple[str, list[Finding]]] = []
    silence: Failure | Unavailable | None = None
    try:
        nodes = servers.nodes_of(alias)
        for node in nodes:
            try:
                by_node.append((node.name, list(_looked(servers.LOOKS, node))))
            except (Failure, Unavailable) as error:
                silence = error
                by_node.append((node.name, [silent(_cause(error))]))
        if silence is not None and all(said[0].id == "node" for _, said in by_node):
            raise silence
        others = _looked(neighbours.LOOKS, alias, goes_on=len(nodes) > 1)
        return [*together(by_node), *others]
    except (Failure, Unavailable) as error:
        if turned_away(error):
            return [refused(_cause(error))]
        raise _unavailable(error) from _cause(error)


def _looked(
    looks: Mapping[str, Callable[[About], Iterator[Finding]]], about: About, goes_on: bool = False
) -> Iterator[Finding]:
    """The findings of each look. An error in answer to it is a finding; with `goes_on`, so is
    silence."""
    for id, look in looks.items():
        try:
            yield from look(about)
        except (Failure, Unavailable) as error:
            cause = _cause(error)
            # The other looks can tell missing rights; a user who is turned away has no other looks.
            at_the_door = turned_away(cause) not in ("", RIGHTS)
            if not goes_on and (at_the_door or not isinstance(cause, ResponseError)):
                raise
            yield failed(id, cause)


def _cause(error: Failure | Unavailable) -> BaseException:
    return (error.cause if isinstance(error, Failure) else error.__cause__) or error


def _unavailable(error: Failure | Unavailable) -> SyncError:
    return error_of(error) if isinstance(error, Failure) else error
