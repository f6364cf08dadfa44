"""What a lock raised is counted once, by a sentence with its place, and no secret is in it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bench.errors import secrets
from bench.workloads.raised import LONGEST, MOST_TEXTS, OTHERS, Raised, sentence_of


def caught(error: Exception) -> Exception:
    """The same, raised here."""
    try:
        raise error
    except type(error) as raised:
        return raised


class Mute(Exception):  # noqa: N818 - no error of ours
    """An exception whose text raises one."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_sentence_has_type_text_and_line() -> None:
    sentence = sentence_of(caught(RuntimeError("no\n lock")))
    assert sentence.startswith("RuntimeError: no lock (test_raised.py:")
    assert sentence.endswith(" in caught)")
    assert sentence_of(caught(KeyError())).startswith("KeyError (test_raised.py:")
    assert (
        "Mute, whose text is unknown, because str() raised another exception (test_raised.py:"
        in sentence_of(caught(Mute()))
    )
    assert sentence_of(ValueError("x")) == "ValueError: x (in the call itself)"
    assert len(sentence_of(caught(ValueError("x" * 10_000)))) < LONGEST + 100


def test_a_sentence_has_no_password_also_where_it_is_cut() -> None:
    secrets().learn("redis://:hunter2hunter2@h:1")
    far = "x" * (LONGEST - 12)
    for text in (
        "redis://:hunter2hunter2@h:1 is away",
        f"{far} redis://:hunter2hunter2@h:1 is away",
    ):
        assert "hunter2" not in sentence_of(caught(OSError(text)))


def test_texts_that_differ_each_time_are_counted_together_from_the_sixth_on() -> None:
    raised = Raised()
    for number in range(MOST_TEXTS + 4):
        raised.note(caught(OSError(f"try {number}")))
    assert raised.counts[OTHERS] == 4
    assert len(raised.counts) == MOST_TEXTS + 1
    assert next(iter(raised.counts)).startswith("OSError: try 0 ")


def test_what_a_greenlet_or_a_thread_raises_is_noted_and_still_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a watchdog that cannot extend, in a greenlet of the hub and in a thread."""
    printed: list[Any] = []
    monkeypatch.setattr(
        threading, "excepthook", lambda arguments: printed.append(arguments.exc_value)
    )
    hub = SimpleNamespace(
        print_exception=lambda _context, _kind, error, _traceback: printed.append(error)
    )
    before = hub.print_exception, threading.excepthook
    raised = Raised()
    end = raised.watch(hub)

    def extend() -> None:
        raise ValueError("the extension failed")

    error = caught(ValueError("the extension failed"))
    hub.print_exception(None, ValueError, error, error.__traceback__)
    # its caller waited for the greenlet, and raises the same object
    raised.note(error)
    thread = threading.Thread(target=extend)
    thread.start()
    thread.join()
    hub.print_exception(None, SystemExit, SystemExit(), None)
    end()
    assert sum(raised.counts.values()) == 2, raised.counts
    assert [type(one) for one in printed] == [ValueError, ValueError, SystemExit]
    assert (hub.print_exception, threading.excepthook) == before
