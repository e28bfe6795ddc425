"""Metrics of a sidecar that it takes a network, a broken disk or another process to move, and who moves them."""

STORE, INSIGHT = "kvterrace_store_", "kvterrace_insight_"

# The file, and what stands there for the counter behind the metric.
ELSEWHERE = {
    STORE + "dropped_demotion_blocks_total": ("unit/kvstore/test_lower_tier.py", "dropped_demotions"),
    STORE + "failed_load_blocks_total": ("unit/kvstore/test_lower_tier.py", "failed_loads"),
    STORE + "tier_read_latency_seconds": ("unit/kvstore_placement/test_cost.py", "latency_s"),
    STORE + "tier_read_bytes_per_second": ("unit/kvstore_placement/test_cost.py", "bytes_per_s"),
    STORE + "codec_enabled": ("unit/kvstore/test_codec.py", "enabled"),
    STORE + "codec_raw_bytes_total": ("unit/kvstore/test_codec.py", "raw_bytes"),
    STORE + "codec_stored_bytes_total": ("unit/kvstore/test_codec.py", "stored_bytes"),
    STORE + "device_up": ("unit/kvstore/nvme/test_devices.py", "state"),
    STORE + "device_errors_total": ("unit/kvstore/nvme/test_devices.py", "errors"),
    STORE + "device_corrupt_blocks_total": ("unit/kvstore/nvme/test_erasure.py", "corrupt_blocks"),
    STORE + "device_foreign_segments": ("unit/kvstore/nvme/test_restart.py", "foreign_segments"),
    STORE + "device_encrypted_blocks_total": ("unit/kvstore/nvme/test_encryption.py", "encrypted_blocks"),
    STORE + "device_open_failures_total": ("unit/kvstore/nvme/test_encryption.py", "open_failures"),
    STORE + "device_key_missing_blocks_total": ("unit/kvstore/nvme/test_erasure.py", "key_missing_blocks"),
    STORE + "device_clear_dropped_blocks_total": ("unit/kvstore/nvme/test_erasure.py", "clear_dropped_blocks"),
    INSIGHT + "skipped_prompts_total": ("unit/kvstore_insight/test_background.py", "skipped"),
    "kvterrace_inflight_marks_total": ("unit/kvstore/test_computing.py", "inflight_marks"),
    "kvterrace_inflight_broken_marks_total": ("unit/kvstore/test_computing.py", "inflight_broken"),
    "kvterrace_inflight_waits_total": ("unit/kvstore/test_computing.py", "inflight_waits"),
    "kvterrace_inflight_wait_seconds_total": ("unit/kvstore/test_computing.py", "inflight_wait_s"),
    "kvterrace_inflight_tokens_total": ("unit/kvstore/test_computing.py", "inflight_tokens"),
    "kvterrace_remote_failures_total": ("unit/kvstore_remote/test_directory.py", "counts.failures"),
    "kvterrace_remote_bad_objects_total": ("unit/kvstore_remote/test_directory.py", "bad_objects"),
    "kvterrace_remote_dropped_upload_blocks_total": ("unit/kvstore_remote/test_uploader.py", "dropped_uploads"),
    "kvterrace_remote_uploaded_blocks_total": ("unit/kvstore_remote/test_uploader.py", "uploaded_blocks"),
    "kvterrace_remote_present_blocks_total": ("unit/kvstore_remote/test_uploader.py", "present_blocks"),
    "kvterrace_remote_evicted_blocks_total": ("unit/kvstore_remote/test_directory.py", "evicted"),
    "kvterrace_remote_lookups_total": ("unit/kvstore_remote/test_sharing.py", "lookups"),
    "kvterrace_remote_ask_seconds": ("unit/kvstore_remote/test_sharing.py", "ask_s"),
    "kvterrace_remote_up": ("service/remote/test_servers.py", "tier.states()"),
}
# The same, by part: prefix of the metrics, file, and (metric, counter).
PARTS = (
    (
        "kvterrace_peer_",
        "unit/kvstore_peer/test_peer_tier.py",
        "read_bytes_total=read_bytes read_seconds_total=read_s fetches_total=fetches "
        "corrupt_blocks_total=corrupt_blocks in_flight_bytes=in_flight_bytes",
    ),
    (
        "kvterrace_peer_",
        "unit/kvstore_peer/test_fetching.py",
        "lent_blocks_total=lent_blocks lent_bytes_total=lent_bytes refused_fetches_total=counts.refused",
    ),
    (
        "kvterrace_peer_bulk_",
        "unit/kvstore_peer/test_bulk_channel.py",
        "sent_bytes_total=sent_bytes transfers_total=transfers broken_transfers_total=.broken "
        "refused_tickets_total=.refused turned_away_total=turned_away",
    ),
    ("kvterrace_peer_", "unit/kvstore_peer/test_peers.py", "up=peers.states()"),
    (
        "kvterrace_cluster_",
        "unit/kvstore_cluster/test_announcer.py",
        "announce_failures_total=announce_failures full_announces_total=full_announces backlog_marks=.backlog",
    ),
    (
        "kvterrace_cluster_",
        "service/cluster/test_trouble.py",
        "lost_total=counters.lost ignored_values_total=counters.ignored announced_marks_total=counters.announced",
    ),
    (
        "kvterrace_cluster_",
        "service/cluster/test_cluster.py",
        "withdrawn_marks_total=counters.withdrawn lookups_total=lookups",
    ),
    (
        "kvterrace_cluster_",
        "service/cluster/test_claims.py",
        "claims_total=counters.claimed claims_found_total=claims_found",
    ),
    (
        "kvterrace_cluster_",
        "service/cluster/test_node_metrics.py",
        "connected=connected joined=joined members=members round_trip_seconds=round_trip_seconds marks=marks "
        "hot_bytes=hot_bytes last_copy_bytes=last_copy_bytes hot_last_copy_bytes=hot_last_copy_bytes",
    ),
    ("kvterrace_cluster_", "unit/kvstore/test_replicas.py", "replica_bytes=replica_bytes"),
    (
        "kvterrace_cluster_",
        "unit/kvstore/test_stock.py",
        "taken_over_blocks_total=taken_blocks taken_over_bytes_total=taken_bytes refused_paths_total=counts.refused",
    ),
    ("kvterrace_security_", "unit/kvstore_security/test_tls.py", "refused_calls_total=refused_calls"),
    (
        "kvterrace_security_",
        "unit/kvstore_security/test_audit.py",
        "audit_records_total=audit.records audit_failures_total=audit.failures",
    ),
    ("kvterrace_events_", "unit/kvstore_events/test_feed.py", "snapshots_total=counts.snapshots"),
    ("kvterrace_hbm_", "unit/kvstore_events/test_hbm.py", "blocks=hbm.blocks ignored_blocks_total=hbm.dropped"),
    ("kvterrace_score_", "unit/kvstore_events/test_scores.py", "unanswered_total=unanswered"),
)
ELSEWHERE |= {
    prefix + name: (file, counter)
    for prefix, file, rows in PARTS
    for name, counter in (row.split("=") for row in rows.split())
}
