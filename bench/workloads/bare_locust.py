"""This script runs Locust but keeps Locust from reading its configuration files: *a command line →
a running Locust whose options come only from this command line*.

launch.py starts this file as a program, by its path. No module imports it.

Locust takes options from `~/.locust.conf` and from environment variables that begin with `LOCUST_`.
Locust also reads options from the files `locust.conf` and `pyproject.toml` in its working
directory. These files and variables usually contain the options of other load tests. For example,
the option `tags = x` would leave a run without users, and the option `run-time = 3s` would end a
run too early. This script makes Locust ignore the configuration files, and launch.py removes the
environment variables. A plain `locust -f locustfile.py` does not use this file or launch.py, so it
keeps its own options.

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
