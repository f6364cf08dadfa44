"""A TLS instance that floods whoever locks on it: *a process of its own, which a test starts and
ends*.

    python -m tests.doubles.flood CERTIFICATE KEY REPLY MEGABYTES

It prints its URL and is honest at first. It answers each SET with MEGABYTES of one reply, as fast
as TLS allows. It ends with its standard input. In a thread it would share the interpreter with the
loop that it floods.
"""

import socket
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from tests.doubles.instance import Instance

MEGABYTE = 1 << 20
REPLIES = {
    "pushes": b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$100\r\n" + b"x" * 100 + b"\r\n",
    "replies": b"+OK\r\n",
    "a bulk": b"x" * 1000,
}


class TlsInstance(Instance):
    """A scripted instance behind TLS."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        super().__init__()
        # not that of an instance in the process of the test
        self.run_id = token_hex(20)

    def _serve(self, number: int, connection: socket.socket) -> None:
        with suppress(OSError):
            super()._serve(number, self._context.wrap_socket(connection, server_side=True))


def main() -> None:
    """See the module."""
    certificate, key, reply, megabytes = sys.argv[1:]
    with TlsInstance(Path(certificate), Path(key)) as instance:
        one = REPLIES[reply]
        head = b"$2000000000\r\n" if reply == "a bulk" else b""
        instance.says["set"] = head + one * (int(megabytes) * MEGABYTE // len(one))
        print(instance.url.replace("redis:", "rediss:"), flush=True)
        threading.Thread(target=sys.stdin.read, daemon=True).run()


if __name__ == "__main__":
    main()
