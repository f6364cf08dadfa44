"""What is secret, and that no text of ours, of a library or of a server has it."""

import html
import json
from urllib.parse import quote

import pytest

from lockcore.mask import HIDDEN, Mask, masked_command, shown

SECRETS = [
    "hunter2",
    "p@ss:w/o?r#d",
    "schlüssel",
    "a b'c\"d",
    "back\\slash",
    "%41%42",
    "<tag>&amp",
    "密码密码",
    "ab",
    "x" * 300,
]
FORMS = {
    "plain": str,
    "percent": lambda secret: quote(secret, safe=""),
    "repr": lambda secret: repr(secret)[1:-1],
    "ascii": lambda secret: ascii(secret)[1:-1],
    "bytes": lambda secret: repr(secret.encode())[2:-1],
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "HTML": html.escape,
}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://user:hunter2@h:1/0", "redis://user:***@h:1/0"),
        ("redis://:hunter2@h", "redis://:***@h"),
        ("redis://hunter2@h", "redis://***@h"),
        (
            "rediss://h:1?ssl_ca_certs=/x&password=hunter2",
            "rediss://h:1?ssl_ca_certs=/x&password=***",
        ),
        ("redis://h?db=1&whatever=hunter2", "redis://h?db=1&whatever=***"),
        ("redis://:hunt?er2@h:1", "redis://:***@h:1"),
        ("redis://:hunt@er2@h:1", "redis://:***@h:1"),
        ("redis://:hunt/er2@h:1", "redis://:***@h:1"),
        ("redis://h/x?password=hunt@er2", "redis://***"),
        (
            "rediss://h?ssl_keyfile_password=hunter2&db=1",
            "rediss://h?ssl_keyfile_password=***&db=1",
        ),
        ("unix://u:hunter2@/tmp/s.sock", "unix://u:***@/tmp/s.sock"),
        ("user:hunter2@h:1", "***@h:1"),
        ("redis://:hunter2", "redis://:***"),
        ("redis://:12345", "redis://:***"),
        ("redis://h:hunter2", "redis://h:***"),
        ("redis://h/hunter2", "redis://h/***"),
        ("redis://h:1#hunter2", "redis://h:1"),
        (
            "http://ann:hunter2@collector:4318/v1/metrics",
            "http://ann:***@collector:4318/v1/metrics",
        ),
        ("redis://h:1", "redis://h:1"),
        ("redis://[::1]:7000/2", "redis://[::1]:7000/2"),
        ("redis://", "redis://"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, told: str) -> None:
    assert shown(url) == told


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_hidden_in_whatever_form_it_is_quoted(secret: str, form: str) -> None:
    mask = Mask(
        f"redis://ann:{quote(secret, safe='')}@db:6379",
        f"redis://db?ssl_password={quote(secret, safe='')}",
    )
    quoted = FORMS[form](secret)
    assert mask(f"-ERR unknown command 'AUTH', with args beginning with: '{quoted}' ") == (
        f"-ERR unknown command 'AUTH', with args beginning with: '{HIDDEN}' "
    )


def test_a_secret_that_a_server_cut_off_is_hidden() -> None:
    """Redis quotes 128 characters of the arguments it does not understand."""
    mask = Mask(f"redis://:{'abcdefghij' * 20}@db")
    assert (
        mask(f"with args beginning with: '{('abcdefghij' * 20)[:128]}' ")
        == "with args beginning with: '***' "
    )


def test_a_short_secret_is_hidden_where_it_stands_alone() -> None:
    assert (
        Mask("redis://:on@db")("connection 'on' refused on, one")
        == "connection '***' refused ***, one"
    )


@pytest.mark.parametrize(
    "url", ["redis://:s3cret", "redis://h:s3cret", "redis://:12#s3cret@h", "redis://s3cret@h"]
)
def test_what_urllib_quotes_of_a_malformed_url_is_hidden(url: str) -> None:
    text = (
        "Port could not be cast to integer value as 's3cret'; netloc ':s3cret' contains "
        "invalid characters"
    )
    assert "s3cret" not in Mask(url)(text)


def test_urls_that_nobody_told_of_are_hidden_too() -> None:
    text = (
        "exporting to http://ann:hunter2@c:4318/v1, ann:hunter2@c:1; at ':hunter2@c' and "
        "(redis://:x@h:1)."
    )
    told = Mask()(text)
    assert "hunter2" not in told
    assert told.startswith("exporting to http://")
    assert told.endswith("@h:1).")


def test_what_is_no_secret_stays_as_it_is() -> None:
    text = (
        "10.0.0.1:7001 refused at 12:30:05; write redis://[user:password@]host[:port], "
        "redis://host:port, a@b.example "
        "or unix:///a.sock"
    )
    assert Mask("redis://:hunter2@h")(text) == text


def test_several_urls_are_learned_at_once() -> None:
    mask = Mask()
    mask.learn("redis://:first@a,redis://:second@b redis://:third@c")
    assert mask("first second third") == "*** *** ***"


def test_secrets_do_not_stay_in_the_command() -> None:
    command = [
        "lockbench",
        "run",
        "--target",
        "redis://user:hunter2@db:6379/0",
        "--target=rediss://:hunter2@db",
        "--password",
        "hunter2",
        "--tls-password=hunter2",
        "redis://db?password=hunter2",
        "--users",
        "64",
        "a.toml",
    ]
    masked = masked_command(command)
    assert "hunter2" not in " ".join(masked)
    assert masked[:4] == ["lockbench", "run", "--target", "redis://user:***@db:6379/0"]
    assert masked[-3:] == ["--users", "64", "a.toml"]
    assert len(masked) == len(command)


def test_an_argument_that_is_a_command_line_itself_is_masked() -> None:
    command = "node lock.mjs --password=hunter2 --token 'hunter2 x' redis://a:hunter2@db --users 3"
    shown_command = "node lock.mjs --password=*** --token *** redis://a:***@db --users 3"
    assert masked_command(["judge", command]) == ["judge", shown_command]
    assert masked_command(["judge", "sh x.sh -a hunter2"]) == ["judge", "sh x.sh -a ***"]
    assert masked_command(["redis-cli", "-a", "hunter2"]) == ["redis-cli", "-a", "***"]


def test_what_is_masked_stays_as_it_is_when_it_is_masked_again() -> None:
    once = Mask()("see redis://ann:hunter2@db:7000/3, redis://:hunter2@[::1]:1 and bob:hunter2@db")
    assert "ann:***@db:7000/3" in once
    assert "hunter2" not in once
    assert Mask()(once) == once
    assert "hun:ter2" not in Mask()("redis://db bob:hun:ter2:***@db")


@pytest.mark.parametrize(
    "password",
    ["or", "user", "password", "name", "6379", "db", "127.0.0.1", "ann", "wrong-name", "p9"],
)
def test_a_password_that_is_a_word_a_number_or_a_host_is_not_cut_out_of_our_sentences(
    password: str,
) -> None:
    """What is cut out would show what it is."""
    mask = Mask(f"redis://ann:{password}@db:6379", f"redis://ann:{password}@127.0.0.1")
    sentence = (
        "db:6379 and 127.0.0.1: wrong user name or password of ann, in wrong-name.toml; see "
        "redis://ann:***@db:6379 p9"
    )
    assert mask.sentence(sentence) == sentence
    assert mask.sentence(f"see redis://ann:{password}@db:6379, or ann:{password}@db") == (
        "see redis://ann:***@db:6379, or ***@db"
    )


def test_a_password_that_no_word_can_look_like_is_hidden_in_our_sentences_too() -> None:
    mask = Mask("redis://ann:s3cret@db:6379", "redis://:schl%C3%BCssel@db")
    assert mask.sentence("cannot use 's3cret' nor schlüssel") == "cannot use '***' nor ***"
