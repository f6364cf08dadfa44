"""Targets of the environment: *the variable LOCKBENCH_TARGETS or LOCKBENCH_TARGETS_FILE → URLs, and
the name of the variable*. LOCKBENCH_TARGETS_FILE names a file with the URLs.

Rules: URLs hold passwords. Every user of the machine can read a command line. Other users cannot
read a variable, and they cannot read a file that is open only to its owner. The option --target has
priority over both variables. Both variables have priority over the file of a scenario. Each error
message names the variable.
"""

import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.errors import UsageError
from bench.scenario.quantity import parse_target

TARGETS = "LOCKBENCH_TARGETS"
TARGETS_FILE = "LOCKBENCH_TARGETS_FILE"
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


def split_targets(text: str) -> list[str]:
    """Return the URLs in `text`, separated by spaces, line breaks or commas."""
    stripped = text.strip(" \t\r\n,")
    return re.split(r"[\s,]+(?=[\w.+-]+://)", stripped) if stripped else []


def targets_of(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the URLs from `environ`, and the name of the variable.

    If both variables are unset or empty, the list of URLs is empty.

    Raises UsageError.
    """
    listed = environ.get(TARGETS, "").strip()
    path = environ.get(TARGETS_FILE, "").strip()
    if listed and path:
        raise UsageError(f"{TARGETS} and {TARGETS_FILE} are both set; unset one of them")
    if not path:
        return _checked(split_targets(listed), TARGETS), TARGETS
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(
            f"{TARGETS_FILE}: {path} is not UTF-8; write one URL per line, in UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
        raise UsageError(
            f"{TARGETS_FILE}: {path} cannot be read ({why}); correct the path"
        ) from None
    # A comment begins with a space and a #. Within a URL no # has a space before it.
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    urls = split_targets("\n".join(lines))
    if not urls:
        raise UsageError(f"{TARGETS_FILE}: {path} names no instance; write one URL per line")
    return _checked(urls, f"{TARGETS_FILE} ({path})"), TARGETS_FILE


def exposed_file(environ: Mapping[str, str], urls: Sequence[str]) -> str:
    """Return a warning if other users may read passwords in the file of `urls`. The warning names a
    command that solves the problem.

    Otherwise return "".
    """
    # Imported here, because the command line must start without loading the lock.
    from lockcore.bench import secrets_of

    text = environ.get(TARGETS_FILE, "").strip()
    if not text or not any(secrets_of(url) for url in urls):
        return ""
    path = Path(text).expanduser()
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) or not mode & OTHERS_READ:
        return ""
    return (
        f"{TARGETS_FILE}: {path} contains passwords, and other users can read it; "
        f"run chmod 600 {shlex.quote(str(path))}"
    )


def _checked(urls: list[str], place: str) -> list[str]:
    for number, url in enumerate(urls, 1):
        try:
            parse_target(url)
        except ValueError as error:
            raise UsageError(f"{place}, target {number}: {error}") from None
    return urls
