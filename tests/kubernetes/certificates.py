"""The certificates and kubeconfigs of one control plane, made by an authority that lives as long as it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A machine may have been asleep, or its clock set back a little.
_EARLIER: Final = datetime.timedelta(days=1)
_LATER: Final = datetime.timedelta(days=30)
_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


Trust = Mapping[str, str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Two PEM files: a private key, and its certificate or (for token signing) its public half."""

    key: Path
    certificate: Path


class Authority:
    """A certificate authority that writes below ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("frenzy-test-authority", organisation=None)
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self, file: str, common_name: str, *, organisation: str | None = None, hosts: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate to serve at ``hosts``, and to log in as ``common_name`` of the group ``organisation``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name, organisation), self._name, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
            )
        pair = self._pair(file)
        _write_key(pair.key, key)
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return pair

    def token_signer(self) -> KeyPair:
        """The key that signs service account tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = self._pair("service-accounts")
        _write_key(pair.key, key)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        pair.certificate.write_bytes(public)
        return pair

    def _pair(self, file: str) -> KeyPair:
        return KeyPair(key=self._folder / f"{file}.key", certificate=self._folder / f"{file}.crt")


def trusted_by(authority: Path) -> Trust:
    return {"certificate-authority": str(authority)}


def write_kubeconfig(path: Path, *, server: str, trust: Trust, user: dict[str, str]) -> Path:
    """A kubeconfig with one cluster and one ``user`` (client certificate and key by path, or a token).

    trust: fields of the cluster that say why ``server`` is believed.
    """
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, **trust}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        "current-context": "test",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def login(pair: KeyPair) -> dict[str, str]:
    """The user part of a kubeconfig that logs in with ``pair``."""
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _LATER)
    )


def _name(common_name: str, organisation: str | None) -> x509.Name:
    """To Kubernetes the common name is the user, the organisation the group."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
