"""Locust over several hosts: a master and two workers in network namespaces of their own, one sum
in the end."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from bench.topology.server import find_server
from tests.integration.locust_runs import ROOT, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip"), reason="namespaces need root and ip"
    ),
]
LEAD = "10.77.0.1"
DATA = "10.77.3.2"
SERVERS = 3
# The locustfile of every host: ours, and a count of what this worker hands to its master, told when
# it leaves.
LOCUSTFILE = """
import sys
from locust import events
from bench.workloads.locustfile import LockUser

sent = {}

def _count(client_id, data, **_):
    for row in data["stats"]:
        sent[row["name"]] = sent.get(row["name"], 0) + row["num_requests"]

@events.init.add_listener
def _listen(environment, **_):
    environment.events.report_to_master.add_listener(_count)  # behind the one that fills the report

@events.quit.add_listener
def _tell(exit_code, **_):
    print("SENT", sent.get("acquire", 0), sent.get("release", 0), file=sys.stderr, flush=True)
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


def ip(*words: str) -> None:
    run("ip", *words)


@pytest.fixture
def hosts() -> Iterator[dict[str, tuple[str, ...]]]:
    """Four hosts and how to run a command on each: `data` is for servers, and all meet at
    `lead`."""
    tag = f"lb{os.getpid() % 10_000}"
    names = {host: f"{tag}-{host}" for host in ("lead", "one", "two", "data")}
    with ExitStack() as stack:
        for name in names.values():
            ip("netns", "add", name)
            stack.callback(
                subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True
            )
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names["lead"], "addr", "add", f"{LEAD}/32", "dev", "lo")
        for number, host in enumerate(("one", "two", "data"), 1):
            near = f"{tag}a{number}"
            far = f"{tag}b{number}"
            ip(
                "link",
                "add",
                near,
                "netns",
                names["lead"],
                "type",
                "veth",
                "peer",
                "name",
                far,
                "netns",
                names[host],
            )
            ip("-n", names["lead"], "addr", "add", f"10.77.{number}.1/24", "dev", near)
            ip("-n", names[host], "addr", "add", f"10.77.{number}.2/24", "dev", far)
            ip("-n", names["lead"], "link", "set", near, "up")
            ip("-n", names[host], "link", "set", far, "up")
            ip("-n", names[host], "route", "add", "default", "via", f"10.77.{number}.1")
        found = {host: ("ip", "netns", "exec", name) for host, name in names.items()}
        run(*found["lead"], "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        yield found


@pytest.fixture
def urls(hosts: dict[str, tuple[str, ...]], tmp_path: Path) -> Iterator[list[str]]:
    """Servers on a host of their own."""
    started = []
    for number in range(SERVERS):
        options = (
            "--port",
            str(7000 + number),
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
            "--save",
            "",
        )
        command = (*hosts["data"], find_server().path, *options, "--dir", str(tmp_path))
        started.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    yield [f"redis://{DATA}:{7000 + number}" for number in range(SERVERS)]
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)


def answer(hosts: dict[str, tuple[str, ...]], url: str, *words: str) -> str:
    """What a server says to a client on host `two`."""
    code = (
        "import sys, redis; print(redis.Redis.from_url(sys.argv[1]).execute_command(*sys.argv[2:]))"
    )
    command = (*hosts["two"], sys.executable, "-c", code, url, *words)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False
    ).stdout.strip()


def test_the_masters_totals_are_the_sum_of_its_workers_on_other_hosts(
    hosts: dict[str, tuple[str, ...]], urls: list[str], tmp_path: Path
) -> None:
    until(
        lambda: all(answer(hosts, url, "PING") == "True" for url in urls),
        "answers across the namespaces",
    )
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE, "utf-8")
    locust = (sys.executable, "-m", "locust", "-f", str(tmp_path / "locustfile.py"))
    targets = [word for url in urls for word in ("--target", url)]
    load = "--headless --json -u 20 -r 20 -t 3s --expect-workers 2 --resources 5"
    leading = f"--master --master-bind-host {LEAD} --exit-code-on-error 0".split()
    lead = (*locust, *leading, *load.split(), *targets)
    running = {}
    for host, command in (
        ("lead", lead),
        *((h, (*locust, "--worker", "--master-host", LEAD)) for h in ("one", "two")),
    ):
        running[host] = subprocess.Popen(
            (*hosts[host], *command),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        ended = {host: process.communicate(timeout=120) for host, process in running.items()}
    finally:
        for process in running.values():
            with suppress(ProcessLookupError):
                process.kill()
    out, log = ended["lead"]
    assert running["lead"].returncode == 0, log
    rows = {row["name"]: row["num_requests"] for row in json.loads(out[out.index("[") :])}
    sent = [
        tuple(map(int, re.findall(r"SENT (\d+) (\d+)", ended[host][1])[-1]))
        for host in ("one", "two")
    ]
    assert all(acquires > 50 for acquires, _ in sent), "both hosts did their part"
    assert (rows["acquire"], rows["release"]) == tuple(map(sum, zip(*sent, strict=True)))
    assert f"of {rows['release']} by 2 worker(s)" in log, "our own histograms, merged without loss"
    assert [answer(hosts, url, "DBSIZE") for url in urls] == ["0"] * SERVERS
