"""The program `lockbench`, also `python -m bench`: *arguments → exit code*.

Nothing heavy is imported here: `bench.frame.guarded` stands before `bench.program` is imported.
"""

from collections.abc import Sequence

from bench.frame import guarded


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line of lockbench (default: this process's) and exit with its code."""
    guarded(_execute, argv)


def _execute(arguments: Sequence[str]) -> int:
    from bench.program import execute

    return execute(arguments)


if __name__ == "__main__":
    main()
