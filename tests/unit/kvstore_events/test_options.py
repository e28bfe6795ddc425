"""Where ZeroMQ may listen, and what is said when it may not."""

import sys

import pytest
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.events.publishing import publishing

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"events_zmq": "tcp://*:5557"}, "--events-zmq: .*reached from other hosts.*--insecure-listen"),
        ({"events_zmq": "tcp://10.0.0.1:5557"}, "--events-zmq: .*other hosts"),
        ({"events_zmq": "tcp://127.0.0.1:99999"}, "--events-zmq: "),
        ({"events_zmq": "ipc://here"}, "--events-zmq: .*absolute"),
        ({"events_zmq": "udp://127.0.0.1:1"}, "--events-zmq: .*neither"),
        ({"events_zmq_replay": "tcp://127.0.0.1:5558"}, "--events-zmq-replay needs --events-zmq"),
        ({"events_zmq": "tcp://127.0.0.1:1", "events_zmq_replay": "tcp://0.0.0.0:2"}, "--events-zmq-replay: "),
        ({"events_zmq_medium": ["dram"]}, "--events-zmq-medium: "),
        ({"events_zmq_medium": ["tape=TAPE"]}, "--events-zmq-medium: "),
        ({"events_zmq_topic": "x" * 257}, "--events-zmq-topic: "),
        ({"events_zmq_encoding": "json"}, "--events-zmq-encoding: "),
    ],
)
def test_a_bad_option_names_itself(flags, said):
    with pytest.raises(ConfigError, match=said):
        load_config(flags)


def test_what_may_be_said():
    anywhere = load_config({"events_zmq": "tcp://*:5557", "insecure_listen": True})
    assert anywhere.events_zmq == "tcp://*:5557"
    config = load_config({"events_zmq": "ipc:///run/events", "events_zmq_medium": ["dram=CPU_PINNED", "nvme=NVME"]})
    assert config.events_zmq_media == {"dram": "CPU_PINNED", "nvme": "NVME"}
    load_config({"events_zmq": "tcp://[::1]:5557", "events_zmq_replay": "tcp://localhost:5558"})


@pytest.mark.parametrize("missing", ["zmq", "msgspec"])
async def test_without_the_extra_it_says_what_to_install(events_bench, monkeypatch, missing):
    b = events_bench(8)
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("zmq_publisher", "vllm_format"):
        monkeypatch.delitem(sys.modules, f"kvterrace.kvstore.events.{name}", raising=False)
    config = load_config({"events_zmq": "tcp://127.0.0.1:0"})
    with pytest.raises(ConfigError, match=rf"--events-zmq: {missing} is missing; pip install 'kvterrace\[events\]'"):
        async with publishing(config, b.feed, b.store.holdings):
            pass
