"""Locust without its habits: *its command line → a running Locust that has read nothing else*.

Rules: started as a program, by its path; nobody imports it. Locust takes options from
`~/.locust.conf`, from `locust.conf` and `pyproject.toml` in the folder where it runs, and from
variables that begin with `LOCUST_`. Those are meant for another load test: `tags = x` there leaves
a run without users, `run-time = 3s` cuts it. Here it does without the files; launch.py takes the
variables away. A plain `locust -f locustfile.py` goes past both and keeps its own. Source:
locust.argument_parser, configargparse.
"""

from locust import argument_parser
from locust.main import main


class BareParser(argument_parser.LocustArgumentParser):
    """Locust's parser, without default files.

    All of its parsers are made from the name that is replaced below.
    """

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **{**settings, "default_config_files": []})


argument_parser.LocustArgumentParser = BareParser  # type: ignore[misc]

if __name__ == "__main__":
    main()
