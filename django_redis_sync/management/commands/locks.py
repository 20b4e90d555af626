"""`manage.py locks`: show holders and waiters, carry out operator actions, examine Redis, and run a
command while holding a permit."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...engine.names import REGISTER_AFTER
from ...engine.renewal import write_names
from ...exceptions import SyncError, Unavailable
from ...operators import actions, audit, doctor
from ...operators.facts import Holder, Status, Waiter
from ...operators.families import Pair, families
from ...operators.formats import (
    EFFECT_OF_CLEAR,
    as_json,
    duration,
    history_json,
    local,
    moment,
    now,
    plain,
    without_secrets,
)
from ...operators.history import heaviest_shares
from ...operators.names import count_keys, names_in_use
from ...operators.statistics import past_of
from ...operators.status import statuses
from ...protocol.keys import SHOWN, display
from .. import (
    arguments,
    doctor_view,
    failures,
    history_view,
    people_view,
    runner,
    status_view,
    terminal,
)
from ..terminal import Output, printable

#: A function without arguments. It returns the lines to print, and a dict
#: {error message: exit code}.
Look = Callable[[], tuple[list[str], dict[str, int]]]
Found = TypeVar("Found")
#: Seconds after which a command looks again before it says that there is nothing. A process writes
#: a new name into the registry sooner.
LOOK_AGAIN = REGISTER_AFTER + 0.2
#: For how many seconds the doctor looks at names.
LOOK_SECONDS = 20.0
#: Max holders per name that `clear` shows and ends.
MAX_CLEARED = 10_000


class Command(BaseCommand):
    help = "Show the holders and waiters of locks and semaphores, and let an operator act."
    requires_system_checks: list[str] = []  # none, so that the command works even if a check fails
    _child: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # The words after `--` are the command to run, with its own options.
        if "--" in argv and "run" in argv[2 : argv.index("--")]:
            cut = argv.index("--")
            argv, self._child = argv[:cut], argv[cut + 1 :]
        elif "run" in argv[2:] and not {"-h", "--help"} & {*argv}:
            # Say what to write, instead of which of the command's options is unknown.
            self._called_from_command_line = True
            parser = self.create_parser(argv[0], argv[1])
            given, others = parser.parse_known_args(argv[2:])
            if given.action == "run" and (words := [*given.words, *others]):
                cut = argv.index(words[0], argv.index(given.name) + 1)
                parser.error(_without_dashes(argv[2:cut], argv[cut:]))
        super().run_from_argv(argv)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser: CommandParser = super().create_parser(prog_name, subcommand, **kwargs)
        # Not as arguments: packages that replace `create_parser`, such as django-configurations,
        # take none.
        parser.epilog, parser.formatter_class = arguments.EXIT_CODES, arguments.Formatter
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        arguments.add_actions(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        given = Namespace(**arguments.parsed(options))
        if not given.force_color and terminal.width_of(self.stdout) is None:
            self.style = no_style()
        try:
            if given.action != "run":
                conf.require_redis(f"locks {given.action}")
                write_names()
            getattr(self, f"_{given.action}")(given)
        except Unavailable as error:
            code = {"doctor": 2, "run": runner.UNAVAILABLE}.get(given.action, 1)
            text = failures.unavailable(error, given.using)
            raise CommandError(text, returncode=code) from None
        except (SyncError, ImproperlyConfigured, ValueError) as error:
            raise CommandError(without_secrets(str(error))) from None
        except BrokenPipeError:
            # A closed pipe is not an error, for example after `locks status | head`. Write the rest
            # to os.devnull, or Python would report a second BrokenPipeError at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # Actions that show something

    def _status(self, given: Namespace) -> None:
        name, is_json = given.name, given.format == "json"
        if given.key is not None and name is None:
            raise CommandError(_("--key needs a name"), returncode=2)

        def look() -> tuple[list[str], dict[str, int]]:
            """Return the lines to print, and a dict {error message: exit code}."""
            seen = status_view.seen(name, given.key, given.sort or "", given.top, given.using)
            problems = {failures.unread(seen.unread): 1}
            if name is not None:
                problems[arguments.unknown(seen.groups[0].all, given.using)] = arguments.UNKNOWN
            problems.pop("", None)
            if is_json:
                indent = 2 if given.watch is None else None
                found = as_json(seen.groups, seen.unread, seen.past, seen.selection)
                return [json.dumps(found, indent=indent, allow_nan=False)], problems
            view = status_view.overview if name is None else status_view.page
            # A screen that is redrawn shows as many rows as possible.
            return view(seen, replace(self._out, folds=given.watch is None)), problems

        if given.watch is not None:
            with contextlib.suppress(KeyboardInterrupt):
                self._watch(look, given)
            return
        lines, problems = _twice(look, lambda looked: arguments.UNKNOWN in looked[1].values())
        # Print JSON even if the name is unknown, because scripts parse the output.
        if is_json or arguments.UNKNOWN not in problems.values():
            self._print(lines)
        for text, code in problems.items():
            raise CommandError(text, returncode=code)

    def _watch(self, look: Look, given: Namespace) -> None:
        is_json, every = given.format == "json", max(0.1, given.watch)
        while is_json or self._out.width is None:
            lines, problems = look()
            self._print(lines if is_json else [*lines, *problems, ""])
            self.stdout.flush()
            time.sleep(every)
        # Write to the stream itself, because Django's wrapper adds a line break to each write.
        stream = self.stdout._out
        with terminal.screen(stream):
            while True:
                try:
                    lines, problems = look()
                except Unavailable as error:
                    lines, problems = [], {failures.unavailable(error, given.using): 1}
                wrapped = [line for text in problems for line in self._out.wrap(text)]
                lines += map(self.style.ERROR, wrapped)
                words = {"every": duration(every), "now": f"{local(now()):%H:%M:%S}"}
                title = _("%(now)s, refreshed every %(every)s. Press Ctrl-C to stop.") % words
                terminal.draw(stream, [title, "", *lines])
                time.sleep(every)

    def _log(self, given: Namespace) -> None:
        name, key = (None, None) if given.name is None else self._find(given)[0]
        found = audit.acts(name, key, limit=given.top, using=given.using)
        if given.format == "json":
            self._print([json.dumps([plain(act) for act in found], indent=2)])
        elif found:
            self._print(history_view.log(found, self._out))
        else:
            none = _("No operator has acted on this name.") if name else _("No operator has acted.")
            self._print([none])

    def _history(self, given: Namespace) -> None:
        name, key = given.name, None
        if given.key is not None or name not in families(using=given.using):
            name, key = self._find(given)[0]
        status = self._known([(name, key)], given.using)[0]
        kept = conf.current().keep(key)
        if not kept:
            raise CommandError(_("REDIS_SYNC['STATS'] is off: there is no history."))
        minutes = min(kept, max(1, round(given.since / 60)))
        found = past_of(name, key, minutes=minutes, using=given.using)
        shares = heaviest_shares(name, key, minutes=minutes, using=given.using)
        if given.format == "json":
            self._print([json.dumps(history_json(found, shares), indent=2)])
            return
        if minutes * 60 < given.since:
            self._print([_("History reaches back %s.") % duration(60 * minutes)])
        self._print(history_view.history(found, status, shares, self._out))

    # Actions that change something

    def _clear(self, given: Namespace) -> None:
        name, using = given.name, given.using

        def look() -> tuple[list[Status], list[tuple[Status, Holder | Waiter]]]:
            if given.pattern:
                names = names_in_use(using=using, pattern=name)
            else:
                names = arguments.find(name, given.key, using)
            found = statuses(names, using=using, rows=MAX_CLEARED)
            return found, _chosen(found, given.holder)

        found, chosen = _twice(look, lambda looked: not looked[1])
        if not given.pattern:
            unknown = arguments.unknown(found, using)
            if unknown and names_in_use(using=using, pattern=name):
                unknown += " " + _("To use the name as a glob, add --pattern.")
            self._check(unknown)
        if not chosen:
            if given.holder is not None:
                raise CommandError(_("No holder or waiter has that id: nothing was cleared."))
            self._print(
                [_("There are no holders.") if found else _("No known name matches the pattern.")]
            )
            return
        self._print(people_view.holders_table(chosen, self._out))
        if given.dry_run:
            self._print([_("Dry run: nothing was cleared.")])
            return
        if given.interactive and any(isinstance(one, Holder) for _of, one in chosen):
            self._print(self._out.explained(str(EFFECT_OF_CLEAR)))
        text = ngettext("Clear %d entry?", "Clear %d entries?", len(chosen)) % len(chosen)
        if given.interactive and not self._agreed(text):
            raise CommandError(_("Nothing was cleared."))
        cleared = [
            one
            for status in found
            if (tokens := [shown.token for of, shown in chosen if of is status])
            for one in actions.clear(status, tokens, using=using, reason=given.reason)
        ]
        done = sum(one.done for one in cleared)
        gone = len(cleared) - done
        text = _("Cleared %d.") % done
        if gone:
            ended = ngettext(
                "%d lease or wait had already ended.", "%d leases or waits had already ended.", gone
            )
            text += " " + ended % gone
        self._print([self.style.SUCCESS(text)])

    def _agreed(self, question: str) -> bool:
        self.stdout.write(question + " [y/N] ", ending="")
        self.stdout.flush()
        try:
            return input().strip().lower() in ("y", "yes")
        except (EOFError, RuntimeError):  # no input, or stdin is closed, as in some cron jobs
            self.stdout.write("")
            text = _("Nothing was cleared. To clear without a question, add --no-input.")
            raise CommandError(text) from None

    def _pause(self, given: Namespace) -> None:
        def done(change: actions.Change) -> str:
            if change.until is None:
                return _("Paused %s until resume.")
            words = {"until": moment(change.until), "time": duration(given.seconds)}
            return _("Paused %s") + " " + _("until %(until)s (for %(time)s).") % words

        before = _("%s is paused already: nothing was changed.")
        self._override("pause", given, done, before, given.seconds)

    def _resume(self, given: Namespace) -> None:
        before = _("%s is not paused: nothing was changed.")
        self._override("resume", given, _("Resumed %s."), before)

    def _resize(self, given: Namespace) -> None:
        if (given.limit is None and given.rate is None) != given.reset:
            raise CommandError(_("Give a LIMIT, --rate, or --reset."), returncode=2)
        if given.reset:
            done = _("Reset %s: the callers' limit and rate apply again.")
            before = _("%s is not resized: nothing was changed.")
            self._override("reset", given, done, before)
            return
        done, before = _("Resized %s."), _("%s has this rate already: nothing was changed.")
        if given.limit is not None:
            done += " " + _("The limit is %d.") % given.limit
            before = _("%s has this limit already: nothing was changed.")
        if given.rate is not None:
            done += " " + _("The rate is %s.") % given.rate
        self._override("resize", given, done, before, given.limit, given.rate)

    def _override(
        self,
        action: str,
        given: Namespace,
        done: str | Callable[[actions.Change], str],
        before: str,
        *value: Any,
    ) -> None:
        """Call the method `action` of `actions.Change` with `value`. Print the text `done` if the
        method changed something, else the text `before`. Both texts have a %s for the name. `done`
        may be a function that returns the text for the change that was made."""
        using, pairs = given.using, self._find(given)
        name, key = pairs[0]
        if given.key is None and given.name in families(using=using):
            name = given.name  # Change refuses it
        if action in ("resume", "reset"):
            self._known(pairs, using)
        elif not given.create:
            self._known(pairs, using, _("If the name is right, add --create."))
        change = actions.Change(name, key, using, reason=given.reason)
        names = getattr(change, action)(*value)
        shown = printable(display(name, key))
        keys = count_keys([name], using=using)[name] if key is None else 0
        if keys:
            shown += " (" + ngettext("%d key", "%d keys", keys) % keys + ")"
        text = done(change) if callable(done) else done
        self._print([self.style.SUCCESS(text % shown) if names else before % shown])

    # The doctor, and running a command

    def _doctor(self, given: Namespace) -> None:
        findings = doctor.examine(using=given.using, seconds=LOOK_SECONDS)
        self._print(doctor_view.report(findings, self._out))
        if any(finding.level == "error" for finding in findings):
            sys.exit(1)

    def _run(self, given: Namespace) -> None:
        if not self._child or given.words:
            raise CommandError(_without_dashes(["run", given.name], given.words), returncode=2)
        sys.exit(runner.run(self._child, self.stderr, given))

    # Inside

    def _find(self, given: Namespace) -> list[tuple[str, str | None]]:
        return arguments.find(given.name, given.key, given.using, max_keys=1)

    def _known(self, pairs: Sequence[Pair], using: str | None, remedy: str = "") -> list[Status]:
        """Return the status of each pair. If the name is unknown, raise CommandError, which says
        `remedy` unless a known name is similar."""

        def look() -> tuple[list[Status], str]:
            found = statuses(pairs, using=using)
            return found, arguments.unknown(found, using, remedy)

        found, unknown = _twice(look, lambda looked: bool(looked[1]))
        self._check(unknown)
        return found

    def _check(self, unknown: str) -> None:
        if unknown:
            raise CommandError(unknown, returncode=arguments.UNKNOWN)

    @property
    def _out(self) -> Output:
        return Output(terminal.width_of(self.stdout), self.style)

    def _print(self, lines: Sequence[str]) -> None:
        self.stdout.write(terminal.encodable("\n".join(lines), self.stdout))


def _twice(look: Callable[[], Found], is_missing: Callable[[Found], bool]) -> Found:
    """Return the result of `look()`. If something is missing in it, wait for LOOK_AGAIN seconds and
    look again: another process may have a name that it has not registered yet."""
    found = look()
    if is_missing(found):
        time.sleep(LOOK_AGAIN)
        found = look()
    return found


def _chosen(found: Sequence[Status], holder: str | None) -> list[tuple[Status, Holder | Waiter]]:
    """Return pairs (status of a name, holder). If `holder` is given, return only the holder or
    waiter whose token begins with this text. Raise CommandError if several tokens do so."""
    if holder is None:
        return [(status, one) for status in found for one in status.holders]
    everyone = [(s, one) for s in found for one in s.everyone]
    fits = len(holder) >= SHOWN
    chosen = [(s, one) for s, one in everyone if fits and one.token.startswith(holder)]
    tokens = list(dict.fromkeys(one.token for _status, one in chosen))
    if len(tokens) > 1:
        text = _(
            "The ids of %(n)d holders or waiters begin with %(id)s: nothing was cleared. Give more "
            "characters: %(ids)s"
        )
        shown = ", ".join(token[: SHOWN + 4] for token in tokens)
        raise CommandError(text % {"n": len(tokens), "id": holder, "ids": shown})
    return chosen


def _without_dashes(begin: Sequence[str], words: Sequence[str]) -> str:
    """Return the message for a command that does not follow `--`. `begin`: the words before it."""
    command = shlex.join(words) if words else _("COMMAND")
    text = _("Give the command after --, such as: locks %(begin)s -- %(command)s")
    return text % {"begin": shlex.join(begin), "command": command}
