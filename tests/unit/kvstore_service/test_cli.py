"""The command line: one program, sub-commands of others found, and a user's mistake is one line."""

import sys
from importlib.metadata import EntryPoint, version

import pytest
import typer
from kvterrace.kvstore import cli
from typer.testing import CliRunner

pytestmark = pytest.mark.unit


def run(*arguments: str, program: typer.Typer = cli.app) -> tuple[int, str, str]:
    result = CliRunner().invoke(program, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_version_is_the_packages() -> None:
    assert run("version") == (0, f"kvterrace {version('kvterrace')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dram", "lots"], "kvterrace serve: --dram: 'lots' is not a size"),
        (["--policy", "fifo"], "kvterrace serve: --policy: 'fifo'"),
        (["--listen", "0.0.0.0:7"], "kvterrace serve: --listen: '0.0.0.0:7' can be reached from other hosts"),
        (["--config", "/absent.toml"], "kvterrace serve: there is no file /absent.toml"),
    ],
)
def test_a_bad_flag_of_serve_is_one_line_and_code_2(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVTERRACE_DRAM", raising=False)
    code, out, err = run("serve", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(words)
    assert err.count("\n") == 1


def test_bad_arguments_of_status_and_clear_are_one_line_and_code_2() -> None:
    assert run("status", "--address", "nowhere")[0] == 2
    assert "'nowhere' is not HOST:PORT" in run("status", "--address", "nowhere")[2]
    told = "kvterrace clear: --prefix: 'xyz' is no key: give an even number of its hexadecimal digits, 8 or more\n"
    assert run("clear", "--prefix", "xyz") == (2, "", told)


def test_a_missing_extra_leaves_a_sub_command_that_says_what_to_install() -> None:
    program = typer.Typer()
    program.command("own")(lambda: None)
    missing = EntryPoint("engine", "kvterrace_absent_module.cli:register", cli.COMMAND_GROUP)
    cli.add_entry_points(program, [missing])
    for arguments in (["engine"], ["engine", "model.gguf", "--port", "8000"], ["engine", "--help"]):
        code, _, err = run(*arguments, program=program)
        assert code == 2
        assert "pip install 'kvterrace[engine]'" in err
    assert "engine" in run("--help", program=program)[1]


def test_a_sub_command_of_another_folder_registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("kvterrace_fake_commands")

    def register(app: typer.Typer) -> None:
        app.command("extra")(lambda: typer.echo("it ran"))

    vars(module)["register"] = register
    monkeypatch.setitem(sys.modules, "kvterrace_fake_commands", module)
    program = typer.Typer()
    program.command("own")(lambda: None)
    cli.add_entry_points(program, [EntryPoint("extra", "kvterrace_fake_commands:register", cli.COMMAND_GROUP)])
    assert run("extra", program=program) == (0, "it ran\n", "")


def test_a_command_of_our_own_loads_no_other_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: str) -> list[EntryPoint]:
        raise AssertionError("the engine would be imported into the sidecar")

    monkeypatch.setattr(cli, "entry_points", refuse)
    monkeypatch.setattr(sys, "argv", ["kvterrace", "version"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
