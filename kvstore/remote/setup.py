"""The remote tier from what a user asked for to what a store takes."""

import os

from ..config import ServeConfig
from ..errors import ConfigError
from ..placement.admission import ADMISSIONS
from ..security.keyring import KeyRing
from ..settings.remote import DEFAULT_CAPACITY_BYTES
from ..tiers.nvme.cipher import Cipher, TenantOf
from ..tiers.remote import (
    Directory,
    DirectoryAddress,
    Envelope,
    Objects,
    OnThreads,
    RemoteTier,
    S3Address,
    parse_remote,
)
from .remote import Remote


def open_remote(config: ServeConfig, tenant_of: TenantOf = lambda _: "") -> Remote | None:
    """Nothing is asked over the network yet. None: no remote store is asked for. ConfigError: what only the user can
    mend. tenant_of: as in open_below."""
    if config.remote is None:
        return None
    capacity_bytes = config.remote_capacity or DEFAULT_CAPACITY_BYTES
    objects = _objects(config.remote, capacity_bytes, config.remote_deadline)
    keys = KeyRing.load(config.nvme_keys, os.environ)
    envelope = Envelope(Cipher(keys, tenant_of) if keys is not None else None)
    tier = RemoteTier(objects, envelope=envelope, deadline_s=config.remote_deadline)
    return Remote.of(tier, ADMISSIONS[config.remote_admission]())


def _objects(url: str, capacity_bytes: int, deadline_s: float) -> Objects:
    try:
        address = parse_remote(url)
    except ValueError as error:
        raise ConfigError(f"--remote: {error}") from None
    if isinstance(address, DirectoryAddress):
        # Not made here: a mount that hangs would hang the start, and one that is not there yet may come.
        return OnThreads(Directory(address.path, capacity_bytes))
    if isinstance(address, S3Address):
        from ..tiers.remote.s3 import Bucket, Missing, make_client  # noqa: PLC0415  # boto3 is an extra

        try:
            return OnThreads(Bucket(address, make_client(address, deadline_s)))
        except Missing as error:
            raise ConfigError(f"--remote: {error}") from None
        except ValueError as error:  # boto3's word on an endpoint or a region
            raise ConfigError(f"--remote: {error}") from None
    from ..tiers.remote.valkey import ValkeyObjects  # noqa: PLC0415  # it imports redis, which takes a while

    return ValkeyObjects(address.url, capacity_bytes, timeout_s=deadline_s)
