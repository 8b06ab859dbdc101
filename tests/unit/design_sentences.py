"""Sentences of design documents 4 and 5, each with the test that shows it and quotes it in its docstring.

A test that shows a sentence adds it here. Source: design document 4, Description and Variants; 5, Solution Proposal and
Monitoring.
"""

from typing import Final

_HOLDING: Final = "unit/core/catalog/ddl/test_holding.py::"
_NAMES: Final = "unit/core/catalog/ddl/test_names.py::"
_CREATING: Final = "unit/core/catalog/ddl/test_creating.py::"

SENTENCES: Final[dict[str, str]] = {
    # Document 5, Solution Proposal
    "A HOLD can be created on indexes, materialized views, tables, and sources.": _HOLDING + "test_what_can_be_held",
    "It cannot exist on sinks or unmaterialized views.": _HOLDING + "test_what_cannot_be_held",
    "A HOLD on any non-index object will not also create the HOLD on any indexes of the object.": _HOLDING
    + "test_a_hold_on_an_object_is_none_on_its_indexes",
    "The objects the HOLD is created on do not need to be in the same schema or database.": _HOLDING
    + "test_objects_of_several_schemas_and_databases",
    "The HOLD can be created in any schema on which the user has a CREATE privilege": _HOLDING
    + "test_a_hold_is_made_where_the_role_may_create",
    "The user must have a SELECT privilege on all objects and a USAGE privilege on all affected clusters.": _HOLDING
    + "test_privileges_on_objects_and_clusters",
    "If AT <time> is specified, the read hold is created at that time.": _HOLDING + "test_a_hold_is_created_at_a_time",
    "For each object in the HOLD, the time must be in advance of that object's read frontier or any other HOLD's time "
    "on that object, otherwise an error occurs.": _HOLDING + "test_no_time_below_what_is_readable",
    "If AT <time> is not specified, Materialize automatically chooses the least valid read frontier among all objects "
    "of the HOLD.": _HOLDING + "test_without_a_time_it_is_the_least_valid_one",
    "A DROP will release its current read hold.": _HOLDING + "test_holds_are_dropped",
    "If TO <time> is specified, the new time will be created at that time.": _HOLDING + "test_advance_to_a_time",
    "For each object of the HOLD, the new time must be greater or equal to the lowest of all HOLDs (including this "
    "one) and the implied_capability. (This implies that a HOLD can go backward in time if another HOLD satisfies the "
    "above condition.)": _HOLDING + "test_how_far_back_an_advance_may_go",
    "If TO <time> is not specified, the new time is the least common physical read frontier of all objects named in "
    "the HOLD.": _HOLDING + "test_advance_without_a_time",
    "The MAX LAG option (required, but defaults to '3h') is a duration. Its upper bound is limited by a LD-configured "
    "setting.": _HOLDING + "test_max_lag_has_a_default_and_a_bound",
    "It is an error to DROP an object that is part of a HOLD unless the DROP is CASCADE.": _HOLDING
    + "test_an_object_in_a_hold_is_not_dropped",
    "If the DROP is CASCADE, any HOLDs on the dropped object are also dropped (even if the HOLD is also over other "
    "objects).": _HOLDING + "test_cascade_drops_the_whole_hold",
    "HOLDs cannot be mutated (objects added or removed) after creation, but they can be renamed in a transaction like "
    "other objects, and so can achieve the same goal.": _HOLDING
    + "test_holds_are_renamed_and_swapped_in_a_transaction",
    "In order to specify a HOLD on a new index or materialized view whose underlying object may have a long history, "
    "HOLDs support a special multi-statement DDL": _HOLDING + "test_an_index_or_view_begins_at_its_hold",
    "In a transaction, exactly one CREATE HOLD statement is allowed to follow a CREATE statement if the HOLD names "
    "exactly and only the created object.": _HOLDING + "test_one_hold_follows_one_create",
    # Document 5, Monitoring and Implementation of time tracking
    "To monitor HOLDs, a new mz_catalog.mz_holds table will be maintained with structure": _NAMES
    + "test_mz_holds_has_the_columns_of_the_design",
    "A mz_catalog.mz_hold_objects describes objects belonging to a HOLD": _NAMES
    + "test_mz_hold_objects_describes_what_belongs_to_a_hold",
    "The time will be stored in the catalog, so a DDL operation is performed.": _HOLDING
    + "test_the_time_is_stored_in_the_catalog",
    "Due to performance concerns of users simultaneously advancing many HOLDs at once, and DDLs needing to be "
    "serialized, we will batch all incoming ADVANCE requests.": _HOLDING + "test_many_advances_have_an_outcome_each",
    # Document 4, Description and Variants
    "At the points in the system at which it is possible to join different sources together, we will return an error "
    "to the user if there is more than one timeline present.": _CREATING
    + "test_create_view_is_refused_over_several_timelines",
    "This is implemented by adding a Timeline enum, and requiring sources and tables to provide their Timeline to the "
    "Coordinator.": _CREATING + "test_sources_and_tables_provide_their_timeline",
    "When a VIEW or SELECT is planned, its MirRelationExpr is crawled to discover all timelines.": _CREATING
    + "test_what_a_view_is_made_of_is_crawled",
    "EpochMilliseconds for anything producing timestamps near wall-clock now.": _CREATING
    + "test_variants_of_timelines",
    "Counter(struct) for Debezium consistency topics, with a struct to track broker/topic to tell apart different "
    "sources.": _CREATING + "test_variants_of_timelines",
    "External(String) for CDCv2 sources with the source's name attached, making a CDCv2 source only joinable with "
    "itself.": _CREATING + "test_variants_of_timelines",
    "User(String) for user-defined timelines by a name chosen by the user.": _CREATING + "test_variants_of_timelines",
    "All sources can specify WITH (timeline='some_name') to choose the User variant. This will group any set of "
    "sources together if users need to join CDCv2 and realtime sources, or multiple CDCv2 sources.": _CREATING
    + "test_all_sources_can_choose_a_timeline",
    "By default, a CDCv2 source is joinable only with itself. We do not allow them to join with even other CDCv2 "
    "sources because of side effects in linearizability and time domains, which might like to advance to the most "
    "recent time.": _CREATING + "test_a_source_that_brings_times_is_joined_with_itself_only",
    "CDCv2 sources have a special WITH (epoch_ms_timeline=true) syntax to put that source into the EpochMilliseconds "
    "timeline.": _CREATING + "test_a_source_may_claim_milliseconds",
}
"""A sentence, and the test: its path below ``tests``, and its name."""
