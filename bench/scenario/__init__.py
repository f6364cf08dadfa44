"""What to do, written down: *TOML and options → one resolved `Scenario`*.

Rules: the fields of `Scenario` drive TOML, options, help and documentation; every refusal is one
sentence with its place; nothing here knows Locust, sockets or servers.
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
