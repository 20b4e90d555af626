"""`manage.py locks`: holders and waiters; free, pause, resize; is Redis fit; run a command."""

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
from django_redis_sync.management import arguments, display, reports, runner, terminal
from django_redis_sync.operators import actions, doctor
from django_redis_sync.operators.facts import Holder, Status, Waiter
from django_redis_sync.operators.formats import duration, history_json, moment, without_secrets
from django_redis_sync.operators.names import count_keys, names_in_use
from django_redis_sync.operators.statistics import past_of
from django_redis_sync.operators.status import statuses
from django_redis_sync.protocol.keys import SHOWN
from django_redis_sync.protocol.keys import display as name_of

#: Rows of holders that `clear` shows and acts on.
MAX_CLEARED = 10_000


class Command(BaseCommand):
    help = "Show the holders and waiters of locks and semaphores, and let an operator act."
    requires_system_checks: list[str] = []  # it has to work when the project doesn't
    _child: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # All behind `--` is the command to run, with its own options.
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
            # `locks status | head`: the reader left, which is no error. Nor is it one at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # Seeing

    def _status(
        self, name: str | None, key: str | None, format: str, watch: float | None,
        sort: str | None, top: int, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        if key is not None and name is None:
            raise CommandError(_("--key needs a name"), returncode=2)

        unheard_of, hidden = None, ""

        def lines(width: int | None) -> list[str]:
            nonlocal unheard_of, hidden
            seen = display.seen(name, key, sort or "", top, using)
            hidden = reports.unread(seen.unread)
            note = [self.style.ERROR(hidden)] if hidden and watch is not None else []
            if name is not None:
                unheard_of = arguments.unheard_of(seen.groups[0].all, using)
            if format == "json":
                indent = None if watch is not None else 2
                return [json.dumps(seen.as_json(), indent=indent, allow_nan=False)]
            if name is not None:
                note += [unheard_of] if unheard_of else []
                return [*display.page(seen, width, self.style), *note]
            if not seen.groups:
                return [_("No lock or semaphore was used within the last day.")]
            return [*display.overview(seen, width, self.style), *note]

        if watch is None:
            found = lines(self._width())
            # A script gets its JSON all the same, without holders and waiters.
            if format == "json" or not unheard_of:
                self._print(found)
            self._check(unheard_of)
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
        # Not through Django's wrapper, which ends each write with a line.
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
                [_("No operator did anything to it.") if name else _("No operator did anything.")]
            )

    def _history(
        self, name: str, key: str | None, since: float, format: str, using: str | None,
        **_options: Any,
    ) -> None:  # fmt: skip
        (plain, child), *_others = arguments.find(name, key, using, max_keys=1)
        (status,) = statuses([(plain, child)], using=using)
        self._check(arguments.unheard_of([status], using))
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

    # Acting

    def _clear(
        self, name: str, key: str | None, holder: str | None, pattern: bool, dry_run: bool,
        interactive: bool, reason: str, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        names = (
            names_in_use(using=using, pattern=name) if pattern else arguments.find(name, key, using)
        )
        found = statuses(names, using=using, rows=MAX_CLEARED)
        if not pattern:
            unheard_of = arguments.unheard_of(found, using)
            if unheard_of and names_in_use(using=using, pattern=name):
                unheard_of += " " + _("As a glob it takes --pattern.")
            self._check(unheard_of)
        elif not found:
            self._print([_("No known name matches.")])
            return
        chosen = _chosen(found, holder)
        if not chosen:
            if holder is not None:
                raise CommandError(_("No holder or waiter has that id: nothing was cleared."))
            self._print([_("There are no holders.")])
            return
        self._print(display.holders_table(chosen, self._width(), self.style))
        said = ngettext("Clear this one?", "Clear these %d?", len(chosen))
        question = said % len(chosen) if "%d" in said else said
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
        done, before = _("Paused %s until resume."), _("%s was paused before: nothing was changed.")
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
            done = _("Reset %s: the limit is what the code says.")
            before = _("%s is not resized: nothing was changed.")
            self._override(actions.reset, done, before, **options)
            return
        done = _("Resized %s.") + " " + _("The limit is %d.") % limit
        before = _("%s was resized to that before: nothing was changed.")
        self._override(partial(actions.resize, limit=limit), done, before, create, **options)

    def _override(
        self, act: Callable[..., list[str]], done: str, before: str, create: bool = False, *,
        name: str, key: str | None, reason: str, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        """Change an override. `done`: the text if that changes anything, `before` if not."""
        (plain, child), *others = arguments.find(name, key, using, max_keys=1)
        if not create:
            found = statuses([(plain, child), *others], using=using)
            self._check(arguments.unheard_of(found, using))
        names = act(plain, child, using=using, reason=reason)
        shown = terminal.printable(name_of(plain, child))
        keys = count_keys([plain], using=using)[plain] if child is None else 0
        if keys:
            shown += " (" + ngettext("%d key", "%d keys", keys) % keys + ")"
        self._print([self.style.SUCCESS(done % shown) if names else before % shown])

    def _check(self, unheard_of: str | None) -> None:
        if unheard_of:
            raise CommandError(unheard_of, returncode=arguments.UNKNOWN)

    # Judging and running

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
    """Return the holders, or the holder or waiter whose id, or more of its token, is `holder`."""
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
    """Return as many characters of each token as make them distinct."""
    length = SHOWN
    while len({token[:length] for token in tokens}) < len({*tokens}):
        length += 1
    return [token[:length] for token in tokens]
