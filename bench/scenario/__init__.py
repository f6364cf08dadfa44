"""What to do, written down: *TOML and options → one resolved `Scenario`*.

Rules: one table (`keys.KEYS`) drives TOML, options, help and documentation; every refusal is one sentence with its
place; nothing here knows Locust, sockets or servers. Source: the names in README's scenario table.
"""

from bench.scenario.keys import KEYS, Key
from bench.scenario.load import load
from bench.scenario.model import Delay, Fault, Pause, Retry, Scenario, Skew

__all__ = ["KEYS", "Delay", "Fault", "Key", "Pause", "Retry", "Scenario", "Skew", "load"]
