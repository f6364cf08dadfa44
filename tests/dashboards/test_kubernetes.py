"""The manifests: valid for Kubernetes and for Locust's operator, of one mind with each other,
without a secret."""

import json
import re
import shlex
import socket
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.hosts.joining import PORT
from bench.program import execute
from bench.workloads.plan import is_wanted

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "dashboards" / "kubernetes"
KUBERNETES = "1.37"
# a line of /proc/net/tcp: the other side's port, ESTABLISHED
CONNECTED = ":{:04X} 01 "
TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
WORKER_PROBE = ["grep", "-q", CONNECTED.format(PORT), *TCP_TABLES]
IMAGE = yaml.safe_load((FOLDER.parents[1] / "docker-compose.yml").read_text("utf-8"))["x-load"][
    "image"
]


def documents(name: str) -> dict[str, dict[str, Any]]:
    """By kind and name."""
    every = list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in every}


RUN = documents("lockbench.yaml")
LOCUST = documents("locusttest.yaml")
LEADER = RUN["Job/lockbench"]
WORKER = RUN["Job/lockbench-worker"]
LOCUST_TEST = LOCUST["LocustTest/lockbench"]
LOCUST_FILE = LOCUST["ConfigMap/lockbench-locustfile"]
PODS = {"leader": LEADER["spec"]["template"]["spec"], "worker": WORKER["spec"]["template"]["spec"]}
_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 1}
_RESOURCES = {"type": "object", "propertyNames": {"enum": ["requests", "limits"]}}


def _only(required: list[str], **properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_POD = _only([], labels={"type": "object"}, annotations={"type": "object"}, resources=_RESOURCES)
OPERATOR = _only(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "locust.io/v1"},
    kind={"const": "LocustTest"},
    metadata=_only(["name"], name=_TEXT),
    spec=_only(
        ["workers"],
        image=_TEXT,
        workers=_WHOLE,
        args=_TEXT,
        env={"type": "array", "items": _only(["name"], name=_TEXT, value=_TEXT)},
        locustfile=_only(["configMap"], configMap=_only(["name"], name=_TEXT)),
        master=_POD,
        worker=_POD,
    ),
)
"""The fields that we use of charts/locust-operator/crds/locusttest.yaml in locustio/k8s-operator,
at 6b50cad."""


OF_KUBERNETES = {name: one for name, one in (RUN | LOCUST).items() if one is not LOCUST_TEST}


@pytest.mark.parametrize(
    "manifest", [pytest.param(one, id=name) for name, one in OF_KUBERNETES.items()]
)
def test_kubernetes_own_schema_accepts_the_manifest_and_no_misspelt_one(
    manifest: dict[str, Any],
) -> None:
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="no schemas of Kubernetes: pip install '.[dev]'"
    )
    schemas.validate(manifest, KUBERNETES, strict=True)
    wrong = deepcopy(manifest)
    body = wrong.get("spec") or wrong
    body["replica"] = 3
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, KUBERNETES, strict=True)


def test_the_operators_schema_accepts_the_manifest_and_no_misspelt_one() -> None:
    jsonschema.validate(LOCUST_TEST, OPERATOR)
    for change in ({"host": "redis://"}, {"workers": 0}, {"env": [{"name": "A", "valueFrom": {}}]}):
        wrong = deepcopy(LOCUST_TEST)
        wrong["spec"] |= change
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, OPERATOR)
    test = LOCUST_TEST["spec"]
    assert test["locustfile"]["configMap"]["name"] == LOCUST_FILE["metadata"]["name"]
    (locustfile,) = LOCUST_FILE["data"]
    words = shlex.split(test["args"])
    assert f"--locustfile=/home/locust/{locustfile}" in words, "where the operator mounts it"
    assert f"--expect-workers={test['workers']}" in words
    assert is_wanted(words), "a run with a verdict"
    compile(LOCUST_FILE["data"][locustfile], locustfile, "exec")


@pytest.mark.parametrize("right, wrong, code", [("", "", 0), ("--hold", "--hodl", 2)])
def test_locust_knows_what_the_operator_is_told(right: str, wrong: str, code: int) -> None:
    parse = (
        "import sys; from locust import events; from locust.argument_parser import get_parser; "
        "from bench.workloads.plan import add_options; "
        "events.init_command_line_parser.add_listener(add_options); "
        "get_parser(default_config_files=[]).parse_args(sys.argv[1:])"
    )
    words = shlex.split(LOCUST_TEST["spec"]["args"].replace(right, wrong, 1))
    done = subprocess.run(
        [sys.executable, "-c", parse, *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("role", PODS)
def test_lockbench_knows_what_the_pods_say(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = PODS[role]["containers"][0]["args"]
    assert program == "lockbench"
    assert execute([*words, "--help"]) == 0
    assert execute([*words, "--expect-wokers=3", "--help"]) == 2
    assert "--expect-wokers" in capsys.readouterr().err


def test_leader_and_workers_find_each_other_and_are_as_many_as_expected() -> None:
    leader, worker = (PODS[role]["containers"][0] for role in ("leader", "worker"))
    assert f"--expect-workers={WORKER['spec']['parallelism']}" in leader["args"]
    service = RUN["Service/lockbench"]
    assert f"--master={service['metadata']['name']}" in worker["args"]
    labels = LEADER["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    assert port["port"] == PORT
    assert leader["ports"] == [{"name": port["targetPort"], "containerPort": PORT}]
    assert leader["image"] == worker["image"] == LOCUST_TEST["spec"]["image"] == IMAGE


def test_a_worker_that_ended_with_0_is_not_started_again_and_nothing_hangs_for_ever() -> None:
    for job, policy in ((LEADER, "Never"), (WORKER, "OnFailure")):
        assert job["spec"]["template"]["spec"]["restartPolicy"] == policy
        assert job["spec"]["activeDeadlineSeconds"] <= 3600
    assert WORKER["spec"]["completions"] == WORKER["spec"]["parallelism"], (
        "so each ends once, and none is made anew"
    )
    assert not [name for name in RUN if name.startswith("Deployment")]


def test_the_leader_is_ready_when_workers_can_join_and_a_worker_when_it_has_joined() -> None:
    leader, worker = (PODS[role]["containers"][0] for role in ("leader", "worker"))
    for probe in ("startupProbe", "readinessProbe"):
        assert leader[probe]["tcpSocket"] == {"port": leader["ports"][0]["name"]}
    assert worker["readinessProbe"]["exec"]["command"] == WORKER_PROBE
    assert "livenessProbe" not in {**leader, **worker}, (
        "started again in the middle, it would end the run"
    )


@pytest.mark.skipif(not Path(TCP_TABLES[0]).exists(), reason="no /proc/net/tcp here")
def test_the_workers_probe_sees_a_connection_and_its_end() -> None:
    def probe(port: int) -> int:
        words = ["grep", "-q", CONNECTED.format(port), *TCP_TABLES]
        return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe(port) == 1, "listening is not connected"
        with socket.create_connection(("127.0.0.1", port)):
            assert probe(port) == 0
        assert probe(port) == 1


def _open(policy: dict[str, Any]) -> dict[str, set[tuple[str, int, str]]]:
    """What a NetworkPolicy lets in and out: the other side's labels (none: anybody), port,
    protocol."""
    found: dict[str, set[tuple[str, int, str]]] = {}
    for way, side in (("ingress", "from"), ("egress", "to")):
        assert way.capitalize() in policy["spec"]["policyTypes"]
        found[way] = {
            (
                str(peer.get("podSelector", {}).get("matchLabels", "")),
                port["port"],
                port.get("protocol", "TCP"),
            )
            for rule in policy["spec"].get(way, [])
            for peer in rule.get(side, [{}])
            for port in rule["ports"]
        }
    return found


@pytest.mark.parametrize(
    "manifests, leader, worker",
    [
        (RUN, "lockbench-leader", "lockbench-worker"),
        (LOCUST, "lockbench-locust-master", "lockbench-locust-worker"),
    ],
)
def test_a_pod_reaches_dns_the_servers_and_its_own_run_and_only_workers_reach_the_leader(
    manifests: dict[str, dict[str, Any]], leader: str, worker: str
) -> None:
    policies = [manifests[f"NetworkPolicy/{name}"] for name in (leader, worker)]
    lead, work = (str(policy["spec"]["podSelector"]["matchLabels"]) for policy in policies)
    out = {("", 53, "UDP"), ("", 53, "TCP"), ("", 6379, "TCP")}
    assert _open(policies[0]) == {"ingress": {(work, PORT, "TCP")}, "egress": out}
    assert _open(policies[1]) == {"ingress": set(), "egress": out | {(lead, PORT, "TCP")}}


def test_the_policies_are_about_the_pods_that_there_are() -> None:
    for role, job in (("leader", LEADER), ("worker", WORKER)):
        chosen = RUN[f"NetworkPolicy/lockbench-{role}"]["spec"]["podSelector"]["matchLabels"]
        assert chosen.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    name = LOCUST_TEST["metadata"]["name"]
    for role in ("master", "worker"):
        chosen = LOCUST[f"NetworkPolicy/lockbench-locust-{role}"]["spec"]["podSelector"][
            "matchLabels"
        ]
        assert chosen == {"locust.io/test-run": name, "locust.io/component": role}, (
            "the operator's own labels"
        )


@pytest.mark.parametrize("role", PODS)
def test_a_pod_is_guarded(role: str) -> None:
    pod = PODS[role]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False, "and nothing else stands in /run/secrets"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]
    written = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert "/tmp" in written, "histories"


def test_a_password_comes_from_a_secret_and_stands_in_no_manifest() -> None:
    (container,) = PODS["leader"]["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one.get("readOnly"))
    assert container["env"] == [{"name": "LOCKBENCH_TARGETS_FILE", "value": mount["mountPath"]}]
    for path in FOLDER.glob("*.yaml"):
        assert not re.search(r"redis://[^\s\"]*@|password:", path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--master", "-f", "a file.py"], "locust|--master|-f|a file.py|"),
        (["lockbench", "run", "a file.toml"], "lockbench|run|a file.toml|"),
    ],
)
def test_the_operators_containers_say_only_what_locust_shall_do(
    tmp_path: Path, words: list[str], shown: str
) -> None:
    lines = (FOLDER.parent / "Dockerfile").read_text("utf-8").splitlines()
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    for name in ("locust", "lockbench"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nprintf '%s|' {name} \"$@\"\n", "utf-8")
        program.chmod(0o755)
    command = [*json.loads(entry.removeprefix("ENTRYPOINT ")), *words]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.check_output(command, env=path, text=True) == shown
