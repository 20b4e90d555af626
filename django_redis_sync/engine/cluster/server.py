"""The sync side of a Cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis import exceptions as errors

from ...protocol.plans import Answer, Failure, Run, Wait
from ..clients import backend_of
from ..pools import Borrowed
from ..server import Server
from ..wire import ATTEMPT, answered, clock, command, pack, text
from .routing import MOST_HOPS, is_silence, key_of, partly, points_elsewhere
from .topology import LAST_CHANCE, LOOK, Address, Topology, url_at

Done = TypeVar("Done")


class Node(Server):
    """A node, as if it were the only server."""

    def __init__(self, alias: str, made: Any) -> None:
        super().__init__(alias)
        self._pool = made

    def pool(self) -> Any:
        return self._pool

    def asking(self, words: Sequence[Sequence[Any]], timeout: float) -> Any:
        """The first useful reply to any of the commands, each behind ASKING."""
        with Borrowed(self.own(), timeout) as borrowed:
            for nth, args in enumerate(words, 1):
                borrowed.send_several(map(pack, (("ASKING",), args)))
                borrowed.read()
                try:
                    return text(borrowed.read())
                except errors.NoScriptError:
                    if nth == len(words):
                        raise
        raise AssertionError("not reached")


class ClusterServer(Server):
    """The sync side of a cache alias that is a Cluster."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        client = backend_of(alias)
        self._factory, self.seed = client.connection_factory, client._server[0]
        self._nodes: dict[Address, Node] = {}
        self.topology = Topology(client._server, self._ask)

    def _ask(self, address: Address) -> Any:
        return self.node(address).command("CLUSTER", "SLOTS", timeout=LOOK)

    def node(self, address: Address) -> Node:
        """The server object of a node."""
        found = self._nodes.get(address)
        if found is None:
            made = self._factory.pool(url_at(self.seed, address))
            found = self._nodes.setdefault(address, Node(self.alias, made))
        return found

    def pool(self) -> Any:
        """The pool of a node that answers, as far as known."""
        return self.node(self.topology.addresses[0]).pool()

    def run(self, step: Run) -> Answer:
        """As on a single server, on the node that has the name."""

        def asking(node: Node) -> Answer:
            sent = clock()
            reply = node.asking([command(step), command(step, whole=True)], step.timeout)
            return Answer(answered(reply), sent, clock())

        return self._routed(step.keys[0], lambda node: node.run(step), asking)

    def place(self, step: Run) -> Address | None:
        """The node that has its name, as far as known."""
        return self.topology.known(step.keys[0])

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """A round trip per node; a Failure stands in its step's place."""
        by_node: dict[Address, list[int]] = {}
        try:
            for i, step in enumerate(steps):
                by_node.setdefault(self.topology.of(step.keys[0]), []).append(i)
        except Failure as failure:
            return [failure for _ in steps]
        answers: dict[int, Answer | Failure] = {}
        # A node that hangs comes last, and must not hold up the renewals of the others for long.
        for address in sorted(by_node, key=self.topology.suspect):
            here = by_node[address]
            answers.update(zip(here, self._many_at(address, [steps[i] for i in here]), strict=True))
        return [answers[i] for i in range(len(steps))]

    def _many_at(self, address: Address, steps: list[Run]) -> list[Answer | Failure]:
        if self.topology.suspect(address):
            steps = [step._replace(timeout=min(step.timeout, LAST_CHANCE)) for step in steps]
        answers = self.node(address).many(steps)
        if any(is_silence(answer) for answer in answers):
            self.topology.lost(address)
        return [
            self._again(step, answer) if points_elsewhere(answer) else partly(answer)
            for step, answer in zip(steps, answers, strict=True)
        ]

    def _again(self, step: Run, reply: Any) -> Answer | Failure:
        try:
            return self.run(step)
        except Failure as failure:
            return failure

    def command(self, *args: Any, timeout: float = ATTEMPT) -> Any:
        """As on a single server, on the node that has its key; any node when it has none."""
        key = key_of(args)
        if key is None:
            return self._anywhere(lambda node: node.command(*args, timeout=timeout))
        return self._routed(
            key,
            lambda node: node.command(*args, timeout=timeout),
            lambda node: node.asking([args], timeout),
        )

    def commands(self, several: Sequence[Sequence[Any]], timeout: float = ATTEMPT) -> list[Any]:
        """As on one server, a round trip per node. Each command names a key."""
        by_node: dict[Address, list[int]] = {}
        for i, args in enumerate(several):
            by_node.setdefault(self.topology.of(str(args[1])), []).append(i)
        found: dict[int, Any] = {}
        for address, here in by_node.items():
            replies = self._commands_at(address, [several[i] for i in here], timeout)
            found.update(zip(here, replies, strict=True))
        return [found[i] for i in range(len(several))]

    def _commands_at(
        self, address: Address, several: list[Sequence[Any]], timeout: float
    ) -> list[Any]:
        try:
            replies = self.node(address).commands(several, timeout)
        except Failure as failure:
            if is_silence(failure):
                self.topology.lost(address)
            raise
        # AskError is a kind of ResponseError, and MovedError one of AskError.
        return [
            self.command(*args, timeout=timeout) if isinstance(reply, errors.AskError) else reply
            for args, reply in zip(several, replies, strict=True)
        ]

    def _anywhere(self, do: Callable[[Node], Done]) -> Done:
        address = self.topology.addresses[0]
        try:
            return do(self.node(address))
        except Failure as failure:
            if not is_silence(failure):
                raise
            self.topology.lost(address)
            return do(self.node(self.topology.addresses[0]))

    def wait(self, step: Wait) -> Answer:
        def busy(node: Node) -> Answer:
            raise Failure(errors.TryAgainError("the slot is moving"), clock(), "busy")

        return self._routed(step.keys.leases, lambda node: node.wait(step), busy)

    def _routed(self, key: str, do: Callable[[Node], Done], asking: Callable[[Node], Done]) -> Done:
        """`do` on the node that has `key`, wherever the cluster points."""
        address, then = self.topology.of(key), do
        for _ in range(MOST_HOPS):
            try:
                return then(self.node(address))
            except Failure as failure:
                cause = failure.cause
                if isinstance(cause, errors.MovedError):
                    address, then = self.topology.moved(cause), do
                elif isinstance(cause, errors.AskError):
                    address, then = Address(cause.host or address.host, cause.port), asking
                else:
                    if is_silence(failure):
                        self.topology.lost(address)
                    raise partly(failure) from cause
                last = failure
        raise Failure(last.cause, clock(), "busy")
