"""Any recipe, ours or of another package, as a client of the simulated servers; only after `sockets.take_over`."""

import os
from functools import partial
from typing import Any

from bench.experiments.explore.engine_client import RETRY
from bench.experiments.explore.network import SimulatedServer
from bench.experiments.explore.schedule import TTL_MS
from bench.experiments.explore.sockets import Scene, url_of
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from lockcore.clock import NS_PER_MS


def connect(recipe: str, servers: tuple[SimulatedServer, ...]) -> Any:
    """A connected recipe, in the course that will use it."""
    if Scene.servers != servers:
        Scene.servers, Scene.worlds = servers, Scene.worlds + 1
    prefix = f"{os.getpid()}-{Scene.worlds}:"  # what a recipe has outside of its servers is of one world, too
    told = RecipeSettings(key_prefix=prefix, max_ttl_ms=TTL_MS, retry=RETRY)
    locker: Any = find_recipe(recipe).connect([url_of(server.index) for server in servers], told)
    if servers[-1].data.role == "slave":
        delay_ns = locker.promotion_delay_ms * NS_PER_MS
        promote = partial(setattr, servers[1].data, "role", "master")
        servers[0].when_dead = lambda: servers[0].world.later(delay_ns, promote)
    return locker
