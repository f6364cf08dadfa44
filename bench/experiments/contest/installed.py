"""Other libraries, each in its own environment: *a cache folder → contestants that can run, and why
others cannot*.

Rules: exact versions; an environment per Python library, one folder for Node, a built program for
Go, Rust and Java; what is there already is used again; what cannot be installed is a reason, never
an end. Source: each library's package.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from bench.experiments.contest.clients.loops import PUSH
from bench.experiments.contest.result import Missing, Peer

ROOT = Path(__file__).parents[3]
DRIVERS = Path(__file__).with_name("clients")
INSTALL_S = 600.0
# the time between two looks at whether the work was cut
LOOK_S = 0.1
# So many installations run at once: they wait for the network more than they compile.
AT_ONCE = 3
REDIS = "redis[hiredis]==8.1.0"
IOREDIS = "ioredis 5.11.1"


PEERS = (
    Peer("lockcore gevent", "lockcore"),
    Peer("lockcore asyncio", "lockcore"),
    Peer("lockcore uvloop", "lockcore"),
    Peer("lockcore threads", "lockcore"),
    Peer(f"lockcore gevent{PUSH}", "lockcore", processes=4),
    Peer(f"lockcore uvloop{PUSH}", "lockcore", processes=4),
    Peer("redis-py Lock", "python", "redis-py", (REDIS,), (1,)),
    Peer("redis.asyncio Lock", "python", "redis-py", (REDIS,), (1,)),
    Peer(
        "python-redis-lock",
        "python",
        "python-redis-lock",
        ("python-redis-lock==4.0.1", REDIS),
        (1,),
    ),
    Peer("coredis Lock", "python", "coredis", ("coredis==6.9.0",), (1,)),
    Peer("redlock-py", "python", "redlock-py", ("redlock-py==1.0.8", REDIS)),
    Peer("redlock-ng", "python", "redlock-ng", ("redlock-ng==2.0.4", "redis[hiredis]==5.3.1")),
    Peer(
        "redlock-ng asyncio", "python", "redlock-ng", ("redlock-ng==2.0.4", "redis[hiredis]==5.3.1")
    ),
    Peer("pottery", "python", "pottery", ("pottery==3.0.1", REDIS)),
    Peer("pottery asyncio", "python", "pottery", ("pottery==3.0.1", REDIS)),
    Peer(
        "aioredlock",
        "python",
        "aioredlock",
        ("aioredlock==0.7.3", "hiredis==3.5.0", "setuptools<81"),
    ),
    Peer("node-redlock 4", "node", "node", ("redlock 4.2.0", IOREDIS)),
    Peer("node-redlock 5", "node", "node", ("redlock 5.0.0-beta.2", IOREDIS)),
    Peer("@sesamecare-oss/redlock", "node", "node", ("@sesamecare-oss/redlock 1.4.0", IOREDIS)),
    Peer("redlock-universal", "node", "node", ("redlock-universal 0.8.5", IOREDIS)),
    Peer("redis-semaphore", "node", "node", ("redis-semaphore 5.8.0", IOREDIS)),
    Peer("redsync redigo", "go", "go", ("redsync 4.18.1", "redigo 1.9.3")),
    Peer("redsync go-redis", "go", "go", ("redsync 4.18.1", "go-redis 9.23.0")),
    Peer("redsync rueidis", "go", "go", ("redsync 4.18.1", "rueidis 1.0.79")),
    Peer("bsm/redislock", "go", "go", ("redislock 0.9.4", "go-redis 9.23.0"), (1,)),
    Peer("rueidislock", "go", "go", ("rueidis 1.0.79",), (1,)),
    Peer("Redisson RLock", "java", "java", ("redisson 4.7.0",), (1,)),
    Peer("Redisson MultiLock", "java", "java", ("redisson 4.7.0",)),
    Peer("Redisson RedLock", "java", "java", ("redisson 4.7.0",)),
    Peer("rslock, one thread", "rust", "rust", ("rslock 0.10.0", "tokio 1.54.1")),
    Peer("rslock, all threads", "rust", "rust", ("rslock 0.10.0", "tokio 1.54.1")),
)

# by kind: the programs that it needs, and the command that builds it in its folder
_BUILT: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "node": (
        ("node", "npm"),
        ("npm", "install", "--silent", "--no-audit", "--no-fund", "--legacy-peer-deps"),
    ),
    "go": (("go",), ("go", "build", "-o", "driver", ".")),
    "java": (("java", "mvn"), ("mvn", "--quiet", "--batch-mode", "process-classes")),
    "rust": (("cargo",), ("cargo", "build", "--release", "--quiet")),
}
# by kind: where the built program is
_PROGRAMS = {"go": "driver", "rust": "target/release/driver"}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer that can run: `command` takes an order on stdin; `environment` on top of ours."""

    peer: Peer
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def install(
    cache: Path, words: Sequence[str], say: Callable[[str], None]
) -> list[Contestant | Missing]:
    """Every peer whose name contains one of `words` (none: all), installed below `cache` or
    missing with a reason."""
    chosen = [peer for peer in PEERS if not words or any(word in peer.name for word in words)]
    homes = {peer.home: peer for peer in chosen if peer.home}
    cut = Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            came = pool.map(lambda one: _install(one, cache / one.home, say, cut), homes.values())
            reasons = dict(zip(homes, came, strict=True))
        except BaseException:
            cut.set()
            pool.shutdown(cancel_futures=True)
            raise
    if find_spec("uvloop") is None:
        reasons |= {
            peer.name: "uvloop is not installed"
            for peer in chosen
            if peer.name.startswith("lockcore uvloop")
        }
    entries: list[Contestant | Missing] = []
    for peer in chosen:
        reason = reasons.get(peer.home or peer.name)
        entries.append(
            Missing(name=peer.name, reason=reason)
            if reason
            else _contestant(peer, cache / peer.home)
        )
    return entries


def ours(name: str) -> Contestant:
    """A contestant of our own environment, by its driver's name."""
    return _contestant(Peer(name, "lockcore"), Path())


def _contestant(peer: Peer, home: Path) -> Contestant:
    if peer.kind == "node":
        return Contestant(
            peer, ("node", str(DRIVERS / "node" / "driver.mjs")), {"LOCKBENCH_NODE": str(home)}
        )
    if peer.kind == "java":
        return Contestant(
            peer,
            ("java", "-cp", f"{home / 'target/classes'}:{home / 'target/dependency'}/*", "Driver"),
        )
    if peer.kind in _PROGRAMS:
        return Contestant(peer, (str(home / _PROGRAMS[peer.kind]),))
    words = ("-m", "bench.experiments.contest.clients.driver")
    # Our own lockcore, which may be compiled, is found as this process found it.
    if not peer.home:
        return Contestant(peer, (sys.executable, *words))
    return Contestant(peer, (str(home / "bin" / "python"), *words), {"PYTHONPATH": str(ROOT)})


def _install(peer: Peer, home: Path, say: Callable[[str], None], cut: Event) -> str:
    """Make `home` unless it is there, made from the same; why it is not there, "" if it is.

    `cut` ends it.
    """
    programs, command = _BUILT.get(peer.kind, ((), ()))
    sources = sorted((DRIVERS / peer.kind).glob("*.*"))
    made_from = [source.read_text(encoding="utf-8") for source in sources] or peer.packages
    stamp = home / ".installed"
    recipe = "\n".join([sys.version, *made_from])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == recipe:
        return ""
    say(f"installing: {peer.home} ({', '.join(peer.packages)})")
    # A build that was cut goes on where it was; anything else begins anew.
    if stamp.exists() or not command:
        shutil.rmtree(home, ignore_errors=True)
    for program in programs:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    home.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copy(source, home)
    pip = [
        str(home / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "install",
    ]
    steps = (
        [command]
        if command
        else [[sys.executable, "-m", "venv", str(home)], [*pip, *peer.packages]]
    )
    reason = next(filter(None, (_call(step, home, cut) for step in steps)), "")
    if not reason:
        stamp.write_text(recipe, encoding="utf-8")
    return reason


def _call(command: Sequence[str], folder: Path, cut: Event) -> str:
    """Run it in `folder`; why that failed, "" if it did not. `cut` kills it.

    It has a session of its own. A SIGINT may come to our process alone, so the programs that pip or
    cargo start are killed by us, as a group.
    """
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    program = Path(command[0]).name
    deadline_s = time.monotonic() + INSTALL_S
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return f"{program} did not run ({type(error).__name__})"
    with process:
        while True:
            try:
                output, complaints = process.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if cut.is_set() or time.monotonic() > deadline_s:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    return (
                        f"{program} was cut short"
                        if cut.is_set()
                        else f"{program} took over {INSTALL_S:.0f} s"
                    )
    lines = [line for line in (complaints or output).splitlines() if line.strip()]
    return (
        f"{program} failed: {(lines or ['it said nothing'])[-1][:200]}"
        if process.returncode
        else ""
    )
