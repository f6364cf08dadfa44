"""`python -m dashboards`: *the boards' code → dashboards/boards/\\*.json*.

The same code always produces the same bytes.
"""

from pathlib import Path

from dashboards.production_board import production
from dashboards.run_boards import fsync, generator, overview, quorum

FOLDER = Path(__file__).with_name("boards")
BOARDS = {
    "run-overview.json": overview,
    "quorum.json": quorum,
    "fsync.json": fsync,
    "generator.json": generator,
    "production.json": production,
}


def main() -> None:
    """Write all boards to the folder `boards` beside this file."""
    for name, make in BOARDS.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
