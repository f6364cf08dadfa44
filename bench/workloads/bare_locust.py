"""This script runs Locust without Locust's configuration files: *a command line → a running Locust
whose options come only from this command line*.

launch.py starts this file as a program, by its path. No module imports it.

Locust takes options from `~/.locust.conf` and from environment variables that begin with `LOCUST_`.
Locust also reads options from the files `locust.conf` and `pyproject.toml` in its working
directory. These options belong to other load tests. For example, `tags = x` leaves a run without
users, and `run-time = 3s` ends a run too early. This file makes Locust ignore the files, and
launch.py removes the variables. A plain `locust -f locustfile.py` does not use this file or
launch.py, so it keeps its own options.

Source: locust.argument_parser, configargparse.
"""

from locust import argument_parser
from locust.main import main


class BareParser(argument_parser.LocustArgumentParser):
    """Locust's parser without its default configuration files.

    Locust creates all of its parsers from the class that this module replaces below.
    """

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **{**settings, "default_config_files": []})


argument_parser.LocustArgumentParser = BareParser  # type: ignore[misc]

if __name__ == "__main__":
    main()
