"""Every sentence of what design documents 4 and 5 propose, in their order, each with a test that shows and quotes it.

All of document 4's Description and Variants, and of 5's Solution Proposal and Monitoring: SECTIONS says which text the
sentences of each come to, so that none is left out; some of what 5 says of tracking time besides.
"""

from typing import Final

_HOLDING: Final = "unit/core/catalog/ddl/test_holding.py::"
_CREATING: Final = "unit/core/catalog/ddl/test_creating.py::"
_NAMES: Final = "unit/core/catalog/ddl/test_names.py::"
_SQL_HOLDS: Final = "client/sql/test_holds.py::"
_STATEMENTS: Final = "client/sql/reading/test_timelines.py::"
_PARSING: Final = "client/sql/test_parse.py::"
_CURSORS: Final = "client/collections/cursors/test_cursors.py::"
_LAG: Final = "control/test_lag.py::"
_READING_TIMELINES: Final = "client/collections/reading/test_timelines.py::"
_STRICT: Final = "client/collections/reading/test_strict.py::"
_READING: Final = "client/collections/reading/test_reading.py::"
_BROUGHT: Final = "ingest/pipeline/brought/test_brought_times.py::"
_TIMELINE: Final = "unit/core/time/test_timeline.py::"
_QUARANTINE: Final = "control/test_timelines.py::"
_SINCES: Final = "control/test_sinces.py::"
_TYPES: Final = "ingest/sources/test_registry.py::"

PROPOSAL: Final = {
    "Add a new HOLD object that acquires controller read holds on listed objects at a specific timestamp.": _SQL_HOLDS
    + "test_a_hold_is_created_advanced_and_dropped_by_its_user",
    "The HOLD must be manually advanced to newer timestamps by users which will release the previous and acquire "
    "a new read hold to the specified timestamp.": _SQL_HOLDS
    + "test_a_hold_is_created_advanced_and_dropped_by_its_user",
    "If the timestamp falls behind a configurable window, the HOLD is marked in an error state and the read holds"
    " are released.": _LAG + "test_on_lag_error_ends_it",
    "The HOLD can be created by: CREATE HOLD <name> ON <object1>[, <object2> ...] [AT <time>] [WITH ( MAX LAG = "
    "'3h'::INTERVAL, )]": _PARSING + "test_holds_are_written_as_the_design_writes_them",
    "A HOLD can be created on indexes, materialized views, tables, and sources.": _HOLDING + "test_what_can_be_held",
    "It cannot exist on sinks or unmaterialized views.": _HOLDING + "test_what_cannot_be_held",
    "If a HOLD exists for a directly queryable object (i.e., not indexes) at time t, SELECT and SUBSCRIBE on that"
    " object AS OF t will successfully execute.": _CURSORS + "test_select_and_subscribe_as_of_a_hold_and_before_it",
    "If a HOLD exists for an index, the same is true if the index satisfies the query.": _SQL_HOLDS
    + "test_a_hold_on_an_index_answers_what_the_index_satisfies",
    "A HOLD on any non-index object will not also create the HOLD on any indexes of the object.": _HOLDING
    + "test_a_hold_on_an_object_is_none_on_its_indexes",
    "An AS OF query will restrict the indexes or object it considers to those that are valid for the requested "
    "time.": _READING + "test_an_index_answers_where_its_base_does_not_reach_back_and_only_there",
    "The objects the HOLD is created on do not need to be in the same schema or database.": _HOLDING
    + "test_objects_of_several_schemas_and_databases",
    "The HOLD can be created in any schema on which the user has a CREATE privilege (see "
    "(Alternatives)[#Alternatives] for other takes on this).": _HOLDING
    + "test_a_hold_is_made_where_the_role_may_create",
    "The user must have a SELECT privilege on all objects and a USAGE privilege on all affected clusters.": _HOLDING
    + "test_privileges_on_objects_and_clusters",
    "Terminology side note: Both the compute and storage controllers expose a CollectionState with "
    "read_capabilities and implied_capability.": _SINCES + "test_a_frontier_that_is_told_knows_of_no_hold",
    "Although reading these are both exposed in the API, read_capabilities should never be read by the adapter, "
    "which should limit itself to reading only implied_capability.": _SINCES
    + "test_a_frontier_that_is_told_knows_of_no_hold",
    'When this document uses the term "read frontier", it is referring to the implied_capability.': _SINCES
    + "test_a_frontier_that_is_told_knows_of_no_hold",
    "If AT <time> is specified, the read hold is created at that time.": _HOLDING + "test_a_hold_is_created_at_a_time",
    "For each object in the HOLD, the time must be in advance of that object's read frontier or any other HOLD's "
    "time on that object, otherwise an error occurs.": _HOLDING + "test_no_time_below_what_is_readable",
    "We want to support safe swapping out of one HOLD for another, and since we only reference a collection's "
    "implied_capability (which is not aware of any read holds), it is necessary to call out specifically that "
    "other HOLDs times are valid for new HOLDs.": _SQL_HOLDS + "test_one_hold_takes_the_place_of_another",
    "If AT <time> is not specified, Materialize automatically chooses the least valid read frontier among all "
    "objects of the HOLD.": _HOLDING + "test_without_a_time_it_is_the_least_valid_one",
    "HOLDs are destroyed by: DROP HOLD <name>": _PARSING + "test_holds_are_written_as_the_design_writes_them",
    "A DROP will release its current read hold.": _LAG + "test_drop_releases",
    "In-progress SUBSCRIBEs and transactions will not be affected after a DROP, but will continue to run as "
    "expected.": _SQL_HOLDS + "test_what_reads_goes_on_when_a_hold_is_dropped",
    "Those will still be aquiring their own read holds in addition to the HOLD object.": _SQL_HOLDS
    + "test_what_reads_goes_on_when_a_hold_is_dropped",
    "Creating a HOLD will increase resource consumption (mostly memory) in proportion to the amount of time it is"
    " held for.": _SQL_HOLDS + "test_what_is_held_takes_room_until_the_hold_is_advanced",
    "Users must periodically advance the HOLD to a more recent time to allow for resources to be released.": _SQL_HOLDS
    + "test_what_is_held_takes_room_until_the_hold_is_advanced",
    "HOLDs are advanced by: ALTER HOLD <name> ADVANCE [TO <time>]": _PARSING
    + "test_holds_are_written_as_the_design_writes_them",
    "If TO <time> is specified, the new time will be created at that time.": _HOLDING + "test_advance_to_a_time",
    "For each object of the HOLD, the new time must be greater or equal to the lowest of all HOLDs (including "
    "this one) and the implied_capability.": _HOLDING + "test_how_far_back_an_advance_may_go",
    "(This implies that a HOLD can go backward in time if another HOLD satisfies the above condition.)": _HOLDING
    + "test_how_far_back_an_advance_may_go",
    "If TO <time> is not specified, the new time is the least common physical read frontier of all objects named "
    "in the HOLD.": _HOLDING + "test_advance_without_a_time",
    "The HOLD releases its current read hold and aquires a new read hold at the new time.": _SQL_HOLDS
    + "test_a_hold_is_created_advanced_and_dropped_by_its_user",
    "The MAX LAG option (required, but defaults to '3h') is a duration.": _HOLDING
    + "test_max_lag_has_a_default_and_a_bound",
    "Its upper bound is limited by a LD-configured setting.": _HOLDING + "test_max_lag_has_a_default_and_a_bound",
    "If difference between the write frontier of the objects and the HOLD time is greater than MAX LAG, the "
    "HOLD's time is automatically advanced to write frontier - MAX HOLD.": _LAG + "test_max_lag",
    "(Transactions and SUBSCRIBE are not affected, as in the ALTER HOLD ADVANCE case.)": _SQL_HOLDS
    + "test_a_hold_that_is_moved_for_its_lag_moves_no_reader",
    "SELECT and SUBSCRIBE AS OF a time that is before a HOLD's time will return a helpful error message that a "
    "HOLD exists but is in advance of the AS OF time.": _CURSORS
    + "test_select_and_subscribe_as_of_a_hold_and_before_it",
    "It is an error to DROP an object that is part of a HOLD unless the DROP is CASCADE.": _HOLDING
    + "test_an_object_in_a_hold_is_not_dropped",
    "If the DROP is CASCADE, any HOLDs on the dropped object are also dropped (even if the HOLD is also over "
    "other objects).": _HOLDING + "test_cascade_drops_the_whole_hold",
    "HOLDs cannot be mutated (objects added or removed) after creation, but they can be renamed in a transaction "
    "like other objects, and so can achieve the same goal.": _HOLDING
    + "test_holds_are_renamed_and_swapped_in_a_transaction",
    "In order to specify a HOLD on a new index or materialized view whose underlying object may have a long "
    "history, HOLDs support a special multi-statement DDL of the form BEGIN; CREATE INDEX i ...; CREATE HOLD ON "
    "i; COMMIT;": _SQL_HOLDS + "test_what_is_made_over_a_long_history_is_held_where_it_begins",
    "In a transaction, exactly one CREATE HOLD statement is allowed to follow a CREATE statement if the HOLD "
    "names exactly and only the created object.": _HOLDING + "test_one_hold_follows_one_create",
}

MONITORING: Final = {
    "To monitor HOLDs, a new mz_catalog.mz_holds table will be maintained with structure: • id text: the HOLD's "
    "id • schema_id text • name text • at uint8: the HOLD's time": _NAMES
    + "test_mz_holds_has_the_columns_of_the_design",
    "A mz_catalog.mz_hold_objects describes objects belonging to a HOLD • hold_id text: the HOLD's id • on_id "
    "text: the object's id": _NAMES + "test_mz_hold_objects_describes_what_belongs_to_a_hold",
}

DESCRIPTION: Final = {
    "From dataflow's perspective, a timestamp is an arbitrary number, and dataflow will do whatever it is "
    "instructed when asked to join indexes at a specific timestamp number.": _STATEMENTS
    + "test_a_number_is_read_whatever_it_means_and_names_are_not",
    "Most sources use something around wall-clock now when generating that number, so asking about the state of "
    "various indexes at time X will incur at most a very short (< 1 second) wait for the data to be ready.": _STATEMENTS
    + "test_what_is_of_now_is_hardly_waited_for",
    "A problem occurs when there is a source that generates timestamp numbers that may not be related to "
    "wall-clock now.": _TYPES + "test_two_types_bring_times_of_their_own",
    "The two in our system are Debezium consistency topics and CDCv2.": _TYPES
    + "test_two_types_bring_times_of_their_own",
    'Debezium consistency topics start their "timestamp" number at 1 and increment it for each transaction.': _BROUGHT
    + "test_debezium_counts_transactions",
    "If these sources are joined with wall-clock now sources, the dataflow layer will happily wait for the "
    "timestamps to be equal.": _STATEMENTS + "test_a_number_is_read_whatever_it_means_and_names_are_not",
    "For the Debezium sources, this would require waiting until there were as many transactions as milliseconds "
    "since the Unix epoch, which essentially will never happen.": _STATEMENTS
    + "test_a_number_is_read_whatever_it_means_and_names_are_not",
    "We should prevent this poor UX from happening to users.": _STATEMENTS
    + "test_a_number_is_read_whatever_it_means_and_names_are_not",
    "In addition to an infinite delay, there are cases where, even if the numbers were the same, they are "
    "meaningless when related to each other.": _STATEMENTS + "test_every_pair_is_answered_or_refused_at_once",
    "For example, two separate Debezium consistency topics.": _READING_TIMELINES
    + "test_two_of_one_variant_are_still_two_timelines",
    "Although they both start counting at 1 and thus have relatively close numbers, there's no meaning in the "
    "transaction counter, and joining data on that will not produce results that are meaningful.": _READING_TIMELINES
    + "test_two_of_one_variant_are_still_two_timelines",
    "We should inform users when they attempt to join data from differing timelines that they have not asked us a"
    " useful question.": _READING_TIMELINES + "test_two_of_one_variant_are_still_two_timelines",
    "The third concern is linearizability.": _READING_TIMELINES + "test_a_transaction_reads_its_timedomain_at_one_time",
    "We would like to provide that property when users issue SELECT queries.": _READING_TIMELINES
    + "test_a_transaction_reads_its_timedomain_at_one_time",
    "If we can distinguish the meaning of timestamps across data, we can provide linearizability across sources "
    "correctly.": _READING_TIMELINES + "test_a_transaction_reads_its_timedomain_at_one_time",
    "(This will be described with more detail in a later doc.)": _STRICT
    + "test_reads_of_several_tables_are_strictly_serializable",
    "A solution to this problem is to inform the system what the timestamp number means for all data, and allow "
    "the system to reject queries that request data from multiple meanings.": _READING_TIMELINES
    + "test_the_error_names_each_object_its_timeline_and_the_way_to_it",
    "We introduce a thing called a timeline which is the meaning of the timestamp number.": _TIMELINE
    + "test_the_text_names_the_timeline",
    "At the points in the system at which it is possible to join different sources together, we will return an "
    "error to the user if there is more than one timeline present.": _READING_TIMELINES
    + "test_every_pair_of_timelines_is_answered_or_refused_at_once",
    "There are two places where this can occur: CREATE VIEW and SELECT.": _STATEMENTS
    + "test_every_pair_is_answered_or_refused_at_once",
    "These have been taught to check that their expression depends at most one timeline.": _STATEMENTS
    + "test_every_pair_is_answered_or_refused_at_once",
    "Other operations that can create dataflow indexes (TAIL, CREATE SOURCE, CREATE SINK, CREATE INDEX) operate "
    "on existing views, and are thus unable to create dataflows from multiple timelines.": _STATEMENTS
    + "test_what_is_on_one_object_is_in_its_timeline",
    "This is implemented by adding a Timeline enum, and requiring sources and tables to provide their Timeline to"
    " the Coordinator.": _CREATING + "test_sources_and_tables_provide_their_timeline",
    "When a VIEW or SELECT is planned, its MirRelationExpr is crawled to discover all timelines.": _CREATING
    + "test_what_a_view_is_made_of_is_crawled",
    "Variants of Timeline: • EpochMilliseconds for anything producing timestamps near wall-clock now.": _CREATING
    + "test_variants_of_timelines",
    "• Counter(struct) for Debezium consistency topics, with a struct to track broker/topic to tell apart "
    "different sources.": _CREATING + "test_variants_of_timelines",
    "• External(String) for CDCv2 sources with the source's name attached, making a CDCv2 source only joinable "
    "with itself.": _CREATING + "test_variants_of_timelines",
    "• User(String) for user-defined timelines by a name chosen by the user.": _CREATING + "test_variants_of_timelines",
    "All sources can specify WITH (timeline='some_name') to choose the User variant.": _CREATING
    + "test_all_sources_can_choose_a_timeline",
    "This will group any set of sources together if users need to join CDCv2 and realtime sources, or multiple "
    "CDCv2 sources.": _CREATING + "test_all_sources_can_choose_a_timeline",
    "By default, a CDCv2 source is joinable only with itself.": _CREATING
    + "test_a_source_that_brings_times_is_joined_with_itself_only",
    "We do not allow them to join with even other CDCv2 sources because of side effects in linearizability and "
    "time domains, which might like to advance to the most recent time.": _CREATING
    + "test_a_source_that_brings_times_is_joined_with_itself_only",
    "CDCv2 sources have a special WITH (epoch_ms_timeline=true) syntax to put that source into the "
    "EpochMilliseconds timeline.": _CREATING + "test_a_source_may_claim_milliseconds",
    "Since we don't verify that the timestamps are indeed milliseconds from the epoch in this case, features that"
    " use this timeline (linearizability or transaction time domains, for example) will need to protect against "
    "data problems (for example, a CDCv2 source that is in the wrong units or has timezone errors, or is "
    "otherwise ahead or behind by many minutes).": _QUARANTINE
    + "test_a_source_whose_milliseconds_are_not_of_now_is_quarantined",
}

TRACKING: Final = {
    "The time will be stored in the catalog, so a DDL operation is performed.": _HOLDING
    + "test_the_time_is_stored_in_the_catalog",
    "Due to performance concerns of users simultaneously advancing many HOLDs at once, and DDLs needing to be "
    "serialized, we will batch all incoming ADVANCE requests.": _HOLDING + "test_many_advances_have_an_outcome_each",
}

SECTIONS: Final = (
    (PROPOSAL, "6e70c69bb1b73c81ff42be3398cab980e7b7d202926e6f73fe17efad5e5b44f8"),
    (MONITORING, "672113de802158b352333c92e4fbc947710525f0d3e2b41f59183283f43d9957"),
    (DESCRIPTION, "f83aea9462305877c5b912d945d87429569232bfb199b091bd2171f18b8e030e"),
)
"""Sentences of a section, and the SHA-256 of its text, all whitespace of which is one space."""

SENTENCES: Final[dict[str, str]] = {**PROPOSAL, **MONITORING, **DESCRIPTION, **TRACKING}
"""A sentence, and the test: its path below ``tests``, and its name."""
