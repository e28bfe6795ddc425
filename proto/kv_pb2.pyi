from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientFrame(_message.Message):
    __slots__ = ("id", "open", "lookup", "acquire", "release", "reserve", "commit", "abort", "goodbye", "prefetch", "cancel_prefetch", "observe", "retain", "hbm", "abandon", "served", "before")
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
    HBM_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
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
    hbm: HbmReport
    abandon: Abandon
    served: Receipt
    before: _containers.RepeatedCompositeFieldContainer[ClientFrame]
    def __init__(self, id: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., lookup: _Optional[_Union[Lookup, _Mapping]] = ..., acquire: _Optional[_Union[Acquire, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ..., cancel_prefetch: _Optional[_Union[CancelPrefetch, _Mapping]] = ..., observe: _Optional[_Union[Observe, _Mapping]] = ..., retain: _Optional[_Union[Retain, _Mapping]] = ..., hbm: _Optional[_Union[HbmReport, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., served: _Optional[_Union[Receipt, _Mapping]] = ..., before: _Optional[_Iterable[_Union[ClientFrame, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("tiers", "reason", "compute_s", "load_s", "miss")
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
    MISS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.ScalarMap[str, int]
    reason: str
    compute_s: float
    load_s: float
    miss: Miss
    def __init__(self, tiers: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., compute_s: _Optional[float] = ..., load_s: _Optional[float] = ..., miss: _Optional[_Union[Miss, _Mapping]] = ...) -> None: ...

class Miss(_message.Message):
    __slots__ = ("reason", "token", "tier", "gone_s", "kept_s", "fields", "cached")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    GONE_S_FIELD_NUMBER: _ClassVar[int]
    KEPT_S_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    token: int
    tier: str
    gone_s: float
    kept_s: float
    fields: _containers.RepeatedScalarFieldContainer[str]
    cached: bytes
    def __init__(self, reason: _Optional[str] = ..., token: _Optional[int] = ..., tier: _Optional[str] = ..., gone_s: _Optional[float] = ..., kept_s: _Optional[float] = ..., fields: _Optional[_Iterable[str]] = ..., cached: _Optional[bytes] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("tokens", "skip", "deadline_s", "request_id", "traceparent", "wait")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    skip: int
    deadline_s: float
    request_id: str
    traceparent: str
    wait: Wait
    def __init__(self, tokens: _Optional[bytes] = ..., skip: _Optional[int] = ..., deadline_s: _Optional[float] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("ticket", "waited_s", "had", "until", "expected_s")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    HAD_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    waited_s: float
    had: int
    until: int
    expected_s: float
    def __init__(self, ticket: _Optional[int] = ..., waited_s: _Optional[float] = ..., had: _Optional[int] = ..., until: _Optional[int] = ..., expected_s: _Optional[float] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    def __init__(self, ticket: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("lease", "first", "slots", "tiers", "reason", "compute_s", "wait", "miss")
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
    WAIT_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    first: int
    slots: Slots
    tiers: _containers.ScalarMap[str, int]
    reason: str
    compute_s: float
    wait: Wait
    miss: Miss
    def __init__(self, lease: _Optional[int] = ..., first: _Optional[int] = ..., slots: _Optional[_Union[Slots, _Mapping]] = ..., tiers: _Optional[_Mapping[str, int]] = ..., reason: _Optional[str] = ..., compute_s: _Optional[float] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., miss: _Optional[_Union[Miss, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("boot_id", "package_version", "uptime_s", "tiers", "namespaces", "sessions", "counters", "check_error", "cluster", "drain", "time_s", "tenants")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CHECK_ERROR_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    package_version: str
    uptime_s: float
    tiers: _containers.RepeatedCompositeFieldContainer[TierStatus]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    counters: Counters
    check_error: str
    cluster: ClusterStatus
    drain: DrainProgress
    time_s: float
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    def __init__(self, boot_id: _Optional[bytes] = ..., package_version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., tiers: _Optional[_Iterable[_Union[TierStatus, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., check_error: _Optional[str] = ..., cluster: _Optional[_Union[ClusterStatus, _Mapping]] = ..., drain: _Optional[_Union[DrainProgress, _Mapping]] = ..., time_s: _Optional[float] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("path", "state", "capacity_bytes", "used_bytes", "live_bytes", "written_bytes", "accepted_bytes", "read_bytes", "errors", "budget_left_bytes", "direct", "segments", "foreign_segments", "corrupt_blocks", "encrypted_blocks", "open_failures", "key_missing_blocks", "clear_dropped_blocks")
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
    ENCRYPTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FAILURES_FIELD_NUMBER: _ClassVar[int]
    KEY_MISSING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
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
    encrypted_blocks: int
    open_failures: int
    key_missing_blocks: int
    clear_dropped_blocks: int
    def __init__(self, path: _Optional[str] = ..., state: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., live_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., accepted_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., errors: _Optional[int] = ..., budget_left_bytes: _Optional[int] = ..., direct: _Optional[bool] = ..., segments: _Optional[int] = ..., foreign_segments: _Optional[int] = ..., corrupt_blocks: _Optional[int] = ..., encrypted_blocks: _Optional[int] = ..., open_failures: _Optional[int] = ..., key_missing_blocks: _Optional[int] = ..., clear_dropped_blocks: _Optional[int] = ...) -> None: ...

class NamespaceStatus(_message.Message):
    __slots__ = ("fingerprint", "label", "slot_bytes", "blocks", "bytes", "hit_tokens", "miss_tokens", "sessions", "tenant")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    slot_bytes: int
    blocks: int
    bytes: int
    hit_tokens: int
    miss_tokens: int
    sessions: int
    tenant: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., slot_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., miss_tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("hit_tokens", "miss_tokens", "evictions", "evictions_reused", "dropped_saves", "committed_blocks", "duplicate_blocks", "checksum_failures", "acquires", "sessions_opened", "promoted_blocks", "demoted_blocks", "dropped_demotions", "failed_loads", "tier_evictions", "prefetched_blocks", "saved_s", "read_bytes", "written_bytes", "inflight_waits", "inflight_marks", "inflight_broken", "inflight_tokens", "inflight_wait_s")
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
    class InflightWaitsEntry(_message.Message):
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
    INFLIGHT_WAITS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_MARKS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_BROKEN_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
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
    inflight_waits: _containers.ScalarMap[str, int]
    inflight_marks: int
    inflight_broken: int
    inflight_tokens: int
    inflight_wait_s: float
    def __init__(self, hit_tokens: _Optional[_Mapping[str, int]] = ..., miss_tokens: _Optional[_Mapping[str, int]] = ..., evictions: _Optional[_Mapping[str, int]] = ..., evictions_reused: _Optional[_Mapping[str, int]] = ..., dropped_saves: _Optional[_Mapping[str, int]] = ..., committed_blocks: _Optional[int] = ..., duplicate_blocks: _Optional[int] = ..., checksum_failures: _Optional[int] = ..., acquires: _Optional[int] = ..., sessions_opened: _Optional[int] = ..., promoted_blocks: _Optional[_Mapping[str, int]] = ..., demoted_blocks: _Optional[_Mapping[str, int]] = ..., dropped_demotions: _Optional[_Mapping[str, int]] = ..., failed_loads: _Optional[_Mapping[str, int]] = ..., tier_evictions: _Optional[_Mapping[str, int]] = ..., prefetched_blocks: _Optional[_Mapping[str, int]] = ..., saved_s: _Optional[float] = ..., read_bytes: _Optional[_Mapping[str, int]] = ..., written_bytes: _Optional[_Mapping[str, int]] = ..., inflight_waits: _Optional[_Mapping[str, int]] = ..., inflight_marks: _Optional[int] = ..., inflight_broken: _Optional[int] = ..., inflight_tokens: _Optional[int] = ..., inflight_wait_s: _Optional[float] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("fingerprint", "tenant", "key", "tokens", "dry_run")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tenant: str
    key: bytes
    tokens: bytes
    dry_run: bool
    def __init__(self, fingerprint: _Optional[bytes] = ..., tenant: _Optional[str] = ..., key: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class QuotaRequest(_message.Message):
    __slots__ = ("tenant", "dram_quota", "dram_floor", "nvme_quota", "nvme_floor", "set")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DRAM_QUOTA_FIELD_NUMBER: _ClassVar[int]
    DRAM_FLOOR_FIELD_NUMBER: _ClassVar[int]
    NVME_QUOTA_FIELD_NUMBER: _ClassVar[int]
    NVME_FLOOR_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    dram_quota: int
    dram_floor: int
    nvme_quota: int
    nvme_floor: int
    set: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., dram_quota: _Optional[int] = ..., dram_floor: _Optional[int] = ..., nvme_quota: _Optional[int] = ..., nvme_floor: _Optional[int] = ..., set: _Optional[_Iterable[str]] = ...) -> None: ...

class QuotaReply(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: TenantStatus
    def __init__(self, tenant: _Optional[_Union[TenantStatus, _Mapping]] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("name", "used_bytes", "dram_quota", "dram_floor", "nvme_quota", "nvme_floor", "hit_tokens", "miss_tokens", "sessions")
    class UsedBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAM_QUOTA_FIELD_NUMBER: _ClassVar[int]
    DRAM_FLOOR_FIELD_NUMBER: _ClassVar[int]
    NVME_QUOTA_FIELD_NUMBER: _ClassVar[int]
    NVME_FLOOR_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    used_bytes: _containers.ScalarMap[str, int]
    dram_quota: int
    dram_floor: int
    nvme_quota: int
    nvme_floor: int
    hit_tokens: int
    miss_tokens: int
    sessions: int
    def __init__(self, name: _Optional[str] = ..., used_bytes: _Optional[_Mapping[str, int]] = ..., dram_quota: _Optional[int] = ..., dram_floor: _Optional[int] = ..., nvme_quota: _Optional[int] = ..., nvme_floor: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., miss_tokens: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("blocks", "bytes", "fingerprint")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    bytes: int
    fingerprint: bytes
    def __init__(self, blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("fingerprint", "tokens", "retention", "set", "key", "below", "dry_run", "tenant")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tokens: bytes
    retention: RetentionSpec
    set: _containers.RepeatedScalarFieldContainer[str]
    key: bytes
    below: bool
    dry_run: bool
    tenant: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., retention: _Optional[_Union[RetentionSpec, _Mapping]] = ..., set: _Optional[_Iterable[str]] = ..., key: _Optional[bytes] = ..., below: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., tenant: _Optional[str] = ...) -> None: ...

class RetainReply(_message.Message):
    __slots__ = ("blocks", "fingerprint")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    fingerprint: bytes
    def __init__(self, blocks: _Optional[int] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("wire_version", "fingerprint", "tokens", "first", "deadline_s", "bulk", "node", "wait_s", "traceparent")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    fingerprint: bytes
    tokens: bytes
    first: int
    deadline_s: float
    bulk: bool
    node: str
    wait_s: float
    traceparent: str
    def __init__(self, wire_version: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., first: _Optional[int] = ..., deadline_s: _Optional[float] = ..., bulk: _Optional[bool] = ..., node: _Optional[str] = ..., wait_s: _Optional[float] = ..., traceparent: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("count", "block_bytes", "checksums", "keys", "ticket", "bulk_address", "computing_s")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BULK_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_S_FIELD_NUMBER: _ClassVar[int]
    count: int
    block_bytes: int
    checksums: bytes
    keys: bytes
    ticket: bytes
    bulk_address: str
    computing_s: float
    def __init__(self, count: _Optional[int] = ..., block_bytes: _Optional[int] = ..., checksums: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., bulk_address: _Optional[str] = ..., computing_s: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class HbmReport(_message.Message):
    __slots__ = ("whole", "changes")
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    whole: bool
    changes: _containers.RepeatedCompositeFieldContainer[HbmChange]
    def __init__(self, whole: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[HbmChange, _Mapping]]] = ...) -> None: ...

class HbmChange(_message.Message):
    __slots__ = ("numbers", "tokens", "parent")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    tokens: bytes
    parent: int
    def __init__(self, numbers: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., parent: _Optional[int] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("epoch", "next", "tokens", "fingerprint", "tiers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    epoch: bytes
    next: int
    tokens: bool
    fingerprint: bytes
    tiers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[bytes] = ..., next: _Optional[int] = ..., tokens: _Optional[bool] = ..., fingerprint: _Optional[bytes] = ..., tiers: _Optional[_Iterable[str]] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("node", "epoch", "sequence", "timestamp_s", "events", "reset", "snapshot", "more")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_S_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: bytes
    sequence: int
    timestamp_s: float
    events: _containers.RepeatedCompositeFieldContainer[BlockEvent]
    reset: bool
    snapshot: bool
    more: bool
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[bytes] = ..., sequence: _Optional[int] = ..., timestamp_s: _Optional[float] = ..., events: _Optional[_Iterable[_Union[BlockEvent, _Mapping]]] = ..., reset: _Optional[bool] = ..., snapshot: _Optional[bool] = ..., more: _Optional[bool] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("kind", "tier", "fingerprint", "label", "count", "keys", "parent", "first", "tokens", "block_tokens", "session", "engine")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[BlockEvent.Kind]
        STORED: _ClassVar[BlockEvent.Kind]
        REMOVED: _ClassVar[BlockEvent.Kind]
        CLEARED: _ClassVar[BlockEvent.Kind]
    UNKNOWN: BlockEvent.Kind
    STORED: BlockEvent.Kind
    REMOVED: BlockEvent.Kind
    CLEARED: BlockEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    kind: BlockEvent.Kind
    tier: str
    fingerprint: bytes
    label: str
    count: int
    keys: bytes
    parent: bytes
    first: int
    tokens: bytes
    block_tokens: int
    session: int
    engine: str
    def __init__(self, kind: _Optional[_Union[BlockEvent.Kind, str]] = ..., tier: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., count: _Optional[int] = ..., keys: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., first: _Optional[int] = ..., tokens: _Optional[bytes] = ..., block_tokens: _Optional[int] = ..., session: _Optional[int] = ..., engine: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("fingerprint", "tokens", "local", "deadline_s", "namespace")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tokens: bytes
    local: bool
    deadline_s: float
    namespace: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., local: _Optional[bool] = ..., deadline_s: _Optional[float] = ..., namespace: _Optional[str] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("nodes", "full_tokens")
    NODES_FIELD_NUMBER: _ClassVar[int]
    FULL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeScore]
    full_tokens: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeScore, _Mapping]]] = ..., full_tokens: _Optional[int] = ...) -> None: ...

class NodeScore(_message.Message):
    __slots__ = ("node", "tokens", "tiers", "engines", "exact", "error")
    class TiersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    node: str
    tokens: int
    tiers: _containers.ScalarMap[str, int]
    engines: _containers.RepeatedCompositeFieldContainer[EngineScore]
    exact: bool
    error: str
    def __init__(self, node: _Optional[str] = ..., tokens: _Optional[int] = ..., tiers: _Optional[_Mapping[str, int]] = ..., engines: _Optional[_Iterable[_Union[EngineScore, _Mapping]]] = ..., exact: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class EngineScore(_message.Message):
    __slots__ = ("engine", "session", "tokens")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    session: int
    tokens: int
    def __init__(self, engine: _Optional[str] = ..., session: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class SharedSpace(_message.Message):
    __slots__ = ("namespace", "hash_name", "tenant", "fingerprint")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    HASH_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    namespace: NamespaceSpec
    hash_name: str
    tenant: str
    fingerprint: bytes
    def __init__(self, namespace: _Optional[_Union[NamespaceSpec, _Mapping]] = ..., hash_name: _Optional[str] = ..., tenant: _Optional[str] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class HottestRequest(_message.Message):
    __slots__ = ("wire_version", "node", "max_bytes")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    node: str
    max_bytes: int
    def __init__(self, wire_version: _Optional[int] = ..., node: _Optional[str] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class HotPath(_message.Message):
    __slots__ = ("space", "tokens", "first", "size_bytes", "idle_s", "heat", "retention")
    SPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    HEAT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    space: SharedSpace
    tokens: bytes
    first: int
    size_bytes: int
    idle_s: float
    heat: float
    retention: _containers.RepeatedCompositeFieldContainer[RetentionRange]
    def __init__(self, space: _Optional[_Union[SharedSpace, _Mapping]] = ..., tokens: _Optional[bytes] = ..., first: _Optional[int] = ..., size_bytes: _Optional[int] = ..., idle_s: _Optional[float] = ..., heat: _Optional[float] = ..., retention: _Optional[_Iterable[_Union[RetentionRange, _Mapping]]] = ...) -> None: ...

class TakeOverRequest(_message.Message):
    __slots__ = ("wire_version", "node", "path", "deadline_s")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    node: str
    path: HotPath
    deadline_s: float
    def __init__(self, wire_version: _Optional[int] = ..., node: _Optional[str] = ..., path: _Optional[_Union[HotPath, _Mapping]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class TakeOverReply(_message.Message):
    __slots__ = ("blocks", "fetched", "free_bytes", "reason")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    fetched: int
    free_bytes: int
    reason: str
    def __init__(self, blocks: _Optional[int] = ..., fetched: _Optional[int] = ..., free_bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline_s", "stay")
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    deadline_s: float
    stay: bool
    def __init__(self, deadline_s: _Optional[float] = ..., stay: _Optional[bool] = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("phase", "handed_blocks", "handed_bytes", "to", "safe_blocks", "left", "left_bytes", "pending_blocks", "seconds", "waiting_blocks")
    class ToEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LeftEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    HANDED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HANDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SAFE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LEFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PENDING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    handed_blocks: int
    handed_bytes: int
    to: _containers.ScalarMap[str, int]
    safe_blocks: int
    left: _containers.ScalarMap[str, int]
    left_bytes: int
    pending_blocks: int
    seconds: float
    waiting_blocks: int
    def __init__(self, phase: _Optional[str] = ..., handed_blocks: _Optional[int] = ..., handed_bytes: _Optional[int] = ..., to: _Optional[_Mapping[str, int]] = ..., safe_blocks: _Optional[int] = ..., left: _Optional[_Mapping[str, int]] = ..., left_bytes: _Optional[int] = ..., pending_blocks: _Optional[int] = ..., seconds: _Optional[float] = ..., waiting_blocks: _Optional[int] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("name", "node", "epoch", "connected", "joined", "draining", "marks", "backlog", "last_error", "round_trip_s", "valkey", "members", "replica_bytes", "hot_bytes", "hot_last_bytes", "warming")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    VALKEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_LAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    WARMING_FIELD_NUMBER: _ClassVar[int]
    name: str
    node: str
    epoch: bytes
    connected: bool
    joined: bool
    draining: bool
    marks: int
    backlog: int
    last_error: str
    round_trip_s: float
    valkey: str
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    replica_bytes: int
    hot_bytes: int
    hot_last_bytes: int
    warming: str
    def __init__(self, name: _Optional[str] = ..., node: _Optional[str] = ..., epoch: _Optional[bytes] = ..., connected: _Optional[bool] = ..., joined: _Optional[bool] = ..., draining: _Optional[bool] = ..., marks: _Optional[int] = ..., backlog: _Optional[int] = ..., last_error: _Optional[str] = ..., round_trip_s: _Optional[float] = ..., valkey: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., replica_bytes: _Optional[int] = ..., hot_bytes: _Optional[int] = ..., hot_last_bytes: _Optional[int] = ..., warming: _Optional[str] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("node", "epoch", "grpc", "bulk", "wire_version", "package_version", "draining", "state")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: bytes
    grpc: str
    bulk: str
    wire_version: int
    package_version: str
    draining: bool
    state: str
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[bytes] = ..., grpc: _Optional[str] = ..., bulk: _Optional[str] = ..., wire_version: _Optional[int] = ..., package_version: _Optional[str] = ..., draining: _Optional[bool] = ..., state: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("request_id", "time_s", "tokens", "miss", "queue_wait_s", "cache_wait_s", "saved_s", "ttft_s", "prompt", "computed_s", "fingerprint", "label", "tenant", "client")
    class TokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CACHE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_S_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    time_s: float
    tokens: _containers.ScalarMap[str, int]
    miss: Miss
    queue_wait_s: float
    cache_wait_s: float
    saved_s: float
    ttft_s: float
    prompt: bytes
    computed_s: float
    fingerprint: bytes
    label: str
    tenant: str
    client: str
    def __init__(self, request_id: _Optional[str] = ..., time_s: _Optional[float] = ..., tokens: _Optional[_Mapping[str, int]] = ..., miss: _Optional[_Union[Miss, _Mapping]] = ..., queue_wait_s: _Optional[float] = ..., cache_wait_s: _Optional[float] = ..., saved_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., prompt: _Optional[bytes] = ..., computed_s: _Optional[float] = ..., fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., tenant: _Optional[str] = ..., client: _Optional[str] = ...) -> None: ...

class ReceiptsRequest(_message.Message):
    __slots__ = ("limit", "request_id", "reason", "fingerprint")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    request_id: str
    reason: str
    fingerprint: bytes
    def __init__(self, limit: _Optional[int] = ..., request_id: _Optional[str] = ..., reason: _Optional[str] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class ReceiptsReply(_message.Message):
    __slots__ = ("receipts", "total")
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    total: int
    def __init__(self, receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("fingerprint", "tokens", "namespace")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tokens: bytes
    namespace: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("tokens", "miss", "fingerprint", "label", "compute_s", "load_s")
    class TokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.ScalarMap[str, int]
    miss: Miss
    fingerprint: bytes
    label: str
    compute_s: float
    load_s: float
    def __init__(self, tokens: _Optional[_Mapping[str, int]] = ..., miss: _Optional[_Union[Miss, _Mapping]] = ..., fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., compute_s: _Optional[float] = ..., load_s: _Optional[float] = ...) -> None: ...

class PrefixesRequest(_message.Message):
    __slots__ = ("fingerprint", "tenant", "key", "children", "sort", "limit", "tokens", "no_runs")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_RUNS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tenant: str
    key: bytes
    children: bool
    sort: str
    limit: int
    tokens: int
    no_runs: bool
    def __init__(self, fingerprint: _Optional[bytes] = ..., tenant: _Optional[str] = ..., key: _Optional[bytes] = ..., children: _Optional[bool] = ..., sort: _Optional[str] = ..., limit: _Optional[int] = ..., tokens: _Optional[int] = ..., no_runs: _Optional[bool] = ...) -> None: ...

class PrefixesReply(_message.Message):
    __slots__ = ("prefixes", "total", "partial", "spaces")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    SPACES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PrefixStatus]
    total: int
    partial: bool
    spaces: _containers.RepeatedCompositeFieldContainer[PrefixSpace]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PrefixStatus, _Mapping]]] = ..., total: _Optional[int] = ..., partial: _Optional[bool] = ..., spaces: _Optional[_Iterable[_Union[PrefixSpace, _Mapping]]] = ...) -> None: ...

class PrefixSpace(_message.Message):
    __slots__ = ("fingerprint", "label", "tenant", "block_tokens", "sessions", "tier_blocks", "tier_bytes")
    class TierBlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TierBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    tenant: str
    block_tokens: int
    sessions: int
    tier_blocks: _containers.ScalarMap[str, int]
    tier_bytes: _containers.ScalarMap[str, int]
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., tenant: _Optional[str] = ..., block_tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., tier_blocks: _Optional[_Mapping[str, int]] = ..., tier_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PrefixStatus(_message.Message):
    __slots__ = ("fingerprint", "label", "tenant", "key", "parent", "first_block", "blocks", "prefix_tokens", "tier_blocks", "tier_bytes", "hits", "age_s", "idle_s", "retention", "pinned_blocks", "leases", "children", "below_blocks", "tokens", "text")
    class TierBlocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TierBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    BELOW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    tenant: str
    key: bytes
    parent: bytes
    first_block: int
    blocks: int
    prefix_tokens: int
    tier_blocks: _containers.ScalarMap[str, int]
    tier_bytes: _containers.ScalarMap[str, int]
    hits: int
    age_s: float
    idle_s: float
    retention: RetentionSpec
    pinned_blocks: int
    leases: int
    children: int
    below_blocks: int
    tokens: bytes
    text: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., tenant: _Optional[str] = ..., key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., first_block: _Optional[int] = ..., blocks: _Optional[int] = ..., prefix_tokens: _Optional[int] = ..., tier_blocks: _Optional[_Mapping[str, int]] = ..., tier_bytes: _Optional[_Mapping[str, int]] = ..., hits: _Optional[int] = ..., age_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., retention: _Optional[_Union[RetentionSpec, _Mapping]] = ..., pinned_blocks: _Optional[int] = ..., leases: _Optional[int] = ..., children: _Optional[int] = ..., below_blocks: _Optional[int] = ..., tokens: _Optional[bytes] = ..., text: _Optional[str] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("fingerprint", "tokens", "deadline_s")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    tokens: bytes
    deadline_s: float
    def __init__(self, fingerprint: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class WarmReply(_message.Message):
    __slots__ = ("tokens", "brought", "reason")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BROUGHT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    brought: int
    reason: str
    def __init__(self, tokens: _Optional[int] = ..., brought: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class InsightRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    def __init__(self, fingerprint: _Optional[bytes] = ...) -> None: ...

class InsightReply(_message.Message):
    __slots__ = ("spaces", "findings", "skipped")
    SPACES_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    spaces: _containers.RepeatedCompositeFieldContainer[SpaceInsight]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    skipped: int
    def __init__(self, spaces: _Optional[_Iterable[_Union[SpaceInsight, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., skipped: _Optional[int] = ...) -> None: ...

class SpaceInsight(_message.Message):
    __slots__ = ("fingerprint", "label", "tenant", "windows", "curve", "sampled_share", "references", "dram_bytes", "nvme_bytes")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_SHARE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    DRAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NVME_BYTES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    tenant: str
    windows: _containers.RepeatedCompositeFieldContainer[WindowRate]
    curve: _containers.RepeatedCompositeFieldContainer[WhatIfPoint]
    sampled_share: float
    references: int
    dram_bytes: int
    nvme_bytes: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., tenant: _Optional[str] = ..., windows: _Optional[_Iterable[_Union[WindowRate, _Mapping]]] = ..., curve: _Optional[_Iterable[_Union[WhatIfPoint, _Mapping]]] = ..., sampled_share: _Optional[float] = ..., references: _Optional[int] = ..., dram_bytes: _Optional[int] = ..., nvme_bytes: _Optional[int] = ...) -> None: ...

class WindowRate(_message.Message):
    __slots__ = ("window_s", "tokens", "repeated_tokens", "hit_tokens")
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    window_s: float
    tokens: int
    repeated_tokens: int
    hit_tokens: int
    def __init__(self, window_s: _Optional[float] = ..., tokens: _Optional[int] = ..., repeated_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ...) -> None: ...

class WhatIfPoint(_message.Message):
    __slots__ = ("capacity_bytes", "hit_share")
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    hit_share: float
    def __init__(self, capacity_bytes: _Optional[int] = ..., hit_share: _Optional[float] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("fingerprint", "label", "tenant", "key", "token", "kind", "prompts", "lost_tokens_per_day", "ours", "cached", "ours_text", "cached_text")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    LOST_TOKENS_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    OURS_TEXT_FIELD_NUMBER: _ClassVar[int]
    CACHED_TEXT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    label: str
    tenant: str
    key: bytes
    token: int
    kind: str
    prompts: int
    lost_tokens_per_day: float
    ours: bytes
    cached: bytes
    ours_text: str
    cached_text: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., label: _Optional[str] = ..., tenant: _Optional[str] = ..., key: _Optional[bytes] = ..., token: _Optional[int] = ..., kind: _Optional[str] = ..., prompts: _Optional[int] = ..., lost_tokens_per_day: _Optional[float] = ..., ours: _Optional[bytes] = ..., cached: _Optional[bytes] = ..., ours_text: _Optional[str] = ..., cached_text: _Optional[str] = ...) -> None: ...
