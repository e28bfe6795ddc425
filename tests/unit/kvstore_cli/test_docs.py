"""docs/cli.md has every command of the program with every option, and no command that does not exist."""

import re
from pathlib import Path

import pytest
import typer
from kvterrace.kvstore import cli
from kvterrace.kvstore.lazy import COMMAND_GROUP

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text()
SHARED = {"--address", "--json", "--token-file", "--tls-ca", "--tls-cert", "--tls-key", "--help"}
ELSEWHERE = {"serve", "engine"}  # whose options have pages of their own
SECTIONS = dict(re.findall(r"^### kvterrace (\S+)\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PROGRAM = typer.main.get_group(cli.app)


def options(command) -> set[str]:
    below = getattr(command, "commands", {}).values()
    own = {name for each in command.params for name in each.opts if name.startswith("--")}
    return own.union(*(options(each) for each in below))


def test_the_page_has_a_section_for_each_command_and_for_no_other() -> None:
    assert sorted(SECTIONS) == sorted(PROGRAM.commands)


@pytest.mark.parametrize("name", sorted(set(PROGRAM.commands) - ELSEWHERE))
def test_a_section_names_every_option_of_its_command(name: str) -> None:
    named = set(re.findall(r"(--[a-z][a-z-]+)", SECTIONS[name]))
    assert options(PROGRAM.commands[name]) - SHARED <= named


def test_what_all_share_and_the_exit_codes_are_told() -> None:
    shared = PAGE[: PAGE.index("\n## Look")]
    assert {name for name in SHARED - {"--help"} if name not in shared} == set()
    assert re.findall(r"^\| (\d) \|", shared, re.MULTILINE) == ["0", "1", "2"]
    assert {"--install-completion", "--show-completion"} <= set(re.findall(r"(--[a-z][a-z-]+)", shared))


def test_what_the_list_of_commands_says_of_other_folders_is_true() -> None:
    """Their names stand in the table, so that --help need not import them."""
    brought: set[str] = set()
    for entry in cli.entry_points(group=COMMAND_GROUP):
        program = typer.Typer()
        program.callback()(lambda: None)
        cli.add_entry_points(program, [entry])
        brought |= set(typer.main.get_group(program).commands)
    assert {each.name for each in cli.COMMANDS if not each.where} == brought
