"""This module gives lockbench access to inner parts of lockcore: *an import by lockbench → a pure
part of lockcore*.

Rules: `bench` may import `lockcore`, `lockcore.clock`, this module and `lockcore.bench.sockets`.
`bench` may not import any other module of lockcore, and `make lint` checks this. So a change inside
lockcore needs no change in `bench`. This module uses no sockets, because pure judges import it.
Applications do not need this module.
"""

from lockcore.engine import engine as _engine
from lockcore.engine.attempt import Acquisition, extend_steps, release_steps
from lockcore.engine.engine import Engine
from lockcore.engine.turns import Offer, Request, Turn
from lockcore.errors import InstanceError, InstanceRefusedError, LockcoreError
from lockcore.facts.membership import MEANINGS, Hello, IdentityKind, Rejoin
from lockcore.facts.model import Closed, Counted, Outcome, Vote
from lockcore.facts.quorum import outcome_of, owned_outcome_of, quorum_of
from lockcore.mask import Mask, is_secretive, masked_command, secrets_of, shown
from lockcore.rounds.commands import (
    COMPARE_AND_DELETE,
    COMPARE_AND_DELETE_MANY,
    COMPARE_AND_EXTEND,
    Dialect,
    Script,
)
from lockcore.rounds.rounds import ExtendRound, SetRound

# True if lockcore runs as machine code.
IS_COMPILED = not str(_engine.__file__).endswith(".py")

__all__ = [
    "COMPARE_AND_DELETE",
    "COMPARE_AND_DELETE_MANY",
    "COMPARE_AND_EXTEND",
    "IS_COMPILED",
    "MEANINGS",
    "Acquisition",
    "Closed",
    "Counted",
    "Dialect",
    "Engine",
    "ExtendRound",
    "Hello",
    "IdentityKind",
    "InstanceError",
    "InstanceRefusedError",
    "LockcoreError",
    "Mask",
    "Offer",
    "Outcome",
    "Rejoin",
    "Request",
    "Script",
    "SetRound",
    "Turn",
    "Vote",
    "extend_steps",
    "is_secretive",
    "masked_command",
    "outcome_of",
    "owned_outcome_of",
    "quorum_of",
    "release_steps",
    "secrets_of",
    "shown",
]
