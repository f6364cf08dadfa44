"""Runs a judged lock in a process of its own. The process reads the same order and steps as an
audit driver, and writes the same kind of answers.

If the process cannot drive the lock in the user's file, it writes one sentence to stderr and exits
with code 2.
"""

import sys
import traceback

from bench.errors import UsageError
from bench.experiments.judge.clients.steps import serve
from bench.experiments.judge.subject import lock_of


def main() -> None:
    """Execute the steps that arrive on stdin."""
    try:
        serve(lock_of)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(UsageError.exit_code)
    except Exception as error:  # noqa: BLE001 - the user's file may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        message = str(error)
        if isinstance(error, SyntaxError):
            where = f"{error.filename}:{error.lineno}"
            message = error.msg
        # The judge shows only the last line on stderr.
        text = " ".join(f"{type(error).__name__}: {message} ({where})".split())
        sys.stderr.write(f"{text}\n")
        sys.exit(UsageError.exit_code)


if __name__ == "__main__":
    main()
