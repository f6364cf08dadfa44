"""How each command of README is tried with an installed wheel: *a line → how it may end, and how it
is shortened*.

Rules: a line that no trial fits fails the test that lists them, so nobody adds a command that
nobody tries. Options are appended to `lockbench` commands that take time. The line itself is typed
as it stands. Exit code 4 stands beside 0 where a busy machine may make a run INVALID.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = "--duration 500ms --warmup 200ms"
GATED = "--metric rate --pairs 7 --duration 300ms --warmup 100ms --tolerance 100%"


@dataclass(frozen=True, slots=True)
class Trial:
    """`start`: a pattern that the line begins with; `codes`: with which it may end; `options`:
    appended; `slow`: it takes minutes; `elsewhere`: which tests try it, as this one cannot."""

    start: str
    codes: frozenset[int] = frozenset({0})
    options: str = ""
    slow: bool = False
    elsewhere: str = ""
    # what it must say
    text: str = field(default="", kw_only=True)


MEASURED = frozenset({0, 4})
JUDGED = frozenset({0, 1, 4})
EXPERIMENT = frozenset({0, 4, 5})

TRIALS = (
    Trial(r"lockbench (doctor|recipes)"),
    Trial(r'eval "\$\(lockbench completion bash\)"'),
    Trial(r"lockbench run mine.toml --expect-workers", elsewhere="tests/integration/test_hosts.py"),
    Trial(r"lockbench worker", elsewhere="tests/integration/test_hosts.py"),
    Trial(r"lockbench run .*--threshold", JUDGED, SHORT),
    Trial(r"lockbench run .*--repeat", MEASURED, f"{SHORT} --repeat 2"),
    Trial(
        r"(lockbench init mine.toml && |OTEL_EXPORTER_OTLP_ENDPOINT=\S+ )?lockbench run",
        MEASURED,
        SHORT,
    ),
    Trial(r"lockbench gate --baseline git:main$", frozenset({2}), text="--candidate git:HEAD"),
    Trial(r"lockbench gate", MEASURED, GATED, slow=True),
    Trial(r"lockbench compare", frozenset({0, 2, 4}), slow=True),
    Trial(r"lockbench (capacity|fsync)", MEASURED, slow=True),
    Trial(r"lockbench (crash|safety|explore|audit|split-votes)", EXPERIMENT, slow=True),
    # nothing has been measured yet
    Trial(r"lockbench planner", frozenset({3}), text="name a result with --costs"),
    Trial(r"lockbench observe", MEASURED, SHORT, slow=True),
    Trial(r"lockbench report", elsewhere="tests/integration/test_report_command.py"),
    Trial(r"lockbench judge", elsewhere="tests/integration/test_judge.py"),
    Trial(r"lockbench init --lock"),
    Trial(r"pip install \./tests/plugins"),
    Trial(r"pip install --constraint"),
    Trial(r"pip install 'lockbench\[", elsewhere="a package index, which a test does not ask"),
    Trial(r"locust -f", elsewhere="tests/integration/test_locust_login.py"),
    Trial(r"docker compose", elsewhere="tests/dashboards/test_compose.py"),
)
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )?(?:lockbench|pip install|locust|docker compose|eval) ?\S.*"
)
_REMARK = re.compile(r"\s{2,}#.*")


def typed_lines() -> list[str]:
    """Every command that README tells people to type, each once: of code blocks, and of code inside
    a sentence."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(
        r"`([^`\n]+)`", rest
    )
    commands = (_REMARK.sub("", line) for line in lines if _COMMAND.fullmatch(line))
    return list(dict.fromkeys(line for line in commands if " " in line))


def trial_of(line: str) -> Trial | None:
    """The first that fits."""
    return next((trial for trial in TRIALS if re.match(trial.start, line)), None)
