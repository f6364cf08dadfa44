"""Writes the planner's advice: *the options of a planner's page → the answer, the key figures and
the alternatives as text*. All functions are pure.

A way of running the servers is safe if it was tested with crashes and no lock was granted twice.
The page first recommends a safe way that needs nothing from the clients. Each number in the text is
also in the page.
"""

import math

from bench.experiments.durability.loss_result import Losses
from bench.experiments.durability.policies import POLICIES, Way
from bench.experiments.durability.price_result import PlannerPage

# A lease has ended when its TTL and the drift have passed.
DRIFT_FACTOR = 1.01
DRIFT_S = 0.002
# This is systemd's DefaultTimeoutStartSec.
UNIT_TIMEOUT_S = 90
RATIO = "everysec's acquires/s ÷ always's"
NOTHING_YET = "there is no recommendation yet: run lockbench crash --quick, then lockbench planner"
NOTHING_SAFE = "no tested choice is safe, because locks were granted twice under every policy"
Ways = dict[Way, Losses]


def tried_ways(page: PlannerPage) -> Ways:
    """Return all ways for which a crash was made, each with its losses. The losses of a way include
    the losses for all numbers of instances."""
    losses: dict[Way, list[Losses]] = {}
    for option in page.options:
        if option.crash and option.way:
            losses.setdefault(option.way, []).append(option.crash)
    return {way: Losses.of_all(parts) for way, parts in losses.items()}


def recommended(ways: Ways) -> Way | None:
    """Return the way to recommend, or None if no way is safe. Among the safe ways, the first choice
    is a way with a delayed restart. The second choice is a way in which clients let a restarted
    server abstain. The third choice is a way without a delay and without abstention."""

    def rank(way: Way) -> tuple[bool, bool, bool, int]:
        durable = "everysec" if way.waits else "always"
        costs = -POLICIES.index(way.policy)
        return way.restart != "delayed", not way.abstention, way.policy != durable, costs

    return min((way for way, losses in ways.items() if losses.is_safe), key=rank, default=None)


def answer(page: PlannerPage) -> str:
    """Return the recommended settings in one sentence."""
    ways = tried_ways(page)
    best = recommended(ways)
    if best is None:
        return NOTHING_SAFE if ways else NOTHING_YET
    setting = "no append-only file" if best.policy == "none" else f"appendfsync {best.policy}"
    back = "you may start a crashed server again at once"
    if best.restart == "delayed":
        back = "start a crashed server only when your longest TTL is over"
    elif best.abstention:
        back = "let the clients ignore the votes of a restarted server for your longest TTL"
    return f"{setting}, and {back}"


def wait_s(page: PlannerPage, way: Way, losses: Losses) -> float:
    """Return the longest time (s) after a crash in which no client gets a new lock. The crashes
    were made with a short TTL. If the user named a longest TTL, the function converts the measured
    time to this TTL."""
    longest_s = losses.unavailable_s.max
    if not way.waits or page.ttl_ms is None or page.longest_ttl_ms is None:
        return longest_s
    return page.longest_ttl_ms / 1000 + max(0.0, longest_s - page.ttl_ms / 1000)


def wait_text(
    page: PlannerPage, way: Way, losses: Losses, ttl_name: str = "your longest TTL plus "
) -> str:
    """Return the result of `wait_s` as text. The text has the form `your longest TTL plus 0.3 s` if
    two conditions are true: the way waits until the longest TTL has passed, and the user named no
    TTL."""
    if way.waits and page.ttl_ms is not None and page.longest_ttl_ms is None:
        return f"{ttl_name}{max(0.0, losses.unavailable_s.max - page.ttl_ms / 1000):.1f} s"
    return f"{wait_s(page, way, losses):.1f} s"


def seconds_text(milliseconds: float) -> str:
    """Return a TTL as text, in seconds."""
    return f"{milliseconds / 1000:g} s"


def key_figures(page: PlannerPage) -> list[tuple[str, str, str]]:
    """Return up to three key figures. Each key figure has three texts. The first text is the name,
    and the second text is the value. The third text is a bound on the value, or a condition under
    which the value is true."""
    figures = []
    ways = tried_ways(page)
    if best := recommended(ways):
        losses = ways[best]
        bound = losses.bound or f"in {losses.cuts:,} crashes"
        figures.append(("granted twice", f"0 of {losses.asked:,} locks", bound))
        when = "after a crash of most servers"
        if page.longest_ttl_ms:
            when += f"; your TTL {seconds_text(page.longest_ttl_ms)}"
        elif page.ttl_ms:
            when += f", measured at a TTL of {seconds_text(page.ttl_ms)}"
        figures.append(("no new locks", f"at most {wait_text(page, best, losses)}", when))
    return [*figures, ("always costs", *_price_of_always(page))]


def _price_of_always(page: PlannerPage) -> tuple[str, str]:
    """Return two texts. The first text is the price of `always`. The second text is the condition
    under which this price was measured."""
    if page.always_costs is None:
        return "not known", "there was no pair of loads to compare"
    if page.always_here is None:
        return str(page.always_costs), RATIO
    place = f"{RATIO}, {page.always_here.place}"
    if page.always_costs.least != page.always_costs.most:
        place += f"; over all loads {page.always_costs}"
    return page.always_here.price, place


def choices(page: PlannerPage) -> list[tuple[str, str]]:
    """Return the lines about the safe ways. Each line has a label and a text. The text about a way
    contains the bound and the price. The text also says whether the servers, their operators or the
    clients must change something. The last line explains whether the policy `none` is safe, too."""
    ways = tried_ways(page)
    best = recommended(ways)
    if best is None:
        return []
    lines = [("choose", _choice(page, best, ways[best]))]
    policy = best.policy if best.waits else "everysec"
    others = (Way(policy, "at-once", abstention=True), Way("always", "at-once", abstention=False))
    lines += [
        ("or", _choice(page, way, ways[way]))
        for way in others
        if way != best and way in ways and ways[way].is_safe
    ]
    if answered := _why_not_none(ways):
        lines.append(("why not none?", answered))
    return lines


def _choice(page: PlannerPage, way: Way, losses: Losses) -> str:
    if way.restart == "delayed":
        how = (
            f"delayed restart: {_delay(page)}. This changes only how you operate the servers, "
            "and clients need no change"
        )
    elif way.abstention:
        how = (
            "restart at once, and let the clients ignore restarted servers. With lockcore, "
            "each client does this if it sets max_ttl_ms to your longest TTL. The servers need no "
            "change"
        )
    else:
        how = "restart at once. The servers and the clients need no change"
    price = (
        "After a crash of most servers, no lock is granted for up to "
        f"{wait_text(page, way, losses)}"
    )
    if way.policy == "always":
        costs = page.always_costs
        price += (
            f". Always costs {costs}, {RATIO}"
            if costs
            else ". The cost of the policy always is unknown on this machine"
        )
    return f"{way.policy}, {how}. {losses.evidence}. {price}."


def _delay(page: PlannerPage) -> str:
    """Return a text that tells the operators how to delay a restart."""
    sleep = "<longest TTL plus 1 %, plus 1 s>"
    if page.longest_ttl_ms is not None:
        delay_s = math.ceil(page.longest_ttl_ms / 1000 * DRIFT_FACTOR + DRIFT_S)
        more = ", with a longer TimeoutStartSec" if delay_s >= UNIT_TIMEOUT_S else ""
        sleep = f"{delay_s}{more}"
    return (
        "add this line to the unit file, so that systemd waits before each start: "
        f"ExecStartPre=/bin/sleep {sleep}"
    )


def _why_not_none(ways: Ways) -> str:
    """Return a text that explains when the policy `none` is safe. This policy has no append-only
    file, so it is safe only if every restart is delayed."""
    delayed = ways.get(Way("none", "delayed", abstention=False))
    at_once = ways.get(Way("none", "at-once", abstention=False))
    if delayed is None or not delayed.is_safe:
        return ""
    text = f"The policy none is safe, too, if every restart is delayed: {delayed.evidence}."
    if at_once is None or not at_once.double_grants:
        return text
    twice = f"{at_once.double_grants:,} of {at_once.asked:,} locks were granted twice"
    text += f" A server that starts without this delay has forgotten all its locks: {twice}."
    everysec = ways.get(Way("everysec", "at-once", abstention=False))
    if everysec and everysec.asked:
        text += (
            " Under everysec a power cut loses the locks of the last second "
            f"({everysec.double_grants:,} of {everysec.asked:,}). If the process dies but not "
            "the machine, locks are lost only during an fsync."
        )
    return text
