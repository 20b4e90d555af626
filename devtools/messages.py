"""Update the catalog of translations from the texts of the package, and compile the catalog.

    python -m devtools.messages

New texts get an empty translation and are printed. Texts that are no longer used are removed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.commands import makemessages

PACKAGE = Path(__file__).parent.parent / "django_redis_sync"
CATALOG = PACKAGE / "locale/zh_Hans/LC_MESSAGES/django.po"
# Header lines that change with every run.
NOISE = re.compile(r'^"(POT-Creation-Date|Report-Msgid-Bugs-To):.*\n', re.MULTILINE)
EMPTY = re.compile(r'^msgid ((?:".*"\n)+)(?:msgid_plural .*\n)?msgstr(?:\[0\])? ""\n(?!")', re.M)


class Extract(makemessages.Command):
    # Don't guess translations from similar texts. Sort by text, so that the catalog doesn't change
    # if code is moved.
    msgmerge_options = [
        *makemessages.Command.msgmerge_options, "--no-fuzzy-matching", "--sort-output"
    ]  # fmt: skip


def main() -> int:
    if not all(map(shutil.which, ("xgettext", "msgfmt"))):
        print("GNU gettext is missing. On Debian, install the package gettext.", file=sys.stderr)
        return 1
    settings.configure()
    os.chdir(PACKAGE)
    options = {"no_location": True, "no_wrap": True, "no_obsolete": True, "verbosity": 0}
    call_command(Extract(), locale=[CATALOG.parts[-3]], **options)
    text = NOISE.sub("", CATALOG.read_text(encoding="utf-8"))
    CATALOG.write_text(text, encoding="utf-8")
    subprocess.run(
        ["msgfmt", "--check-format", "-o", CATALOG.with_suffix(".mo"), CATALOG], check=True
    )
    missing = EMPTY.findall(text.split("\n\n", 1)[1])
    for one in missing:
        print(f"not translated yet: {one.strip()}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
