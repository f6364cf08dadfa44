"""A load process of another host: *the report of the process → a section of the result*."""

from typing import Annotated

from bench.measure.section import Amount, Count, Section, says


class LoadWorker(Section, frozen=True, kw_only=True):
    """A load process of another host.

    The clock of the process is known within ± `clock_error_s`. This error is null if the process
    uses the leader's own clock.
    """

    worker: Annotated[Count, says("its index")]
    host: Annotated[str, says("name of its host")]
    about: Annotated[str, says("versions of lockbench, Python and lockcore on the worker")]
    phase: Annotated[
        str, says("stopped: it reported its end; lost or running: its share is unknown")
    ]
    leases: Annotated[
        Count, says("leases granted to this worker, among those with a record", shown="line")
    ]
    cpu_ratio: Annotated[
        Amount | None, says("of one core; null if it was not reported", label="CPU", shown="line")
    ] = None
    lag_p99_s: Annotated[Amount | None, says("how late its scheduler ran", shown="line")] = None
    same_clock: Annotated[bool, says("whether its times are exact times of the leader's clock")]
    clock_error_s: Annotated[
        Amount | None,
        says(
            "the error bound of its clock, at the median round trip", label="clock ±", shown="line"
        ),
    ]
    clock_error_max_s: Annotated[
        Amount | None, says("the largest error bound of its clock", label="at most", shown="line")
    ]
    round_trip_s: Annotated[Amount | None, says("the shortest")]
    round_trips: Annotated[Count, says("that bound its clock")]
    clock_steps: Annotated[Count, says("how often nothing was known of its clock", shown="line")]
