"""The stack's Locust: nobody starts a load who does not know the password."""

import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar

import pytest

from bench.topology.fleet import KeptPort
from tests.integration.locust_runs import ROOT, answers, until

pytestmark = pytest.mark.integration
PASSWORD = "drawn-for-this-test"


class Browser:
    """Follows redirects and keeps cookies."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

    def open(self, path: str, **form: str) -> str:
        """Where it ends up."""
        body = urllib.parse.urlencode(form).encode() if form else None
        with self._opener.open(self.url + path, data=body, timeout=10) as answer:
            return urllib.parse.urlparse(answer.url).path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("locust")
    (folder / "password").write_text(PASSWORD)
    ports = [KeptPort() for _ in range(2)]
    files = f"{ROOT}/bench/workloads/locustfile.py,{ROOT}/dashboards/locust_login.py"
    words = [
        sys.executable,
        "-m",
        "locust",
        f"--locustfile={files}",
        "--master",
        "--web-login",
        "--web-host=127.0.0.1",
    ]
    words += [
        "--master-bind-host=127.0.0.1",
        f"--master-bind-port={ports[0].number}",
        f"--web-port={ports[1].number}",
    ]
    environment = {**os.environ, "LOCKBENCH_LOCUST_PASSWORD_FILE": str(folder / "password")}
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{ports[1].number}"
    try:
        until(lambda: answers(f"{address}/login"), "the login page", 60)
        yield address
    finally:
        process.kill()
        process.wait()
        for port in ports:
            port.release()


@pytest.mark.parametrize("path", ["/", "/stats/requests", "/stats/report", "/exceptions"])
def test_without_the_password_every_way_leads_to_the_login(url: str, path: str) -> None:
    assert Browser(url).open(path) == "/login"


@pytest.mark.parametrize("password", ["", "wrong", PASSWORD[:-1]])
def test_a_wrong_password_starts_nothing(url: str, password: str) -> None:
    browser = Browser(url)
    assert browser.open("/authenticate", username="admin", password=password) == "/login"
    assert browser.open("/swarm", user_count="1", spawn_rate="1") == "/login"


def test_the_right_password_opens_the_page(url: str) -> None:
    browser = Browser(url)
    assert browser.open("/authenticate", username="admin", password=PASSWORD) == "/"
    assert browser.open("/stats/requests") == "/stats/requests"
