"""Certificates for a secured test server: an authority, a server's, a client's; PEM files in a temporary folder."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """Signs certificates; its own is `ca.pem`."""

    def __init__(self, folder: Path, name: str = "holdfast tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        basic = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(basic, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, password: str | None = None, *, server: bool = False) -> tuple[Path, Path]:
        """(certificate, key) for a common name; a server's is valid for 127.0.0.1 and localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key.public_key())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if server:
            hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        certificate, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return certificate, secret

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
