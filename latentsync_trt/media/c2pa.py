"""C2PA content credentials: a signed record in an .mp4 or .mov of what was done to which video, with which tool."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from io import BytesIO
from mimetypes import MimeTypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from latentsync_trt.errors import InputError, MissingDependency, OutputError
from latentsync_trt.media.files import reason_of, writing
from latentsync_trt.media.muxing import SOURCE_TYPE
from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

FORMATS = {".mp4": "video/mp4", ".mov": "video/quicktime"}

_OTHER_FORMAT = "application/octet-stream"

_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----\s*", re.DOTALL)
_CURVES = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
_KEYS = "ECDSA with P-256, P-384 or P-521, RSA, or Ed25519"

_AGENT = {"name": "latentsync-trt", "version": __version__}
# Verifying takes a pass over the file, which `sign` does itself. A thumbnail of a video is made of nothing.
_SETTINGS = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"verify_after_sign": False}}
_SOURCE = "source"
_UNKNOWN_SIGNER = "signingCredential.untrusted"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate chain and its private key, as PEM, and the algorithm that the key is for."""

    chain: str
    key: str
    algorithm: str


def read_credentials(pem: Path, output: Path) -> Credentials:
    """Reads the certificate chain and the private key in `pem`, and signs a picture on trial.

    Raises:
        InputError: the file cannot be read or used; chain and key are no pair; or the container cannot hold them.
        MissingDependency: the extra is not installed.
    """
    if output.suffix.lower() not in FORMATS:
        raise InputError(f"{output}: cannot hold C2PA credentials; use {' or '.join(FORMATS)}")
    if find_spec("c2pa") is None:
        raise MissingDependency("--c2pa needs the extra c2pa: pip install 'latentsync-trt[c2pa]'")
    credentials = _checked_pair(pem)
    try:
        picture = cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes()
        _signed(credentials, "image/png", BytesIO(picture), BytesIO(), "trial", source=None)
    except OutputError as error:
        # The package does not say which of the standard's rules is broken.
        cure = "C2PA wants an X.509 v3 certificate for digital signatures, with an extended key usage such as e-mail"
        raise InputError(f"{pem}: {error}; {cure}", usage=False) from error
    return credentials


def sign(path: Path, source: Path, credentials: Credentials, title: str = "") -> tuple[str, ...]:
    """Replaces a finished video by the same with credentials, and verifies them; returns what these do not say.

    Takes half a gigabyte of memory at most, and for a moment twice the disk space.

    Args:
        path: .mp4 or .mov; a file named "signed" is written beside it. source: what was changed.
        title: the video's name, if not that of `path`.

    Raises:
        OutputError: the file cannot be written, or what was written does not verify.
    """
    mime, signed = FORMATS[path.suffix.lower()], path.with_name("signed")
    own = source if source.is_file() else None  # the pictures of a sequence are many files
    with writing(path):
        with path.open("rb") as unsigned, signed.open("w+b") as target:
            notices = _signed(credentials, mime, unsigned, target, title or path.name, own)
        _verify(signed, mime)
        signed.replace(path)
    return notices


def _manifest(title: str, source: Path | None) -> dict[str, Any]:
    begins: dict[str, Any] = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}
    if source is not None:
        begins = {"action": "c2pa.opened", "parameters": {"ingredientIds": [_SOURCE]}}
    edit = {
        "action": "c2pa.edited",
        "digitalSourceType": SOURCE_TYPE,
        "softwareAgent": _AGENT,
        "description": "lips changed to follow speech",
    }
    assertion = {"label": "c2pa.actions.v2", "data": {"actions": [begins, edit]}}
    return {"claim_generator_info": [_AGENT], "title": title, "assertions": [assertion]}


def _signed(
    credentials: Credentials,
    mime: str,
    unsigned: Any,
    target: Any,
    title: str,
    source: Path | None,
) -> tuple[str, ...]:
    """Writes what `unsigned` reads, with its credentials, to `target`, both binary files; returns notices."""
    import c2pa

    info = c2pa.C2paSignerInfo(credentials.algorithm, credentials.chain.encode(), credentials.key.encode(), None)
    try:
        with (
            c2pa.Signer.from_info(info) as signer,
            c2pa.Context.from_dict(_SETTINGS) as context,
            c2pa.Builder.from_json(json.dumps(_manifest(title, source)), context) as builder,
        ):
            notices = () if source is None else _add_source(builder, source)
            builder.sign(signer, mime, unsigned, target)
            return notices
    except c2pa.C2paError as error:
        raise OutputError(f"content credentials cannot be signed: {error}") from error


def _add_source(builder: Any, source: Path) -> tuple[str, ...]:
    """Adds the ingredient; one that players read, but the package does not, without its earlier credentials."""
    import c2pa

    ingredient = {"title": source.name, "relationship": "parentOf", "instance_id": _SOURCE}
    mime, _ = MimeTypes().guess_type(source.name)
    known = mime in c2pa.Reader.get_supported_mime_types()
    with source.open("rb") as file:
        try:
            builder.add_ingredient(ingredient, mime if known else _OTHER_FORMAT, file)
        except c2pa.C2paError as error:
            file.seek(0)
            builder.add_ingredient(ingredient, _OTHER_FORMAT, file)
            return (f"{source}: earlier content credentials, if any, are not kept, since they cannot be read: {error}",)
    return ()


def _verify(path: Path, mime: str) -> None:
    """Raises `OutputError` unless signature and content match; the signer need not be known on this machine."""
    import c2pa

    try:
        with path.open("rb") as file, c2pa.Reader(mime, file) as reader:
            state, found = reader.get_validation_state(), reader.get_validation_results() or {}
    except c2pa.C2paError as error:
        raise OutputError(f"content credentials were written, but cannot be read: {error}") from error
    if state not in ("Valid", "Trusted"):
        codes = [failure["code"] for failure in found.get("activeManifest", {}).get("failure", ())]
        problem = ", ".join(code for code in codes if code != _UNKNOWN_SIGNER)
        raise OutputError(f"content credentials were written, but do not verify: {problem or state}")


def _checked_pair(pem: Path) -> Credentials:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
    )

    content = _content(pem)
    key = _PRIVATE_KEY.search(content)
    try:
        chain = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InputError(f"{pem}: has no certificate in PEM format; give the chain, the signer's first") from error
    try:
        private = load_pem_private_key(key[0] if key else b"", password=None)
    except TypeError as error:
        raise InputError(f"{pem}: the key is protected by a password; give one without (openssl pkey)") from error
    except ValueError as error:
        raise InputError(f"{pem}: has no private key in PEM format; append it to the certificates") from error
    leaf = chain[0]
    public = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*public) != leaf.public_key().public_bytes(*public):
        raise InputError(f"{pem}: the key is not that of the first certificate; give a pair")
    now, begins, ends = datetime.now(UTC), leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begins <= now <= ends:
        when = f"expired on {ends:%Y-%m-%d}" if now > ends else f"is valid from {begins:%Y-%m-%d} on"
        raise InputError(f"{pem}: {when}; give another certificate", usage=False)
    key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificates = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
    return Credentials(certificates.decode(), key_pem.decode(), _algorithm(private, pem))


def _algorithm(private: "PrivateKeyTypes", pem: Path) -> str:
    """The name of the signature that a key makes."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    if isinstance(private, EllipticCurvePrivateKey) and private.curve.name in _CURVES:
        return _CURVES[private.curve.name]
    if isinstance(private, RSAPrivateKey):
        return "ps256"
    if isinstance(private, Ed25519PrivateKey):
        return "ed25519"
    raise InputError(f"{pem}: C2PA has no signatures with such a key; use {_KEYS}", usage=False)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from error
