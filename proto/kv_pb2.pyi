from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientFrame(_message.Message):
    __slots__ = ("id", "open", "lookup", "acquire", "release", "reserve", "commit", "abort", "goodbye", "prefetch", "cancel_prefetch", "observe", "retain", "before")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_PREFETCH_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    open: Open
    lookup: Lookup
    acquire: Acquire
    release: Release
    reserve: Reserve
    commit: Commit
    abort: Abort
    goodbye: Goodbye
    prefetch: Prefetch
    cancel_prefetch: CancelPrefetch
    observe: Observe
    retain: Retain
    before: _containers.RepeatedCompositeFieldContainer[ClientFrame]
    def __init__(self, id: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., lookup: _Optional[_Union[Lookup, _Mapping]] = ..., acquire: _Optional[_Union[Acquire, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ..., cancel_prefetch: _Optional[_Union[CancelPrefetch, _Mapping]] = ..., observe: _Optional[_Union[Observe, _Mapping]] = ..., retain: _Optional[_Union[Retain, _Mapping]] = ..., before: _Optional[_Iterable[_Union[ClientFrame, _Mapping]]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("id", "opened", "refused", "found", "acquired", "reserved", "done", "invalid")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    INVALID_FIELD_NUMBER: _ClassVar[int]
    id: int
    opened: Opened
    refused: Refused
    found: Found
    acquired: Acquired
    reserved: Reserved
    done: Done
    invalid: Invalid
    def __init__(self, id: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., found: _Optional[_Union[Found, _Mapping]] = ..., acquired: _Optional[_Union[Acquired, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., invalid: _Optional[_Union[Invalid, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("wire_version", "package_version", "hash_name", "client", "namespace", "fingerprint")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HASH_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    package_version: str
    hash_name: str
    client: str
    namespace: NamespaceSpec
    fingerprint: bytes
    def __init__(self, wire_version: _Optional[int] = ..., package_version: _Optional[str] = ..., hash_name: _Optional[str] = ..., client: _Optional[str] = ..., namespace: _Optional[_Union[NamespaceSpec, _Mapping]] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "boot_id", "package_version", "arena_path")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARENA_PATH_FIELD_NUMBER: _ClassVar[int]
    session: int
    boot_id: bytes
    package_version: str
    arena_path: str
    def __init__(self, session: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., package_version: _Optional[str] = ..., arena_path: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("field", "message", "ours", "theirs")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    field: str
    message: str
    ours: str
    theirs: str
    def __init__(self, field: _Optional[str] = ..., message: _Optional[str] = ..., ours: _Optional[str] = ..., theirs: _Optional[str] = ...) -> None: ...

class Invalid(_message.Message):
    __slots__ = ("field", "message")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    field: str
    message: str
    def __init__(self, field: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Lookup(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    def __init__(self, tokens: _Optional[bytes] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("tiers", "reason", "compute_s", "load_s")
    class TiersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TIERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.ScalarMap[str, int]
    reason: str
    compute_s: float
    load_s: float
    def __init__(self, tiers: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., compute_s: _Optional[float] = ..., load_s: _Optional[float] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("tokens", "skip", "deadline_s")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    skip: int
    deadline_s: float
    def __init__(self, tokens: _Optional[bytes] = ..., skip: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Slots(_message.Message):
    __slots__ = ("slots", "generations", "checksums")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    generations: bytes
    checksums: bytes
    def __init__(self, slots: _Optional[bytes] = ..., generations: _Optional[bytes] = ..., checksums: _Optional[bytes] = ...) -> None: ...

class Acquired(_message.Message):
    __slots__ = ("lease", "first", "slots", "tiers", "reason", "compute_s")
    class TiersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    lease: int
    first: int
    slots: Slots
    tiers: _containers.ScalarMap[str, int]
    reason: str
    compute_s: float
    def __init__(self, lease: _Optional[int] = ..., first: _Optional[int] = ..., slots: _Optional[_Union[Slots, _Mapping]] = ..., tiers: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., compute_s: _Optional[float] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("lease", "corrupt")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    lease: int
    corrupt: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease: _Optional[int] = ..., corrupt: _Optional[_Iterable[int]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("tokens", "start", "count", "retention")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    start: int
    count: int
    retention: _containers.RepeatedCompositeFieldContainer[RetentionRange]
    def __init__(self, tokens: _Optional[bytes] = ..., start: _Optional[int] = ..., count: _Optional[int] = ..., retention: _Optional[_Iterable[_Union[RetentionRange, _Mapping]]] = ...) -> None: ...

class RetentionSpec(_message.Message):
    __slots__ = ("priority", "ttl_s", "pinned")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    priority: int
    ttl_s: float
    pinned: bool
    def __init__(self, priority: _Optional[int] = ..., ttl_s: _Optional[float] = ..., pinned: _Optional[bool] = ...) -> None: ...

class RetentionRange(_message.Message):
    __slots__ = ("start", "end", "retention")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    retention: RetentionSpec
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., retention: _Optional[_Union[RetentionSpec, _Mapping]] = ...) -> None: ...

class Prefetch(_message.Message):
    __slots__ = ("ticket", "tokens", "skip")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    tokens: bytes
    skip: int
    def __init__(self, ticket: _Optional[int] = ..., tokens: _Optional[bytes] = ..., skip: _Optional[int] = ...) -> None: ...

class CancelPrefetch(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    def __init__(self, ticket: _Optional[int] = ...) -> None: ...

class Retain(_message.Message):
    __slots__ = ("tokens", "retention")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    retention: _containers.RepeatedCompositeFieldContainer[RetentionRange]
    def __init__(self, tokens: _Optional[bytes] = ..., retention: _Optional[_Iterable[_Union[RetentionRange, _Mapping]]] = ...) -> None: ...

class Observe(_message.Message):
    __slots__ = ("prefills",)
    PREFILLS_FIELD_NUMBER: _ClassVar[int]
    prefills: _containers.RepeatedCompositeFieldContainer[Prefill]
    def __init__(self, prefills: _Optional[_Iterable[_Union[Prefill, _Mapping]]] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("first", "tokens", "seconds")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    first: int
    tokens: int
    seconds: float
    def __init__(self, first: _Optional[int] = ..., tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("lease", "blocks", "slots", "reason")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease: int
    blocks: bytes
    slots: Slots
    reason: str
    def __init__(self, lease: _Optional[int] = ..., blocks: _Optional[bytes] = ..., slots: _Optional[_Union[Slots, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("lease", "checksums")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    checksums: bytes
    def __init__(self, lease: _Optional[int] = ..., checksums: _Optional[bytes] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("check",)
    CHECK_FIELD_NUMBER: _ClassVar[int]
    check: bool
    def __init__(self, check: _Optional[bool] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("boot_id", "package_version", "uptime_s", "tiers", "namespaces", "sessions", "counters", "check_error")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CHECK_ERROR_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    package_version: str
    uptime_s: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierStatus]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    counters: Counters
    check_error: str
    def __init__(self, boot_id: _Optional[bytes] = ..., package_version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStatus, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., check_error: _Optional[str] = ...) -> None: ...

class TierStatus(_message.Message):
    __slots__ = ("name", "capacity_bytes", "used_bytes", "leased_bytes", "reserved_bytes", "blocks", "devices", "latency_s", "bytes_per_s", "pinned_blocks", "codec")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_bytes: int
    used_bytes: int
    leased_bytes: int
    reserved_bytes: int
    blocks: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    latency_s: float
    bytes_per_s: float
    pinned_blocks: int
    codec: CodecStatus
    def __init__(self, name: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., latency_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., pinned_blocks: _Optional[int] = ..., codec: _Optional[_Union[CodecStatus, _Mapping]] = ...) -> None: ...

class CodecStatus(_message.Message):
    __slots__ = ("name", "enabled", "encode_bytes_s", "decode_bytes_s", "stored_share", "raw_bytes", "stored_bytes", "switches")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ENCODE_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    STORED_SHARE_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    name: str
    enabled: bool
    encode_bytes_s: float
    decode_bytes_s: float
    stored_share: float
    raw_bytes: int
    stored_bytes: int
    switches: int
    def __init__(self, name: _Optional[str] = ..., enabled: _Optional[bool] = ..., encode_bytes_s: _Optional[float] = ..., decode_bytes_s: _Optional[float] = ..., stored_share: _Optional[float] = ..., raw_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., switches: _Optional[int] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("path", "state", "capacity_bytes", "used_bytes", "live_bytes", "written_bytes", "accepted_bytes", "read_bytes", "errors", "budget_left_bytes", "direct", "segments", "foreign_segments", "corrupt_blocks")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    path: str
    state: str
    capacity_bytes: int
    used_bytes: int
    live_bytes: int
    written_bytes: int
    accepted_bytes: int
    read_bytes: int
    errors: int
    budget_left_bytes: int
    direct: bool
    segments: int
    foreign_segments: int
    corrupt_blocks: int
    def __init__(self, path: _Optional[str] = ..., state: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., live_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., accepted_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., errors: _Optional[int] = ..., budget_left_bytes: _Optional[int] = ..., direct: _Optional[bool] = ..., segments: _Optional[int] = ..., foreign_segments: _Optional[int] = ..., corrupt_blocks: _Optional[int] = ...) -> None: ...

class NamespaceStatus(_message.Message):
    __slots__ = ("fingerprint", "label", "slot_bytes", "blocks", "bytes", "hit_tokens", "miss_tokens", "sessions")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    slot_bytes: int
    blocks: int
    bytes: int
    hit_tokens: int
    miss_tokens: int
    sessions: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., slot_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., miss_tokens: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("id", "client", "fingerprint", "read_leases", "reserved_slots")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    READ_LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    client: str
    fingerprint: bytes
    read_leases: int
    reserved_slots: int
    def __init__(self, id: _Optional[int] = ..., client: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., read_leases: _Optional[int] = ..., reserved_slots: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("hit_tokens", "miss_tokens", "evictions", "evictions_reused", "dropped_saves", "committed_blocks", "duplicate_blocks", "checksum_failures", "acquires", "sessions_opened", "promoted_blocks", "demoted_blocks", "dropped_demotions", "failed_loads", "tier_evictions", "prefetched_blocks", "saved_s", "read_bytes", "written_bytes")
    class HitTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MissTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EvictionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EvictionsReusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedSavesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PromotedBlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DemotedBlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedDemotionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FailedLoadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TierEvictionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PrefetchedBlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReadBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WrittenBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_REUSED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SAVES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    ACQUIRES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_OPENED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEMOTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_DEMOTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_LOADS_FIELD_NUMBER: _ClassVar[int]
    TIER_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    hit_tokens: _containers.ScalarMap[str, int]
    miss_tokens: _containers.ScalarMap[str, int]
    evictions: _containers.ScalarMap[str, int]
    evictions_reused: _containers.ScalarMap[str, int]
    dropped_saves: _containers.ScalarMap[str, int]
    committed_blocks: int
    duplicate_blocks: int
    checksum_failures: int
    acquires: int
    sessions_opened: int
    promoted_blocks: _containers.ScalarMap[str, int]
    demoted_blocks: _containers.ScalarMap[str, int]
    dropped_demotions: _containers.ScalarMap[str, int]
    failed_loads: _containers.ScalarMap[str, int]
    tier_evictions: _containers.ScalarMap[str, int]
    prefetched_blocks: _containers.ScalarMap[str, int]
    saved_s: float
    read_bytes: _containers.ScalarMap[str, int]
    written_bytes: _containers.ScalarMap[str, int]
    def __init__(self, hit_tokens: _Optional[_Mapping[str, int]] = ..., miss_tokens: _Optional[_Mapping[str, int]] = ..., evictions: _Optional[_Mapping[str, int]] = ..., evictions_reused: _Optional[_Mapping[str, int]] = ..., dropped_saves: _Optional[_Mapping[str, int]] = ..., committed_blocks: _Optional[int] = ..., duplicate_blocks: _Optional[int] = ..., checksum_failures: _Optional[int] = ..., acquires: _Optional[int] = ..., sessions_opened: _Optional[int] = ..., promoted_blocks: _Optional[_Mapping[str, int]] = ..., demoted_blocks: _Optional[_Mapping[str, int]] = ..., dropped_demotions: _Optional[_Mapping[str, int]] = ..., failed_loads: _Optional[_Mapping[str, int]] = ..., tier_evictions: _Optional[_Mapping[str, int]] = ..., prefetched_blocks: _Optional[_Mapping[str, int]] = ..., saved_s: _Optional[float] = ..., read_bytes: _Optional[_Mapping[str, int]] = ..., written_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    def __init__(self, fingerprint: _Optional[bytes] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    def __init__(self, blocks: _Optional[int] = ...) -> None: ...

class NamespaceSpec(_message.Message):
    __slots__ = ("weights_digest", "adapter_digest", "kv_heads", "layers", "planes", "block_tokens", "head_dim", "dtype", "first_layer", "producer", "label")
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    weights_digest: bytes
    adapter_digest: bytes
    kv_heads: int
    layers: int
    planes: int
    block_tokens: int
    head_dim: int
    dtype: str
    first_layer: int
    producer: str
    label: str
    def __init__(self, weights_digest: _Optional[bytes] = ..., adapter_digest: _Optional[bytes] = ..., kv_heads: _Optional[int] = ..., layers: _Optional[int] = ..., planes: _Optional[int] = ..., block_tokens: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., first_layer: _Optional[int] = ..., producer: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class RetainRequest(_message.Message):
    __slots__ = ("fingerprint", "tokens", "retention", "set")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tokens: bytes
    retention: RetentionSpec
    set: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., retention: _Optional[_Union[RetentionSpec, _Mapping]] = ..., set: _Optional[_Iterable[str]] = ...) -> None: ...

class RetainReply(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    def __init__(self, blocks: _Optional[int] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("deadline_s",)
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    deadline_s: float
    def __init__(self, deadline_s: _Optional[float] = ...) -> None: ...

class FlushReply(_message.Message):
    __slots__ = ("done", "pending_blocks")
    DONE_FIELD_NUMBER: _ClassVar[int]
    PENDING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    done: bool
    pending_blocks: int
    def __init__(self, done: _Optional[bool] = ..., pending_blocks: _Optional[int] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("timestamp_s", "input_length", "hashes", "block_tokens", "namespace", "lost")
    TIMESTAMP_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    timestamp_s: float
    input_length: int
    hashes: _containers.RepeatedScalarFieldContainer[int]
    block_tokens: int
    namespace: bytes
    lost: int
    def __init__(self, timestamp_s: _Optional[float] = ..., input_length: _Optional[int] = ..., hashes: _Optional[_Iterable[int]] = ..., block_tokens: _Optional[int] = ..., namespace: _Optional[bytes] = ..., lost: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("wire_version", "fingerprint", "tokens", "first", "deadline_s", "bulk", "node")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    fingerprint: bytes
    tokens: bytes
    first: int
    deadline_s: float
    bulk: bool
    node: str
    def __init__(self, wire_version: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., first: _Optional[int] = ..., deadline_s: _Optional[float] = ..., bulk: _Optional[bool] = ..., node: _Optional[str] = ...) -> None: ...

class FetchPart(_message.Message):
    __slots__ = ("offer", "chunk", "refused")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    chunk: Chunk
    refused: Refused
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("count", "block_bytes", "checksums", "keys", "ticket", "bulk_address")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BULK_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    count: int
    block_bytes: int
    checksums: bytes
    keys: bytes
    ticket: bytes
    bulk_address: str
    def __init__(self, count: _Optional[int] = ..., block_bytes: _Optional[int] = ..., checksums: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., bulk_address: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
