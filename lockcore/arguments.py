"""What callers pass, checked before anything is sent: *a name and a value → nothing, or one
sentence*. Pure.

Rules: the wrong kind of thing is a TypeError, a value out of range (nan and infinity are) a
ValueError; each names the argument, what it may be, and what it was. True is not 1.
"""

from typing import Final

from lockcore.model import Lease

A_DAY_MS = 86_400_000
LONGEST_KEY: Final = 1 << 17  # bytes of a key: key prefix and resource
LONGEST_PREFIX: Final = 1 << 10  # bytes
NO_WAIT: Final[object] = (
    0  # the default of `wait_ms`, told apart by identity: whatever else is passed is looked at
)


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises TypeError unless `value` is a whole number, ValueError unless it is `low` … `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} … {high}, not {value}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raises TypeError unless `value` is a number, ValueError unless it is `low` … `high`."""
    if not isinstance(value, (int, float)) or isinstance(
        value, bool
    ):  # a union would be made each time
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low:.12g} … {high:.12g}, not {value}")


def check_acquire(resource: object, ttl_ms: object, wait_ms: object) -> None:
    """The arguments of an acquire; whether the fleet grants the TTL is the engine's to say."""
    if not isinstance(resource, str) or not resource:
        kind = ValueError if isinstance(resource, str) else TypeError
        raise kind(f"resource must be a text that is not empty, not {resource!r}")
    check_whole("ttl_ms", ttl_ms, 1, A_DAY_MS)
    check_number("wait_ms", wait_ms, 0, A_DAY_MS)


def check_key(key_bytes: int) -> None:
    """Raises ValueError unless the key of a resource, its key prefix included, has at most
    LONGEST_KEY bytes."""
    if key_bytes > LONGEST_KEY:
        raise ValueError(
            f"resource must make a key of at most {LONGEST_KEY:,} bytes (UTF-8) together with the key prefix, not "
            f"{key_bytes:,}; use a shorter name, or a hash of it"
        )


def check_prefix(key_prefix: str) -> None:
    """Raises ValueError unless `key_prefix` leaves enough of a key for resources."""
    size = len(key_prefix.encode())
    if size > LONGEST_PREFIX:
        raise ValueError(
            f"key_prefix must have at most {LONGEST_PREFIX:,} bytes (UTF-8), not {size:,}"
        )


def check_lease(lease: object) -> Lease:
    """`lease` itself. Raises TypeError unless it is a `Lease`: a `Denied` holds nothing."""
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be a Lease, not {lease!r}")
    return lease
