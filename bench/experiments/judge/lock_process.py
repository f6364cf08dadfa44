"""The process of a lock that is judged: *the same order and steps as an audit's driver → the same
answers*.

A file that cannot be driven ends it with 2 and one sentence on stderr.
"""

import sys
import traceback

from bench.errors import UsageError
from bench.experiments.judge.clients.steps import serve
from bench.experiments.judge.subject import lock_of


def main() -> None:
    """Do the steps on stdin."""
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
        # Only the last line on stderr is shown.
        text = " ".join(f"{type(error).__name__}: {message} ({where})".split())
        sys.stderr.write(f"{text}\n")
        sys.exit(UsageError.exit_code)


if __name__ == "__main__":
    main()
