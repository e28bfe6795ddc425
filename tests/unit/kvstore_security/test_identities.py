"""The identities file and files of secrets: what is understood, and what stops the start."""

import hashlib
import logging
from pathlib import Path

import pytest
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials, read_token
from kvterrace.kvstore.security.files import Watched, read_file
from kvterrace.kvstore.security.guard import Caller, Guard
from kvterrace.kvstore.security.identities import load_identities, watch_identities
from kvterrace.kvstore.security.identity import LOCAL, Identity, Role

pytestmark = pytest.mark.unit

GOOD = hashlib.sha256(b"token").hexdigest()


def test_tokens_and_certificates_are_known_by_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "who.toml"
    file.write_text(
        f"""
        [[identity]]
        name = "ann"
        tenant = "acme"
        roles = ["engine", "reader"]
        token_sha256 = "{GOOD}"
        certificate = "ann.example"
        [[identity]]
        name = "node-1"
        roles = ["node"]
        certificate = "spiffe://acme/node-1"
        """
    )
    known = load_identities(file)
    ann = Identity("ann", "acme", frozenset({Role.ENGINE, Role.READER}))
    assert known.by_token("token") == ann
    assert known.by_token("Token") is None
    assert known.by_certificate(["ann.example"]) == ann
    assert known.by_certificate(["other", "spiffe://acme/node-1"]) == Identity("node-1", "", frozenset({Role.NODE}))
    assert known.by_certificate([]) is None
    assert known.only_certificates == ["node-1"]


ROW = f'[[identity]]\nname = "ann"\nroles = ["reader"]\ntoken_sha256 = "{GOOD}"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no"),
        ("identity = 3", "has no"),
        ("[[identity", "is not TOML"),
        ("a = 1\n" + ROW, "unknown key 'a'"),
        ("identity = [3]", "identity 1: is no table"),
        (ROW + 'token = "secret"\n', "unknown key 'token'"),
        (ROW.replace('"ann"', '"a b"'), "name 'a b' must be"),
        (ROW.replace('"ann"', "3"), "name 3 must be"),
        (ROW + 'tenant = "a/b"', "tenant 'a/b' must be"),
        (ROW.replace('["reader"]', "[]"), "roles of ann must be a list"),
        (ROW.replace('["reader"]', '"reader"'), "roles of ann must be a list"),
        (ROW.replace("reader", "root"), "roles of ann: 'root' is not a valid Role; there are engine, operator"),
        (ROW.replace(GOOD, GOOD[:-1]), "token_sha256 of ann must be 64"),
        (ROW.replace(GOOD, GOOD.upper()), "token_sha256 of ann must be 64"),
        ('[[identity]]\nname = "ann"\nroles = ["reader"]\n', "ann has neither"),
        (ROW + 'certificate = ""', "certificate of ann must be"),
        (ROW + ROW, "name 'ann' is given twice"),
        (ROW + ROW.replace('"ann"', '"bob"'), "token_sha256 .* is given twice"),
    ],
)
def test_a_file_with_a_mistake_stops_the_start_and_names_it(tmp_path, text: str, said: str) -> None:
    file = tmp_path / "who.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"--identities: {file}.*{said}"):
        load_identities(file)


def test_a_file_that_anybody_may_write_or_that_is_not_there_is_refused(tmp_path) -> None:
    file = tmp_path / "who.toml"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        watch_identities(file)
    file.write_text(ROW)
    file.chmod(0o646)
    with pytest.raises(ConfigError, match="everybody may write"):
        watch_identities(file)
    file.chmod(0o644)
    assert watch_identities(file).get().by_token("token") is not None


def test_a_secret_that_anybody_may_read_is_refused(tmp_path) -> None:
    file = tmp_path / "token"
    file.write_text("token")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"--token-file: everybody may read {file}; use chmod"):
        read_token(file, "--token-file")
    file.chmod(0o640)
    assert read_token(file, "--token-file") == "token"
    for text in ("", "two words", "\x00", "é", "x" * 513, "a\nb"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"--token-file: .* must hold one token"):
            read_token(file, "--token-file")


def test_a_file_without_end_is_not_read(tmp_path) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        read_file(Path("/dev/zero"), "--identities")


def test_half_a_pair_names_both_and_what_cannot_be_used_names_its_file(tmp_path, authority) -> None:
    cert, key = authority.issue("one")
    with pytest.raises(ConfigError, match="--tls-cert needs --tls-key"):
        Credentials(CredentialFiles(cert=cert))
    with pytest.raises(ConfigError, match="--tls-key needs --tls-cert"):
        Credentials(CredentialFiles(key=key))
    with pytest.raises(ConfigError, match=f"{cert} and {authority.issue('two')[1]} are no certificate and its key"):
        Credentials(CredentialFiles(cert=cert, key=tmp_path / "two.key"))
    with pytest.raises(ConfigError, match=f"--tls-ca: {key} has no certificates"):
        Credentials(CredentialFiles(ca=key))
    with pytest.raises(ConfigError, match="--tls-ca: /nowhere cannot be read"):
        Credentials(CredentialFiles(ca=Path("/nowhere")))


def test_a_change_is_seen_once_it_is_time_to_look_and_a_mistake_leaves_what_was(tmp_path, caplog) -> None:
    file, now = tmp_path / "file", [0.0]
    file.write_text("one")

    def load() -> str:
        text = file.read_text()
        if text == "bad":
            raise ConfigError("bad")
        return text

    watched = Watched([file], load, clock=lambda: now[0])
    file.write_text("second")
    assert watched.get() == "one"
    now[0] = 2.0
    assert (watched.get(), watched.version) == ("second", 2)
    file.write_text("bad")
    now[0] = 4.0
    assert (watched.get(), watched.version) == ("second", 2)
    assert "stays in use: bad" in caplog.text
    file.unlink()
    file.write_text("third one")
    now[0] = 6.0
    assert watched.get() == "third one"


def test_who_guesses_fills_the_counter_and_not_the_log(caplog) -> None:
    now = [0.0]
    guard = Guard(asks=True, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            guard.admit(Caller("ipv4:1.2.3.4:5", authorization="Bearer guess"), frozenset(Role), "Clear")
        now[0] = 11.0
        guard.admit(Caller("ipv4:1.2.3.4:5", authorization="Bearer guess"), frozenset(Role), "Clear")
    assert guard.failures == {"bad_token": 1001}
    assert len(caplog.records) == 2
    assert "and 999 others" in caplog.text
    assert "guess" not in caplog.text


def test_a_certificate_without_an_identities_file_may_do_all_and_cannot_break_the_log() -> None:
    guard = Guard(asks=True)
    found = guard.recognise(Caller("x", names=["node\n1" + "x" * 500]))
    assert found == Identity("node?1" + "x" * 122, "", frozenset(Role))
    assert guard.recognise(Caller("unix:", local=True)) is LOCAL
