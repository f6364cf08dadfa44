"""Starts the program `lockbench` (also `python -m bench`): *arguments → an exit code*.

This module imports no heavy modules. The reason is that `bench.frame.guarded` must run before
`bench.program` is imported.
"""

from collections.abc import Sequence

from bench.frame import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line of lockbench, and exit with its code.

    `argv` holds the arguments. If it is None, the arguments of this process apply.
    """
    guarded(_execute, argv)


def _execute(arguments: Sequence[str]) -> int:
    from bench.program import execute

    return execute(arguments)


if __name__ == "__main__":
    main()
