"""Off loopback nobody is served whose identity is not known, unless the operator says so in words."""

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.security.setup import secured

pytestmark = pytest.mark.unit

PAIR = {"tls_cert": "/c", "tls_key": "/k"}
CLUSTER = {"cluster": "redis://127.0.0.1:1", "listen": "127.0.0.1:0", "node": "a"}
OUTSIDE = "0.0.0.0:9100"


def address(name: str) -> dict[str, object]:
    """Options that have only this one address off loopback."""
    return (CLUSTER if name == "bulk_listen" else {}) | {name: OUTSIDE}


@pytest.mark.parametrize("name", ["listen", "http", "bulk_listen"])
def test_off_loopback_needs_to_know_who_calls_and_that_nobody_listens_in(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    alone = address(name)
    for options in ({}, PAIR):
        with pytest.raises(ConfigError, match=rf"^{flag}: '0\.0\.0\.0:9100' .*asks who they are.*--insecure-listen"):
            load_config(alone | options)
    token = {"node_token_file": "/t"} if name == "bulk_listen" else {}
    with pytest.raises(ConfigError, match=rf"^{flag}: .* in clear.*--tls-cert.*--insecure-listen"):
        load_config(alone | {"identities": "/i"} | token)
    for options in ({**PAIR, "tls_ca": "/a"}, {**PAIR, "identities": "/i", **token}, {"insecure_listen": True}):
        assert getattr(load_config(alone | options), name) == OUTSIDE


@pytest.mark.parametrize("name", ["listen", "http", "bulk_listen"])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_loopback_asks_for_nothing(name: str, host: str) -> None:
    assert load_config(address(name) | {name: f"{host}:0"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls_cert": "/c"}, "^--tls-cert needs --tls-key"),
        ({"tls_key": "/k"}, "^--tls-key needs --tls-cert"),
        ({"tls_ca": "/a"}, "^--tls-ca needs --tls-cert and --tls-key"),
        ({"node_token_file": "/t"}, "^--node-token-file is for nodes of a cluster"),
        ({"node_ca": "/a"}, "^--node-ca is for nodes of a cluster"),
        ({**CLUSTER, "node_ca": "/a"}, "^--node-ca needs --tls-cert"),
        ({**CLUSTER, "identities": "/i"}, "^--identities: other nodes .* add --node-token-file"),
    ],
)
def test_half_of_what_belongs_together_is_refused_with_both_names(options, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(options)


def test_files_that_cannot_be_used_stop_the_start(tmp_path, authority, tools, identities) -> None:
    cert, key = authority.issue("one")
    other, _ = authority.issue("two")
    known = identities(tools.row("ann", "reader", certificate="ann"))
    for options, said in (
        ({"tls_cert": cert, "tls_key": tmp_path / "none"}, "--tls-key: .*none cannot be read"),
        ({"tls_cert": other, "tls_key": key}, "are no certificate and its key"),
        ({"tls_cert": cert, "tls_key": key, "tls_ca": key}, "--tls-ca: .* has no certificates"),
        ({"identities": tmp_path / "none"}, "--identities: .*none cannot be read"),
        ({"identities": known}, "--identities: ann has only a certificate, and without --tls-ca"),
        ({"audit_log": tmp_path}, "--audit-log: .* cannot be written"),
        ({**CLUSTER, "node_token_file": tmp_path / "none"}, "--node-token-file: .*none cannot be read"),
        ({**CLUSTER, "tls_cert": cert, "tls_key": key, "node_ca": tmp_path / "none"}, "--node-ca: .*none cannot"),
    ):
        with pytest.raises(ConfigError, match=said), secured(load_config(options)):
            pass
    key.chmod(0o604)
    with (
        pytest.raises(ConfigError, match="everybody may read"),
        secured(load_config({"tls_cert": cert, "tls_key": key})),
    ):
        pass
