"""Certificates for tests: *a folder → an authority, and a server's certificate for 127.0.0.1*, by
openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HOST_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n"
# RFC 5280 wants it in the certificate of an authority, and Python checks it from 3.13 on.
KEY_USAGE = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def server_arguments(self) -> list[str]:
        """What a TLS server needs; it asks its clients for nothing."""
        files = ["--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key)]
        return [*files, "--tls-ca-cert-file", str(self.authority), "--tls-auth-clients", "no"]


def make_certificates(folder: Path, authority_options: tuple[str, ...] = KEY_USAGE) -> Certificates:
    """A new authority, and a certificate it signed. Skips the test when there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command on this machine")
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    authority_key = folder / "authority.key"
    request = folder / "server.csr"
    (folder / "names").write_text(HOST_NAMES)
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-x509", "-days", "2", "-subj", "/CN=test authority", *authority_options]
    _openssl(*new, *authority, "-keyout", authority_key, "-out", made.authority)
    _openssl(*new, "-subj", "/CN=127.0.0.1", "-keyout", made.key, "-out", request)
    signed_by = ["-CA", made.authority, "-CAkey", authority_key, "-CAcreateserial"]
    _openssl(
        "x509",
        "-req",
        "-in",
        request,
        *signed_by,
        "-days",
        "2",
        "-extfile",
        folder / "names",
        "-out",
        made.certificate,
    )
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
