"""Runs a judged lock in a process of its own. The process reads the same order and steps as an
audit driver, and writes the same kind of answers.

If the process cannot drive the lock in the user's file, the process answers the order with one
sentence about the reason. The process then exits with code 2.
"""

import traceback

from bench.errors import UsageError
from bench.experiments.judge.clients.steps import serve
from bench.experiments.judge.subject import lock_of


def main() -> None:
    """Execute the steps that arrive on stdin."""
    serve(lock_of, refusal)


def refusal(error: BaseException) -> str:
    """Return one sentence that says why the lock cannot be driven. Unless `error` is a UsageError,
    the sentence also names the file and the line of the error.
    """
    if isinstance(error, UsageError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename}:{place.lineno}"
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
        message = error.msg
    text = " ".join(f"{type(error).__name__}: {message} ({where})".split())
    return f"the lock raised {text}; correct the lock"


if __name__ == "__main__":
    main()
