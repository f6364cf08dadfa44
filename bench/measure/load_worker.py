"""The section of a result that describes one load process on another host."""

from typing import Annotated

from bench.measure.section import Amount, Count, Section, says


class LoadWorker(Section, frozen=True, kw_only=True):
    """A load process that ran on another host.

    The clock of the process is known within ± `clock_error_s`. `clock_error_s` is null if the
    process uses the leader's own clock.
    """

    worker: Annotated[Count, says("index of the load process")]
    host: Annotated[str, says("name of the host on which the load process ran")]
    about: Annotated[str, says("versions of lockbench, Python and lockcore in the load process")]
    phase: Annotated[
        str,
        says(
            "`stopped` means that the load process reported its end; `lost` and `running` mean "
            "that its end is unknown"
        ),
    ]
    leases: Annotated[Count, says("number of recorded leases of this load process", shown="line")]
    cpu_ratio: Annotated[
        Amount | None,
        says(
            "CPU use of the load process, in cores; null if the process did not report its CPU use",
            label="CPU",
            shown="line",
        ),
    ] = None
    lag_p99_s: Annotated[
        Amount | None,
        says("99 % of the timers of this load process fired at most this late", shown="line"),
    ] = None
    same_clock: Annotated[bool, says("true if the load process used the same clock as the leader")]
    clock_error_s: Annotated[
        Amount | None,
        says(
            "error bound of the process's clock, for a round trip of median length",
            label="clock ±",
            shown="line",
        ),
    ]
    clock_error_max_s: Annotated[
        Amount | None,
        says("the largest error bound of the process's clock", label="at most", shown="line"),
    ]
    round_trip_s: Annotated[
        Amount | None,
        says("duration of the shortest round trip between the leader and the load process"),
    ]
    round_trips: Annotated[
        Count, says("number of measured round trips, which limit the error of the process's clock")
    ]
    clock_steps: Annotated[
        Count,
        says(
            "how often the clock of the process stepped; after a step, the error of the "
            "clock is unknown",
            shown="line",
        ),
    ]
