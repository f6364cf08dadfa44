"""The manifests: valid for Kubernetes and for Locust's operator, of one mind with each other, without a secret."""

import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.cli.commands import execute
from bench.workloads.plan import is_wanted

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "dashboards" / "kubernetes"
KUBERNETES = "1.37"
IMAGE = yaml.safe_load((FOLDER.parents[1] / "docker-compose.yml").read_text("utf-8"))["x-load"]["image"]


def documents(name: str) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / name).read_text("utf-8"))}


RUN, LOCUST = documents("lockbench.yaml"), documents("locusttest.yaml")
PODS = {kind: RUN[kind]["spec"]["template"]["spec"] for kind in ("Job", "Deployment")}
_TEXT, _WHOLE = {"type": "string"}, {"type": "integer", "minimum": 1}
_RESOURCES = {"type": "object", "propertyNames": {"enum": ["requests", "limits"]}}


def _only(required: list[str], **properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


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
"""The fields that we use of charts/locust-operator/crds/locusttest.yaml in locustio/k8s-operator, at 6b50cad."""


@pytest.mark.parametrize("manifest", [*RUN.values(), LOCUST["ConfigMap"]], ids=lambda one: one["kind"])
def test_kubernetes_own_schema_accepts_the_manifest_and_no_misspelt_one(manifest: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="no schemas of Kubernetes: pip install '.[dev]'")
    schemas.validate(manifest, KUBERNETES, strict=True)
    wrong = deepcopy(manifest)
    body = wrong.get("spec") or wrong
    body["replica"] = 3
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, KUBERNETES, strict=True)


def test_the_operators_schema_accepts_the_manifest_and_no_misspelt_one() -> None:
    jsonschema.validate(LOCUST["LocustTest"], OPERATOR)
    for change in ({"host": "redis://"}, {"workers": 0}, {"env": [{"name": "A", "valueFrom": {}}]}):
        wrong = deepcopy(LOCUST["LocustTest"])
        wrong["spec"] |= change
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, OPERATOR)
    test = LOCUST["LocustTest"]["spec"]
    assert test["locustfile"]["configMap"]["name"] == LOCUST["ConfigMap"]["metadata"]["name"]
    (locustfile,) = LOCUST["ConfigMap"]["data"]
    words = shlex.split(test["args"])
    assert f"--locustfile=/home/locust/{locustfile}" in words, "where the operator mounts it"
    assert f"--expect-workers={test['workers']}" in words
    assert is_wanted(words), "a run with a verdict"
    compile(LOCUST["ConfigMap"]["data"][locustfile], locustfile, "exec")


@pytest.mark.parametrize("right, wrong, code", [("", "", 0), ("--hold", "--hodl", 2)])
def test_locust_knows_what_the_operator_is_told(right: str, wrong: str, code: int) -> None:
    parse = (
        "import sys; from locust import events; from locust.argument_parser import get_parser; "
        "from bench.workloads.plan import add_options; events.init_command_line_parser.add_listener(add_options); "
        "get_parser(default_config_files=[]).parse_args(sys.argv[1:])"
    )
    words = shlex.split(LOCUST["LocustTest"]["spec"]["args"].replace(right, wrong, 1))
    done = subprocess.run([sys.executable, "-c", parse, *words], check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("kind", PODS)
def test_lockbench_knows_what_the_pods_say(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = PODS[kind]["containers"][0]["args"]
    assert program == "lockbench"
    assert execute([*words, "--help"]) == 0
    assert execute([*words, "--expect-wokers=3", "--help"]) == 2
    assert "--expect-wokers" in capsys.readouterr().err


def test_leader_and_workers_find_each_other_and_are_as_many_as_expected() -> None:
    leader, worker = (PODS[kind]["containers"][0] for kind in ("Job", "Deployment"))
    assert f"--expect-workers={RUN['Deployment']['spec']['replicas']}" in leader["args"]
    assert f"--master={RUN['Service']['metadata']['name']}" in worker["args"]
    labels = RUN["Job"]["spec"]["template"]["metadata"]["labels"]
    assert RUN["Service"]["spec"]["selector"].items() <= labels.items()
    (port,) = RUN["Service"]["spec"]["ports"]
    assert leader["ports"] == [{"name": port["targetPort"], "containerPort": port["port"]}]
    (allowed,) = RUN["NetworkPolicy"]["spec"]["ingress"]
    assert allowed["ports"] == [{"port": port["port"]}]
    theirs = RUN["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert allowed["from"][0]["podSelector"]["matchLabels"].items() <= theirs.items()
    assert leader["image"] == worker["image"] == LOCUST["LocustTest"]["spec"]["image"] == IMAGE


@pytest.mark.parametrize("kind", PODS)
def test_a_pod_is_guarded(kind: str) -> None:
    pod = PODS[kind]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False, "and nothing else stands in /run/secrets"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert "/tmp" in written, "histories"


def test_a_password_comes_from_a_secret_and_stands_in_no_manifest() -> None:
    from dashboards.container import TARGETS

    (mount,) = (one for one in PODS["Job"]["containers"][0]["volumeMounts"] if one.get("readOnly"))
    assert mount["mountPath"] == str(TARGETS)
    for path in FOLDER.glob("*.yaml"):
        assert not re.search(r"redis://[^\s\"]*@|password:", path.read_text("utf-8"))


def test_the_operators_containers_say_only_what_locust_shall_do() -> None:
    from dashboards.container import arguments

    assert arguments(["--master", "-f", "x.py"], []) == ["locust", "--master", "-f", "x.py"]
