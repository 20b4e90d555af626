"""Print the demo's progress, the table of results, and the addresses of the site."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from django.core.management import get_commands
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from example_project.demo.judging import Verdict
from example_project.demo.site import ADMIN, Server

LOG_WIDTH = 120  # characters per line if the output is not a terminal

Each = Callable[..., None]


class Show:
    """Prints to standard output."""

    def __init__(self) -> None:
        self.console = Console(
            width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False, soft_wrap=False
        )

    def begin(self, without_locks: bool) -> None:
        """Print the title of the demo."""
        self.console.print("\n[bold]django_redis_sync: the example site under real traffic")
        if without_locks:
            self.console.print("[bold red]All locks and limits are disabled.")

    def servers(self, servers: Sequence[Server]) -> None:
        """Print the servers."""
        for server in servers:
            self.console.print(f"  {_describe(server)} at {server.url}")

    @contextmanager
    def step(self, title: str, total: float, unit: str) -> Iterator[Each]:
        """Show the progress of a step: a bar on a terminal, or else a line when the step ends."""
        start = time.monotonic()
        if self.console.is_terminal:
            columns = (
                TextColumn("  {task.description:<26}"),
                BarColumn(),
                TextColumn("{task.completed:.0f} of {task.total:.0f} {task.fields[unit]}"),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console) as progress:
                task = progress.add_task(title, total=total, unit=unit)
                yield lambda amount=1: progress.advance(task, amount)
        else:
            yield lambda amount=1: None
            self.console.print(f"  {title}: {time.monotonic() - start:.1f} s")
            sys.stdout.flush()

    def table(self, verdicts: Mapping[tuple[str, str], Verdict], servers: Sequence[Server]) -> bool:
        """Print the verdicts as a table. Return True if there are verdicts, and none has faults."""
        table = Table(show_lines=True)
        table.add_column("scenario", max_width=26)
        for server in servers:
            table.add_column(_describe(server))
        for title in dict.fromkeys(title for title, _ in verdicts):
            cells = [_cell(verdicts[title, server.name]) for server in servers]
            table.add_row(title, *cells)
        self.console.print("\n[bold]What the traffic showed")
        self.console.print(table)
        return self._sum_up(verdicts)

    def links(self, servers: Sequence[Server], password: str, redis_url: str | None) -> None:
        """Print the addresses of the site. `redis_url`: the value of REDIS_URL for manage.py, or
        None if this variable is already set in the user's shell."""
        say = self.console.print
        say("\nYou can now visit the site:")
        for server in servers:
            say(f"  {server.name:<9} {server.url}/")
        say(f"  admin     {servers[0].url}/admin/")
        say(f"            login [bold]{ADMIN}[/], password [bold]{escape(password)}[/]")
        if "locks" in get_commands():
            variable = f"REDIS_URL={redis_url} " if redis_url else ""
            say(f"  shell     {variable}python manage.py locks status")
        say("Ctrl-C ends it.")

    def ending(self) -> None:
        """Print that the servers are being stopped."""
        self.console.print("Stopping the servers.")

    def _sum_up(self, verdicts: Mapping[tuple[str, str], Verdict]) -> bool:
        """Print the scenarios with faults, or that all checks hold. Return True if all hold."""
        broken: dict[str, list[str]] = {}
        for (title, server), verdict in verdicts.items():
            if not verdict.ok:
                broken.setdefault(title, []).append(server)
        for title, names in broken.items():
            self.console.print(f"[red]BROKEN[/] {title} ({', '.join(names)})")
        if verdicts and not broken:
            self.console.print(f"[green]All {len(verdicts)} checks hold.")
        return bool(verdicts) and not broken


def _describe(server: Server) -> str:
    return f"{server.name}, {server.workers} workers"


def _cell(verdict: Verdict) -> str:
    if verdict.ok:
        return "\n".join(["[green]ok[/]", *map(escape, verdict.seen)])
    return "\n".join(["[bold red]BROKEN[/]", *map(escape, verdict.faults)])
