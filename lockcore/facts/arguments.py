"""Checks the arguments of callers before anything is sent.

Input: the name and the value of an argument. Output: nothing, or an exception.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`. `isinstance` gets a tuple and not `int | float`, because machine
code would build the union in each call.

Rules: a value of the wrong kind is a TypeError. A value out of range is a ValueError, and nan and
infinity are out of range. Each error text contains the argument's name, the allowed values and the
actual value. The value True is not accepted as the number 1.
"""

from typing import Final

from lockcore.facts.model import Lease

A_DAY_MS = 86_400_000

# The longest key: key prefix and resource.
LONGEST_KEY: Final = 1 << 17  # bytes
LONGEST_PREFIX: Final = 1 << 10  # bytes

# `NO_WAIT` is the default of `wait_ms`. The trick is that hot paths recognise a TTL and a wait by
# identity. Callers pass the same TTL and the same wait again and again. So the hot paths of
# greenlets and tasks (shells/*/fast.py) remember the two objects that they checked last. If
# `ttl_ms` is the same object as before, it needs no check. Any other object is checked, even if it
# equals the earlier one. So neither True nor 1.0 passes for 1. The plain way is a check in each
# call. The comparison by identity reduced the client's CPU per cycle from 3.54 to 3.07 µs (uvloop,
# N = 5, 200 callers; docs/lab/lockcore.md). For the same reason these arguments are declared as
# `object`. If a TTL is declared as an int, machine code makes a new object for every caller. This
# cost 2,000 instructions per acquire.
NO_WAIT: Final[object] = 0


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Check a whole number.

    Raises TypeError if `value` is not a whole number. Raises ValueError if `value` is not in `low`
    … `high`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} … {high}, not {value}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Check a number.

    Raises TypeError if `value` is not a number. Raises ValueError if `value` is not in `low` …
    `high`.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low:.12g} … {high:.12g}, not {value}")


def check_acquire(resource: object, ttl_ms: object, wait_ms: object) -> None:
    """Check the arguments of an acquire. The engine checks whether the fleet grants the TTL."""
    if not isinstance(resource, str) or not resource:
        kind = ValueError if isinstance(resource, str) else TypeError
        raise kind(f"resource must be a non-empty text, not {resource!r}")
    check_whole("ttl_ms", ttl_ms, 1, A_DAY_MS)
    check_number("wait_ms", wait_ms, 0, A_DAY_MS)


def check_key(key_bytes: int) -> None:
    """Raises ValueError if a key is longer than LONGEST_KEY bytes.

    `key_bytes` includes the key prefix.
    """
    if key_bytes > LONGEST_KEY:
        raise ValueError(
            f"resource must have at most {LONGEST_KEY:,} bytes (UTF-8, with the key prefix), not "
            f"{key_bytes:,}; use a shorter name, or its hash"
        )


def check_prefix(key_prefix: str) -> None:
    """Raises ValueError if `key_prefix` is too long.

    The prefix must leave enough bytes of the key for the resource.
    """
    size = len(key_prefix.encode())
    if size > LONGEST_PREFIX:
        raise ValueError(
            f"key_prefix must have at most {LONGEST_PREFIX:,} bytes (UTF-8), not {size:,}"
        )


def check_lease(lease: object) -> Lease:
    """Return `lease`. Raises TypeError for anything but a `Lease`, for example for a `Denied`."""
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be a Lease, not {lease!r}")
    return lease
