"""A probe of the way to a server, step by step: gRPC does not tell why a connection has failed.

The probe takes the way that gRPC takes, with sockets of the standard library: address, proxy, TLS, HTTP/2. It
shows the site's certificate and sends no token.
"""

import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from cryptography import x509

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.net.address import socket_path, split
from offbeat.net.auth.certificates import hosts_of, tls_reason
from offbeat.net.auth.credentials import SiteCredentials, pem
from offbeat.net.proxy import Proxy

SECONDS = 5.0
"""How long the probe waits for an answer, at each step."""
STEPS = ("address", "proxy", "TLS", "HTTP/2")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty SETTINGS (RFC 9113, 3.4)
_FRAME, _SETTINGS, _ALERT = 9, 4, 0x15
_LONGEST_HEADER = 16_384
# OpenSSL's numbers for what is wrong with a certificate.
_MISMATCH, _EARLY, _EXPIRED = (62, 64), 9, 10
_PROXY_STATUS = {
    403: "it does not allow this address: ask its operator to",
    407: "it asks for a user and a password, or does not take those given",
}


class UnreachableError(Exception):
    """A step of the way failed.

    Args:
        step: The step, one of `STEPS`.
        reason: What is wrong and what to do, in one sentence.
        lasting: Whether another attempt without a change fails too.
        usage: Whether the site's own options are wrong.

    Attributes:
        passed: The steps before it, and what was found there.
    """

    def __init__(self, step: str, reason: str, *, lasting: bool = False, usage: bool = False) -> None:
        super().__init__(reason)
        self.passed: dict[str, str] = {}
        self.step, self.reason, self.lasting, self.usage = step, reason, lasting or usage, usage

    @property
    def final(self) -> OffbeatError | None:
        """The error with which a site ends; None where another attempt may succeed."""
        if not self.lasting:
            return None
        return (UsageError if self.usage else RunError)(self.reason)


def probe(
    address: str, credentials: SiteCredentials, proxy: Proxy | None = None, seconds: float = SECONDS
) -> dict[str, str]:
    """Go the way to a server once; returns what was found at each step.

    Args:
        address: "HOST:PORT" or "unix:PATH".
        credentials: The site's credentials.
        proxy: The proxy on the way. None means none.
        seconds: How long to wait at each step.

    Raises:
        UnreachableError: A step failed.
        UsageError: The address or a file of the credentials cannot be used.
    """
    made = _Probe(address, credentials, proxy, seconds)
    try:
        return made.go()
    except UnreachableError as error:
        error.passed = made.found
        raise


class _Probe:
    """A probe of one address.

    Attributes:
        found: What was found at each step. A failed handshake goes the way a second time to say why.
    """

    def __init__(
        self, address: str, credentials: SiteCredentials, proxy: Proxy | None, seconds: float
    ) -> None:
        self._address, self._credentials, self._proxy, self._seconds = address, credentials, proxy, seconds
        self.found: dict[str, str] = {}
        self._path = socket_path(address)
        self._host, self._port = ("localhost", 0) if self._path is not None else split(address)

    def go(self) -> dict[str, str]:
        """Take all steps."""
        with self._tunnel() as connection:
            if not self._credentials.tls(self._address):
                self._settings(connection)
                self.found["TLS"] = "none"
            else:
                with self._handshake(connection) as secured:
                    expires = (secured.getpeercert() or {}).get("notAfter", "")
                    self.found["TLS"] = f"{secured.version()}, the certificate is valid until {expires}"
                    if secured.selected_alpn_protocol() != "h2":
                        raise UnreachableError(
                            "HTTP/2",
                            f"{self._address} does not speak HTTP/2 over TLS: give the port of the sites, or "
                            "let the proxy on the way pass HTTP/2",
                            lasting=True,
                        )
                    self._settings(secured)
        self.found["HTTP/2"] = "the server answers"
        return self.found

    # ---- address and proxy ----

    @contextmanager
    def _tunnel(self) -> Iterator[socket.socket]:
        """A connection to the server, through the proxy if there is one."""
        with self._connection() as connection:
            self.found["address"] = f"{self._way} answers"
            if self._proxy is not None:
                self._connect_through(connection, self._proxy)
                self.found["proxy"] = f"it connects to {self._address}"
            yield connection

    @property
    def _way(self) -> str:
        """Where the first connection goes."""
        return self._address if self._proxy is None else f"the proxy {self._proxy.place}"

    def _connection(self) -> socket.socket:
        proxy = self._proxy
        what = self._way
        runs = "the server runs" if proxy is None else "the proxy runs there (access.proxy)"
        try:
            if self._path is not None:
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(self._seconds)
                connection.connect(self._path)
                return connection
            place = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
            return socket.create_connection(place, self._seconds)
        except socket.gaierror:
            raise UnreachableError(
                "address", f"{what} cannot be found: the name has no address; check it, and the DNS"
            ) from None
        except TimeoutError:
            raise UnreachableError(
                "address",
                f"{what} does not answer within {self._seconds:g} s: ask whether a firewall lets this "
                f"machine out, and whether {runs}",
            ) from None
        except OSError as error:
            raise UnreachableError(
                "address",
                f"{what} cannot be reached ({error.strerror}): check the address, and whether {runs}",
            ) from None

    def _connect_through(self, connection: socket.socket, proxy: Proxy) -> None:
        lines = [f"CONNECT {self._address} HTTP/1.1", f"Host: {self._address}"]
        if proxy.user is not None:
            secret = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {secret}")
        try:
            connection.sendall("\r\n".join((*lines, "", "")).encode())
            head = _head(connection)
        except OSError as error:
            raise UnreachableError(
                "proxy", f"the proxy {proxy.place} has broken off ({tls_reason(error)})"
            ) from None
        words = head.split(b" ", 2)
        if not head.startswith(b"HTTP/1.") or len(words) < 2 or not words[1][:3].isdigit():
            raise UnreachableError(
                "proxy", f"{proxy.place} is no HTTP proxy, or has closed the connection: check access.proxy"
            )
        status = int(words[1][:3])
        if 200 <= status < 300:
            return
        what = _PROXY_STATUS.get(status, f"it refuses to connect to {self._address}")
        raise UnreachableError(
            "proxy",
            f"the proxy {proxy.place} answers {status}: {what}",
            lasting=status < 500,
            usage=status == 407,
        )

    # ---- TLS ----

    def _handshake(self, connection: socket.socket) -> ssl.SSLSocket:
        try:
            return self._context().wrap_socket(connection, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise self._not_trusted(error) from None
        except (ssl.SSLError, OSError) as error:
            if self._speaks_plainly():
                raise UnreachableError(
                    "TLS",
                    f"{self._address} speaks without TLS, and this site with it: serve with --cert and "
                    "--key, or leave out access.ca and access.certificate for a server of this machine, "
                    "and give --set access.plaintext=true for another",
                    usage=True,
                ) from None
            raise self._refused(error) from None

    def _context(self) -> ssl.SSLContext:
        """TLS as gRPC has it: the same authorities, and HTTP/2."""
        credentials = self._credentials
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.hostname_checks_common_name = True
        context.set_alpn_protocols(["h2"])
        try:
            if credentials.ca is not None:
                if isinstance(credentials.ca, bytes):
                    context.load_verify_locations(cadata=credentials.ca.decode("ascii", "replace"))
                else:
                    pem(credentials.ca)
                    context.load_verify_locations(credentials.ca)
            else:
                context.load_default_certs()
                # The certificates that gRPC brings along.
                with suppress(OSError):
                    context.load_verify_locations(
                        Path(grpc.__file__).parent / "_cython" / "_credentials" / "roots.pem"
                    )
        except ssl.SSLError as error:
            raise UsageError(
                f"{credentials.authority} has no certificate that can be read ({tls_reason(error)})"
            ) from None
        if credentials.certificate is not None and credentials.key is not None:
            try:
                _load_pair(context, credentials.certificate, credentials.key)
            except (ssl.SSLError, ValueError) as error:
                raise UsageError(
                    f"{credentials.shown} and its key cannot be used ({tls_reason(error)}); give a "
                    "certificate and its own key, without a password"
                ) from None
        return context

    def _not_trusted(self, error: ssl.SSLCertVerificationError) -> UnreachableError:
        """Why the server's certificate does not count."""
        shown, code = self._certificate(), error.verify_code
        where = f"the certificate of the server at {self._address}"
        if code in _MISMATCH:
            hosts = "" if shown is None else ", ".join(hosts_of(shown)) or _common_name(shown.subject)
            names = hosts and f"; it is for {hosts}"
            reason = (
                f"{where} is not for {self._host}{names}: give the address with a name of the certificate"
            )
            return UnreachableError("TLS", reason, usage=True)
        if code in (_EARLY, _EXPIRED):
            when = "" if shown is None else f" ({shown.not_valid_before_utc:%Y-%m-%d} to "
            when += "" if shown is None else f"{shown.not_valid_after_utc:%Y-%m-%d})"
            what = "has expired" if code == _EXPIRED else "is not valid yet"
            reason = f"{where} {what}{when}: ask its operator for another, and check this machine's clock"
            return UnreachableError("TLS", reason, lasting=True)
        signer = "" if shown is None else f", but by {_common_name(shown.issuer)}"
        if self._credentials.ca is None:
            what, todo = (
                "is signed by no authority that this system trusts",
                "give --set access.ca=FILE with its authority",
            )
        else:
            what = f"is not signed by the authority of {self._credentials.authority}"
            todo = "give the server's own"
            if isinstance(self._credentials.ca, bytes):
                todo = "the kit is of another server, so ask this server's operator for one"
        return UnreachableError("TLS", f"{where} {what}{signer} ({error.verify_message}): {todo}", usage=True)

    def _refused(self, error: Exception, after: bool = False) -> UnreachableError:
        """The error of a TLS handshake ended by the server, if it names the certificate or ends it again.

        Args:
            error: How it has ended.
            after: Whether the handshake was done at this end: the server checks a site's certificate after.
        """
        certificate = self._credentials.certificate
        if expired := _expired(self._credentials):
            return UnreachableError("TLS", expired, usage=True)
        why = tls_reason(error)
        if "alert" not in why and not (after and self._closes_after_handshake()):
            return UnreachableError("TLS", f"{self._address} has ended the connection during TLS ({why})")
        if certificate is None:
            what = "takes no site without a certificate, and this site has none: give access.certificate and "
            what += "access.key"
        else:
            what = f"does not take {self._credentials.shown}: have one signed by the server's --client-ca"
        return UnreachableError("TLS", f"the server at {self._address} {what} ({why})", usage=True)

    def _closes_after_handshake(self) -> bool:
        """Whether another connection is closed without a word once the handshake is done at this end."""
        try:
            with (
                suppress(UnreachableError, TimeoutError),
                self._tunnel() as connection,
                self._context().wrap_socket(connection, server_hostname=self._host) as secured,
            ):
                secured.sendall(_PREFACE)
                return not _received(secured, _FRAME)
        except (ssl.SSLError, ConnectionError):
            return True
        return False

    def _certificate(self) -> x509.Certificate | None:
        """The server's certificate, signed by any authority; None if the server shows none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with (
            suppress(UnreachableError, OSError, ValueError),
            self._tunnel() as connection,
            context.wrap_socket(connection, server_hostname=self._host) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        return None

    # ---- HTTP/2 ----

    def _settings(self, connection: socket.socket) -> None:
        """Begin HTTP/2 and wait for the server's settings."""
        try:
            connection.sendall(_PREFACE)
            answer = _received(connection, _FRAME)
        except (ssl.SSLError, ConnectionError) as error:
            if isinstance(connection, ssl.SSLSocket):
                raise self._refused(error, after=True) from None
            answer = b""
        except TimeoutError:
            raise UnreachableError(
                "HTTP/2", f"{self._address} accepts connections, and says nothing for {self._seconds:g} s"
            ) from None
        if _is_settings(answer):
            return
        if isinstance(connection, ssl.SSLSocket) and not answer:
            raise self._refused(ConnectionError("it closes the connection"), after=True)
        if not isinstance(connection, ssl.SSLSocket) and (answer[:1] == bytes([_ALERT]) or self._has_tls()):
            raise UnreachableError(
                "TLS",
                f"{self._address} speaks TLS, and this site does not: give --set access.ca=FILE with the "
                "authority of the server's certificate, or a kit that has it, and no access.plaintext",
                usage=True,
            )
        if answer:
            raise UnreachableError(
                "HTTP/2",
                f"{self._address} speaks no HTTP/2: give the port of the sites, not that of a page",
                lasting=True,
            )
        raise UnreachableError("HTTP/2", f"{self._address} accepts connections, and closes them")

    def _speaks_plainly(self) -> bool:
        """Whether the server speaks HTTP/2 without TLS."""
        with suppress(UnreachableError, OSError), self._tunnel() as connection:
            connection.sendall(_PREFACE)
            return _is_settings(_received(connection, _FRAME))
        return False

    def _has_tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self._certificate() is not None


def _received(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the connection."""
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def _head(connection: socket.socket) -> bytes:
    """Read the head of an answer of HTTP/1, byte by byte: the bytes after it are the server's."""
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < _LONGEST_HEADER and (more := connection.recv(1)):
        head += more
    return head


def _is_settings(frame: bytes) -> bool:
    return len(frame) == _FRAME and frame[3] == _SETTINGS and frame[5:] == b"\0\0\0\0"


def _common_name(name: x509.Name) -> str:
    return name.rfc4514_string() or "somebody without a name"


def _load_pair(context: ssl.SSLContext, certificate: Path | bytes, key: Path | bytes) -> None:
    """Load a certificate and its key, which a context reads from files alone."""
    with TemporaryDirectory() as folder:
        files = []
        for name, source in (("certificate", certificate), ("key", key)):
            data, file = pem(source), source if isinstance(source, Path) else Path(folder) / name
            if isinstance(source, bytes):
                file.touch(mode=0o600)
                file.write_bytes(data)
            files.append(file)
        context.load_cert_chain(files[0], files[1], password="")


def _expired(credentials: SiteCredentials) -> str:
    """The problem with the dates of a site's certificate; "" means none."""
    if credentials.certificate is None:
        return ""
    try:
        site_certificate = x509.load_pem_x509_certificate(pem(credentials.certificate))
    except ValueError:
        return ""
    if site_certificate.not_valid_before_utc <= datetime.now(UTC) <= site_certificate.not_valid_after_utc:
        return ""
    return (
        f"{credentials.shown} is valid from {site_certificate.not_valid_before_utc:%Y-%m-%d} to "
        f"{site_certificate.not_valid_after_utc:%Y-%m-%d}, not now: ask for another, and check "
        "this machine's clock"
    )
