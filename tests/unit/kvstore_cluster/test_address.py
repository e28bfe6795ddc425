"""What addresses of Valkey say, and what is wrong with those that say nothing."""

import pytest
from kvterrace.kvstore.cluster import parse_address
from kvterrace.kvstore.cluster.valkey import Followed, make_client
from redis.asyncio import Redis, RedisCluster

pytestmark = pytest.mark.unit


def test_a_single_server_with_all_its_parts():
    found = parse_address("rediss://us%40er:p%23w:x@db.example:7000/3?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
    assert (found.kind, found.hosts, found.tls, found.db) == ("single", (("db.example", 7000),), True, 3)
    assert (found.username, found.password) == ("us@er", "p#w:x")
    assert found.options == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    assert "p%23w" not in found.text
    assert found.text == "rediss://***@db.example:7000/3"


@pytest.mark.parametrize("url", ["redis://h", "valkey://h", "redis://h:6379", "redis://h/0", "redis://h:6379/"])
def test_what_is_left_out_has_its_default(url):
    found = parse_address(url)
    assert (found.hosts, found.db, found.password, found.tls) == ((("h", 6379),), 0, None, False)


def test_an_ipv6_address_stands_in_brackets():
    assert parse_address("redis://[::1]:7000").hosts == (("::1", 7000),)
    assert parse_address("redis://[::1]").hosts == (("::1", 6379),)


def test_sentinels_and_the_name_of_their_service():
    found = parse_address("redis+sentinel://:pw@a:1,b/main/2?sentinel_password=other")
    assert (found.kind, found.hosts, found.service, found.db) == ("sentinel", (("a", 1), ("b", 26379)), "main", 2)
    assert found.password == "pw"
    assert found.sentinel == {"password": "other"}


def test_nodes_of_a_cluster():
    found = parse_address("rediss+cluster://a:1,b:2")
    assert (found.kind, found.hosts, found.tls) == ("cluster", (("a", 1), ("b", 2)), True)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://h", "'http' is no scheme"),
        ("h:6379", "'h' is no scheme"),
        ("redis+ring://h", r"'redis\+ring' is no scheme"),
        ("redis://", "has no host"),
        ("redis://:6379", "has no host"),
        ("redis://h:port", "'port' is not a port"),
        ("redis://h:0", "'0' is not a port"),
        ("redis://h:70000", "'70000' is not a port"),
        ("redis://::1:6379", "in brackets"),
        ("redis://a,b", "are several hosts"),
        ("redis://h/zero", "'zero' is not the number of a database"),
        ("redis://h/0/1", "'0/1' is not the number"),
        ("redis://h?ssl_ca_certs=x", "TLS needs rediss://"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs='maybe'"),
        ("rediss://h?ssl_check_hostname=maybe", "ssl_check_hostname='maybe'"),
        ("redis://h?socket_timeout=9", "'socket_timeout' is no option"),
        ("redis+sentinel://h", "needs the service's name"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis://h#1", "fragment"),
    ],
)
def test_a_bad_address_names_its_bad_part(url, part):
    with pytest.raises(ValueError, match=part):
        parse_address(url)


@pytest.mark.parametrize(
    "url", ["redis://:secret@h:port", "redis://:secret@h?x=1", "redis://:secret@a,b", "http://:secret@h"]
)
def test_no_complaint_repeats_a_password(url):
    with pytest.raises(ValueError) as raised:
        parse_address(url)
    assert "secret" not in str(raised.value)


async def test_the_client_is_of_the_kind_and_never_retries_by_itself():
    single = make_client(parse_address("rediss://u:p@h:1/2?ssl_ca_certs=/x"), 0.5)
    assert isinstance(single, Redis)
    known = single.connection_pool.connection_kwargs
    assert (known["host"], known["port"], known["db"], known["username"], known["password"]) == ("h", 1, 2, "u", "p")
    assert (known["socket_timeout"], known["socket_connect_timeout"]) == (None, 0.5)
    assert known["ssl_ca_certs"] == "/x"
    assert known["retry"].get_retries() == 0
    found = make_client(parse_address("redis+sentinel://:p@h:1/main/2?sentinel_password=q"), 0.5)
    assert isinstance(found, Followed)
    assert found.master.connection_pool.service_name == "main"
    assert found.master.connection_pool.connection_kwargs["db"] == 2
    sentinel = found.finder.sentinels[0]
    assert sentinel.connection_pool.connection_kwargs["password"] == "q"
    many = make_client(parse_address("redis+cluster://a:1,b:2"), 0.5)
    assert isinstance(many, RedisCluster)
    assert {(node.host, node.port) for node in many.nodes_manager.startup_nodes.values()} == {("a", 1), ("b", 2)}
    for each in (single, found, many):
        await each.aclose()
