"""The certificate of the gRPC server, which is read again when its files change."""

import ssl
from pathlib import Path
from typing import Any, Final

import grpc

from ... import telemetry
from ...settings import GrpcTls, SettingsError
from ..pem_files import load_authorities, load_pair, read_file, wrong

SECTION: Final = "grpc.tls"

_log = telemetry.get_logger("tocsin.grpc")


class CertificateFiles:
    """The files of the settings, as they were when they were read last."""

    def __init__(self, tls: GrpcTls) -> None:
        """Read the files.

        Raises:
            SettingsError: a file cannot be read, or has no certificate or key.
        """
        self._tls = tls
        self._seen = self._states()
        self.configuration = self._read()

    def changed(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return the new configuration if a file has changed.

        None: no file has changed, or a file is wrong. gRPC calls it for each new connection.
        """
        states = self._states()
        if states == self._seen:
            return None
        self._seen = states
        try:
            self.configuration = self._read()
        except SettingsError as error:
            _log.error("certificate kept; its new files are wrong", action="certificate-refused", error=str(error))
            return None
        _log.info("certificate renewed", action="certificate-renewed", cert=str(self._tls.cert))
        return self.configuration

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [None if path is None else _state(path) for path in (self._tls.cert, self._tls.key, self._tls.client_ca)]

    def _read(self) -> Any:  # noqa: ANN401 - likewise
        tls, context = self._tls, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, SECTION, tls.cert, tls.key)
        if tls.cert is None or tls.key is None:
            wrong(f"{SECTION}.cert", "`client_ca` is set without a `cert`. Set `cert` and `key` too", code="required")
        callers = None if tls.client_ca is None else load_authorities(context, f"{SECTION}.client_ca", tls.client_ca)
        pair = read_file(f"{SECTION}.key", tls.key), read_file(f"{SECTION}.cert", tls.cert)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=callers)


def server_credentials(tls: GrpcTls) -> Any:  # noqa: ANN401 - likewise
    """Return the credentials of the server.

    Raises:
        SettingsError: a file cannot be read, or has no certificate or key.
    """
    files = CertificateFiles(tls)
    return grpc.dynamic_ssl_server_credentials(
        files.configuration, files.changed, require_client_authentication=tls.client_ca is not None
    )


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
