"""setuptools' build backend with a reproducible sdist.

setuptools applies SOURCE_DATE_EPOCH only to wheels. The files in its sdists have the times, owners,
and modes of the checkout, which this module replaces.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks of the backend


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        even_out(Path(sdist_directory, name), int(epoch))
    return name


def even_out(sdist: Path, epoch: int) -> None:
    """Rewrite an sdist: sort the members by name, set their time to `epoch`, and remove their
    owners. Set the mode of folders and executable files to 755, and of other files to 644."""
    plain = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed:
        packed.write(plain.getvalue())
