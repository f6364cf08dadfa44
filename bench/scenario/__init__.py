"""The description of a run: *TOML and options → one resolved `Scenario`*.

Rules: the fields of `Scenario` define the TOML keys, the options, the help and the documentation.
Each error message is one sentence, and it shows where the error is. This package does not use
Locust, sockets or servers.
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
