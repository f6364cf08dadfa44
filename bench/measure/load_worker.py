"""A load process of another host: *its own report → a section of the result*."""

from typing import Annotated

from bench.measure.section import Amount, Count, Section, says


class LoadWorker(Section, frozen=True, kw_only=True):
    """A load process of another host.

    Its clock is known within ± clock_error; null: it is the leader's own.
    """

    worker: Annotated[Count, says("its index")]
    host: Annotated[str, says("name of its host")]
    about: Annotated[str, says("versions of lockbench, Python and lockcore there")]
    phase: Annotated[
        str, says("stopped: it told its end; running, lost: it did not, and its share is unknown")
    ]
    leases: Annotated[
        Count, says("leases it was granted, of those whose record is here", shown="line")
    ]
    cpu_ratio: Annotated[
        Amount | None, says("of a core; null: it did not tell", label="CPU", shown="line")
    ] = None
    lag_p99_s: Annotated[Amount | None, says("how late its scheduler ran", shown="line")] = None
    same_clock: Annotated[bool, says("whether its times are of the leader's clock, and exact")]
    clock_error_s: Annotated[
        Amount | None,
        says(
            "half the bound on its clock, at the middle one of its round trips",
            label="clock ±",
            shown="line",
        ),
    ]
    clock_error_max_s: Annotated[
        Amount | None, says("the widest, between two round trips", label="at most", shown="line")
    ]
    round_trip_s: Annotated[Amount | None, says("the shortest")]
    round_trips: Annotated[Count, says("that bound its clock")]
    clock_steps: Annotated[Count, says("times when nothing was known of its clock", shown="line")]
