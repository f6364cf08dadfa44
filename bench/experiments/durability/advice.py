"""What to choose: *the options of a planner's page → the answer, its key figures, its alternatives,
in words*. Pure.

A way is a policy, how a crashed server comes back, and what clients do then. It is safe if it was
crashed at every N tried and no lock was granted twice. Of the safe ways the page names first the
cheapest durable one that needs nothing from clients. Every number in a sentence stands in the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.experiments.durability.loss_result import Restart
from bench.experiments.durability.price_result import (
    POLICIES,
    AlwaysCost,
    LossesSeen,
    PlannerPage,
    Policy,
)

# Fewer crashes give no bound that is worth a sentence.
LEAST_CUTS = 6
# A lease counts as over when its TTL and the drift have passed.
DRIFT_FACTOR = 1.01
DRIFT_S = 0.002
# This is systemd's DefaultTimeoutStartSec.
UNIT_TIMEOUT_S = 90
RATIO = "everysec's acquires/s ÷ always's"
NOTHING_YET = "nothing is recommended yet: run lockbench crash --quick, then lockbench planner"
NOTHING_SAFE = "nothing that was crashed is safe: every policy led to double grants"


class Way(NamedTuple):
    """A policy, how a crashed server comes back, and whether clients let it abstain."""

    policy: Policy
    restart: Restart
    abstention: bool

    @property
    def waits(self) -> bool:
        """Whether nobody trusts a restarted server before the longest TTL is over."""
        return self.abstention or self.restart == "delayed"


@dataclass(frozen=True, slots=True)
class Tried:
    """What the crashes of a way came to, at every N."""

    way: Way
    losses: Sequence[LossesSeen]

    @property
    def cuts(self) -> int:
        """All crashes."""
        return sum(one.cuts for one in self.losses)

    @property
    def double_grants(self) -> int:
        """Locks granted twice."""
        return sum(one.double_grants for one in self.losses)

    @property
    def asked(self) -> int:
        """Locks that a second client asked for."""
        return sum(one.asked for one in self.losses)

    @property
    def is_safe(self) -> bool:
        """Whether each N was crashed and none granted a lock twice."""
        return all(one.is_safe for one in self.losses)

    @property
    def longest_wait_s(self) -> float:
        """Longest time without new locks."""
        return max(one.unavailable_s.max for one in self.losses)

    @property
    def bound(self) -> str:
        """What is 95 % sure when nothing was granted twice (rule of three); "" of too few
        crashes."""
        if self.double_grants or self.cuts < LEAST_CUTS:
            return ""
        return f"95 % sure: fewer than 1 crash in {self.cuts // 3:,}"

    @property
    def evidence(self) -> str:
        """How many locks were granted twice, with the bound."""
        text = (
            f"{self.double_grants:,} of {self.asked:,} locks granted twice in {self.cuts:,} crashes"
        )
        return f"{text} ({self.bound})" if self.bound else text


def tried_ways(page: PlannerPage) -> list[Tried]:
    """Return every way that was crashed, by policy, then by how the server comes back."""
    losses: dict[Way, list[LossesSeen]] = {}
    for option in page.options:
        if option.crash and option.restart:
            way = Way(option.policy, option.restart, option.abstention)
            losses.setdefault(way, []).append(option.crash)
    ordered = sorted(
        losses,
        key=lambda way: (POLICIES.index(way.policy), way.restart == "delayed", way.abstention),
    )
    return [Tried(way, losses[way]) for way in ordered]


def recommended(page: PlannerPage) -> Tried | None:
    """Return the way to name first: delayed if that is safe, else clients that abstain, else one
    that never waits."""
    safe = [tried for tried in tried_ways(page) if tried.is_safe]
    delayed = [tried for tried in safe if tried.way.restart == "delayed"]
    abstaining = [tried for tried in safe if tried.way.abstention]
    at_once = [tried for tried in safe if not tried.way.waits]
    for group, policy in ((delayed, "everysec"), (abstaining, "everysec"), (at_once, "always")):
        if group:
            return next((tried for tried in group if tried.way.policy == policy), group[-1])
    return None


def answer(page: PlannerPage) -> str:
    """Return what to set, in one sentence."""
    best = recommended(page)
    if best is None:
        return NOTHING_SAFE if tried_ways(page) else NOTHING_YET
    return f"{_setting(best.way.policy)}, {_coming_back(best.way)}"


def _setting(policy: Policy) -> str:
    return "no append-only file" if policy == "none" else f"appendfsync {policy}"


def _coming_back(way: Way) -> str:
    if way.restart == "delayed":
        return "and start a crashed server only when your longest TTL is over"
    if way.abstention:
        return "and clients that let a restarted server abstain for your longest TTL"
    return "and a crashed server may start again at once"


def wait_s(page: PlannerPage, tried: Tried) -> float:
    """Return how long (s) a crash may leave everybody without new locks: with the user's longest
    TTL if it is named."""
    if not tried.way.waits or page.ttl_ms is None or page.longest_ttl_ms is None:
        return tried.longest_wait_s
    return page.longest_ttl_ms / 1000 + _beyond_s(tried, page.ttl_ms)


def wait_text(page: PlannerPage, tried: Tried, ttl_name: str = "your longest TTL plus ") -> str:
    """Return the same in words. A way that waits out the TTL grows with it."""
    if tried.way.waits and page.ttl_ms is not None and page.longest_ttl_ms is None:
        return f"{ttl_name}{_beyond_s(tried, page.ttl_ms):.1f} s"
    return f"{wait_s(page, tried):.1f} s"


def _beyond_s(tried: Tried, ttl_ms: float) -> float:
    return max(0.0, tried.longest_wait_s - ttl_ms / 1000)


def seconds_text(milliseconds: float) -> str:
    """Return a TTL in seconds."""
    return f"{milliseconds / 1000:g} s"


def key_figures(page: PlannerPage) -> list[tuple[str, str, str]]:
    """Return the three figures of the answer: name, value, bound."""
    figures = []
    if best := recommended(page):
        figures.append(
            (
                "granted twice",
                f"0 of {best.asked:,} locks",
                best.bound or f"in {best.cuts:,} crashes",
            )
        )
        measured = f", measured at a TTL of {seconds_text(page.ttl_ms)}" if page.ttl_ms else ""
        when = "after a crash of most servers"
        when += (
            f"; your TTL {seconds_text(page.longest_ttl_ms)}" if page.longest_ttl_ms else measured
        )
        figures.append(("no new locks", f"at most {wait_text(page, best)}", when))
    return [*figures, ("always costs", *_price_of_always(page))]


def _price_of_always(page: PlannerPage) -> tuple[str, str]:
    """What `always` costs at the reference load, and over all loads."""
    if page.always_costs is None:
        return "not known", "no pair of loads to compare"
    if page.always_here is None:
        return str(page.always_costs), RATIO
    place = f"{RATIO}, {place_text(page.always_here)}"
    if page.always_costs.least == page.always_costs.most:
        return page.always_here.price, place
    return page.always_here.price, f"{place}; over all loads {page.always_costs}"


def choices(page: PlannerPage) -> list[tuple[str, str]]:
    """Return the ways that are safe, each with its bound, its price and who has work with it; then
    "why not none?"."""
    ways = {tried.way: tried for tried in tried_ways(page)}
    best = recommended(page)
    if best is None:
        return []
    lines = [("choose", _choice(page, best))]
    policy = best.way.policy if best.way.waits else "everysec"
    others = (Way(policy, "at-once", abstention=True), Way("always", "at-once", abstention=False))
    for way in others:
        tried = ways.get(way)
        if tried and tried.is_safe and tried is not best:
            lines.append(("or", _choice(page, tried)))
    if answered := _why_not_none(page, ways):
        lines.append(("why not none?", answered))
    return lines


def _choice(page: PlannerPage, tried: Tried) -> str:
    way = tried.way
    waits = wait_text(page, tried)
    if way.restart == "delayed":
        how = (
            f"{way.policy}, delayed restart: {_delay(page)}. Work for operations, none for clients"
        )
    elif way.abstention:
        how = (
            f"{way.policy}, restarted at once, and clients abstain: lockcore does this "
            "by itself if every client names "
            "your longest TTL as max_ttl_ms. No work for operations"
        )
    else:
        how = f"{way.policy}, restarted at once: no work for anybody"
    price = f"No new locks for at most {waits} after a crash of most servers"
    if way.policy == "always":
        costs = page.always_costs
        price += (
            f". Always costs {costs}, {RATIO}" if costs else ". What always costs is not known here"
        )
    return f"{how}. {tried.evidence}. {price}."


def _delay(page: PlannerPage) -> str:
    """How operations delay a restart."""
    if page.longest_ttl_ms is None:
        return (
            "its unit waits before each start (systemd: ExecStartPre=/bin/sleep <longest TTL "
            "plus 1 %, plus 1 s>)"
        )
    delay_s = math.ceil(page.longest_ttl_ms / 1000 * DRIFT_FACTOR + DRIFT_S)
    more = ", with a longer TimeoutStartSec" if delay_s >= UNIT_TIMEOUT_S else ""
    return f"its unit waits before each start (systemd: ExecStartPre=/bin/sleep {delay_s}{more})"


def _why_not_none(page: PlannerPage, ways: dict[Way, Tried]) -> str:
    """A delayed restart is safe without a file, too, as long as every restart is delayed."""
    delayed = ways.get(Way("none", "delayed", abstention=False))
    at_once = ways.get(Way("none", "at-once", abstention=False))
    if delayed is None or not delayed.is_safe:
        return ""
    text = f"none with a delayed restart is as safe while every restart waits: {delayed.evidence}."
    if at_once is None or not at_once.double_grants:
        return text
    twice = f"{at_once.double_grants:,} of {at_once.asked:,} were granted twice"
    text += f" A start that does not wait has forgotten every lock, and {twice}."
    everysec = ways.get(Way("everysec", "at-once", abstention=False))
    if everysec and everysec.asked:
        text += (
            " With everysec it forgets the last second at a power cut "
            f"({everysec.double_grants:,} of {everysec.asked:,})"
        )
        text += ", and nothing when only the process dies, unless an fsync is running."
    return text


def place_text(cost: AlwaysCost) -> str:
    """Return where a price was measured."""
    return f"N={cost.instances}, {cost.load_text}, {cost.disk}"
