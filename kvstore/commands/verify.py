"""`kvterrace verify`: proofs against one's own deployment, as a report with a checksum."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import ConfigError
from ..options import default_uds, parse_size
from ..security.credentials import CredentialFiles, Credentials
from ..service.channel import Address, Place, address_parts, target_of
from ..verify.report import Check, Outcome, Report
from ..verify.run import Plan, run_checks
from .common import AddressOption, JsonOption, fail, print_json
from .engines import CaOption, EnginesOption, KeyOption, engines_of

ENGINE_TIMEOUT_S = 120.0
_COLOURS = {Outcome.PASS: "green", Outcome.FAIL: "bold red", Outcome.SKIP: "yellow"}


def verify(  # noqa: PLR0913, PLR0917  one argument a flag
    address: AddressOption = None,
    engine: EnginesOption = None,
    model: Annotated[str, typer.Option(help="Model to ask engines about. Default: their first.")] = "",
    api_key_file: KeyOption = None,
    engine_ca: CaOption = None,
    tenant_token_file: Annotated[
        list[Path] | None,
        typer.Option(help="File of a tenant's token for the sidecar; two of them prove tenants apart."),
    ] = None,
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="What the capacity check may write; 0 leaves it out.")
    ] = "64MiB",
    prompt_tokens: Annotated[int, typer.Option(min=64, max=100_000, help="Tokens of a prompt for engines.")] = 200,
    block_tokens: Annotated[int, typer.Option(min=1, max=1024, help="Tokens of a block of the engines.")] = 16,
    clear_hbm: Annotated[
        bool,
        typer.Option("--clear-hbm", help="Empty the engines' own memory before answers that come from the store."),
    ] = False,
    recount: Annotated[
        bool, typer.Option("--recount", help="Also have the sidecar count every slot again; a large one stops for it.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report there: .md for Markdown, else JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove on a running sidecar and its engines that what comes out of the cache is what went in. Uses random prompts
    and namespaces of its own, and clears them. Exit code 1 when something fails."""
    plan = Plan(
        address=_sidecar(address, engines_alone=bool(engine)),
        engines=engines_of("verify", engine, api_key_file, engine_ca, ENGINE_TIMEOUT_S),
        model=model,
        tenants=_tenants(address, tenant_token_file or ()),
        max_bytes=_bytes(max_bytes),
        prompt_tokens=prompt_tokens,
        block_tokens=block_tokens,
        recount=recount,
        clear_hbm=clear_hbm,
    )
    console = Console(stderr=as_json)
    report = run_checks(plan, lambda check: _show(check, console))
    if out is not None:
        _write(report, out)
    if as_json:
        print_json(report.as_json())
    else:
        console.print(f"{report.verdict}; SHA-256 of the report {report.digest()}", soft_wrap=True, highlight=False)
    if report.failed:
        sys.exit(1)


def _sidecar(given: Address | None, *, engines_alone: bool) -> Address | None:
    """Of whom the store's checks are made: nobody, where only engines were named."""
    if given is None and engines_alone:
        return None
    address = given or f"unix:{default_uds()}"
    try:
        target_of(address_parts(address)[0])
    except ValueError as error:
        fail("verify", f"--address: {error}", 2)
    return address


def _tenants(address: Address | None, files: Sequence[Path]) -> list[Place]:
    """The sidecar, once with each of these tokens in place of the one given."""
    if not files:
        return []
    plain, credentials = address_parts(address or f"unix:{default_uds()}")
    ca = credentials.files.ca if credentials is not None else None
    try:
        return [Place(plain, Credentials(CredentialFiles(token=path, ca=ca))) for path in files]
    except ConfigError as error:
        fail("verify", str(error).replace("--token-file", "--tenant-token-file", 1), 2)


def _bytes(text: str) -> int:
    try:
        return 0 if text.strip() == "0" else parse_size(text)
    except ValueError as error:
        fail("verify", f"--max-bytes: {error}", 2)


def _show(check: Check, console: Console) -> None:
    line = Text(check.outcome.value, style=_COLOURS[check.outcome])
    console.print(line + Text(f" {check.name}: {check.said}", style="default"), soft_wrap=True)


def _write(report: Report, path: Path) -> None:
    text = report.as_markdown() if path.suffix == ".md" else json.dumps(report.as_json(), indent=1) + "\n"
    try:
        path.write_text(text)
    except OSError as error:
        fail("verify", f"--out: {path} cannot be written: {error.strerror}", 2)
