"""The certificates of a local cluster: an authority of its own, and the certificates that it signs.

Made with `cryptography`, which Fabric needs anyway: names, uses and dates are plain values there, and no
output of a program must be parsed. An authority for real hosts is the operator's business.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from messagebus.files import write_whole
from ops.local.layout import CA

CA_DAYS = 3_650
# The longest that devices accept; `issue_missing` renews them before.
LEAF_DAYS = 397
RENEW_DAYS = 30
# Clocks of other machines may be late.
BACKDATED = dt.timedelta(hours=1)
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority:
    """An authority that signs certificates. Its key and its certificate are in one folder."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate, self._key = certificate, key

    @classmethod
    def make(cls, name: str, *, days: int = CA_DAYS) -> Authority:
        """Make a new authority. days: lifetime; below 0 for one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = (
            _builder(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "written by `save`"
        return cls(x509.load_pem_x509_certificate((folder / CA).read_bytes()), key)

    def save(self, folder: Path) -> None:
        write_whole(folder / "ca.key", _key_pem(self._key))
        write_whole(folder / CA, _pem(self.certificate), mode=0o644)

    def issue(
        self, name: str, hosts: Iterable[str] = (), *, days: int = LEAF_DAYS
    ) -> tuple[str, str]:
        """Return certificate and key as PEM. hosts: names and addresses; without any it is a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(host) for host in hosts]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_name(name), self.certificate.subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key)


def issue_missing(folder: Path, wanted: dict[str, tuple[str, ...]]) -> None:
    """Make the authority, and for each name NAME.pem and NAME.key, where they are missing or end soon.

    wanted: name -> hosts of its certificate; a client has none. NAME.pem holds the certificate alone.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / CA).exists():
        Authority.make("messagebus local authority").save(folder)
    authority = Authority.load(folder)
    for name, hosts in wanted.items():
        file = folder / f"{name}.pem"
        if not file.exists() or _ends_soon(file):
            certificate, key = authority.issue(name, hosts)
            write_whole(folder / f"{name}.key", key)
            write_whole(file, certificate, mode=0o644)


def _ends_soon(file: Path) -> bool:
    end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    return end - dt.datetime.now(dt.UTC) < dt.timedelta(days=RENEW_DAYS)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    begin = min(dt.datetime.now(dt.UTC), end) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    used = {"key_cert_sign", "crl_sign"} if signs else {"digital_signature"}
    return x509.KeyUsage(**{use: use in used for use in _USES})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
