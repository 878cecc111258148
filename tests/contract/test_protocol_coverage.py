"""Every line of the protocol notes' §0, and every row of §11 for Delta tables, is held by tests that are there."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFORMANCE = "contract/test_conformance.py::our_server_keeps_every_promise_of_the_protocol"

HELD: dict[str, tuple[str, ...]] = {
    "§0.1 endStreamAction only when asked": (
        CONFORMANCE,
        "contract/test_wire.py::those_who_read_the_last_line_get_one",
    ),
    "§0.2 URLs have a signature's key that clients know": (
        CONFORMANCE,
        "contract/test_official_client.py::a_table_reads_as_it_was_written",
    ),
    "§0.3 no file:// URLs": (CONFORMANCE,),
    "§0.4 metaData.size, numFiles": (
        CONFORMANCE,
        "contract/test_official_client.py::metadata_carries_size_files_and_the_columns",
    ),
    "§0.5 deletionVectorFileId, p or i": (
        CONFORMANCE,
        "unit/server/tables/test_index_lines.py::deletion_vectors_are_sent_where_clients_find_them",
    ),
    "§0.6 Range is 206": (
        CONFORMANCE,
        "unit/server/access/test_server_bytes.py::a_range_gives_206_and_those_bytes",
    ),
    "§0.7 version header on every reply, pending too": (CONFORMANCE,),
    "§0.8 a failed async query is an HTTP error": (CONFORMANCE,),
    "§0.9 both spellings of the idempotency key": (
        "unit/server/protocol/test_query_requests.py::both_spellings_of_the_idempotency_key_are_taken",
    ),
    "§0.10 head lines of all pages are the same bytes": (
        "unit/server/tables/test_paging_query.py::every_page_begins_with_the_very_same_lines",
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
    ),
    "§0.11 booleans in any case": (
        "unit/server/protocol/test_query_requests.py::truth_may_be_spelt_in_any_case",
    ),
    "§0.12 profiles of version 1": (
        "unit/server/cli/test_server_commands.py::adding_a_recipient_writes_the_profile_it_needs",
    ),
    "§0.13 changes in delta format for the Python client": (
        "contract/test_client_changes.py::the_feed_is_that_of_the_table",
        "e2e/test_hostile_changes.py::changes_and_windows_are_those_of_spark_and_of_the_log",
    ),
    "§0.14 vectors and mapping in pages, windows and changes": (
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
        "e2e/test_hostile_changes.py::changes_and_windows_are_those_of_spark_and_of_the_log",
    ),
    "§0.15 no predicate loses rows": (
        "unit/server/tables/test_pruning_property.py::no_file_with_a_match_is_left_out_and_no_row_counts_that_does_not_match",
        CONFORMANCE,
    ),
    "§0.16 a refresh token pins the snapshot": (
        "unit/server/protocol/test_query_requests.py::a_refreshed_read_is_of_the_very_same_snapshot",
    ),
    "§0.17 stores beside AWS, Google and Azure; the local disk": (
        "integration/test_store_s3.py::a_url_opens_its_object_whole_and_by_range",
        "unit/server/access/test_server_bytes.py::get_gives_the_whole_file",
    ),
    "§0.18 row tracking whole or not at all": (
        "unit/server/protocol/test_negotiation.py::row_tracking_is_told_only_when_every_file_has_its_rows",
        "unit/server/changes/test_changes_with_features.py::row_tracking_is_passed_on_or_not_announced",
    ),
    "§0.19 lasting faults are 4xx": (
        CONFORMANCE,
        "e2e/test_hostile_tables.py::what_nobody_can_read_is_refused_as_the_tables_fault",
    ),
    "§0.20 the tables of upstream's tests, by their contents": (
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
        "e2e/test_hostile_changes.py::changes_and_windows_are_those_of_spark_and_of_the_log",
    ),
    "§11 All endpoints, HEAD version": (CONFORMANCE,),
    "§11 Share displayName, comment, properties": (CONFORMANCE,),
    "§11 accessModes, location in listings and metadata": (
        "integration/test_store_s3.py::a_folder_is_handed_out_where_the_operator_says_so_and_its_history_is_shared",
    ),
    "§11 Temporary credentials, prefix-scoped on all clouds": (
        "integration/test_store_s3.py::vended_keys_read_the_table_and_nothing_else",
        "unit/server/storage/test_temporary_credentials.py::googles_token_is_narrowed_to_the_folder",
        "unit/server/storage/test_temporary_credentials.py::azure_signs_for_one_directory_and_for_reading",
    ),
    "§11 startingTimestamp, version, timestamp everywhere": (
        "unit/server/protocol/test_query_requests.py::a_starting_time_means_the_first_version_from_it_on",
        "unit/server/protocol/test_query_requests.py::a_time_means_the_last_version_up_to_it",
    ),
    "§11 Metadata at version or timestamp": (
        "unit/server/protocol/test_query_requests.py::metadata_refuses_like_the_query",
        CONFORMANCE,
    ),
    "§11 Format negotiation incl. lists": (
        "unit/server/protocol/test_negotiation.py::shipped_clients_read_what_they_can",
        "unit/server/protocol/test_negotiation.py::what_parquet_can_carry_goes_out_in_it_unless_delta_alone_is_taken",
    ),
    "§11 Full reader-feature check with named missing features": (
        "unit/server/protocol/test_negotiation.py::delta_needs_every_feature_announced_and_no_other",
    ),
    "§11 Strip log-only features": (
        "unit/server/protocol/test_negotiation.py::recipients_are_not_told_how_the_log_is_kept",
    ),
    "§11 size, numFiles": (CONFORMANCE,),
    "§11 deletionVectorFileId, u to p, inline": (
        "unit/server/tables/test_index_lines.py::deletion_vectors_are_sent_where_clients_find_them",
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
    ),
    "§11 Vectors and mapping in streaming, CDF, paging": (
        "e2e/test_hostile_changes.py::changes_and_windows_are_those_of_spark_and_of_the_log",
        "unit/server/changes/test_changes_with_features.py::deletion_vectors_come_in_pairs_as_the_log_has_them",
    ),
    "§11 Row tracking pass-through": (
        "unit/server/tables/test_index_lines.py::what_a_log_says_of_rows_and_tags_is_passed_on",
    ),
    "§11 timestampNtz, type widening, variant": (
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
    ),
    "§11 v2 checkpoints, log compaction, absolute paths, shallow clones": (
        "unit/server/tables/test_delta_log.py::a_checkpoint_of_version_2_is_read_with_its_sidecars",
        "unit/server/tables/test_delta_log.py::a_compaction_is_read_instead_of_its_commits",
        "unit/server/tables/test_delta_replay.py::absolute_paths_are_one_file_in_any_spelling",
        "e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it",
    ),
    "§11 startingVersion windows, historical metadata and protocol": (
        "unit/server/changes/test_changes_as_in_the_log.py::a_window_is_what_the_log_says",
        "e2e/test_hostile_changes.py::changes_and_windows_are_those_of_spark_and_of_the_log",
    ),
    "§11 CDF incl. no-op MERGE rule, gaps": (
        "unit/server/changes/test_changes_as_in_the_log.py::a_merge_that_changed_no_row_is_not_in_the_feed",
        "unit/server/changes/test_changes_as_in_the_log.py::a_gap_in_the_feed_is_refused_by_range_and_version",
    ),
    "§11 Paging on query and changes, stable head lines": (
        "unit/server/tables/test_paging_query.py::all_pages_together_are_the_answer_in_one_piece",
        "unit/server/tables/test_paging_query.py::commits_between_pages_are_not_seen",
        "unit/server/changes/test_changes_index.py::pages_have_each_line_once",
    ),
    "§11 One unpaged streaming reply of any size": (
        "unit/server/app/test_server_process.py::the_first_files_leave_before_the_last_are_signed",
    ),
    "§11 Refresh token that pins the snapshot": (
        "unit/server/protocol/test_query_requests.py::a_refreshed_read_is_of_the_very_same_snapshot",
    ),
    "§11 errorMessage mid-stream": (
        "unit/server/app/test_server_process.py::whoever_reads_the_last_line_is_told_that_the_answer_broke_off",
        "unit/server/app/test_server_process.py::an_answer_that_breaks_off_does_not_look_whole",
    ),
    "§11 Real async queries": ("e2e/test_hostile_tables.py::a_table_reads_as_spark_reads_it", CONFORMANCE),
    "§11 fileidhash": (
        "contract/test_wire.py::the_scheme_of_file_ids_is_echoed",
        "contract/test_wire.py::ids_are_of_the_scheme_that_was_asked_for_whatever_the_format",
    ),
    "§11 Sound JSON predicate pruning": (
        "unit/server/tables/test_pruning_property.py::no_file_with_a_match_is_left_out_and_no_row_counts_that_does_not_match",
    ),
    "§11 SQL hints on partition columns": (
        "unit/server/routes/test_server_requests.py::sql_hints_leave_out_files",
    ),
    "§11 limitHint using numRecords minus deleted rows": (
        "unit/server/tables/test_paging_query.py::a_limit_is_filled_by_rows_that_readers_see",
    ),
    "§11 Case-insensitive names, booleans, capability keys": (
        "unit/server/routes/test_server_requests.py::names_are_found_in_any_case",
        "unit/server/routes/test_server_requests.py::capabilities_in_any_spelling_get_parquet",
    ),
    "§11 JSON bodies on errors, never a storage error": (
        "unit/server/routes/test_server_requests.py::what_is_not_part_of_the_protocol_is_refused_as_json",
        "integration/test_store_azure.py::wrong_keys_are_denied_and_shown_to_nobody",
    ),
    "§11 4xx for permanent faults": (
        "e2e/test_hostile_tables.py::what_nobody_can_read_is_refused_as_the_tables_fault",
    ),
    "§11 Bearer profiles of version 1, rotation, expiry": (
        "unit/server/cli/test_server_commands.py::adding_a_recipient_writes_the_profile_it_needs",
        "unit/server/access/test_server_access.py::access_ends_with_the_next_request",
    ),
    "§11 Several recipients, grants per share, 404 for ungranted": (
        "unit/server/access/test_server_access.py::ungranted_looks_exactly_like_unknown",
    ),
    "§11 S3-compatible endpoints, path style": (
        "integration/test_store_s3_keys.py::every_key_is_opened_by_its_url_and_by_no_other_signature",
    ),
    "§11 Azure identities and delegation, Google identities": (
        "integration/test_store_azure.py::a_url_opens_its_blob_whole_and_by_range",
        "integration/test_store_gcs.py::a_url_names_its_object",
    ),
    "§11 Local files with a signed http byte endpoint": (
        "unit/server/access/test_server_bytes.py::nothing_is_served_without_a_signature",
        "unit/server/access/test_server_bytes.py::head_gives_the_size_and_nothing_else",
    ),
    "§11 Range, 206 and HEAD at that endpoint, a key that clients know": (
        CONFORMANCE,
        "unit/server/access/test_server_bytes.py::a_range_gives_206_and_those_bytes",
        "unit/server/access/test_server_bytes.py::head_gives_the_size_and_nothing_else",
    ),
    "§11 Get Table with format": (CONFORMANCE,),
    "§11 Health, readiness, audit log": (
        "unit/server/app/test_server_process.py::it_is_not_ready_while_the_catalog_is_not_what_it_needs",
        "unit/server/catalog/test_server_audit.py::a_row_says_who_did_what_to_what_and_what_came_of_it",
    ),
}

# The rows of §11, in its order, that are promised for Delta tables: a promise does not end with its line above.
ROWS = (
    "All endpoints, HEAD version",
    "Share displayName, comment, properties",
    "accessModes, location in listings and metadata",
    "Temporary credentials, prefix-scoped on all clouds",
    "startingTimestamp, version, timestamp everywhere",
    "Metadata at version or timestamp",
    "Format negotiation incl. lists",
    "Full reader-feature check with named missing features",
    "Strip log-only features",
    "size, numFiles",
    "deletionVectorFileId, u to p, inline",
    "Vectors and mapping in streaming, CDF, paging",
    "Row tracking pass-through",
    "timestampNtz, type widening, variant",
    "v2 checkpoints, log compaction, absolute paths, shallow clones",
    "startingVersion windows, historical metadata and protocol",
    "CDF incl. no-op MERGE rule, gaps",
    "Paging on query and changes, stable head lines",
    "One unpaged streaming reply of any size",
    "Refresh token that pins the snapshot",
    "errorMessage mid-stream",
    "Real async queries",
    "fileidhash",
    "Sound JSON predicate pruning",
    "SQL hints on partition columns",
    "limitHint using numRecords minus deleted rows",
    "Case-insensitive names, booleans, capability keys",
    "JSON bodies on errors, never a storage error",
    "4xx for permanent faults",
    "Bearer profiles of version 1, rotation, expiry",
    "Several recipients, grants per share, 404 for ungranted",
    "S3-compatible endpoints, path style",
    "Azure identities and delegation, Google identities",
    "Local files with a signed http byte endpoint",
    "Range, 206 and HEAD at that endpoint, a key that clients know",
    "Get Table with format",
    "Health, readiness, audit log",
)


def names_in(path: Path) -> set[str]:
    """The names of a file's tests."""
    module = ast.parse(path.read_text())
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("promise", HELD)
def test_what_the_notes_number_has_tests(promise: str) -> None:
    for held_by in HELD[promise]:
        file, _, name = held_by.partition("::")
        assert f"test_{name}" in names_in(TESTS / file), held_by


def test_every_number_of_what_bites_is_there() -> None:
    numbers = {promise.split()[0] for promise in HELD}
    assert {f"§0.{number}" for number in range(1, 21)} <= numbers


def test_every_row_for_delta_tables_is_there() -> None:
    told = [promise.removeprefix("§11 ") for promise in HELD if promise.startswith("§11 ")]
    assert told == list(ROWS)
