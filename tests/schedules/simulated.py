"""The process in which courses of events are played: *a planted fault, or none → figures, by course
and recipe*.

Its time is virtual from before its first import of a recipe on.
"""

from functools import cache

from bench.experiments.explore.sockets import take_over
from bench.topology.child import Child

Played = dict[str, dict[str, dict[str, float | None]]]


@cache
def played(fault: str = "") -> Played:
    """Every course with every recipe it is for, with that fault of courses.PLANTED."""
    with Child("the process of the courses", __name__) as process:
        process.tell(fault)
        return process.hear(Played, 120.0)


if __name__ == "__main__":
    take_over()
    from tests.schedules.courses import main

    main()
