"""This module gives lockbench access to sockets: *a URL → a connection, or the reason for a
failure*."""

from lockcore.shells.common.failure import SENTINEL, failure_of
from lockcore.shells.common.handshake import Connected, dialect_of, shake
from lockcore.shells.common.peer import PATIENCE_S, TLS_RECORDS, client_hello, look
from lockcore.shells.common.target import InstanceTarget, TargetOptions, target_of

__all__ = [
    "PATIENCE_S",
    "SENTINEL",
    "TLS_RECORDS",
    "Connected",
    "InstanceTarget",
    "TargetOptions",
    "client_hello",
    "dialect_of",
    "failure_of",
    "look",
    "shake",
    "target_of",
]
