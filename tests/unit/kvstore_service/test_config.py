"""ServeConfig: order of precedence, sizes and addresses, and that a mistake names itself and its place."""

from pathlib import Path

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.options import default_uds, parse_size, split_host_port

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("KVTERRACE_")]:
        monkeypatch.delenv(name)


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kvterrace.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("4096", 4096), ("64kib", 65536), (7, 7)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4GX", "unknown unit 'GX'"),
        ("many", "not a size"),
        ("", "not a size"),
        ("-1GiB", "not a size"),
        ("0", "above 0"),
    ],
)
def test_a_bad_size_says_what_is_wrong_with_it(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_size(text)


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml(tmp_path, 'dram = "1MiB"\npolicy = "s3fifo"\nlog_level = "debug"\n')
    monkeypatch.setenv("KVTERRACE_DRAM", "2MiB")
    monkeypatch.setenv("KVTERRACE_POLICY", "lru")
    config = load_config({"dram": "3MiB", "policy": None}, path)
    assert (config.dram, config.policy, config.log_level) == (3 << 20, "lru", "debug")


def test_an_unknown_toml_key_stops_the_start_and_names_the_nearest(tmp_path: Path) -> None:
    path = toml(tmp_path, 'drum = "1MiB"\n')
    with pytest.raises(ConfigError, match=r"unknown key in .*kvterrace\.toml: drum \(did you mean dram\?\)"):
        load_config({}, path)


def test_an_unknown_variable_stops_the_start_and_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTERRACE_DRAMM", "1GiB")
    with pytest.raises(ConfigError, match=r"KVTERRACE_DRAMM \(did you mean KVTERRACE_DRAM\?\)"):
        load_config({})


def test_variables_of_the_engine_and_the_tests_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTERRACE_MODEL", "/models/some.gguf")
    monkeypatch.setenv("KVTERRACE_ENGINE_PORT", "8000")
    load_config({})


def test_a_bad_value_names_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--dram: 'lots' is not a size"):
        load_config({"dram": "lots"})
    with pytest.raises(ConfigError, match=r"policy in .*kvterrace\.toml: 'fifo'.*lru, s3fifo"):
        load_config({}, toml(tmp_path, 'policy = "fifo"\n'))
    monkeypatch.setenv("KVTERRACE_DRAM", "1PB")
    with pytest.raises(ConfigError, match=r"KVTERRACE_DRAM: '1PB' has the unknown unit"):
        load_config({})


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.toml"):
        load_config({}, tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"kvterrace\.toml is not TOML"):
        load_config({}, toml(tmp_path, "dram = = 1"))


@pytest.mark.parametrize("field", ["listen", "http"])
def test_an_address_that_other_hosts_reach_needs_consent(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"--{field}: '0\.0\.0\.0:9100' can be reached .*--insecure-listen"):
        load_config({field: "0.0.0.0:9100"})
    assert getattr(load_config({field: "0.0.0.0:9100", "insecure_listen": True}), field) == "0.0.0.0:9100"
    for address in ("127.0.0.1:0", "localhost:9100", "[::1]:9100"):
        assert getattr(load_config({field: address}), field) == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("9100", "HOST:PORT"),
        ("localhost:http", "not a port"),
        ("127.0.0.1:65536", "not a port"),
        ("::1:80", "brackets"),
    ],
)
def test_a_bad_address_says_what_is_wrong_with_it(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split_host_port(address)


def test_a_socket_path_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--uds: .* is longer than the 107 bytes"):
        load_config({"uds": tmp_path / ("x" * 108)})


def test_the_default_socket_is_where_only_this_user_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_uds() == tmp_path / "kvterrace.sock" == load_config({}).uds


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config({}).dram = 5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cluster": "redis://127.0.0.1"}, "^--cluster: a node of a cluster serves others: add --listen"),
        ({"bulk_listen": "127.0.0.1:0"}, "^--bulk-listen is for nodes of a cluster, and --cluster is not given"),
        ({"advertise": "127.0.0.1:9"}, "--advertise is for nodes of a cluster"),
        ({"node": "a b"}, "--node: .*cannot be the name"),
        ({"cluster_name": ""}, "--cluster-name: .*cannot be the name"),
        ({"nvme_keys": "/keys"}, "^--nvme-keys: nothing is written that could be encrypted: add --nvme or --remote"),
    ],
)
def test_what_makes_no_sense_together_is_said(flags: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(flags)


def test_a_host_whose_name_has_an_underscore_can_be_a_node() -> None:
    given = load_config({"cluster": "redis://127.0.0.1", "listen": "127.0.0.1:0", "node": "rack_1.host-2"})
    assert given.node == "rack_1.host-2"
