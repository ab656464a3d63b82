"""Certificates for tests, signed by an authority that nobody trusts."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

_FLAGS = (
    *(
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
    ),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate chain and a key, as PEM files of their own and together."""

    cert: Path
    key: Path

    @property
    def pem(self) -> Path:
        """Both in one file."""
        pem = self.cert.with_name("both.pem")
        pem.write_bytes(self.cert.read_bytes() + self.key.read_bytes())
        return pem


def p256() -> ec.EllipticCurvePrivateKey:
    """A new key."""
    return ec.generate_private_key(ec.SECP256R1())


def write_pair(
    folder: Path, key: CertificateIssuerPrivateKeyTypes, *, days: tuple[int, int] = (-1, 30)
) -> Files:
    """A certificate for `key` and its authority's, valid from and to so many days from today."""
    authority = p256()
    root = _certificate(
        authority, "Root", authority, "Root", (-100, 100), "key_cert_sign", authority=True
    )
    leaf = _certificate(key, "Leaf", authority, "Root", days, "digital_signature", authority=False)
    leaf = leaf.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False
    )
    chain = [
        certificate.sign(authority, SHA256()).public_bytes(Encoding.PEM)
        for certificate in (leaf, root)
    ]
    files = Files(folder / "chain.pem", folder / "key.pem")
    files.cert.write_bytes(b"".join(chain))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def _certificate(
    key: CertificateIssuerPrivateKeyTypes,
    name: str,
    issuer: CertificateIssuerPrivateKeyTypes,
    issuer_name: str,
    days: tuple[int, int],
    usage: str,
    *,
    authority: bool,
) -> x509.CertificateBuilder:
    subject, signer = (
        x509.Name.from_rfc4514_string(f"CN={each},O=Tests") for each in (name, issuer_name)
    )
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(signer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{flag: flag == usage for flag in _FLAGS}), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
