"""The process of a judged lock: *the order and steps of an audit driver → the same kind of
answers*.

If the user's file cannot be driven, the process exits with code 2 and writes one sentence to
stderr.
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
        # The judge shows only the last line on stderr.
        text = " ".join(f"{type(error).__name__}: {message} ({where})".split())
        sys.stderr.write(f"{text}\n")
        sys.exit(UsageError.exit_code)


if __name__ == "__main__":
    main()
