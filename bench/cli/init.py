"""A scenario to start from: *the table of keys → a commented TOML file*.

Rules: every key stands in it with its default and its meaning, commented out where absence means something; the file
loads as it is and changes nothing. An existing file is never touched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.scenario import KEYS, ScenarioKey

_HEAD = """\
# A scenario of lockbench: run it with `lockbench run {name}`. Each key is also an option of the same name,
# `retry.window` → `--retry-window`, and the option wins. Keys left out have the values shown here.

"""

_EXAMPLES = {  # of what is absent by default
    "rate": "2000",
    "targets": '["redis://127.0.0.1:6379"]',
    "thresholds": '["acquire.p99 < 10ms", "safety.violations == 0"]',
    "pause": '["before-release:100ms:0.03"]',
    "faults": '[{ at = "5s", for = "2s", kind = "stop", target = ["instance:0"] }]',
}


def template(name: str) -> str:
    """Return the text of a scenario file called `name`."""
    return _HEAD.format(name=name) + "".join(_line(key) for key in KEYS)


def write_scenario(path: Path) -> int:
    """Write the template to `path` and say so. Raises EnvironmentNotReadyError if it exists or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(path.name))
    except FileExistsError:
        raise EnvironmentNotReadyError(f"{path} exists already and was left as it is; name another file") from None
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); name another file") from None
    print(f"wrote {path}; next: lockbench run {path}", file=sys.stderr)
    return 0


def _line(key: ScenarioKey) -> str:
    absent = key.default is None or key.default == ()
    example = _EXAMPLES.get(key.name, "")
    setting = f"{key.name} = {example if absent else json.dumps(key.default)}"
    # Commented out: what is absent by default, and what only makes sense beside something absent.
    mark = "# " if absent or key.name == "arrivals" else ""
    return f"{mark}{setting:<{38 - len(mark)}} # {key.help}\n"
