"""`manage.py locks`: show holders and waiters, carry out operator actions, examine Redis, and run a
command while holding a permit."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_redis_sync import conf
from django_redis_sync.exceptions import SyncError, Unavailable
from django_redis_sync.management import arguments, reports, runner, status_view, terminal
from django_redis_sync.operators import actions, doctor
from django_redis_sync.operators.facts import Holder, Status, Waiter
from django_redis_sync.operators.formats import duration, history_json, moment, without_secrets
from django_redis_sync.operators.names import count_keys, names_in_use
from django_redis_sync.operators.statistics import past_of
from django_redis_sync.operators.status import statuses
from django_redis_sync.protocol.keys import SHOWN
from django_redis_sync.protocol.keys import display as name_of

#: Max holders per name that `clear` shows and ends.
MAX_CLEARED = 10_000


class Command(BaseCommand):
    help = "Show the holders and waiters of locks and semaphores, and let an operator act."
    requires_system_checks: list[str] = []  # it must work even if a check fails
    _child: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # The words after `--` are the command to run, with its own options.
        if "--" in argv and "run" in argv[2 : argv.index("--")]:
            cut = argv.index("--")
            argv, self._child = argv[:cut], argv[cut + 1 :]
        super().run_from_argv(argv)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs = {"epilog": arguments.EXIT_CODES, "formatter_class": arguments.Formatter, **kwargs}
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.add_actions(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["force_color"] and not terminal.size(self.stdout):
            self.style = no_style()
        action = options["action"]
        try:
            getattr(self, f"_{action}")(**options)
        except Unavailable as error:
            code = {"doctor": 2, "run": runner.UNAVAILABLE}.get(action, 1)
            raise CommandError(
                reports.unavailable(error, options["using"]), returncode=code
            ) from None
        except (SyncError, ImproperlyConfigured, ValueError) as error:
            raise CommandError(without_secrets(str(error))) from None
        except BrokenPipeError:
            # Not an error, for example with `locks status | head`. Prevent a second one at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # Actions that show something

    def _status(
        self, name: str | None, key: str | None, format: str, watch: float | None,
        sort: str | None, top: int, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        if key is not None and name is None:
            raise CommandError(_("--key needs a name"), returncode=2)

        unknown, hidden = None, ""

        def lines(width: int | None) -> list[str]:
            nonlocal unknown, hidden
            seen = status_view.seen(name, key, sort or "", top, using)
            hidden = reports.unread(seen.unread)
            note = [self.style.ERROR(hidden)] if hidden and watch is not None else []
            if name is not None:
                unknown = arguments.unknown(seen.groups[0].all, using)
            if format == "json":
                indent = None if watch is not None else 2
                return [json.dumps(seen.as_json(), indent=indent, allow_nan=False)]
            if name is not None:
                note += [unknown] if unknown else []
                return [*status_view.page(seen, width, self.style), *note]
            if not seen.groups:
                return [_("No lock or semaphore was used within the last day.")]
            return [*status_view.overview(seen, width, self.style), *note]

        if watch is None:
            found = lines(self._width())
            # JSON is printed for an unknown name too, for scripts.
            if format == "json" or not unknown:
                self._print(found)
            self._check(unknown)
            if hidden:
                raise CommandError(hidden)
            return
        with contextlib.suppress(KeyboardInterrupt):
            self._watch(lines, watch, format)

    def _watch(self, lines: Callable[[int | None], list[str]], every: float, format: str) -> None:
        every = max(0.1, every)
        if format == "json" or self._width() is None:
            while True:
                self._print(lines(None))
                if format != "json":
                    self._print([""])
                self.stdout.flush()
                time.sleep(every)
        # Not through Django's wrapper, which adds a line break to each write.
        with terminal.screen(self.stdout._out) as screen:
            while True:
                try:
                    found = lines(self._width())
                except Unavailable as error:
                    text = terminal.wrap(reports.unavailable(error, None), self._width())
                    found = [self.style.ERROR(line) for line in text]
                now = timezone.localtime().strftime("%H:%M:%S")
                words = {"every": duration(every), "now": now}
                title = _("%(now)s, every %(every)s. Ctrl-C ends.") % words
                screen.draw([title, "", *found])
                time.sleep(every)

    def _log(
        self, name: str | None, key: str | None, format: str, top: int, using: str | None,
        **_options: Any,
    ) -> None:  # fmt: skip
        pairs = [(name, key)] if name is None else arguments.find(name, key, using, max_keys=1)
        found = actions.acts(*pairs[0], limit=top, using=using)
        if format == "json":
            self._print([json.dumps(actions.as_json(found), indent=2)])
        elif found:
            self._print(reports.actions(found, self._width(), self.style))
        else:
            self._print(
                [_("No operator has acted on this name.") if name else _("No operator has acted.")]
            )

    def _history(
        self, name: str, key: str | None, since: float, format: str, using: str | None,
        **_options: Any,
    ) -> None:  # fmt: skip
        (plain, child), *_others = arguments.find(name, key, using, max_keys=1)
        (status,) = statuses([(plain, child)], using=using)
        self._check(arguments.unknown([status], using))
        kept = conf.current().keep(child)
        if not kept:
            raise CommandError(_("REDIS_SYNC['STATS'] is off: there is no history."))
        minutes = min(kept, max(1, round(since / 60)))
        found = past_of(plain, child, minutes=minutes, using=using)
        if format == "json":
            self._print([json.dumps(history_json(found), indent=2)])
            return
        if minutes * 60 < since:
            self._print([_("History reaches back %s.") % duration(60 * minutes)])
        self._print(reports.history(found, status.limit, self._width(), self.style))

    # Actions that change something

    def _clear(
        self, name: str, key: str | None, holder: str | None, pattern: bool, dry_run: bool,
        interactive: bool, reason: str, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        names = (
            names_in_use(using=using, pattern=name) if pattern else arguments.find(name, key, using)
        )
        found = statuses(names, using=using, rows=MAX_CLEARED)
        if not pattern:
            unknown = arguments.unknown(found, using)
            if unknown and names_in_use(using=using, pattern=name):
                unknown += " " + _("To use it as a glob, add --pattern.")
            self._check(unknown)
        elif not found:
            self._print([_("No known name matches.")])
            return
        chosen = _chosen(found, holder)
        if not chosen:
            if holder is not None:
                raise CommandError(_("No holder or waiter has that id: nothing was cleared."))
            self._print([_("There are no holders.")])
            return
        self._print(status_view.holders_table(chosen, self._width(), self.style))
        text = ngettext("Clear this one?", "Clear these %d?", len(chosen))
        question = text % len(chosen) if "%d" in text else text
        if dry_run:
            self._print([_("Dry run: nothing was cleared.")])
            return
        if interactive and not self._agreed(question):
            raise CommandError(_("Nothing was cleared."))
        cleared = [
            one
            for status in found
            if (tokens := [shown.token for of, shown in chosen if of is status])
            for one in actions.clear(status, tokens, using=using, reason=reason)
        ]
        done = sum(one.done for one in cleared)
        gone = len(cleared) - done
        text = _("Cleared %d.") % done
        if gone:
            ended = ngettext("%d had ended by itself.", "%d had ended by themselves.", gone)
            text += " " + ended % gone
        self._print([self.style.SUCCESS(text)])

    def _agreed(self, question: str) -> bool:
        self.stdout.write(question + " [y/N] ", ending="")
        self.stdout.flush()
        try:
            return input().strip().lower() in ("y", "yes")
        except EOFError:
            self.stdout.write("")
            return False

    def _pause(self, seconds: float | None, create: bool, **options: Any) -> None:
        done, before = _("Paused %s until resume."), _("%s is paused already: nothing was changed.")
        if seconds is not None:
            until = timezone.now() + timedelta(seconds=seconds)
            done = _("Paused %s") + " " + _("until %s.") % moment(until)
        self._override(partial(actions.pause, seconds=seconds), done, before, create, **options)

    def _resume(self, **options: Any) -> None:
        before = _("%s is not paused: nothing was changed.")
        self._override(actions.resume, _("Resumed %s."), before, **options)

    def _resize(self, limit: int | None, reset: bool, create: bool, **options: Any) -> None:
        if (limit is None) == (not reset):
            raise CommandError(_("Give a LIMIT or --reset."), returncode=2)
        if limit is None:
            done = _("Reset %s: the callers' limit applies again.")
            before = _("%s is not resized: nothing was changed.")
            self._override(actions.reset, done, before, **options)
            return
        done = _("Resized %s.") + " " + _("The limit is %d.") % limit
        before = _("%s has this limit already: nothing was changed.")
        self._override(partial(actions.resize, limit=limit), done, before, create, **options)

    def _override(
        self, act: Callable[..., list[str]], done: str, before: str, create: bool = False, *,
        name: str, key: str | None, reason: str, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        """Change an override, and print `done`, or `before` if nothing had to be changed."""
        (plain, child), *others = arguments.find(name, key, using, max_keys=1)
        if not create:
            found = statuses([(plain, child), *others], using=using)
            self._check(arguments.unknown(found, using))
        names = act(plain, child, using=using, reason=reason)
        shown = terminal.printable(name_of(plain, child))
        keys = count_keys([plain], using=using)[plain] if child is None else 0
        if keys:
            shown += " (" + ngettext("%d key", "%d keys", keys) % keys + ")"
        self._print([self.style.SUCCESS(done % shown) if names else before % shown])

    def _check(self, unknown: str | None) -> None:
        if unknown:
            raise CommandError(unknown, returncode=arguments.UNKNOWN)

    # The doctor, and running a command

    def _doctor(self, using: str | None, **_options: Any) -> None:
        findings = doctor.examine(using=using)
        self._print(reports.findings(findings, self._width(), self.style))
        if any(finding.level == "error" for finding in findings):
            sys.exit(1)

    def _run(
        self, name: str, limit: int | None, wait: float | None, skip: bool,
        min_hold: float | None, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        if not self._child:
            raise CommandError(_("Give the command after --."), returncode=2)
        options = runner.RunOptions(name, limit, wait, skip, min_hold or None, using)
        sys.exit(runner.run(options, self._child, self.stderr))

    # Inside

    def _width(self) -> int | None:
        found = terminal.size(self.stdout)
        return None if found is None else found[0]

    def _print(self, lines: Sequence[str]) -> None:
        self.stdout.write(terminal.encodable("\n".join(lines), self.stdout))


def _chosen(found: Sequence[Status], holder: str | None) -> list[tuple[Status, Holder | Waiter]]:
    """Return all holders, or the holder or waiter with a token that begins with `holder`. Raise
    CommandError if there are several."""
    if holder is None:
        return [(status, one) for status in found for one in status.holders]
    everyone = [(s, one) for s in found for one in s.everyone]
    fits = len(holder) >= SHOWN
    chosen = [(s, one) for s, one in everyone if fits and one.token.startswith(holder)]
    tokens = list(dict.fromkeys(one.token for _status, one in chosen))
    if len(tokens) > 1:
        text = _(
            "%(n)d holders or waiters begin with %(id)s: nothing was cleared. Give more "
            "characters: %(ids)s"
        )
        shown = ", ".join(_distinct(tokens))
        raise CommandError(text % {"n": len(tokens), "id": holder, "ids": shown})
    return chosen


def _distinct(tokens: Sequence[str]) -> list[str]:
    """Return the beginnings of tokens, as short as they can be while distinct."""
    length = SHOWN
    while len({token[:length] for token in tokens}) < len({*tokens}):
        length += 1
    return [token[:length] for token in tokens]
