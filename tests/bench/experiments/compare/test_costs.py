"""What one connection exchanges, counted in any pieces: INFO is left out, whatever its length."""

from collections import Counter

import pytest

from bench.experiments.compare.costs import Exchange
from lockcore.resp import bulk, request

SET = request(b"SET", b"k\r\nx", b"v", b"NX")
INFO = request(b"info", b"commandstats")
SUBSCRIBE = request(b"SUBSCRIBE", b"c")
STATISTICS = bulk(b"# Commandstats\r\ncmdstat_set:calls=1\r\n" * 40)
MESSAGE = b">3\r\n" + bulk(b"message") + bulk(b"c") + bulk(b"two\r\nlines")
SUBSCRIBED = b">3\r\n" + bulk(b"subscribe") + bulk(b"c") + b":1\r\n"
OK = b"+OK\r\n"


def counted(asked: bytes, answered: bytes, piece: int) -> Counter[str]:
    counts = Counter[str]()

    def count(name: str, more: int) -> None:
        counts[name] += more

    exchange = Exchange(count)
    for data, take in ((asked, exchange.ask), (answered, exchange.answer)):
        for at in range(0, len(data), piece):
            take(data[at : at + piece])
    return counts


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_an_info_between_two_commands_changes_no_count(piece: int) -> None:
    plain = counted(SET + SET, OK + OK, piece)
    assert plain == {"commands": 2, "bytes_sent": 2 * len(SET), "bytes_received": 2 * len(OK)}
    assert counted(SET + INFO + SET, OK + STATISTICS + OK, piece) == plain
    assert counted(INFO + SET + SET, STATISTICS + OK + OK, piece) == plain


@pytest.mark.parametrize("piece", [1, 5, 10_000])
def test_a_message_belongs_to_no_command(piece: int) -> None:
    found = counted(SUBSCRIBE + INFO + SET, SUBSCRIBED + MESSAGE + STATISTICS + MESSAGE + OK, piece)
    assert found["commands"] == 2
    assert found["bytes_received"] == len(SUBSCRIBED) + 2 * len(MESSAGE) + len(OK)


def test_one_command_more_is_counted() -> None:
    assert counted(SET + SET + SET, OK * 3, 10)["commands"] == 3
