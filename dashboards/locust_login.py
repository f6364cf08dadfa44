"""This second locustfile adds a login to the Locust of the monitoring stack: *a password file → a
page that requires this password*.

Rules: Locust's page needs a login. Without a login, any site that a browser visits could start a
load through Locust's page. There is one user, `admin`. The variable LOCKBENCH_LOCUST_PASSWORD_FILE
names the file with the password. A session ends with the process. If --web-login is not given, this
file changes nothing. Source: Locust's documentation, "Adding authentication to the web UI".
"""

import hmac
import os
import secrets
from pathlib import Path

import locust
from flask import redirect, request, session, url_for
from flask_login import UserMixin, login_user
from locust.env import Environment
from werkzeug.wrappers import Response

VARIABLE = "LOCKBENCH_LOCUST_PASSWORD_FILE"
USER = "admin"
CALLBACK = "/authenticate"


def is_right(user: str, password: str, file: Path) -> bool:
    """Return whether `user` is `USER` and `password` is the password in `file`.

    If the file is empty or missing, the function returns False for every password.
    """
    expected = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return (
        bool(expected)
        and hmac.compare_digest(password.encode(), expected.encode())
        and user == USER
    )


def _protect(environment: Environment, **_: object) -> None:
    web_ui = environment.web_ui
    if web_ui is None or web_ui.app is None or not web_ui.web_login:
        return
    app = web_ui.app
    app.secret_key = secrets.token_bytes(32)
    app.config.update(SESSION_COOKIE_SAMESITE="Strict", SESSION_COOKIE_HTTPONLY=True)
    admin = UserMixin()
    admin.id = USER
    web_ui.login_manager.user_loader(lambda name: admin if name == USER else None)
    web_ui.auth_args = {"username_password_callback": CALLBACK}
    file = Path(os.environ.get(VARIABLE, ""))

    def authenticate() -> Response:
        if is_right(request.form.get("username", ""), request.form.get("password", ""), file):
            session.pop("auth_error", None)
            login_user(admin)
            return redirect(url_for("locust.index"))
        session["auth_error"] = "The user name or the password is wrong"
        return redirect(url_for("locust.login"))

    app.add_url_rule(CALLBACK, view_func=authenticate, methods=["POST"])


# Locust calls `_protect` when it starts.
locust.events.init.add_listener(_protect)
