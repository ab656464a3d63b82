"""C2PA content credentials: a signed record in the file of what was done to which video."""

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np

from latentsync_trt.errors import InputError, MissingDependency, OutputError
from latentsync_trt.media.files import reason_of, writing
from latentsync_trt.media.tags import SOURCE_TYPE
from latentsync_trt.version import __version__

FORMATS = {".mp4": "video/mp4", ".mov": "video/quicktime"}
"""The containers that can hold credentials, and C2PA's names of them."""
_OTHER_FORMAT = "application/octet-stream"
"""C2PA's name of a source whose earlier credentials are not looked for."""

_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----\s*", re.DOTALL
)
_CURVE_ALGORITHMS = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
"""C2PA's names of ECDSA by the curve of the key."""

_AGENT = {"name": "latentsync-trt", "version": __version__}
_EDIT = {
    "action": "c2pa.edited",
    "digitalSourceType": SOURCE_TYPE,
    "softwareAgent": _AGENT,
    "description": "lips changed to follow speech",
}
"""The action that every video gets."""
_C2PA_SETTINGS = {
    "builder": {"thumbnail": {"enabled": False}},
    "verify": {"verify_after_sign": True},
}
"""The package's settings: what was signed is verified, and there is no thumbnail, since the package
makes none of videos.
"""
_SOURCE = "source"
"""The name by which actions refer to the video that was changed."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What signs a video."""

    chain: bytes
    """Certificates as PEM, the signer's first."""
    key: bytes
    """The private key as PEM."""
    algorithm: str
    """C2PA's name of the algorithm that the key is for."""


def read_credentials(pem: Path, output: Path) -> Credentials:
    """Reads the certificate chain and the private key in `pem`, and signs a picture on trial.

    Raises:
        InputError: the file cannot be used, chain and key are no pair, or the container cannot hold
            credentials.
        MissingDependency: the extra c2pa is not installed.
    """
    if output.suffix.lower() not in FORMATS:
        raise InputError(f"{output}: cannot hold C2PA credentials; use {' or '.join(FORMATS)}")
    if find_spec("c2pa") is None:
        raise MissingDependency("--c2pa needs the extra c2pa: pip install 'latentsync-trt[c2pa]'")
    credentials = _credentials_in(pem)
    pixel = np.zeros((1, 1, 3), np.uint8)
    picture = cv2.imencode(".png", pixel)[1].tobytes()
    try:
        with BytesIO() as signed:
            _write_signed(credentials, "image/png", BytesIO(picture), signed, "trial", source=None)
    except OutputError as error:
        # The package does not say which of the standard's rules is broken.
        raise InputError(
            f"{pem}: {error}; C2PA wants a valid X.509 v3 certificate that may "
            "sign (extended key usage such as e-mail), and its key",
            usage=False,
        ) from error
    return credentials


def sign(path: Path, source: Path, credentials: Credentials, title: str = "") -> tuple[str, ...]:
    """Replaces a finished video, .mp4 or .mov, by the same with credentials, verified; returns what
    they lack. Raises `OutputError`.

    Takes half a gigabyte of memory at most, and for a moment twice the disk space: a file named
    "signed" beside it.

    Args:
        source: the video that was changed.
        title: the video's name, if not that of `path`.
    """
    mime = FORMATS[path.suffix.lower()]
    signed = path.with_name("signed")
    with writing(path):
        with path.open("rb") as unsigned, signed.open("w+b") as target:
            notices = _write_signed(credentials, mime, unsigned, target, title or path.name, source)
        signed.replace(path)
    return notices


def _write_signed(
    credentials: Credentials,
    mime: str,
    unsigned: BinaryIO,
    target: BinaryIO,
    title: str,
    source: Path | None,
) -> tuple[str, ...]:
    """Writes what `unsigned` reads, with its credentials, to `target`, and verifies that; returns
    notices.
    """
    import c2pa

    begins: dict[str, Any] = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}
    if source is not None:
        begins = {"action": "c2pa.opened", "parameters": {"ingredientIds": [_SOURCE]}}
    assertion = {"label": "c2pa.actions.v2", "data": {"actions": [begins, _EDIT]}}
    manifest = {"claim_generator_info": [_AGENT], "title": title, "assertions": [assertion]}
    info = c2pa.C2paSignerInfo(credentials.algorithm, credentials.chain, credentials.key, None)
    try:
        with (
            c2pa.Signer.from_info(info) as signer,
            c2pa.Context.from_dict(_C2PA_SETTINGS) as context,
            c2pa.Builder.from_json(json.dumps(manifest), context) as builder,
        ):
            notices = () if source is None else _add_source(builder, source)
            builder.sign(signer, mime, unsigned, target)
            return notices
    except c2pa.C2paError as error:
        raise OutputError(f"content credentials cannot be signed: {error}") from error


def _add_source(builder: Any, source: Path) -> tuple[str, ...]:
    """Adds the ingredient; without its earlier credentials where the package cannot read it."""
    import c2pa

    ingredient = {"title": source.name, "relationship": "parentOf", "instance_id": _SOURCE}
    mime, _ = MimeTypes().guess_type(source.name)
    if mime not in c2pa.Reader.get_supported_mime_types():
        mime = _OTHER_FORMAT
    with source.open("rb") as file:
        try:
            builder.add_ingredient(ingredient, mime, file)
        except c2pa.C2paError as error:
            file.seek(0)
            builder.add_ingredient(ingredient, _OTHER_FORMAT, file)
            return (
                f"{source}: earlier content credentials, if any, "
                f"are not kept, since they cannot be read: {error}",
            )
    return ()


def _credentials_in(pem: Path) -> Credentials:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    try:
        content = pem.read_bytes()
        key = b"".join(_PRIVATE_KEY.findall(content)[:1])
        chain = b"".join(
            each.public_bytes(Encoding.PEM) for each in x509.load_pem_x509_certificates(content)
        )
        private = load_pem_private_key(key, password=None)
    except OSError as error:
        raise InputError(f"{pem}: cannot be read: {reason_of(error)}") from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{pem}: cannot be used: {error}; it must contain certificates, the signer's first, "
            "and a private key without a password, all in PEM format"
        ) from error
    algorithm: str | None = None
    if isinstance(private, EllipticCurvePrivateKey):
        algorithm = _CURVE_ALGORITHMS.get(private.curve.name)
    elif isinstance(private, RSAPrivateKey):
        algorithm = "ps256"
    elif isinstance(private, Ed25519PrivateKey):
        algorithm = "ed25519"
    if algorithm is None:
        raise InputError(
            f"{pem}: C2PA has no signatures with such a key; "
            "use ECDSA with P-256, P-384 or P-521, RSA, or Ed25519",
            usage=False,
        )
    return Credentials(chain, key, algorithm)
