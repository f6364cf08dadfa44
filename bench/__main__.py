"""The program `lockbench`, also `python -m bench`: *arguments → exit code*.

This module imports no heavy module, because `bench.frame.guarded` must run before the import of
`bench.program`.
"""

from collections.abc import Sequence

from bench.frame import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line of lockbench, and exit with its code.

    `argv`: the arguments (None: those of this process).
    """
    guarded(_execute, argv)


def _execute(arguments: Sequence[str]) -> int:
    from bench.program import execute

    return execute(arguments)


if __name__ == "__main__":
    main()
