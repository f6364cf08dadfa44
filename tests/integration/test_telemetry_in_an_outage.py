"""The metrics page is read while a run has no quorum, spins without a pause, and loses a load
process."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.commands.watch import open_watch
from tests.dashboards.prometheus_answers import Prometheus
from tests.integration.locust_runs import free_port, get, started

pytestmark = pytest.mark.integration
# in two load processes
CALLERS = 64
OUTAGE_S = 12.0
# after the outage began
KILLED_S = 13.0
# of the pages, or a machine is too busy for the exporter to tell anything
FRESH = 0.8
# A gauge that is gone for so long begins the five seconds of the alert anew.
GAP_S = 1.0
# so long the gauge must be there on end, or the alert cannot be expected: its 5 s, two scrapes, two
# evaluations
FIRES_S = 9.0
# two intervals until a note is old, the same for a snapshot, one for a busy machine
NOTICED_S = 5.0
SCENARIO = f"""
instances = 5
users = {CALLERS}
processes = 2
resources = 2000
hold = "fixed:30ms"
duration = "22s"
warmup = "0s"
[[faults]]
at = "1s"
for = "{OUTAGE_S:g}s"
kind = "stop"
target = ["instance:0", "instance:1", "instance:2"]
[[faults]]
at = "14s"
kind = "kill"
target = ["worker:1"]
"""
FIRING = 'count(ALERTS{alertname="LockQuorumLost",alertstate="firing"})'


@dataclass
class Page:
    """The page as it was at `at_s` (monotonic): values by metric, in the order of the page.
    `fired`: so many alerts LockQuorumLost were firing then; None: nobody knows."""

    at_s: float
    values: dict[str, list[float]] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)
    acquires: dict[str, float] = field(default_factory=dict)
    fired: float | None = None

    @property
    def spare(self) -> float | None:
        """What the rule redlock:instances_spare makes of it; None: its inputs are not there."""
        voting = self.values.get("redlock_instance_voting")
        quorum = self.values.get("redlock_quorum_size")
        if not voting or not quorum:
            return None
        return sum(voting) - max(quorum)

    @property
    def callers(self) -> float | None:
        """Callers that hold a lease or wait for one; None: it is not said."""
        held = self.values.get("redlock_leases_held")
        waiting = self.values.get("redlock_callers_waiting")
        return held[0] + waiting[0] if held and waiting else None

    @property
    def is_active(self) -> bool:
        """Whether callers are at work, by a snapshot that is news."""
        return self.values.get("redlock_run_active") == [1.0]

    @property
    def measured_s(self) -> float:
        """Until when the newest note has measured."""
        return max(self.values.get("redlock_load_time_seconds", [0.0]))


def page_of(text: str, at_s: float) -> Page:
    page = Page(at_s)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith(("_bucket", "_created")):
                continue
            page.values.setdefault(family.name, []).append(sample.value)
            if family.name == "redlock_fault_active":
                page.faults[sample.labels["redlock_fault_kind"]] = sample.value
            if family.name == "redlock_acquire_outcomes":
                page.acquires[sample.labels["redlock_outcome"]] = sample.value
    return page


@dataclass
class WatchedRun:
    """All pages of a run, and whether a Prometheus judged them."""

    pages: list[Page]
    has_prometheus: bool

    def during(self, kind: str, after_s: float = 0.0) -> list[Page]:
        """The pages that said that such a fault was in force, without those of the first
        `after_s`."""
        pages = [page for page in self.pages if page.faults.get(kind)]
        return [page for page in pages if page.at_s - pages[0].at_s >= after_s]

    def between(self, since_s: float, until_s: float) -> list[Page]:
        """The pages from then to then, in seconds after the outage began.

        Skips where too few of them are news.
        """
        begun_s = self.during("stop")[0].at_s
        pages = [page for page in self.pages if since_s <= page.at_s - begun_s < until_s]
        news = [page for page in pages if page.is_active]
        if len(news) < max(FRESH * len(pages), 2):
            pytest.skip(
                f"not known here: {len(news)} of {len(pages)} pages were news, so the "
                "exporter had no core"
            )
        return news


def longest_stretch(pages: list[Page]) -> float:
    """For how long (s) the pages followed each other without a gap, at most."""
    longest_s = 0.0
    begun_s = pages[0].at_s
    for one, following in pairwise(pages):
        if following.at_s - one.at_s > GAP_S:
            begun_s = following.at_s
        longest_s = max(longest_s, following.at_s - begun_s)
    return longest_s


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedRun]:
    """One run, and its page about five times a second."""
    folder = tmp_path_factory.mktemp("outage")
    (folder / "outage.toml").write_text(SCENARIO)
    pages: list[Page] = []
    with ExitStack() as stack:
        prometheus = None
        environ = {
            "OTEL_METRICS_EXPORTER": "prometheus",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port()),
        }
        if shutil.which("prometheus"):
            watch = stack.enter_context(open_watch(collector="none"))
            prometheus = Prometheus(watch.url)
            environ = {
                name: value for name, value in os.environ.items() if name.startswith("OTEL_")
            }
        address = f"http://127.0.0.1:{environ['OTEL_EXPORTER_PROMETHEUS_PORT']}/metrics"
        # Nobody reads its output before it ends, so it must fit into a pipe: no --json.
        process = started(folder, "run", "outage.toml", "--quiet", "--out", "result", **environ)
        stack.callback(process.wait)
        stack.callback(process.kill)
        while process.poll() is None:
            time.sleep(0.2)
            try:
                page = page_of(get(address), time.monotonic())
            except OSError:
                # before the run and after it
                continue
            if prometheus is not None:
                page.fired = sum(prometheus.at(FIRING, time.time()).numbers)
            pages.append(page)
        _, err = process.communicate()
        assert process.returncode in (0, 4), err
        assert not re.search("Traceback", err)
        yield WatchedRun(pages, prometheus is not None)


def test_while_no_acquire_can_succeed_the_page_never_says_that_a_quorum_votes(
    watched: WatchedRun,
) -> None:
    assert watched.between(NOTICED_S, OUTAGE_S)
    pages = watched.during("stop", NOTICED_S)
    begin = watched.during("stop")[0]
    first = pages[0]
    last = pages[-1]
    assert last.acquires["unreachable"] > begin.acquires["unreachable"], "the load goes on"
    assert last.acquires["acquired"] == first.acquires["acquired"], "and nothing is locked"
    spare = [page.spare for page in pages if page.spare is not None]
    assert len(spare) > len(pages) / 2, "the alert has its inputs"
    assert max(spare) < 0


def test_the_notes_of_the_load_go_on_in_an_overload(watched: WatchedRun) -> None:
    """Each caller fails at once and comes back at once; so records come faster than they are
    counted."""
    assert watched.between(0.0, OUTAGE_S)
    pages = watched.during("stop")
    lasted_s = pages[-1].at_s - pages[0].at_s
    assert pages[-1].measured_s - pages[0].measured_s > lasted_s / 2
    cpu_s = [sum(page.values["redlock_client_cpu_seconds"]) for page in (pages[0], pages[-1])]
    assert cpu_s[1] > cpu_s[0]


def test_the_alert_of_a_lost_quorum_fires_and_ends(watched: WatchedRun) -> None:
    if not watched.has_prometheus:
        pytest.skip("Prometheus is missing (Debian: prometheus)")
    assert not watched.pages[0].fired
    told_s = longest_stretch(watched.between(0.0, OUTAGE_S))
    if not any(page.fired for page in watched.pages) and told_s < FIRES_S:
        pytest.skip(f"not known here: the exporter told something for {told_s:.1f} s on end")
    assert any(page.fired for page in watched.pages)
    assert not watched.pages[-1].fired


def test_a_load_process_that_was_killed_holds_and_waits_no_more(watched: WatchedRun) -> None:
    """Its last note stays in the folder; what it said is not known to be so any more."""
    before = [page.callers for page in watched.between(0.0, OUTAGE_S) if page.callers is not None]
    if max(before) <= CALLERS / 2:
        pytest.skip(f"not known here: at most {max(before):.0f} of {CALLERS} callers were told of")
    after = watched.between(KILLED_S + NOTICED_S, KILLED_S + NOTICED_S + 2.5)
    known = [page.callers for page in after if page.callers is not None]
    assert known
    assert max(known) <= CALLERS / 2
