"""Runs a judged lock in a separate process. The process reads an order and steps, and writes
answers. All these messages have the same form as in an audit driver.

If the process cannot drive the lock in the user's file, the process answers the order with one
sentence that states the reason. The process then exits with code 2.
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
