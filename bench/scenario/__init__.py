"""The description of a run: *TOML and options → one resolved `Scenario`*.

Rules: the fields of `Scenario` define the TOML keys, the options, the help and the documentation.
Every refusal is one sentence with its place. This package does not use Locust, sockets or servers.
"""

from bench.scenario.keys import KEYS, READY, Retry, Scenario, ScenarioKey, load
from bench.scenario.quantity import Delay, Fault, Pause, Skew

__all__ = [
    "KEYS",
    "READY",
    "Delay",
    "Fault",
    "Pause",
    "Retry",
    "Scenario",
    "ScenarioKey",
    "Skew",
    "load",
]
