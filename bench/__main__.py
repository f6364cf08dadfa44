"""Starts the program `lockbench` (also `python -m bench`): *arguments → an exit code*.

This module imports no heavy modules. `bench.frame.guarded` must run before anything imports
`bench.program`.
"""

from collections.abc import Sequence

from bench.frame import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line of lockbench, and exit with its code.

    `argv` holds the arguments. If `argv` is None, the program uses the arguments of this process.
    """
    guarded(_execute, argv)


def _execute(arguments: Sequence[str]) -> int:
    from bench.program import execute

    return execute(arguments)


if __name__ == "__main__":
    main()
