"""`lockbench fleet`: *how many, how durable → URLs on stdout until Ctrl-C*.

Rules: stdout holds one URL per line (or one JSON object) and nothing else, flushed at once, so that a script can read
them; what happens to the servers is told on stderr. Source: bench.topology.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from bench.errors import EXIT_INTERRUPTED
from bench.topology.fleet import Fleet, Instance, start_fleet
from bench.topology.serve import serve
from bench.topology.server import find_server


def serve_fleet(*, instances: int, fsync: str, port: int | None, server: str | None, as_json: bool, quiet: bool) -> int:
    """Start servers, print their URLs, stay until a signal and return 130. Raises BenchError if they do not start."""
    with start_fleet(instances, fsync, server=find_server(server), port=port) as fleet:
        serve(fleet, _tell_death, lambda: _tell_ready(fleet, fsync, as_json=as_json, quiet=quiet))
    return EXIT_INTERRUPTED


def _tell_ready(fleet: Fleet, fsync: str, *, as_json: bool, quiet: bool) -> None:
    urls = [instance.url for instance in fleet.instances]
    facts = {"urls": urls, "fsync": fsync, "server": asdict(fleet.server), "folder": str(fleet.folder)}
    print(json.dumps(facts) if as_json else "\n".join(urls), flush=True)
    if not quiet:
        what = f"{len(urls)} × {fleet.server}, fsync {fsync}, in {fleet.folder}"
        print(f"lockbench: {what}; Ctrl-C stops them", file=sys.stderr)


def _tell_death(instance: Instance, exit_code: int) -> None:
    print(f"lockbench: instance {instance.index} ({instance.url}) ended with exit code {exit_code}", file=sys.stderr)
