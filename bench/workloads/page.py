"""Locust's page with the verdict: *a Conductor → a line above the page, and the report of the last run*.

Rules: Locust's own page is taken as it comes; what is added stands in a script of its own, and asks behind Locust's
login. Its field for a host goes: what is asked are targets, and an empty host says nothing.
"""

from pathlib import Path

from flask import Response, jsonify, send_file
from locust.web import WebUI

from bench.measure.verdict import Kind
from bench.workloads.conductor import Conductor

_COLOURS = {Kind.GOOD.value: "#1b7f3b", Kind.UNKNOWN.value: "#8a6100", Kind.BAD.value: "#b3261e"}
_SAID = {
    "running": ("", "safety is judged when the run has stopped"),
    "judging": ("", "the oracle judges the run"),
}
_SCRIPT = Path(__file__).with_name("page.js")


def show_verdict(web_ui: WebUI, conductor: Conductor) -> None:
    """Add the line and the report to `web_ui`."""
    app = web_ui.app
    assert app is not None
    prefix = (getattr(web_ui.environment.parsed_options, "web_base_path", None) or "").rstrip("/")
    added = '<style>.MuiFormControl-root:has(input[name="host"]){display:none}</style>'
    added += f"<script>{_SCRIPT.read_text(encoding='utf-8')}</script></head>"

    def add(response: Response) -> Response:
        if response.mimetype == "text/html" and not response.is_streamed and not response.direct_passthrough:
            response.set_data(response.get_data(as_text=True).replace("</head>", added, 1))
        return response

    def verdict() -> Response:
        return jsonify(said(conductor))

    def report() -> Response:
        told = conductor.told
        return send_file(told.page) if told and told.page else Response("no report is kept", 404)

    app.after_request(add)
    for name, answer in (("verdict", verdict), ("report", report)):
        app.add_url_rule(f"{prefix}/lockbench/{name}", name, web_ui.auth_required_if_enabled(answer))


def said(conductor: Conductor) -> dict[str, str | bool]:
    """The line as it is now: word, colour, text, and whether there is a report."""
    told = conductor.told
    if told is None:
        word, text = _SAID.get(conductor.phase, ("", "nobody has judged this run" if conductor.begun else ""))
        return {"word": word, "colour": "#555", "text": text, "report": False}
    return {"word": told.word, "colour": _COLOURS[told.colour], "text": told.headline, "report": bool(told.page)}
