"""`kvterrace quota`: a tenant's limits on a running sidecar."""

from typing import Annotated

import typer

from ...proto import kv_pb2 as pb
from ..options import parse_size
from ..service.admin import set_quota
from ..status_view import format_bytes, plain
from .common import CALL_TIMEOUT_S, AddressOption, JsonOption, address_of, ask, fail, print_json

NONE = "none"


def quota(
    tenant: Annotated[str, typer.Argument(help="Its name.")],
    dram: Annotated[str | None, typer.Option(help="DRAM quota, such as 8GiB, or none.")] = None,
    dram_floor: Annotated[str | None, typer.Option(help="DRAM that others cannot take, or none.")] = None,
    nvme: Annotated[str | None, typer.Option(help="NVMe quota, or none.")] = None,
    nvme_floor: Annotated[str | None, typer.Option(help="NVMe that others cannot take, or none.")] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set what a tenant may use, and what others cannot take, until the sidecar's next start: the tenants file rules
    then."""
    try:
        request = quota_request(tenant, dram_quota=dram, dram_floor=dram_floor, nvme_quota=nvme, nvme_floor=nvme_floor)
    except ValueError as error:
        fail("quota", str(error), 2)
    now = ask("quota", set_quota(address_of(address), request, timeout_s=CALL_TIMEOUT_S))
    if as_json:
        print_json(plain(now))
        return
    for line in quota_lines(now):
        typer.echo(line)


def quota_request(tenant: str, **said: str | None) -> pb.QuotaRequest:
    """What the command line says, by the names of the request's fields; None = not said. ValueError names the
    option."""
    request = pb.QuotaRequest(tenant=tenant)
    for name, text in said.items():
        if text is None:
            continue
        try:
            value = 0 if text.lower() in {NONE, "0"} else parse_size(text)
        except ValueError as error:
            option = "--" + name.removesuffix("_quota").replace("_", "-")
            raise ValueError(f"{option}: {error}; or {NONE}") from None
        setattr(request, name, value)
        request.set.append(name)
    if not request.set:
        raise ValueError("say what to set: --dram, --dram-floor, --nvme or --nvme-floor")
    return request


def quota_lines(tenant: pb.TenantStatus) -> list[str]:
    """What a tenant may use, and what it uses."""
    lines: list[str] = []
    for tier in ("dram", "nvme"):
        limit = format_bytes(getattr(tenant, f"{tier}_quota")) if tenant.HasField(f"{tier}_quota") else "no limit"
        floor, used = format_bytes(getattr(tenant, f"{tier}_floor")), format_bytes(tenant.used_bytes[tier])
        lines.append(f"{tenant.name} {tier}: {used} used, quota {limit}, floor {floor}")
    return lines
