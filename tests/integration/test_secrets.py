"""No password in anything that leaves: refusals, results, pages, the states of a lock,
tracebacks."""

import traceback
from pathlib import Path
from urllib.parse import quote

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.fleet import HOST, start_fleet
from lockcore import Redlock
from lockcore.errors import InstanceError
from tests.doubles.instance import Instances
from tests.doubles.keyspace import error
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client
from tests.integration.locust_runs import free_port
from tests.integration.test_cli import Lockbench, refused

pytestmark = pytest.mark.integration
SECRET = "s3crét"
HOSTILE = [SECRET, "a@s3crét", "s3crét/b", "s3crét#:?", " s3crét ", "'s3crét\"", "s3crét" * 40]
MALFORMED = [
    f"redis://:{SECRET}",
    f"redis://host:{SECRET}",
    f"redis://:a/{SECRET}@host",
    f"redis://:{SECRET}#@host:1",
    f"redis://u:{SECRET}@[::1",
    f"redis://u:{SECRET}@host/{SECRET}",
    f"http://u:{SECRET}@host",
    f"u:{SECRET}@host:1",
    f"redis://host?password={SECRET}&nonsense=1",
    f"redis://host?nonsense={SECRET}",
    f"rediss://h?ssl_password=a@{SECRET}:x",
    f"redis://u:{SECRET}@host:0",
    f"unix://{SECRET}@",
]


def told_by(raised: pytest.ExceptionInfo[BaseException]) -> str:
    """Everything that can be printed of an exception."""
    return (
        f"{raised.value} {raised.value!r} {raised.value.args} "
        f"{''.join(traceback.format_exception(raised.value))}"
    )


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_is_refused_without_its_secret(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="instance URL") as raised:
        Redlock.connect([url])
    assert "s3cr" not in told_by(raised)


def test_the_command_line_refuses_without_secrets(lockbench: Lockbench, tmp_path: Path) -> None:
    for url in MALFORMED[:3]:
        assert "s3cr" not in refused(lockbench("run", "--target", url), 2)
        assert "s3cr" not in refused(lockbench("run", f"--target={url}", "--users", "no"), 2)
    unreachable = f"redis://u:{quote(SECRET)}@{HOST}:{free_port()}"
    assert "s3cr" not in refused(lockbench("run", "--target", unreachable), 3)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("password", HOSTILE)
def test_a_server_that_quotes_what_it_was_told_gives_no_password_away(password: str) -> None:
    """As one without AUTH does: `unknown command 'AUTH', with args beginning with: …`."""
    with Instances.of(3) as instances:
        urls = [url.replace("//", f"//ann:{quote(password, safe='')}@") for url in instances.urls]
        instances[0].says["other"] = error(
            f"ERR unknown command 'AUTH', with args beginning with: 'ann' '{password[:120]}' "
        )
        with Redlock.connect(urls, shell="threads", connect_timeout_s=5.0) as lock:
            assert lock.instances[0].state in {"down", "refused"}
            assert "s3cr" not in f"{lock.instances} {lock._driver.targets}"
        for instance in instances:
            instance.says["other"] = instances[0].says["other"]
        with pytest.raises(InstanceError) as raised:
            Redlock.connect(urls, shell="threads", connect_timeout_s=5.0)
        assert "s3cr" not in told_by(raised)


def test_a_password_that_is_the_host_or_a_word_hides_no_address() -> None:
    with Instances.of(3) as instances:
        urls = [url.replace("//", f"//:{HOST}@") for url in instances.urls]
        with Redlock.connect(urls, shell="threads", connect_timeout_s=5.0) as lock:
            assert lock.instances[0].address == f"{HOST}:{instances[0].port.number}"


def test_a_whole_run_leaves_no_password(lockbench: Lockbench, tmp_path: Path) -> None:
    with start_fleet(1, "none", server=server_of("redis")) as fleet:
        url = fleet.urls[0]
        client(url).execute_command("ACL", "SETUSER", "ann", "on", f">{SECRET}", "~*", "+@all")
        url = url.replace("//", f"//ann:{quote(SECRET)}@")
        load = ("--users", "2", "--think", "fixed:10ms", "--duration", "500ms", "--warmup", "0s")
        files = ("--out", "result", "--markdown", "result.md", "--junit", "result.xml")
        done = lockbench("run", "--target", url, *load, *files)
        assert "ann:***@" in (tmp_path / "result" / "result.json").read_text("utf-8"), done.stderr
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        forms = [SECRET, quote(SECRET), ascii(SECRET)[1:-1], "s3cr"]
        for text in (
            done.stdout,
            done.stderr,
            *(path.read_text("utf-8", errors="replace") for path in written),
        ):
            assert not [form for form in forms if form in text]


def test_a_fault_names_no_password() -> None:
    from bench.errors import secrets

    secrets().learn(f"redis://:{quote(SECRET)}@host")
    assert SECRET not in str(EnvironmentNotReadyError(f"cannot use it: {SECRET!r}"))
