"""`manage.py locks`: holders and waiters; free, pause, resize; is Redis fit; run a command."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)
from django.core.management.color import no_style
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_redis_sync.exceptions import SyncError, Unavailable
from django_redis_sync.management import display, looking, naming, runner, terminal
from django_redis_sync.operators import actions, audit, doctor
from django_redis_sync.operators.listing import FIGURES
from django_redis_sync.operators.names import count_keys, names_in_use
from django_redis_sync.operators.status import Holder, Status, Waiter, statuses
from django_redis_sync.operators.words import duration, without_secrets

EXIT_CODES = """\
exit codes:
  0  done; `status` and `doctor`: Redis answered, and doctor found no error
  1  Redis can't be reached, or nothing was done; doctor: an error was found
  2  wrong usage; doctor: Redis can't be reached
  3  nothing is known of that name (`status`, `clear`, `resume`, `resize --reset`)
  `run`: the command's own code; 128 + n when it was ended by signal n; 69 Redis can't be reached;
  75 not acquired in time; 76 the lease was lost and the command ended; 126, 127 it can't be run
"""
#: The exit code for a name of which nothing is known.
UNKNOWN = 3
#: How `status` can be sorted.
ORDERS = ("name", "recent", *FIGURES)
#: Names that `status` shows, unless told otherwise.
MOST_SHOWN = 100
#: Rows of holders that `clear` shows and acts on.
MOST_CLEARED = 10_000


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(_("not a number of seconds: %r") % text)
    return value


def _limit(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(_("not a limit, which is 1 or more: %r") % text)
    return value


class _Formatter(DjangoHelpFormatter):
    """Leaves the list of exit codes as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text == EXIT_CODES else super()._fill_text(text, width, indent)


class Command(BaseCommand):
    help = "Shows who holds locks and semaphores and who waits, and lets an operator act."
    requires_system_checks: list[str] = []  # it has to work when the project doesn't
    _child: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # All behind `--` is the command to run, with its own options.
        if "--" in argv and "run" in argv[2 : argv.index("--")]:
            cut = argv.index("--")
            argv, self._child = argv[:cut], argv[cut + 1 :]
        super().run_from_argv(argv)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs = {"epilog": EXIT_CODES, "formatter_class": _Formatter, **kwargs}
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        using: dict[str, Any] = {
            "metavar": "ALIAS", "help": "a cache alias other than REDIS_SYNC['CACHE']"
        }  # fmt: skip
        parser.add_argument("--using", **using)
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

        def add(name: str, text: str, **options: Any) -> CommandParser:
            found: CommandParser = actions.add_parser(name, help=text, description=text, **options)
            found.add_argument("--using", default=SUPPRESS, **using)
            # Django's own options may stand behind the action too.
            found.add_argument("-v", "--verbosity", type=int, default=SUPPRESS, help=SUPPRESS)
            for option in ("--settings", "--pythonpath"):
                found.add_argument(option, default=SUPPRESS, help=SUPPRESS)
            for option in ("--traceback", "--no-color", "--force-color"):
                found.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
            return found

        def add_key(to: CommandParser) -> None:
            to.add_argument("--key", help="one key of a keyed policy: a user's pk, an IP address")

        def add_reason(to: CommandParser) -> None:
            to.add_argument("--reason", default="", help="why, for the record: see locks log")

        status = add("status", "Who holds, who waits, since when.")
        status.add_argument("name", nargs="?", help="one name; without it, a line for each")
        add_key(status)
        status.add_argument("--format", choices=("table", "json"), default="table")
        status.add_argument(
            "--sort", choices=ORDERS, metavar="|".join(ORDERS),
            help="the largest first; without it by name, or the most recently used of many",
        )  # fmt: skip
        status.add_argument(
            "--top", type=_limit, default=MOST_SHOWN, metavar="N",
            help=f"names, or keys of a policy, at the most ({MOST_SHOWN})",
        )  # fmt: skip
        status.add_argument(
            "--watch", nargs="?", type=_seconds, const=1.0, metavar="SECONDS",
            help="again every so many seconds (1), until Ctrl-C",
        )  # fmt: skip
        clear = add("clear", "Take leases away: the holders shown, and nobody who came since.")
        clear.add_argument("name", help="a name, with all its keys")
        add_key(clear)
        clear.add_argument("--holder", metavar="ID", help="a holder or waiter that status shows")
        clear.add_argument("--pattern", action="store_true", help="the name is a glob: * ? [seq]")
        clear.add_argument("--dry-run", action="store_true", help="only show whom")
        add_reason(clear)
        clear.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="don't ask"
        )
        for action, text in (
            ("pause", "Let nobody new in; holders finish. It lasts until resume."),
            ("resume", "Undo pause; waiters get in at once."),
        ):
            each = add(action, text)
            each.add_argument("name", help="a name, with all its keys")
            add_key(each)
            add_reason(each)
        resize = add("resize", "Set a limit above what the code says. It lasts until --reset.")
        resize.add_argument("name", help="a name, with all its keys")
        resize.add_argument("limit", nargs="?", type=_limit, metavar="LIMIT")
        resize.add_argument("--reset", action="store_true", help="let the code's limit rule again")
        add_key(resize)
        add_reason(resize)
        log = add("log", "What operators did: who, what, why.")
        log.add_argument("name", nargs="?", help="one name; without it, all of them")
        add_key(log)
        log.add_argument("--format", choices=("table", "json"), default="table")
        log.add_argument(
            "--top", type=_limit, default=MOST_SHOWN, metavar="N", help="so many, the newest first"
        )
        add("doctor", "Is this Redis fit for locks? What is wrong, and the remedy.")
        run = add(
            "run", "Run a command while holding a permit: flock(1) for a fleet.",
            usage="manage.py locks run NAME [--limit N] [--wait SECONDS] [--skip] "
            "[--min-hold SECONDS] -- COMMAND ...",
        )  # fmt: skip
        run.add_argument("name")
        run.add_argument(
            "--limit", type=_limit, metavar="N",
            help="permits of the name; default: what SEMAPHORES says, or 1",
        )  # fmt: skip
        run.add_argument(
            "--wait", type=_seconds, metavar="SECONDS",
            help="how long to wait for a permit, 0 not at all; default: as long as it takes",
        )  # fmt: skip
        run.add_argument(
            "--skip", action="store_true",
            help="when it is taken, exit 0 quietly (at once, or after --wait)",
        )  # fmt: skip
        run.add_argument(
            "--min-hold", type=_seconds, metavar="SECONDS",
            help="keep the permit this long even if the command ends sooner: once per period",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["force_color"] and not terminal.size(self.stdout):
            self.style = no_style()
        action = options["action"]
        try:
            getattr(self, f"_{action}")(**options)
        except Unavailable as error:
            code = {"doctor": 2, "run": runner.UNAVAILABLE}.get(action, 1)
            raise CommandError(naming.unavailable(error), returncode=code) from None
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
            seen = looking.at(name, key, sort or "", top, using)
            hidden = display.unread(seen.unread)
            note = [self.style.ERROR(hidden)] if hidden and watch is not None else []
            if name is not None:
                unheard_of = naming.unheard_of(seen.groups[0].all, using)
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
                    found = [self.style.ERROR(naming.unavailable(error))]
                now = timezone.localtime().strftime("%H:%M:%S")
                words = {"every": duration(every), "now": now}
                title = _("%(now)s, every %(every)s. Ctrl-C ends.") % words
                screen.draw([title, "", *found])
                time.sleep(every)

    def _log(
        self, name: str | None, key: str | None, format: str, top: int, using: str | None,
        **_options: Any,
    ) -> None:  # fmt: skip
        pairs = [(name, key)] if name is None else naming.find(name, key, using, most=1)
        found = audit.acts(*pairs[0], most=top, using=using)
        if format == "json":
            self._print([json.dumps(audit.as_json(found), indent=2)])
        elif found:
            self._print(display.acts(found, self._width(), self.style))
        else:
            self._print(
                [_("No operator did anything to it.") if name else _("No operator did anything.")]
            )

    # Acting

    def _clear(
        self, name: str, key: str | None, holder: str | None, pattern: bool, dry_run: bool,
        interactive: bool, reason: str, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        names = (
            names_in_use(using=using, pattern=name) if pattern else naming.find(name, key, using)
        )
        found = statuses(names, using=using, rows=MOST_CLEARED)
        if not pattern:
            unheard_of = naming.unheard_of(found, using)
            if unheard_of and names_in_use(using=using, pattern=name):
                unheard_of += " " + _("As a glob it takes --pattern.")
            self._check(unheard_of)
        elif not found:
            self._print([_("No known name matches.")])
            return
        chosen = _chosen(found, holder)
        if not chosen:
            if holder is not None:
                raise CommandError(_("Nobody of that id holds or waits: nothing was cleared."))
            self._print([_("Nobody holds anything there.")])
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
            text += (
                " "
                + ngettext("%d had ended by itself.", "%d had ended by themselves.", gone) % gone
            )
        self._print([self.style.SUCCESS(text)])

    def _agreed(self, question: str) -> bool:
        self.stdout.write(question + " [y/N] ", ending="")
        self.stdout.flush()
        try:
            return input().strip().lower() in ("y", "yes")
        except EOFError:
            self.stdout.write("")
            return False

    def _pause(self, **options: Any) -> None:
        self._mark(actions.pause, _("Paused %s: nobody new gets in until resume."), **options)

    def _resume(self, **options: Any) -> None:
        self._mark(actions.resume, _("Resumed %s."), undoes=True, **options)

    def _resize(self, limit: int | None, reset: bool, **options: Any) -> None:
        if (limit is None) == (not reset):
            raise CommandError(_("Give a LIMIT or --reset."), returncode=2)
        if limit is None:
            said = _("Reset %s: the limit is what the code says.")
            self._mark(actions.reset, said, undoes=True, **options)
            return
        wanted = limit

        def resize(name: str, key: str | None, using: str | None, *, reason: str) -> list[str]:
            return actions.resize(name, key, wanted, using, reason=reason)

        self._mark(resize, _("Resized %s.") + " " + _("The limit is %d.") % wanted, **options)

    def _mark(
        self, act: Callable[..., list[str]], said: str, name: str, key: str | None, reason: str,
        using: str | None, undoes: bool = False, **_options: Any,
    ) -> None:  # fmt: skip
        family = naming.find(name, key, using, most=1)
        unheard_of = naming.unheard_of(statuses(family, using=using), using)
        if undoes:
            self._check(unheard_of)
        (plain, child), *_others = family
        names = act(plain, child, using, reason=reason)
        shown = terminal.printable(names[0])
        keys = count_keys([plain], using=using)[plain] if child is None else 0
        if keys:
            said_keys = ngettext("%d key", "%d keys", keys) % keys
            shown = f"{shown} ({said_keys})"
        self._print([self.style.SUCCESS(said % shown)])
        if unheard_of:
            self._print([self.style.WARNING(unheard_of)])

    def _check(self, unheard_of: str | None) -> None:
        if unheard_of:
            raise CommandError(unheard_of, returncode=UNKNOWN)

    # Judging and running

    def _doctor(self, using: str | None, **_options: Any) -> None:
        findings = doctor.examine(using=using)
        self._print(display.findings(findings, self._width(), self.style))
        if any(finding.level == "error" for finding in findings):
            sys.exit(1)

    def _run(
        self, name: str, limit: int | None, wait: float | None, skip: bool,
        min_hold: float | None, using: str | None, **_options: Any,
    ) -> None:  # fmt: skip
        if not self._child:
            raise CommandError(_("Give the command after --."), returncode=2)
        order = runner.Order(name, limit, wait, skip, min_hold or None, using)
        sys.exit(runner.run(order, self._child, self.stderr))

    # Inside

    def _width(self) -> int | None:
        found = terminal.size(self.stdout)
        return None if found is None else found[0]

    def _print(self, lines: Sequence[str]) -> None:
        self.stdout.write(terminal.encodable("\n".join(lines), self.stdout))


def _chosen(found: Sequence[Status], holder: str | None) -> list[tuple[Status, Holder | Waiter]]:
    """The holders; or those holders and waiters with the id `holder`."""
    if holder is None:
        return [(status, one) for status in found for one in status.holders]
    everyone = [(s, one) for s in found for one in s.everyone]
    return [(status, one) for status, one in everyone if one.id == holder]
