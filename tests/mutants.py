"""Does a test fail when a guard is removed?

    python tests/mutants.py            every guard, one after the other (`make mutants`)
    python tests/mutants.py fence head only those whose name contains one of the words

Each mutant is a copy of the package with one guard taken out. The tests that should notice run against the copy, and
one of them has to fail that passes where the guard is. A guard whose removal nobody notices is a promise without a
proof; one about which nothing is known, since its tests took too long or fail anyway, counts as such.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIMIT = 300  # seconds that the tests of one mutant may take; a test that waits for ever fails before
AT_ONCE = 2  # mutants


@dataclass(frozen=True)
class Mutant:
    """In ``file`` the text ``guard`` becomes ``gone``; one of ``tests`` has to notice."""

    name: str
    file: str
    guard: str
    gone: str
    tests: tuple[str, ...]


class Verdict(NamedTuple):
    """``why`` of one that was caught is the test that did it."""

    verdict: str
    why: str


MUTANTS = (
    Mutant(
        "http: who steers a run does not approve what it does",
        "queries.py",
        "return [run_row(rows, run).door, *(door for (door,) in joined)]",
        "return [run_row(rows, run).door]",
        ("tests/http/test_access.py::test_whoever_steers_a_run_does_not_approve_what_it_does",),
    ),
    Mutant(
        "http: a place in a list of runs is of the caller's own",
        "http/service.py",
        "if before is not None and caller.user is not None:",
        "if False:",
        ("tests/http/test_access.py::test_what_is_somebody_elses_is_not_there",),
    ),
    Mutant(
        "console: who is bound to a user is not told how much waits for others",
        "http/service.py",
        "queries.count_open_asks, caller.tenant, caller.user, limit)",
        "queries.count_open_asks, caller.tenant, None, limit)",
        ("tests/http/console/test_pages.py::test_home_counts_what_is_behind_its_page",),
    ),
    Mutant(
        "console: a form sends back what was there",
        "http/console/shown.py",
        'lambda character: f"&#{ord(character)};"',
        "None",
        ("tests/http/console/test_hostile.py::test_a_form_sends_back_what_was_there_also_what_cannot_be_seen",),
    ),
    Mutant(
        "cancel: a process that ends waits for what it asked to end, and not for ever",
        "worker.py",
        "            await unwound()\n",
        "            pass\n",
        ("tests/promise/test_cancel.py::test_b08_c_a_call_that_ignores_its_end_does_not_keep_the_process",),
    ),
    Mutant(
        "http: nothing large is taken of somebody who is not known",
        "http/guard.py",
        "        if unknown:\n",
        "        if False:\n",
        ("tests/http/test_failing.py::test_of_whom_nothing_is_known_no_more_is_taken_than_a_form_to_sign_in_has",),
    ),
    Mutant(
        "http: methods that are made up are counted as one",
        "http/metrics.py",
        'scope["method"] in _NAMED else',
        'scope["method"] else',
        ("tests/http/test_failing.py::test_methods_that_are_made_up_leave_nothing_behind",),
    ),
    Mutant(
        "http: a body that does not come to its end is no fault of the server",
        "http/guard.py",
        'if message["type"] == "http.disconnect":\n            raise',
        "if False:\n            raise",
        ("tests/http/test_failing.py::test_a_client_that_is_gone_before_its_body_is_there_is_no_fault_of_ours",),
    ),
    Mutant(
        "http: a long text in a body takes no memory beside it",
        "http/guard.py",
        """rb'"[^"\\\\]*+(?:\\\\.[^"\\\\]*+)*+"?|""",
        """rb'"(?:[^"\\\\]|\\\\.)*"?|""",
        ("tests/http/test_refusals.py::test_a_long_text_is_passed_over_in_the_memory_that_it_has",),
    ),
    Mutant(
        "console: who presses Enter in a field has decided nothing",
        "http/console/templates/parts.html",
        "<button disabled hidden></button>",
        "",
        ("tests/http/console/test_pages.py::test_every_page_can_be_found_ones_way_about",),
    ),
    Mutant(
        "effects: that a repeat did nothing proves nothing of the attempts before it",
        "effects.py",
        "if not effect.is_write or (not_done and not is_repeat):",
        "if not effect.is_write or not_done:",
        ("tests/promise/test_effects.py::test_not_done_proves_nothing_of_the_attempts_before_it",),
    ),
    Mutant(
        "steer: who is resumed after it joined takes its host up",
        "transactions/accepting.py",
        '    if run.state == "joined":\n        (rows,) = yield',
        "    if False:\n        (rows,) = yield",
        ("tests/promise/test_steer.py::test_when_its_host_fails_it_has_failed_and_both_are_told_of",),
    ),
    Mutant(
        "cli: a parked run is not taken up by a command that has not its agent",
        "cli/runs.py",
        "if app is not None and isinstance(rt, Runtime) and run.agent not in rt.agents:",
        "if False:",
        ("tests/cli/test_looking.py::test_a_parked_run_stays_parked_where_it_cannot_go_on",),
    ),
    Mutant(
        "effects: an attempt that waited is judged once more",
        "calls.py",
        "if after and not isinstance(verdict := self._verdict_now(effect, tool), effects.Run):",
        "if after and not isinstance(verdict := effects.Run(), effects.Run):",
        (
            "tests/promise/test_effects.py"
            "::test_a_key_that_grows_too_old_while_its_next_attempt_waits_is_not_used_again",
            "tests/promise/test_effects.py"
            "::test_a_once_call_that_waits_for_a_deadline_is_held_if_a_sibling_becomes_unknown_meanwhile",
        ),
    ),
    Mutant(
        "effects: a key that grew too old since the start is not sent",
        "calls.py",
        "within = (end - self.drive.now()) / 1e6",
        "within = None",
        ("tests/promise/test_effects.py::test_a_key_that_grows_too_old_between_start_and_dispatch_is_not_used_again",),
    ),
    Mutant(
        "effects: the life of a key is no limit to what a person allowed",
        "effects.py",
        'if effect.attempt - effect.granted <= 1 or _stricter(effect, rules) != "idempotent":',
        'if _stricter(effect, rules) != "idempotent":',
        ("tests/promise/test_effects.py::test_a_key_that_grows_too_old_between_start_and_dispatch_is_not_used_again",),
    ),
    Mutant(
        "sessions: a delete that is refused has cancelled nothing",
        "runtime.py",
        "if expected_revision is not None and expected_revision != seen.revision:",
        "if False:",
        (
            "tests/promise/test_revision.py"
            "::test_a_session_is_deleted_with_its_runs_from_the_revision_that_its_caller_has_seen",
        ),
    ),
    Mutant(
        "sessions: a turn that is committed meanwhile is not deleted unseen",
        "runtime.py",
        "return now.revision if now == same else seen.revision",
        "return now.revision",
        (
            "tests/promise/test_revision.py"
            "::test_a_turn_that_is_committed_as_its_session_is_to_be_deleted_is_not_erased_unseen",
        ),
    ),
    Mutant(
        "sessions: what waits in one that is deleted does not begin",
        "runtime.py",
        'for state in ("queued", "waiting", "running", "parked"):',
        'for state in ("parked", "waiting", "queued", "running"):',
        (
            "tests/promise/test_queue.py"
            "::test_a_session_that_is_deleted_with_its_runs_begins_none_of_those_that_waited_in_it",
        ),
    ),
    Mutant(
        "store: a file that was emptied is not made anew",
        "stores/sqlite.py",
        "if emptied and not _is_made_now(connection):",
        "if False:",
        ("tests/promise/test_store.py::test_b17_a_store_that_cannot_be_read_is_refused_named_and_left_as_it_is",),
    ),
    Mutant(
        "store: a file with two names has no two logs",
        "stores/sqlite.py",
        "if path.exists() and (names := path.stat().st_nlink) > 1:",
        "if names := 0:",
        ("tests/promise/test_store.py::test_b17_a_store_that_cannot_be_read_is_refused_named_and_left_as_it_is",),
    ),
    Mutant(
        "store: the log of a file that was emptied is not thrown away",
        "stores/sqlite.py",
        "if _is_empty(path) and log_file.exists() and log_file.stat().st_size:",
        "if False:",
        ("tests/promise/test_store.py::test_b17_a_store_that_is_empty_while_its_log_is_there_is_not_made_anew",),
    ),
    Mutant(
        "claims: who waits where a run was lost hears how it ended",
        "worker.py",
        "self.streams.taken(run)",
        "pass",
        ("tests/promise/test_zombie.py::test_who_waits_in_a_process_that_lost_its_run_hears_how_it_ended",),
    ),
    Mutant(
        "claims: a run is driven in the context of who opened the runtime",
        "worker.py",
        ", self._context.copy())",
        ")",
        (
            "tests/promise/test_effects.py::test_a_tool_sees_the_context_variables_of_who_opened_the_runtime_and_of_no_request",
        ),
    ),
    Mutant(
        "clock: a stored zone that nobody here knows is UTC",
        "clock.py",
        "    except InvalidInput:  # named where",
        "    except KeyError:  # named where",
        ("tests/cases/test_c43_whose_today.py", "tests/rules/test_shown_time.py"),
    ),
    Mutant(
        "hearing: a model that cancels its task has failed",
        "hearing.py",
        "if asking.future.cancelled():",
        "if False:",
        (
            "tests/promise/test_gaps.py::test_a_model_that_cancels_its_task_has_failed_and_is_asked_no_more_often_than_others",
        ),
    ),
    Mutant(
        "cancellation: what cancels its task ends nobody who waits for it",
        "cancellation.py",
        "return cancelled if self.future.cancelled() else self.future.result()",
        "return self.future.result()",
        (
            "tests/promise/test_gaps.py::test_a_toolset_that_cancels_its_task_has_found_nothing",
            "tests/promise/test_gaps.py::test_a_check_that_cancels_its_task_cannot_tell",
        ),
    ),
    Mutant(
        "sqlite: who was left behind by its event loop drives no more",
        "stores/sqlite.py",
        "self._loop is not None and self._loop.is_closed():",
        "False:",
        ("tests/promise/test_gaps.py::test_a_runtime_that_was_left_open_in_an_event_loop_that_ended_holds_up_nobody",),
    ),
    Mutant(
        "sqlite: whoever holds a lock file that has no name any more does not drive",
        "stores/sqlite.py",
        "if self._lock is not None and not _has_its_name(self._lock):",
        "if False and self._lock is not None:",
        (
            "tests/stores/test_sqlite_processes.py::test_of_two_processes_one_drives_also_where_the_lock_file_was_removed",
        ),
    ),
    Mutant(
        "runtime: it is open once",
        "runtime.py",
        "if not self._opened.acquire(blocking=False):",
        "if self._engine is not None:",
        ("tests/promise/test_gaps.py::test_a_runtime_is_open_once_however_many_open_it_at_the_same_moment",),
    ),
    Mutant(
        "runtime: it is used from its own event loop only",
        "runtime.py",
        "if self._loop is not asyncio.get_running_loop():",
        "if False:",
        ("tests/promise/test_gaps.py::test_from_another_event_loop_a_runtime_is_refused_before_anything_is_written",),
    ),
    Mutant(
        "postgres: a pooler is known by what it has forgotten, too",
        "stores/postgres_place.py",
        "if was_taken or not taken:",
        "if was_taken:",
        (
            "tests/stores/test_postgres_admin.py::"
            "test_a_pooler_that_gives_each_transaction_a_connection_of_its_own_is_refused",
        ),
    ),
    Mutant(
        "postgresql: a database that cannot hold every text is refused",
        "stores/postgres_place.py",
        "if encoding not in _ENCODINGS:",
        "if False:",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "runtime: a tool does not wait for what waits for it",
        "worker.py",
        "!= (run.tenant, run.session):",
        "!= (run.tenant, ''):",
        ("tests/promise/test_queue.py::test_a_tool_that_waits_for_a_run_behind_its_own_is_told_at_once",),
    ),
    Mutant(
        "tools: one inside of a decorator is refused",
        "tools.py",
        "if (inner := _tool_inside(function)) is not None:",
        "if (inner := _tool_inside(function)) is not None and False:",
        ("tests/rules/test_tools.py",),
    ),
    Mutant(
        "tools: what a decorator makes async is awaited",
        "tools.py",
        "inspect.unwrap(function, stop=inspect.iscoroutinefunction)",
        "inspect.unwrap(function)",
        ("tests/rules/test_tools.py",),
    ),
    Mutant(
        "claims: what is held by somebody who cannot drive is taken over",
        "worker.py",
        "if lost and await",
        "if False and await",
        ("tests/stores/test_postgres_processes.py",),
    ),
    Mutant(
        "postgresql: who makes a session is alone with it",
        "stores/postgres_statements.py",
        "            if name == _MAY_MAKE_IT:",
        "            if False:",
        ("tests/stores/test_postgres_locks.py",),
    ),
    Mutant(
        "postgresql: who ends a run that is held lets nothing come between",
        "transactions/ending.py",
        'if held is None and run.state == "running":',
        "if False:",
        ("tests/stores/test_postgres_locks.py",),
    ),
    Mutant(
        "postgresql: synchronous_commit is switched on where it is off",
        "stores/postgres_place.py",
        "CASE now.now WHEN 'off' THEN 'on'",
        "CASE now.now WHEN '' THEN 'on'",
        ("tests/torture/test_server.py::test_a_server_that_goes_down_under_sixteen_writers_loses_nothing",),
    ),
    Mutant(
        "postgresql: who reads waits for a server that is away",
        "stores/postgres.py",
        "wire = wire or Wire(self._connector.connect())",
        "wire = wire or Wire(self.place.connect())",
        ("tests/stores/test_postgres_commit.py::test_a_server_that_is_away_for_a_moment_is_waited_for",),
    ),
    Mutant(
        "postgresql: the planner of a new database is told what to expect",
        "stores/postgres_migrations/0013_pre.sql",
        "  IF EXISTS (SELECT 1 FROM tenants) THEN\n",
        "  IF true THEN\n",
        (
            "tests/stores/test_postgres_statements.py::test_what_is_named_is_found_without_a_look_through_all_of_a_tenant",
        ),
    ),
    Mutant(
        "postgresql: a lost COMMIT is read back",
        "stores/postgres_writer.py",
        "            if read is None:\n                raise  # it",
        "            raise  # it",
        ("tests/stores/test_postgres_commit.py::test_a_write_cut_off_at_commit_is_done_once",),
    ),
    Mutant(
        "erased: what fails on a turn that was erased meanwhile is not kept",
        "transactions/statements.sql",
        "AND m.run = outbox.run) THEN :error END",
        "AND m.run = outbox.run) THEN :error ELSE :error END",
        ("tests/promise/test_erasing.py::test_who_learns_from_a_turn_as_it_is_erased_leaves_no_word_of_it",),
    ),
    Mutant(
        "postgresql: what fails on a turn comes before it is erased, or after that",
        "stores/postgres_statements.py",
        '    "outbox.set": "lock.outbox",\n',
        "",
        ("tests/stores/test_postgres_locks.py::test_what_fails_on_a_turn_while_another_process_erases_it_is_not_kept",),
    ),
    Mutant(
        "postgresql: what a tool says late comes before its turn is erased, or after that",
        "stores/postgres_statements.py",
        '    "effect.late": "lock.run",\n',
        "",
        (
            "tests/stores/test_postgres_locks.py::test_what_a_tool_says_late_while_another_process_erases_its_turn_is_not_kept",
        ),
    ),
    Mutant(
        "outbox: of several processes one takes a message",
        "deliveries.py",
        "        if len(await self.store.drivers()) < 2:",
        "        if True:",
        ("tests/stores/test_postgres_outbox.py::test_what_one_process_tells_another_does_not_tell_beside_it",),
    ),
    Mutant(
        "outbox: who took a message and tells it for long keeps it",
        "deliveries.py",
        "        while taken is not None:",
        "        while False:",
        ("tests/stores/test_postgres_outbox.py::test_what_one_process_tells_another_does_not_tell_beside_it",),
    ),
    Mutant(
        "checksum: a run that lacks a message of its own is not driven",
        "runner.py",
        "        if missing := journal.missing_messages(self.state, claimed.bodies.keys()):",
        "        if missing := []:",
        ("tests/stores/test_sqlite_damage.py",),
    ),
    Mutant(
        "checksum: a turn is not had where what was said before is missing",
        "histories.py",
        "            check_whole(session, new, until)\n",
        "",
        ("tests/stores/test_sqlite_damage.py",),
    ),
    Mutant(
        "eager: what has to begin later is no task of the application's kind",
        "cancellation.py",
        "    return asyncio.Task(work, loop=asyncio.get_running_loop(), context=context)",
        "    return asyncio.create_task(work, context=context)",
        ("tests/promise/test_gaps.py::test_an_application_may_make_its_tasks_eager",),
    ),
    Mutant(
        "erased: a turn is made findable before it is erased, or not at all",
        "transactions/indexing.py",
        """yield [("space.take", space.key | {"docs": 0}) for space in spaces]""",
        """yield [("space.get", space.key) for space in spaces]
    spaces, taken = [s for s, rows in zip(spaces, taken) if rows], [rows for rows in taken if rows]""",
        (
            "tests/stores/test_postgres_locks.py::test_a_turn_that_one_process_makes_findable_while_another_erases_it_is_not_found",
        ),
    ),
    Mutant(
        "erased: a run does not show again what it summed up and was erased meanwhile",
        "transactions/driving.py",
        "    if seen is not None and committed[0][2] == session.created_at:",
        "    if seen is not None:",
        ("tests/promise/test_erasing.py::test_a_summary_is_not_shown_where_what_it_tells_of_was_erased_meanwhile",),
    ),
    Mutant(
        "erased: nobody shows again what they summed up by hand and was erased meanwhile",
        "transactions/sessions.py",
        "    if found.created_at != of.created_at:",
        "    if False:",
        ("tests/promise/test_erasing.py::test_a_summary_is_not_shown_where_what_it_tells_of_was_erased_meanwhile",),
    ),
    Mutant(
        "erased: nothing is learned from a turn that was erased meanwhile",
        "transactions/outbox.py",
        "    if moved and moved[0][0] and scope is not None:",
        "    if moved and scope is not None:",
        ("tests/promise/test_erasing.py::test_who_learns_from_a_turn_as_it_is_erased_leaves_no_word_of_it",),
    ),
    Mutant(
        "postgresql: what a last batch read is read again where its answer was lost",
        "stores/postgres_writer.py",
        "if postgres_statements.only_reads(statement)",
        "if not statement",
        ("tests/stores/test_postgres_commit.py::test_a_write_cut_off_at_commit_is_done_once",),
    ),
    Mutant(
        "postgresql: what was believed lost cannot come later",
        "stores/postgres.sql",
        "ELSE :given_up END",
        "ELSE writers.n END",
        (
            "tests/stores/test_postgres_commit.py"
            "::test_a_transaction_that_reaches_the_server_after_it_was_believed_lost_is_refused",
        ),
    ),
    Mutant(
        "postgresql: nothing is durable that stands on rows which did not come",
        "stores/postgres_statements.py",
        "FROM it WHERE it::text = :{_FORESEEN}",
        "FROM it",
        ("tests/stores/test_postgres_groups.py",),
    ),
    Mutant(
        "memory: a search reads the facts of its scope alone",
        "lookups.py",
        "yield from candidates(scope.space, query)\n    if found is None:\n        return []\n    at = scope.key",
        "yield from candidates(scope.space._replace(user_id='a'), query)\n    if found is None:\n        return []\n"
        "    at = {**scope.key, 'user_id': 'a'}",
        ("tests/cases/test_c25_whose_memory.py::test_each_sees_its_own_fact_and_no_other_by_any_way",),
    ),
    Mutant(
        "memory: a fact is changed within its scope alone",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND id = :id AND agent = :agent AND user_id = :user_id",
        "WHERE tenant = :tenant AND id = :id",
        ("tests/cases/test_c25_whose_memory.py::test_no_id_opens_a_fact_of_another_scope",),
    ),
    Mutant(
        "memory: a part of the scope that is missing is an error",
        "facts.py",
        "        if not value:\n",
        "        if value is ...:\n",
        ("tests/promise/test_memory.py::test_nonsense_is_refused",),
    ),
    Mutant(
        "memory: a run of an agent with a memory has a user",
        "runtime.py",
        "if served.agent.memory is not None and user is None:",
        "if False:",
        ("tests/promise/test_memory.py::test_a_run_without_a_user_is_refused_before_anything_is_stored",),
    ),
    Mutant(
        "memory: what a fork shares is not remembered again",
        "journal.py",
        "self.effects[call].step >= shared)",
        "self.effects[call].step >= 0)",
        ("tests/promise/test_memory.py::test_a_fork_does_not_remember_again_what_the_first_run_remembered",),
    ),
    Mutant(
        "memory: what a turn saw from outside marks what it remembers",
        "recalling.py",
        "redact(values.valid(fact)), self.run.sees_outside()])",
        "redact(values.valid(fact)), False])",
        ("tests/promise/test_memory.py::test_a_fact_of_a_turn_that_saw_content_from_outside_is_marked_and_shown_so",),
    ),
    Mutant(
        "memory: what was shown and is marked marks what is remembered after it",
        "recalling.py",
        "if any(r[-1] for r in (",
        "if any(False for r in (",
        ("tests/promise/test_memory.py::test_a_fact_of_a_turn_that_saw_content_from_outside_is_marked_and_shown_so",),
    ),
    Mutant(
        "memory: a fact whose time is over is not found",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND space = :space AND doc = :doc AND agent = :agent\n  AND user_id = :user_id AND "
        "(expires_at IS NULL OR expires_at > :now)",
        "WHERE tenant = :tenant AND space = :space AND doc = :doc AND agent = :agent\n  AND user_id = :user_id AND "
        "(expires_at IS NULL OR :now > 0)",
        ("tests/promise/test_memory.py::test_a_fact_expires_and_is_removed_unless_it_is_said_again",),
    ),
    Mutant(
        "memory: the next page is behind a place, and not behind a fact that may be erased",
        "facts.py",
        "str(rows[limit - 1].doc) if",
        "rows[limit - 1].id if",
        (
            "tests/promise/test_memory.py::test_an_export_goes_on_where_it_was_when_facts_are_erased_meanwhile",
            "tests/http/test_memory.py::test_pages_go_on_where_they_were_when_facts_are_erased_meanwhile",
        ),
    ),
    Mutant(
        "memory: a list that cannot go on does not begin anew",
        "lookups.py",
        "    if not rows:\n        raise NotFound(",
        "    if not rows:\n        return 2**60\n        raise NotFound(",
        (
            "tests/promise/test_memory.py::"
            "test_a_list_goes_on_behind_a_fact_that_is_over_and_says_so_where_it_is_erased",
        ),
    ),
    Mutant(
        "memory: a fact that is erased takes its terms with it",
        "transactions/remembering.py",
        '        *unposted(row.tenant, row.space, row.doc, row.checked_text()),\n        ("vector.delete"',
        '        ("vector.delete"',
        ("tests/promise/test_memory.py::test_a_fact_expires_and_is_removed_unless_it_is_said_again",),
    ),
    Mutant(
        "search: a history is of one user",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND user_id = :user_id AND n > :indexed AND base IS NOT NULL",
        "WHERE tenant = :tenant AND :user_id = :user_id AND n > :indexed AND base IS NOT NULL",
        (
            "tests/promise/test_search.py::test_what_was_said_in_the_session_is_found_and_nothing_of_another_user_or_session",
        ),
    ),
    Mutant(
        "search: a history is gone through once",
        "transactions/indexing.py",
        '"indexed": max(indexed, behind)',
        '"indexed": indexed',
        ("tests/promise/test_search.py::test_a_long_history_is_gone_through_once_when_it_is_first_searched",),
    ),
    Mutant(
        "search: a run that may complete later is looked at again",
        "transactions/statements.sql",
        "(retryable <> 0 OR state IN ('queued', 'running', 'waiting', 'parked'))",
        "retryable <> 0",
        ("tests/promise/test_search.py::test_a_run_that_is_not_completed_is_not_found_and_one_that_completes_late_is",),
    ),
    Mutant(
        "search: a deleted session is taken out of what is searched",
        "transactions/sessions.py",
        "    yield from forget_session(tenant, session)\n",
        "",
        ("tests/promise/test_search.py::test_a_session_that_is_deleted_is_not_found_and_leaves_no_term",),
    ),
    Mutant(
        "search: a long session is deleted in many transactions",
        "transactions/indexing.py",
        "    if len(page) < _RUNS:\n",
        "    if True:\n",
        ("tests/promise/test_search.py::test_a_long_session_goes_from_the_index_in_many_steps",),
    ),
    Mutant(
        "search: a session that is not deleted after all is found again",
        "transactions/indexing.py",
        '    yield [("space.not_indexed", taken[number].key | {"after": after}) for number in numbers]\n',
        "",
        ("tests/promise/test_search.py::test_a_long_session_whose_deletion_breaks_off_is_found_again",),
    ),
    Mutant(
        "search: a long session is taken out of it in many steps",
        "transactions/indexing.py",
        "            if len(writes) >= _WRITES:\n                yield writes\n                writes = []\n",
        "",
        ("tests/promise/test_search.py::test_a_long_session_goes_from_the_index_in_many_steps",),
    ),
    Mutant(
        "search: a document is found by its old version until the new one is there",
        "lookups.py",
        "        if source in paths\n",
        "        if (paths.setdefault(source, source))\n",
        ("tests/promise/test_search.py::test_an_indexing_that_was_stopped_anywhere_is_done_again",),
    ),
    Mutant(
        "search: one syllable is found at the end of a word",
        "terms.py",
        "                found[piece[-1] + END] += 1\n",
        "",
        ("tests/rules/test_terms.py::test_a_query_finds_the_text",),
    ),
    Mutant(
        "search: texts are in one form, however they were typed",
        "terms.py",
        'return unicodedata.normalize("NFC", unicodedata.normalize("NFC", widths).casefold())',
        "return widths.casefold()",
        ("tests/rules/test_terms.py::test_a_query_finds_the_text",),
    ),
    Mutant(
        "outbox: only the turns that are not shown any more are offered",
        "transactions/outbox.py",
        "dropped.since - 1, dropped.until - 1",
        "dropped.since, dropped.until",
        ("tests/promise/test_outbox.py::test_a_turn_that_is_still_shown_is_offered_when_it_goes_and_not_before",),
    ),
    Mutant(
        "outbox: it is written with the commit",
        "transactions/driving.py",
        "    if tell:\n",
        "    if False:\n",
        ("tests/promise/test_outbox.py::test_a_run_that_waits_and_each_end_of_one_is_told_with_the_id_of_its_event",),
    ),
    Mutant(
        "outbox: it is told before it is recorded as told",
        "deliveries.py",
        "                await from_outside(told, _PATIENCE.total_seconds())\n",
        "                await self.store.write(transactions.delivered, tenant, message, self._now())\n"
        "                await from_outside(told, _PATIENCE.total_seconds())\n",
        ("tests/torture/test_kill.py::test_a_message_that_was_told_as_its_process_died_is_told_again_with_its_id",),
    ),
    Mutant(
        "PostgreSQL: what is there already is no race that passes",
        "stores/postgres_place.py",
        "        if state == UNIQUE_VIOLATION:",
        "        if state is ...:",
        ("tests/promise/test_boundaries.py::test_a_write_in_doubt_is_there_once_and_no_process_died_of_it",),
    ),
    Mutant(
        "outbox: what cannot be told is told again",
        "transactions/outbox.py",
        'state = "dead" if attempts >= ATTEMPTS else "pending"',
        'state = "dead"',
        ("tests/promise/test_outbox.py::test_a_message_that_cannot_be_told_is_tried_again_and_is_dead_at_last",),
    ),
    Mutant(
        "doubt: an entry that may be there is not written once more",
        "runner.py",
        "if error is doubt and any(tx in args for tx in _ADDING):",
        "if False:",
        ("tests/promise/test_boundaries.py::test_a_write_in_doubt_is_there_once_and_no_process_died_of_it",),
    ),
    Mutant(
        "replay: each recorded success serves one equal call",
        "journal.py",
        "if r.effect != reused)",
        "if True)",
        ("tests/promise/test_replay.py::test_a_recorded_success_serves_one_call_and_not_two",),
    ),
    Mutant(
        "replay: two equal calls of one answer do not share a recorded success",
        "replay.py",
        "(tool, arguments) and effect not in taken:",
        "(tool, arguments):",
        ("tests/promise/test_replay.py::test_a_recorded_success_serves_one_call_and_not_two",),
    ),
    Mutant(
        "replay: any other write asks first",
        "replay.py",
        '    if origin.effects == "reuse":\n        return Free()\n',
        "    if True:\n        return Free()\n",
        ("tests/promise/test_replay.py::test_what_did_not_happen_after_all_asks_first",),
    ),
    Mutant(
        "replay: where writes were started, somebody forces it",
        "replay.py",
        '        case "guarded" if forced:\n',
        '        case "guarded":\n            return None\n        case "guarded" if forced:\n',
        ("tests/promise/test_replay.py::test_a_run_that_started_writes_needs_force_and_says_so",),
    ),
    Mutant(
        "replay: the whole family counts, not the run alone",
        "transactions/statements.sql",
        "WHERE r.tenant = :tenant AND (r.id = :family OR r.family = :family) ORDER BY r.n, e.ordinal",
        "WHERE r.tenant = :tenant AND r.id = :family ORDER BY r.n, e.ordinal",
        ("tests/promise/test_replay.py::test_a_forced_replay_that_fails_and_is_replayed_again_repeats_neither",),
    ),
    Mutant(
        "replay: no other member of the family goes on",
        "transactions/replaying.py",
        "        if member.retryable:\n",
        "        if False:\n",
        ("tests/promise/test_replay.py::test_the_retry_of_a_run_that_was_replayed_does_not_go_on",),
    ),
    Mutant(
        "fork: a stub touches nothing",
        "replay.py",
        '        case "stub":\n            return MakeUp()\n',
        '        case "stub":\n            return Free()\n',
        ("tests/promise/test_fork.py::test_a_stub_touches_nothing_and_says_so",),
    ),
    Mutant(
        "fork: what joined until the step was asked for is part of it",
        "replay.py",
        "at_step + any(e.steers for e in built if e.step == at_step)",
        "at_step",
        ("tests/promise/test_fork.py::test_what_joined_before_the_first_or_after_a_final_answer_is_part_of_the_fork",),
    ),
    Mutant(
        "fork: the shared steps are paid for",
        "replay.py",
        "            return events.ModelCompleted(\n"
        "                step=step, message=entry.message, stop=entry.stop, model=entry.model, asked=entry.asked\n"
        "            )\n",
        "            return entry\n",
        ("tests/promise/test_fork.py::test_the_steps_before_are_shared_and_the_model_goes_on_from_there",),
    ),
    Mutant(
        "fence: a holder writes only with its own fence",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'",
        "WHERE tenant = :tenant AND id = :run AND state = 'running'",
        ("tests/promise/test_zombie.py::test_b03_z_a_claim_that_was_lost_before_the_context_is_refused",),
    ),
    Mutant(
        "fence: nor is an answer taken with another one",
        "transactions/statements.sql",
        "deaths = 0, usage = :usage, tokens_in = :tokens_in,\n  tokens_out = :tokens_out\n"
        "WHERE tenant = :tenant AND id = :run AND fence = :fence AND state",
        "deaths = 0, usage = :usage, tokens_in = :tokens_in,\n  tokens_out = :tokens_out\n"
        "WHERE tenant = :tenant AND id = :run AND state",
        ("tests/promise/test_zombie.py",),
    ),
    Mutant(
        "fence: nor a failed attempt of the model",
        "transactions/statements.sql",
        "updated_at = :at, usage = :usage, tokens_in = :tokens_in,\n  tokens_out = :tokens_out\n"
        "WHERE tenant = :tenant AND id = :run AND fence = :fence AND state",
        "updated_at = :at, usage = :usage, tokens_in = :tokens_in,\n  tokens_out = :tokens_out\n"
        "WHERE tenant = :tenant AND id = :run AND state",
        ("tests/promise/test_zombie.py",),
    ),
    Mutant(
        "fence: nor does an effect start",
        "transactions/statements.sql",
        "wrote = 1\nWHERE tenant = :tenant AND id = :run AND fence = :fence AND state",
        "wrote = 1\nWHERE tenant = :tenant AND id = :run AND state",
        ("tests/promise/test_zombie.py",),
    ),
    Mutant(
        "compare-and-swap: a commit needs the session at the revision of its claim",
        "transactions/statements.sql",
        " AND revision = (SELECT head FROM runs r WHERE r.tenant = :tenant AND r.id = :run)\n",
        "\n",
        (
            "tests/promise/test_revision.py::test_b15_a_revision_that_somebody_else_moved_fails_the_run_and_merges_nothing",
        ),
    ),
    Mutant(
        "head: taken at every claim, so that a run that waited is not stale",
        "transactions/statements.sql",
        "head = (SELECT revision",
        "head = (SELECT coalesce(runs.head, revision)",
        ("tests/promise/test_revision.py::test_waiting_and_being_woken_raise_it_once_each",),
    ),
    Mutant(
        "queue: a run is claimed only when no run before it is unfinished",
        "transactions/statements.sql",
        "  AND NOT EXISTS (SELECT 1 FROM runs b WHERE b.tenant = runs.tenant AND b.session = runs.session\n"
        "    AND b.state IN ('queued', 'running', 'waiting') AND b.place < runs.place)\nRETURNING",
        "RETURNING",
        ("tests/promise/test_claims.py::test_a_run_is_claimed_only_when_no_run_before_it_is_unfinished",),
    ),
    Mutant(
        "started: written down before the call goes out",
        "calls.py",
        "        if effect.is_write:\n            # Record before calling",
        "        if False:\n            # Record before calling",
        (
            "tests/promise/test_effects.py::test_siblings_run_side_by_side_and_their_results_come_in_the_order_of_the_calls",
        ),
    ),
    Mutant(
        "unknown: a once call that was lost is never repeated blindly",
        "effects.py",
        '    return OutcomeUnknown("the process stopped while it ran")',
        "    return Run(after=effect.deadline)",
        ("tests/rules/test_effects.py::test_a_started_once_call_without_a_check_is_unknown_at_once",),
    ),
    Mutant(
        "deadline: a check waits until a lost attempt can no longer act",
        "effects.py",
        "return Check(after=effect.deadline)",
        "return Check()",
        ("tests/rules/test_effects.py::test_a_started_once_call_with_a_check_is_checked_after_the_deadline",),
    ),
    Mutant(
        "dispatch: what was on its way as the process fell asleep is not sent late",
        "attempts.py",
        "if is_late():\n            return Dropped()\n        task = asyncio",
        "task = asyncio",
        ("tests/promise/test_zombie.py",),
    ),
    Mutant(
        "dispatch: nor by a thread",
        "attempts.py",
        "return Dropped() if is_late() else _end(tool, tool",
        "return _end(tool, tool",
        ("tests/promise/test_zombie.py",),
    ),
    Mutant(
        "deadline: what is late is not sent any more",
        "attempts.py",
        "        return clock.now() >= latest\n",
        "        return False\n",
        ("tests/promise/test_zombie.py::test_b08_z_after_the_deadline_nothing_is_sent",),
    ),
    Mutant(
        "key: the same for every attempt",
        "calls.py",
        "ids.idempotency_key(self.row.tenant, self.row.id, call, tool.name)",
        "ids.idempotency_key(self.row.tenant, self.row.id, call, tool.name + str(attempt))",
        (
            "tests/promise/test_effects.py::test_siblings_run_side_by_side_and_their_results_come_in_the_order_of_the_calls",
        ),
    ),
    Mutant(
        "fingerprint: an operation id with other content is refused",
        "transactions/accepting.py",
        "    if run.fingerprint != fingerprint:\n",
        "    if False:\n",
        (
            "tests/promise/test_operation_id.py::test_other_content_is_refused_in_any_state_and_the_stored_input_is_not_echoed",
        ),
    ),
    Mutant(
        "expiry of a reply: after 30 days the operation is gone",
        "transactions/accepting.py",
        "or (run.ended_at or 0) + REPLY_KEPT <= at",
        "or False",
        (
            "tests/promise/test_operation_id.py::test_after_completion_the_identical_body_for_thirty_days_then_expired_for_ever",
        ),
    ),
    Mutant(
        "cancel: no answer is taken once a cancel was accepted",
        "transactions/driving.py",
        '"run.hold_answered", **_spent(used))])\n    seq = held_seq(held, claim, cancel=False)',
        '"run.hold_answered", **_spent(used))])\n    seq = held_seq(held, claim)',
        ("tests/promise/test_cancel.py::test_b04_c_a_cancel_while_the_model_answers_makes_none_of_its_calls",),
    ),
    Mutant(
        "cancel: no effect starts once a signal is there",
        "transactions/driving.py",
        '("effect.start", effect)], (call,))\n    seq = held_seq(held, claim, cancel=False, unread=False)',
        '("effect.start", effect)], (call,))\n    seq = held_seq(held, claim)',
        ("tests/promise/test_cancel.py::test_b07_c_a_write_that_is_about_to_start_does_not",),
    ),
    Mutant(
        "cancel: whoever comes first wins; a cancel before the commit does",
        "transactions/driving.py",
        "    seq = held_seq(held, claim, cancel=False)\n    if steered and not last:\n",
        "    seq = held_seq(held, claim)\n    if steered and not last:\n",
        ("tests/promise/test_cancel.py::test_b12_c_a_cancel_that_was_accepted_before_t8_wins",),
    ),
    Mutant(
        "suspend: fails when an ask was decided meanwhile",
        "transactions/driving.py",
        "    if seq != after + 1:\n",
        "    if False:\n",
        ("tests/promise/test_asks.py::test_b10_a_suspension_fails_when_an_ask_was_decided_meanwhile",),
    ),
    Mutant(
        "decide: once, whatever comes later",
        "transactions/deciding.py",
        "        if stored.same_as(decision):\n",
        "        if True:\n",
        ("tests/promise/test_asks.py::test_b11_another_decision_is_refused",),
    ),
    Mutant(
        "note: what was done by a run that did not complete is told",
        "preparing.py",
        "        if self._noted or not untold:\n            return None",
        "        if True:\n            return None",
        ("tests/promise/test_notes.py::test_a_failed_run_is_told_once_with_its_request_and_its_writes",),
    ),
    Mutant(
        "note: told until a turn has committed it, and again after a settlement",
        "transactions/driving.py",
        "    writes += _told(claim.tenant, told)\n",
        "",
        ("tests/promise/test_notes.py::test_the_note_is_part_of_the_session_and_the_failed_run_is_not",),
    ),
    Mutant(
        "note: a run that is unfinished again is not marked as told",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND id = :run AND state IN ('failed', 'cancelled', 'expired', 'parked')\n",
        "WHERE tenant = :tenant AND id = :run\n",
        (
            "tests/promise/test_notes.py::test_a_retry_that_was_queued_while_a_turn_told_of_it_is_told_of_again_when_it_fails_again",
        ),
    ),
    Mutant(
        "interrupt: what is in flight may finish",
        "runner.py",
        "                        if not entry.interrupted_by:\n",
        "                        if True:\n",
        ("tests/promise/test_interrupt.py::test_an_effect_in_flight_finishes_however_long_it_takes",),
    ),
    Mutant(
        "interrupt: a model that speaks is not waited for",
        "runner.py",
        "asking.wait(self.clock, left, self.stopping)",
        "asking.wait(self.clock, left, self.token)",
        ("tests/promise/test_interrupt.py::test_the_model_is_not_waited_for_and_the_new_run_is_next",),
    ),
    Mutant(
        "interrupt: directly behind the run that it stops, before all that are queued",
        "transactions/accepting.py",
        "        place = interrupted.run.place + 1\n",
        "",
        ("tests/promise/test_interrupt.py::test_the_model_is_not_waited_for_and_the_new_run_is_next",),
    ),
    Mutant(
        "interrupt: those that are queued make room",
        "transactions/statements.sql",
        "UPDATE runs SET place = place + 1 WHERE",
        "UPDATE runs SET place = place WHERE",
        ("tests/promise/test_interrupt.py::test_the_model_is_not_waited_for_and_the_new_run_is_next",),
    ),
    Mutant(
        "interrupt: asked for once, whoever else interrupts",
        "transactions/ending.py",
        '        if not run.cancel or (run.cancel == INTERRUPTED and kind == "cancel"):\n',
        "        if True:\n",
        ("tests/promise/test_interrupt.py::test_a_cancel_after_it_goes_further",),
    ),
    Mutant(
        "steer: the answer is not final while a message waits to join",
        "lifecycle.py",
        "        return BuildContext() if steered and reached(state, bounds, now) is None else Commit()\n",
        "        return Commit()\n",
        ("tests/promise/test_steer.py::test_between_t2_and_t3_it_is_part_of_the_model_call_after",),
    ),
    Mutant(
        "steer: a commit looks for messages that wait to join in its own transaction",
        "transactions/driving.py",
        "    if steered and not last:\n",
        "    if False:\n",
        ("tests/promise/test_steer.py::test_the_answer_is_not_final_while_a_message_waits_to_join",),
    ),
    Mutant(
        "steer: what the model sees next does not pass by a message that came before it",
        "transactions/driving.py",
        "    seq = held_seq(held, claim, unread=not also)\n",
        "    seq = held_seq(held, claim)\n",
        ("tests/promise/test_steer.py::test_a_message_that_another_process_accepted_is_not_passed_by",),
    ),
    Mutant(
        "steer: a context of its own does not pass by it either",
        "transactions/driving.py",
        "held_seq(held, claim, cancel=not steers, unread=unread)",
        "held_seq(held, claim, cancel=not steers)",
        ("tests/promise/test_steer.py::test_a_message_that_another_process_accepted_is_not_passed_by",),
    ),
    Mutant(
        "steer: only one that still waits joins",
        "transactions/statements.sql",
        "WHERE tenant = :tenant AND id = :run AND host = :host AND state = 'queued'\n",
        "WHERE tenant = :tenant AND id = :run AND host = :host\n",
        ("tests/promise/test_steer.py::test_one_that_is_cancelled_as_it_joins_is_cancelled_or_joined",),
    ),
    Mutant(
        "steer: the next holder looks for those that wait",
        "runner.py",
        "        self.steered = claimed.steered",
        "        self.steered = False",
        ("tests/promise/test_steer.py::test_before_the_first_model_call_it_is_part_of_that",),
    ),
    Mutant(
        "steer: nobody joins the run of another agent or user",
        "transactions/accepting.py",
        "    return run if able and (run.agent, run.user_id) == (new.agent, new.user_id) else None\n",
        "    return run if able else None\n",
        ("tests/promise/test_steer.py::test_a_run_of_another_agent_or_user_or_one_that_stops_is_not_joined",),
    ),
    Mutant(
        "steer: a joined operation is answered as its host",
        "transactions/accepting.py",
        '    if run.state == "joined":',
        "    if False:",
        ("tests/promise/test_steer.py::test_a_joined_one_answers_as_the_run_that_it_joined",),
    ),
    Mutant(
        "steer: what its host did not answer is told",
        "transactions/driving.py",
        "(*(checked_body(run, *row) for row in first), *(s.body for s in steers_in(steers))),",
        "tuple(checked_body(run, *row) for row in first),",
        ("tests/promise/test_steer.py::test_when_its_host_fails_it_has_failed_and_both_are_told_of",),
    ),
    Mutant(
        "answer: only the sender's own question, of the same agent, is answered by a message",
        "transactions/accepting.py",
        '    if run.state != "waiting" or (run.agent, run.user_id) != (new.agent, new.user_id):\n',
        '    if run.state != "waiting":\n',
        ("tests/promise/test_answers_in_chat.py::test_what_is_no_answer_of_that_sender_queues",),
    ),
    Mutant(
        "answer: approvals are never decided by what is written in the chat",
        "transactions/accepting.py",
        '    questions = [ask for ask in (AskRow(*a) for a in asks) if ask.kind == "question"]\n',
        "    questions = [AskRow(*a) for a in asks]\n",
        ("tests/promise/test_answers_in_chat.py::test_an_approval_beside_it_stays_open",),
    ),
    Mutant(
        "cancel: who asked outlives the process that read it",
        "transactions/ending.py",
        "    return events.RunCancelled(**asdict(cancelling)) if cancelling else events.RunCancelled()\n",
        "    return events.RunCancelled()\n",
        ("tests/promise/test_interrupt.py::test_it_outlives_the_process_that_accepted_it",),
    ),
    Mutant(
        "revision: an end moves it when something may have happened",
        "transactions/ending.py",
        " if wrote else []",
        " if False else []",
        ("tests/promise/test_revision.py::test_a_parked_run_that_ends_takes_nothing_from_the_one_that_runs",),
    ),
    Mutant(
        "revision: a parked run that ends takes nothing from the one that runs",
        "transactions/ending.py",
        "    if wrote and held is None:\n",
        "    if False:\n",
        ("tests/promise/test_revision.py::test_a_parked_run_that_ends_takes_nothing_from_the_one_that_runs",),
    ),
    Mutant(
        "poison: a run that keeps killing processes is parked",
        "lifecycle.py",
        "MAX_DEATHS = 3 ",
        "MAX_DEATHS = 99 ",
        ("tests/promise/test_poison.py::test_after_three_deaths_it_is_parked_with_an_ask_that_says_why",),
    ),
    Mutant(
        "checksum: an entry that was changed on disk is never believed",
        "journal.py",
        "    if checksums.of_batch(run, seq, fence, at, body) != stored_sum:\n",
        "    if False:\n",
        ("tests/rules/test_journal.py::test_a_batch_that_was_changed_in_any_place_is_found",),
    ),
    Mutant(
        "checksum: a run of which an entry is missing is not driven",
        "runner.py",
        "        journal.check_whole(self.row.id, claimed.batches, 0, self.row.next_seq - 1)\n",
        "",
        ("tests/stores/test_sqlite_damage.py",),
    ),
    Mutant(
        "length: an answer that was cut off makes none of its calls",
        "plans.py",
        '    if stop == "length":\n',
        "    if False:\n",
        ("tests/promise/test_answers.py::test_an_answer_that_was_cut_off_makes_none_of_its_calls",),
    ),
    Mutant(
        "values: no text with U+0000 comes as far as a store",
        "values.py",
        '        if "\\0" not in value:\n            return value\n',
        "        return value\n",
        ("tests/cases/test_c35_nul.py::test_c35_in_every_place_it_is_read_back_as_it_was",),
    ),
    Mutant(
        "values: what a value does while it is looked at fails no call",
        "values.py",
        "        except BaseException:  # its own code raised",
        "        except StopAsyncIteration:  # its own code raised",
        ("tests/cases/test_c30_values.py::test_c30_a_value_without_a_json_form_is_a_placeholder_with_a_warning",),
    ),
    Mutant(
        "models: the one that took over is asked for the rest of the run, also after a restart",
        "journal.py",
        "return state.but(candidate=fallback, attempt=1, retry_at=None)",
        "return state.but(attempt=1, retry_at=None)",
        ("tests/promise/test_fallback.py::test_the_second_model_answers_when_the_first_stays_down",),
    ),
    Mutant(
        "models: a refused request is not tried on another model",
        "lifecycle.py",
        "following < models and (kind in _RETRIED or kind in _GOES_ON_LATER)",
        "following < models",
        ("tests/promise/test_fallback.py::test_no_other_model_is_asked_where_the_request_is_refused",),
    ),
    Mutant(
        "models: one that takes over is not shown what another signed",
        "runner.py",
        "if asked.provider != self.talk.provider:",
        "if False:",
        ("tests/cases/test_c46_switching_providers.py::test_c46_the_second_takes_over_in_the_middle_of_a_tool_loop",),
    ),
    Mutant(
        "models: an answer without a raw reason for its end is none",
        "providers/pydantic_ai.py",
        "        if not reason:\n",
        "        if False:\n",
        ("tests/providers/test_contract.py::test_an_answer_without_its_end_is_none",),
    ),
    Mutant(
        "models: an answer whose end the server calls none is none",
        "providers/pydantic_ai.py",
        "        match response.finish_reason or _IN_OTHER_WORDS.get(reason.lower()):\n",
        "        match response.finish_reason:\n",
        (
            "tests/providers/test_openai_chat.py::test_an_end_that_the_server_calls_none_is_no_answer",
            "tests/providers/test_openai_chat.py::test_an_answer_that_was_cut_off_in_other_words_is_one",
        ),
    ),
    Mutant(
        "models: how a connection ends behind the last event of an answer is no matter",
        "providers/sse.py",
        "        if event.event in last:\n",
        "        if False:\n",
        ("tests/providers/test_contract.py::test_an_answer_with_its_last_word_is_whole_however_the_connection_ends",),
    ),
    Mutant(
        "notes: what the provider refused is not told word for word to each turn after",
        "context.py",
        "    lengths = (0,) if _are_refused(untold) else _SHOWN\n",
        "    lengths = _SHOWN\n",
        ("tests/promise/test_notes.py::test_words_that_the_provider_refuses_do_not_have_every_turn_after_refused",),
    ),
    Mutant(
        "models: a form of the request that a server refused is not sent to it again",
        "providers/learned.py",
        "            setattr(self, name, True)\n",
        "            pass\n",
        ("tests/providers/test_openai_chat.py::test_who_takes_only_some_roles_gets_those_from_the_next_attempt_on",),
    ),
    Mutant(
        "models: a session with calls is never sent without any tools",
        "runner.py",
        "            is_whole = not self.talk.has_calls\n",
        "            pass\n",
        (
            "tests/cases/test_c49_dynamic_tools.py::test_c49_results_of_a_tool_that_no_longer_exists_stay_in_the_history",
        ),
    ),
    Mutant(
        "window: a number in the name of a model or of a request is no window",
        "sizes.py",
        r"""_NUMBER = r"(?<![\w@#-])(?<!\d[.:])(\d[\d,]{2,}\d)(?!\w|[-.:]\d)"
""",
        r"""_NUMBER = r"(\d[\d,]{2,}\d)"
""",
        (
            "tests/cases/test_c10_long_history.py::test_c10_how_much_fits_is_taken_from_what_the_provider_says_or_guessed_with_care",
        ),
    ),
    Mutant(
        "models: the client never asks again by itself",
        "providers/anthropic.py",
        "max_retries=0,",
        "max_retries=2,",
        ("tests/providers/test_contract.py::test_a_failure_has_its_kind_and_is_never_retried_unseen",),
    ),
    Mutant(
        "values: what could not be recorded as it was is said",
        "calls.py",
        "patch=patch, warning=warning, ",
        "patch=patch, ",
        ("tests/cases/test_c30_values.py::test_c30_a_value_without_a_json_form_is_a_placeholder_with_a_warning",),
    ),
    Mutant(
        "changed code: an approval does not carry over to a tool that is another one now",
        "calls.py",
        "        if await self.drive.planned_with(shown.definition, tool):\n",
        "        if True:\n",
        (
            "tests/promise/test_changed_code.py::test_an_approval_is_asked_for_again_when_the_tool_changed_before_the_call_started",
        ),
    ),
    Mutant(
        "changed code: where the operator says so, a missing tool parks the run",
        "effects.py",
        "return Park(reason) if park_missing else Failed(reason)",
        "return Failed(reason)",
        (
            "tests/promise/test_changed_code.py::test_where_the_operator_says_so_a_missing_tool_parks_the_run_until_the_code_is_back",
        ),
    ),
    Mutant(
        "secret: what a tool gives back holds none",
        "secret.py",
        "            return _pattern.sub(_SHOWN, encoded)",
        "            return encoded",
        ("tests/promise/test_secrets.py::test_a_secret_is_found_in_no_sink",),
    ),
    Mutant(
        "secret: it is known however it is written",
        "secret.py",
        "    if part in _AS_IT_IS:",
        "    if part:",
        ("tests/promise/test_secrets.py::test_a_secret_is_known_however_it_is_written",),
    ),
    Mutant(
        "usage: an answer that a cancel refused still cost its tokens",
        "runner.py",
        "            await self._write_cancelled(said, **spent_on(answer, self.asked.model.name))\n",
        "",
        ("tests/promise/test_usage.py::test_tokens_of_an_answer_that_a_cancel_refused_are_recorded",),
    ),
    Mutant(
        "usage: a call whose process died is unknown, not free",
        "journal.py",
        '            broken = (state.context is not None or state.summarising) and (cut or why == "recovered")\n',
        "            broken = False\n",
        (
            "tests/promise/test_usage.py::test_a_call_that_died_with_its_process_counts_as_unknown_once_the_run_has_asked_again",
        ),
    ),
    Mutant(
        "context: an image that was answered is not sent again",
        "conversation.py",
        "        return max([seen.payloads, *(place + 1 for place in places)])\n",
        "        return 0\n",
        ("tests/cases/test_c14_images.py::test_c14_images_are_sent_until_they_are_answered_and_can_be_seen_again",),
    ),
    Mutant(
        "context: what the model has not answered yet stays as it is",
        "view.py",
        '    return [i.place + 1 for i in items[:last] if i.message.role == "tool"]\n',
        '    return [i.place + 1 for i in items if i.message.role == "tool"]\n',
        ("tests/rules/test_view.py::test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes",),
    ),
    Mutant(
        "context: calls side by side are left out together, and with all their results",
        "view.py",
        '        if is_detail(item.message) and items[n + 1].message.role != "tool":\n',
        "        if is_detail(item.message):\n",
        ("tests/rules/test_view.py::test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes",),
    ),
    Mutant(
        "context: turns go whole",
        "view.py",
        '    starts = [n for n, i in enumerate(items) if i.message.role == "user" and i.message.origin is None]\n',
        "    starts = list(range(len(items)))\n",
        ("tests/rules/test_view.py::test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes",),
    ),
    Mutant(
        "context: the user's words outlive what tools did",
        "view.py",
        '    for level in ("results", "reasoning", "detail"):\n',
        '    for level in ("results", "reasoning"):\n',
        ("tests/rules/test_view.py::test_relief_comes_in_the_order_that_loses_least",),
    ),
    Mutant(
        "context: reasoning of the current turn stays with its calls",
        "view.py",
        "    return [i.place + 1 for i in with_reasoning if i.place < own]\n",
        "    return [i.place + 1 for i in with_reasoning]\n",
        ("tests/rules/test_view.py::test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes",),
    ),
    Mutant(
        "context: an image weighs something",
        "sizes.py",
        "_OF_IMAGE = 1500 * PER_TOKEN",
        "_OF_IMAGE = 0",
        ("tests/rules/test_view.py::test_an_image_that_was_answered_is_named_and_the_words_beside_it_stay",),
    ),
    Mutant(
        "context: what stands in the place of turns that go is weighed too",
        "view.py",
        "        carried = room.carried if candidate.since > view.since else 0\n",
        "        carried = 0\n",
        ("tests/rules/test_view.py::test_at_every_budget_a_request_is_one_that_the_strictest_provider_takes",),
    ),
    Mutant(
        "context: the budget holds within a turn",
        "preparing.py",
        "        return limit is not None and self._size(frame, extra) > limit\n",
        "        return limit is not None and state.step == 0 and self._size(frame, extra) > limit\n",
        ("tests/promise/test_context.py::test_every_request_keeps_the_budget_and_can_be_built_again",),
    ),
    Mutant(
        "context: what people decided is carried whatever a summary says",
        "carried.py",
        "    if facts:\n",
        "    if False:\n",
        (
            "tests/promise/test_context.py::test_what_is_pinned_approved_or_refused_is_carried_word_for_word_by_the_runtime",
        ),
    ),
    Mutant(
        "steps: one that is not awaited was not made",
        "steps.py",
        "                if self._unawaited and isinstance(said, Returned):",
        "                if False:",
        ("tests/promise/test_steps.py::test_a_step_that_is_not_awaited_was_not_made_and_the_model_is_told",),
    ),
    Mutant(
        "poison: who only waits is not parked for what others do to the process",
        "runner.py",
        "                await self._rest(True)",
        "                pass",
        ("tests/promise/test_poison.py",),
    ),
    Mutant(
        "poison: who has waited counts again",
        "runner.py",
        "            await self._rest(False)",
        "            pass",
        ("tests/promise/test_poison.py",),
    ),
    Mutant(
        "threads: those of the application may be taken",
        "threads.py",
        '        threading.Thread(target=run, name="for-ondol", daemon=True).start()',
        "        raise RuntimeError",
        ("tests/promise/test_gaps.py::test_an_application_that_has_filled_its_threads_holds_up_nobody_but_itself",),
    ),
    Mutant(
        "memory: what is kept at hand of a session counts also where nothing was said in it",
        "histories.py",
        "if old else history.size + self.BESIDE",
        "if old else history.size",
        ("tests/promise/test_memory.py",),
    ),
    Mutant(
        "log: it does not stay as long as somebody made it who read for long",
        "stores/sqlite.py",
        '        connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")\n',
        "",
        ("tests/stores/test_sqlite_processes.py",),
    ),
    Mutant(
        "context: the next turn reads what is shown and not all that was said",
        "histories.py",
        "        start, until = session.shown.since, session.next_message\n",
        "        start, until = 0, session.next_message\n",
        ("tests/cases/test_c23_growth.py::test_c23_loading_the_next_turn_costs_the_window_and_not_the_history",),
    ),
    Mutant(
        "context: a fork of a fork is shown as much as its original",
        "transactions/replaying.py",
        "    if then:\n        taken",
        "    if False:\n        taken",
        (
            "tests/promise/test_erasing.py::test_what_a_fork_took_over_of_a_session_that_is_deleted_is_its_pins_and_its_state",
        ),
    ),
    Mutant(
        "erasing: signals go with their session",
        "transactions/sessions.py",
        '"signal.erase", ',
        "",
        ("tests/promise/test_erasing.py::test_a_session_that_is_deleted_leaves_no_word_in_any_table",),
    ),
    Mutant(
        "erasing: reasons go with the session that they are about",
        "transactions/sessions.py",
        ', "act.erase"',
        "",
        ("tests/promise/test_erasing.py::test_a_session_that_is_deleted_leaves_no_word_in_any_table",),
    ),
    Mutant(
        "erasing: a fork keeps no summary of what was erased",
        "transactions/statements.sql",
        "ELSE 0 END, created_at = created_at + 1,\n  seen = NULL, seen_sum = NULL\n",
        "ELSE 0 END, created_at = created_at + 1\n",
        (
            "tests/promise/test_erasing.py::test_what_a_fork_took_over_of_a_session_that_is_deleted_is_its_pins_and_its_state",
        ),
    ),
    Mutant(
        "erasing: what was erased is overwritten in the file",
        "stores/sqlite.py",
        "PRAGMA secure_delete = ON",
        "PRAGMA secure_delete = OFF",
        ("tests/promise/test_erasing.py::test_what_was_erased_is_overwritten_in_the_file_too",),
    ),
    Mutant(
        "usage: a summary by hand that nobody waited for is unknown, not free",
        "transactions/sessions.py",
        "usage.dumps({model: Usage(calls=1, unknown=1)})",
        "usage.dumps({})",
        (
            "tests/promise/test_usage.py::test_a_summary_by_hand_counts_when_its_caller_went_away_and_when_another_turn_came_first",
        ),
    ),
    Mutant(
        "context: pins are carried whatever a summary says",
        "carried.py",
        "    if pins:\n",
        "    if False:\n",
        (
            "tests/promise/test_context.py::test_what_is_pinned_approved_or_refused_is_carried_word_for_word_by_the_runtime",
        ),
    ),
    Mutant(
        "context: a call is no summary",
        "carried.py",
        "    if any(isinstance(p, ToolCall) for p in parts):\n",
        "    if False:\n",
        ("tests/promise/test_context.py::test_what_is_no_summary_is_refused_and_the_oldest_is_told_in_its_own_words",),
    ),
    Mutant(
        "search: frequent words are looked for among the newest texts",
        "lookups.py",
        "ranking.WINDOW",
        "10**9",
        ("tests/promise/test_search.py::test_what_is_read_of_frequent_words_has_a_bound",),
    ),
    Mutant(
        "search: what a search found is not found again",
        "transactions/indexing.py",
        '_ECHOES = frozenset(("search", "recall", "read_more"))',
        '_ECHOES = frozenset(("recall",))',
        (
            "tests/promise/test_search.py::"
            "test_what_a_source_gives_is_told_within_bounds_and_not_found_again_in_the_history",
        ),
    ),
    Mutant(
        "search: a run of no user has no conversations",
        "search.py",
        "if ctx.user is None:",
        "if False:",
        ("tests/promise/test_search.py::test_a_run_of_no_user_finds_the_conversations_of_nobody",),
    ),
    Mutant(
        "search: no link leads out of a folder",
        "indexed.py",
        " and not os.path.islink(path)",
        "",
        ("tests/promise/test_search.py::test_what_is_hidden_what_links_lead_to_and_what_is_too_large_is_left_alone",),
    ),
    Mutant(
        "context: what a person lets go is all that goes",
        "preparing.py",
        "for part in values.decode(said.value))",
        "for part in dropped)",
        ("tests/promise/test_context.py::test_what_a_person_lets_go_is_all_that_goes_and_nobody_is_asked_twice",),
    ),
    Mutant(
        "context: nobody is asked twice about a request of a run",
        "preparing.py",
        '(said is None or said.decision == "raise")',
        "True",
        ("tests/promise/test_context.py::test_what_a_person_lets_go_is_all_that_goes_and_nobody_is_asked_twice",),
    ),
    Mutant(
        "context: no summary passes for what stands around it",
        "carried.py",
        'within = re.sub(">{3,}", ">>", summary.text)',
        "within = summary.text",
        ("tests/promise/test_context.py::test_no_summary_passes_for_what_stands_around_it",),
    ),
    Mutant(
        "memory: nobody looks behind a summary",
        "recalling.py",
        "if talk.history.start:",
        "if False:",
        ("tests/promise/test_memory.py::test_a_fact_of_a_turn_that_saw_an_attachment_or_a_summary_is_marked",),
    ),
    Mutant(
        "memory: what is attached is from outside",
        "recalling.py",
        "return any(isinstance(p, Attachment) for p in message.parts)",
        "return False",
        ("tests/promise/test_memory.py::test_a_fact_of_a_turn_that_saw_an_attachment_or_a_summary_is_marked",),
    ),
    Mutant(
        "context: no summary is one that was cut off",
        "carried.py",
        'if stop != "stop":',
        "if False:",
        ("tests/promise/test_context.py::test_what_is_no_summary_is_refused_and_the_oldest_is_told_in_its_own_words",),
    ),
    Mutant(
        "images: what only looks like the mark of one is none",
        "payloads.py",
        'return encoded.keys() >= {_MARK, "media_type", "size", "form"}',
        "return _MARK in encoded",
        ("tests/rules/test_view.py::test_bytes_of_an_old_result_are_named_and_what_only_looks_like_them_stays",),
    ),
    Mutant(
        "images: a key of a tool's own is no mark",
        "values.py",
        "if all(type(k) is str and not k.startswith(TAG) for k, _ in pairs):",
        "if all(type(k) is str and k != TAG for k, _ in pairs):",
        ("tests/cases/test_c14_images.py::test_c14_a_result_that_looks_like_the_mark_of_an_image_is_none",),
    ),
    Mutant(
        "context: a compaction by hand brings back nothing that was shown short",
        "compacting.py",
        "view = self.row.shown._replace(since=self.since)",
        "view = type(self.row.shown)(since=self.since)",
        (
            "tests/promise/test_context.py::"
            "test_a_compaction_by_hand_leaves_short_what_was_shown_short_and_counts_what_is_shown",
        ),
    ),
    Mutant(
        "context: what a provider counted holds in the next turn",
        "preparing.py",
        "known = self.drive.claimed.session.measured if state.measured is None else None",
        "known = None",
        ("tests/promise/test_context.py::test_what_a_provider_counts_holds_for_the_next_turn_and_after_a_restart",),
    ),
    Mutant(
        "vectors: a fact that is found by words and by vectors comes once",
        "lookups.py",
        "(yield from _by_vectors(scope, near, now))}\n    order = vectors.fused([list(words), list(close)])[:limit]",
        "(yield from _by_vectors(scope, near, now))}\n    order = [*words, *close][:limit]",
        ("tests/promise/test_vectors.py::test_what_words_and_vectors_both_find_comes_once_and_first",),
    ),
    Mutant(
        "vectors: a passage that is found by words and by vectors comes once",
        "lookups.py",
        "(yield from _passages_by_vectors(space, near))}\n"
        "    order = vectors.fused([list(words), list(close)])[:limit]",
        "(yield from _passages_by_vectors(space, near))}\n    order = [*words, *close][:limit]",
        ("tests/promise/test_vectors.py::test_a_passage_that_words_and_vectors_both_find_comes_once_and_first",),
    ),
    Mutant(
        "vectors: fused, each ranking counts a text once",
        "vectors.py",
        "enumerate(dict.fromkeys(ranking), 1)",
        "enumerate(ranking, 1)",
        ("tests/rules/test_fused.py::test_a_ranking_that_names_a_text_twice_is_as_if_it_named_it_once",),
    ),
    Mutant(
        "vectors: a passage that is removed takes its vector with it",
        "transactions/indexing.py",
        '        writes += [("text.delete_vector", key | {"doc": doc}), ("text.delete", key | {"doc": doc})]\n',
        '        writes += [("text.delete", key | {"doc": doc})]\n',
        ("tests/promise/test_vectors.py::test_documents_are_found_by_what_they_mean_and_follow_the_folder",),
    ),
    Mutant(
        "outbox: a message that cannot be told stands in nobody's way",
        "deliveries.py",
        "                except Exception as error:  # of this message alone",
        "                except ZeroDivisionError as error:  # of this message alone",
        ("tests/promise/test_outbox.py::test_a_message_that_names_a_run_that_is_not_there_stands_in_nobodys_way",),
    ),
    Mutant(
        "outbox: what a listener raises is told whatever its own text does",
        "deliveries.py",
        "values.error_text(error)",
        'f"{type(error).__name__}: {error}"',
        (
            "tests/promise/test_outbox.py::"
            "test_a_listener_that_exits_or_cancels_itself_ends_nothing_but_its_own_attempt",
        ),
    ),
    Mutant(
        "embedding: what an embedder raises is told whatever its own text does",
        "embedding.py",
        "values.error_text(error)",
        'f"{type(error).__name__}: {error}"',
        ("tests/promise/test_vectors.py::test_an_embedder_whose_error_says_nothing_is_asked_again_by_the_next_search",),
    ),
    Mutant(
        "streams: who gives up waiting is forgotten",
        "streams.py",
        "            waiting.remove(future)\n",
        "            pass\n",
        ("tests/promise/test_watching.py::test_whoever_gives_up_waiting_for_a_run_leaves_nothing_behind",),
    ),
    Mutant(
        "model: a cancellation of its own is an error of the model",
        "hearing.py",
        "        if is_asked_to_end():\n",
        "        if True:\n",
        (
            "tests/promise/test_usage.py::"
            "test_a_summary_by_hand_that_never_came_is_unknown_where_it_may_have_cost_something",
        ),
    ),
    Mutant(
        "client: what was interrupted ends before its stream is closed",
        "blocking.py",
        "                await asyncio.wait({waiting})\n",
        "                pass\n",
        ("tests/http/test_client.py::test_a_program_that_is_interrupted_while_it_follows_a_run_hears_of_nothing_else",),
    ),
    Mutant(
        "client: a time that a proxy says as a date is none",
        "client.py",
        " if asked.isdecimal() else 0.0",
        " if asked else 0.0",
        ("tests/http/test_client.py::test_a_proxy_that_is_busy_is_asked_again_whatever_it_says_of_the_time",),
    ),
    Mutant(
        "toolsets: what one raises is told whatever its own text does",
        "runner.py",
        "source.name, values.error_text(found)",
        "source.name, found",
        ("tests/promise/test_toolsets.py::test_a_toolset_that_gives_nothing_costs_only_its_own_tools",),
    ),
    Mutant(
        "outbox: who has nobody to tell leaves the message",
        "deliveries.py",
        "if run.agent not in self.served or not self._hears(run.agent, message.kind):",
        "if run.agent not in self.served:",
        ("tests/promise/test_outbox.py::test_who_has_nobody_to_tell_says_so_and_leaves_the_messages",),
    ),
    Mutant(
        "access: a run of one user is not put into a session of another",
        "transactions/accepting.py",
        "if new.own_only and session is not None",
        "if False and session is not None",
        ("tests/http/test_access.py::test_a_session_of_somebody_else_is_answered_as_one_that_there_is_not",),
    ),
    Mutant(
        "access: a session of another user is not written to",
        "transactions/sessions.py",
        "if own_only and found is not None",
        "if False and found is not None",
        ("tests/http/test_access.py::test_a_session_of_somebody_else_is_answered_as_one_that_there_is_not",),
    ),
    Mutant(
        "access: what is read of another user's session is what is read of none",
        "http/callers.py",
        "raise NotFound(f\"there is no {what} {id!r}: '{verb}' lists them\")",
        'raise NotFound(f"there is no {what} {id!r} of yours")',
        ("tests/http/test_access.py::test_a_session_of_somebody_else_is_answered_as_one_that_there_is_not",),
    ),
    Mutant(
        "memory: a token of a user names no other",
        "http/memories.py",
        '    return caller.user_for(named or None) or ""\n',
        '    return named or caller.user or ""\n',
        ("tests/http/test_memory.py::test_a_token_of_a_user_reaches_what_is_remembered_of_that_user_alone",),
    ),
    Mutant(
        "memory: what a compaction drops is offered to it",
        "transactions/driving.py",
        "    if dropped is not None:\n",
        "    if False:\n",
        ("tests/promise/test_outbox.py::test_what_a_compaction_drops_is_offered_to_memory_and_the_record_says_so",),
    ),
    Mutant(
        "memory: a turn is offered to it once",
        "transactions/statements.sql",
        "o.run = runs.id AND o.kind = 'run.completed'",
        "o.run = runs.id AND o.kind = 'run.gone'",
        ("tests/promise/test_outbox.py::test_what_a_compaction_drops_is_offered_to_memory_and_the_record_says_so",),
    ),
    Mutant(
        "memory: a turn that only a listener was told of is offered to it",
        "transactions/statements.sql",
        "(o.taught = 1 OR o.state = 'pending')",
        "1 = 1",
        ("tests/promise/test_outbox.py",),
    ),
    Mutant(
        "context: a compaction that another turn came before gives up",
        "transactions/sessions.py",
        "    found = yield from free_session(tenant, session, of.revision)\n",
        "    found = yield from free_session(tenant, session, None)\n",
        ("tests/promise/test_context.py::test_a_compaction_by_hand_whose_model_is_overtaken_by_a_turn_gives_up",),
    ),
    Mutant(
        "context: a request over the budget is not sent",
        "lifecycle.py",
        "    if state.context.over:\n",
        "    if False:\n",
        ("tests/promise/test_context.py::test_a_request_that_cannot_be_made_small_enough_is_not_sent",),
    ),
    Mutant(
        "window: what was too long once is not sent again",
        "runner.py",
        "        if self.state.fits is not None and sizes.says_how_much(str(error)):\n",
        "        if False:\n",
        (
            "tests/promise/test_too_long.py::test_a_provider_that_finds_the_shorter_request_too_long_as_well_is_not_asked_again",
        ),
    ),
    Mutant(
        "window: a request that was too long is made shorter",
        "view.py",
        '    if "since" in levels and size(now) > room.limit:\n        turns',
        "    if False:\n        turns",
        (
            "tests/cases/test_c10_long_history.py::test_c10_a_history_three_times_the_window_is_shown_in_part_and_the_session_answers",
        ),
    ),
    Mutant(
        "policy: what it denies is refused",
        "policy.py",
        'return Permission(decision=_line("deny", reason), refusal=refusal(answer))',
        'return Permission(decision=_line("deny", reason))',
        ("tests/rules/test_policy.py::test_a_denial_asks_nobody_and_not_even_the_tool",),
    ),
    Mutant(
        "policy: one that breaks means ask",
        "policy.py",
        'return AskFirst(f"the policy raised {type(error).__name__}")',
        "return Allow()",
        ("tests/rules/test_policy.py::test_a_policy_that_breaks_means_ask",),
    ),
    Mutant(
        "policy: to allow a call does not take away its tool's own question",
        "policy.py",
        'return Permission(decision=_line("allow", reason) if own is None else _line("ask", own), asks=own)',
        'return Permission(decision=_line("allow", reason))',
        ("tests/rules/test_policy.py::test_an_allowing_policy_does_not_take_away_the_tools_own_question",),
    ),
    Mutant(
        "policy: what a person approved, or replaced, is held against it once more",
        "calls.py",
        "        if is_new and (denied := self._denied(effect, tool)) is not None:\n",
        "        if False and (denied := self._denied(effect, tool)) is not None:\n",
        (
            "tests/promise/test_policy.py::test_an_edit_by_a_process_without_the_policy_is_refused_before_the_call_is_made",
        ),
    ),
    Mutant(
        "policy: nobody approves what it denies",
        "runtime.py",
        "        if isinstance(denied := policies.said(self.policy, wanted), policies.Deny):\n",
        "        if isinstance(denied := policies.said(self.policy, wanted), policies.Deny) and False:\n",
        ("tests/promise/test_policy.py::test_an_edit_that_the_policy_denies_is_refused_and_the_ask_stays_open",),
    ),
    Mutant(
        "limits: the next call is held against the limit before it is made",
        "limits.py",
        "spent + state.expected_input() > limits.tokens",
        "False",
        (
            "tests/rules/test_limits.py::test_tokens_used_and_the_estimate_of_the_next_call_are_held_against_the_limit_before_the_call",
        ),
    ),
    Mutant(
        "limits: a call that nobody counted is not free",
        "limits.py",
        " + used.estimated",
        "",
        ("tests/rules/test_limits.py::test_a_call_that_nobody_counted_counts_as_estimated_and_not_as_zero",),
    ),
    Mutant(
        "limits: a model without a price is not free",
        "limits.py",
        "    if unpriced := prices.unpriced(state.usage):\n",
        "    if unpriced := list[str]():\n",
        ("tests/rules/test_limits.py::test_what_a_model_without_a_price_took_is_not_taken_for_free",),
    ),
    Mutant(
        "limits: a limit of cost that cannot be kept starts nothing",
        "served.py",
        "    if unpriced := [name for name in models if known.of(name) is None]:\n",
        "    if unpriced := list[str]():\n",
        ("tests/promise/test_limits.py::test_a_limit_of_cost_without_a_price_is_refused_before_anything_starts",),
    ),
    Mutant(
        "limits: waiting is no work",
        "journal.py",
        'self.worked + (max(0, now - self.at) if self.status == "running" else 0)',
        "self.worked + max(0, now - self.at)",
        ("tests/promise/test_limits.py::test_a_model_call_is_given_up_when_the_time_is_over",),
    ),
    Mutant(
        "limits: a model call is given up when the time is over",
        "runner.py",
        "asking.wait(self.clock, left, self.stopping)",
        "asking.wait(self.clock, None, self.stopping)",
        ("tests/promise/test_limits.py::test_a_model_call_is_given_up_when_the_time_is_over",),
    ),
    Mutant(
        "limits: a write under way is never cut off",
        "calls.py",
        " or (effect.is_write and left > 0):",
        ":",
        ("tests/promise/test_limits.py::test_a_write_in_flight_is_never_cut_off_by_a_limit",),
    ),
    Mutant(
        "limits: no write begins when the time is over",
        "calls.py",
        "(effect.is_write and left > 0)",
        "effect.is_write",
        ("tests/promise/test_limits.py::test_a_tool_of_steps_begins_no_other_call_when_the_time_is_over",),
    ),
    Mutant(
        "steps: the body's time is that of its last step",
        "steps.py",
        "now=lambda: drive.shown(from_micros(body.at))",
        "now=None",
        ("tests/promise/test_steps.py::test_the_time_that_a_body_sees_is_the_same_whenever_it_is_entered",),
    ),
    Mutant(
        "steps: a tool does not call itself without end",
        "steps.py",
        'if tool.effect == "steps" and len(drive.state.path(parent)) >= _DEPTH:',
        "if False:",
        ("tests/promise/test_steps.py::test_a_tool_of_steps_that_calls_itself_without_end_is_refused",),
    ),
    Mutant(
        "steps: a set is the same argument in each process",
        "schemas.py",
        "if isinstance(value, Set) else items",
        "if False else items",
        ("tests/promise/test_steps.py::test_a_set_is_the_same_argument_in_whatever_order_a_process_holds_it",),
    ),
    Mutant(
        "asks: the model is told what an edited call was made with",
        "calls.py",
        "made_with = effect.arguments if was_made and",
        "made_with = None if was_made and",
        ("tests/promise/test_asks.py::test_the_model_is_told_what_an_edited_call_was_made_with",),
    ),
    Mutant(
        "fold: what was foreseen from another state is not taken over",
        "journal.py",
        "state is foreseen.before and ",
        "",
        ("tests/rules/test_journal.py::test_what_was_foreseen_from_another_state_is_not_taken_over",),
    ),
    Mutant(
        "fold: no state that was given is changed",
        "journal.py",
        '"__dict__", self.__dict__.copy())',
        '"__dict__", self.__dict__)',
        ("tests/rules/test_journal.py::test_what_was_foreseen_folds_to_the_same_and_changes_no_state_that_was_given",),
    ),
    Mutant(
        "run: what it kept at hand is freed when it ends",
        "runner.py",
        "del self.calls, self.guard, self.prepare  #",
        "pass  #",
        ("tests/promise/test_memory.py::test_what_a_run_kept_at_hand_is_freed_when_it_ends_and_by_no_collection",),
    ),
    Mutant(
        "run: a step leaves nothing that only a collection frees",
        "payloads.py",
        "    if not _is_long(encoded):\n",
        "    def again() -> object:\n        return again\n\n    if not _is_long(encoded):\n",
        ("tests/promise/test_memory.py::test_a_step_leaves_nothing_that_only_a_collection_frees",),
    ),
    Mutant(
        "accept: a run is claimed with it only where there is a slot",
        "worker.py",
        "or len(self._driven) >= self.slots\n        return agent",
        "\n        return agent",
        ("tests/promise/test_limits.py",),
    ),
    Mutant(
        "accept: nothing is claimed with it while a run is to be alone",
        "worker.py",
        "self._pending or self._suspects or self._alone is not None or",
        "self._pending or",
        ("tests/promise/test_poison.py",),
    ),
    Mutant(
        "queue: a claim that is on the way is no reason to look at all that waits",
        "worker.py",
        "            if not self._is_claiming(run):\n                self",
        "            if run:\n                self",
        ("tests/promise/test_queue.py",),
    ),
    Mutant(
        "queue: a run that comes to wait is no reason to look at all that waits",
        "worker.py",
        'if drive.suspended.state == "waiting":',
        'if drive.suspended.state == "parked":',
        ("tests/promise/test_queue.py",),
    ),
    Mutant(
        "outbox: what others have to tell is not read again for each turn",
        "deliveries.py",
        '        last = self._behind.get(tenant, (-1, ""))',
        '        last = -1, ""',
        ("tests/promise/test_outbox.py",),
    ),
    Mutant(
        "outbox: what others have told is forgotten",
        "deliveries.py",
        "            self._others, self._behind, self",
        "            others, self._behind, self",
        ("tests/promise/test_outbox.py",),
    ),
    Mutant(
        "jumps: what was to expire is looked at anew when a jump is noticed",
        "runtime.py",
        "            self._working.look_soon()  # what was to expire",
        "            pass  # what was to expire",
        ("tests/promise/test_jumps.py",),
    ),
    Mutant(
        "notes: who looks for what is untold does not go through the queue",
        "transactions/statements.sql",
        ":host, :metadata, :fence, :owner, 1,",
        ":host, :metadata, :fence, :owner, 0,",
        ("tests/stores/test_sqlite_scale.py",),
    ),
    Mutant(
        "notes: what became of a run that was in the queue is told",
        "transactions/statements.sql",
        "deaths = 0, told = CASE WHEN state IN ('queued', 'running', 'waiting') THEN 0 ELSE told END",
        "deaths = 0",
        ("tests/promise/test_notes.py",),
    ),
    Mutant(
        "accept: a claim that nobody heard of is found",
        "worker.py",
        "            self.look_soon()  # it may be there all the same, and claimed\n",
        "",
        ("tests/promise/test_boundaries.py::test_b02_a_run_whose_acceptance_nobody_heard_of_is_driven_all_the_same",),
    ),
    Mutant(
        "watch: it hears of the run before it looks into the store",
        "watching.py",
        "    watching = watching or streams.watch(run)  #",
        "    await check_cursor(read, tenant, run, after)\n    watching = watching or streams.watch(run)  #",
        ("tests/promise/test_watching.py",),
    ),
    Mutant(
        "watch: a stream that never begins leaves no watcher",
        "http/service.py",
        "        weakref.finalize(events,",
        "        (lambda *_: watch)(events,",
        ("tests/promise/test_watching.py",),
    ),
    Mutant(
        "watch: who heard all of an answer is told its pieces, however late",
        "watching.py",
        "                    for piece in watching.before(cursor(run, event.id)):",
        "                    for piece in ():",
        ("tests/promise/test_watching.py",),
    ),
    Mutant(
        "watch: pieces of which the first were missed are told another way",
        "streams.py",
        "        watch.missed = self._said[run][0] if run in self._said else None\n",
        "        watch.missed = None\n",
        ("tests/promise/test_gaps.py",),
    ),
    Mutant(
        "watch: no piece of an answer without its beginning, once it is over",
        "streams.py",
        "(after == seen and after != self.missed)",
        "after == seen",
        ("tests/promise/test_watching.py",),
    ),
    Mutant(
        "watch: no piece of an answer without its beginning, by whoever was too slow",
        "streams.py",
        "if after != self.missed or event.type != DELTA:",
        "if True:",
        ("tests/promise/test_watching.py",),
    ),
    Mutant(
        "accept: what a run cannot be driven with does not keep it from being accepted",
        "worker.py",
        "            except (StoreCorrupt, StoreTooNew):  # of",
        "            except StoreTooNew:  # of",
        ("tests/stores/test_sqlite_damage.py",),
    ),
    Mutant(
        "accept: a claim that was not heard of is found when its operation comes again",
        "worker.py",
        "            self.look_soon()  # its claim was not heard of when it came\n",
        "            pass\n",
        (
            "tests/stores/test_postgres_commit.py"
            "::test_a_run_that_is_there_after_nobody_knew_is_driven_when_its_operation_comes_again",
        ),
    ),
    Mutant(
        "accept: a turn that came before the process heard of the run is not lost",
        "worker.py",
        "                self.streams.dropped(run)\n                self._has_room()",
        "                self.streams.dropped(run)\n                self._start_pending()",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "accept: who cannot learn whether it drives accepts all the same",
        "worker.py",
        "        except StoreError:  # it may be accepted all the same",
        "        except StoreCorrupt:  # it may be accepted all the same",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "accept: who waits for a run that has to queue looks once more",
        "worker.py",
        "            else:\n                self.streams.dropped(run)\n",
        "            else:\n",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "accept: a signal that came before the claim was heard of is read first",
        "worker.py",
        "                self._driven[run].signalled = place.signalled\n",
        "",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "close: no claim that nobody heard of is left behind",
        "worker.py",
        "            await self._give_back_the_rest()\n",
        "",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "sqlite: what is handed in is written before the store closes",
        "stores/sqlite.py",
        "        self._writes.hand_over(asyncio.get_running_loop())  #",
        "        pass  #",
        ("tests/stores/test_jobs.py",),
    ),
    Mutant(
        "postgres: what is handed in is written before the store closes",
        "stores/postgres.py",
        "        self._writes.hand_over(asyncio.get_running_loop())  #",
        "        pass  #",
        ("tests/stores/test_jobs.py",),
    ),
    Mutant(
        "memory: the terms of earlier rules go with their text",
        "transactions/remembering.py",
        "sorted(terms.ever(text))",
        "sorted(terms.counted(text))",
        ("tests/promise/test_memory.py",),
    ),
    Mutant(
        "context: a run that has not asked is not taken for one that was erased",
        "seeing.py",
        "if batches else queries.erased(run)",
        "if state.seq else queries.erased(run)",
        ("tests/promise/test_boundaries.py",),
    ),
    Mutant(
        "jobs: who shares a commit with one that ends the event loop hears of it",
        "stores/jobs.py",
        "            job.loop.call_soon(job.resolve)",
        "            pass",
        ("tests/stores/test_jobs.py",),
    ),
    Mutant(
        "jobs: what is written in one turn of the event loop gets to the thread together",
        "stores/jobs.py",
        "            self._coming[job.loop] = [job]\n",
        "            self.waiting.put(job)\n            self._coming[job.loop] = []\n",
        ("tests/stores/test_jobs.py",),
    ),
    Mutant(
        "values: what is no JSON is never written",
        "values.py",
        'if "NaN" in text or "Infinity" in text:',
        "if False:",
        ("tests/rules/test_values.py::test_what_is_no_json_is_never_written",),
    ),
    Mutant(
        "asks: a call that was not made is not told as made",
        "calls.py",
        "was_made = effect.attempt or isinstance(",
        "was_made = True or isinstance(",
        (
            "tests/promise/test_policy.py::test_an_edit_by_a_process_without_the_policy_is_refused_before_the_call_is_made",
        ),
    ),
    Mutant(
        "queue: a full one refuses",
        "transactions/accepting.py",
        "        if waiting > new.queue:\n",
        "        if False:\n",
        ("tests/promise/test_limits.py::test_a_full_queue_refuses_and_writes_nothing",),
    ),
    Mutant(
        "restore: a write that may have been made after the backup is not simply started",
        "effects.py",
        "    if effect.doubted:\n",
        "    if False:\n",
        (
            "tests/promise/test_store.py::test_b18_a_write_that_may_have_been_made_after_the_backup_is_checked_before_it_starts",
        ),
    ),
    Mutant(
        "restore: a run that had failed for now is parked before it goes on",
        "transactions/accepting.py",
        "    if run.retryable == RETRYABLE_AFTER_RESTORE:\n",
        "    if False:\n",
        ("tests/promise/test_store.py::test_b18_a_run_that_failed_for_now_is_parked_before_it_goes_on",),
    ),
    Mutant(
        "memory: a fork keeps what a run noted that did not complete",
        "replay.py",
        '    remembers = at_step if whole.status == "completed" else min(at_step, whole.remembers_from)\n',
        "    remembers = at_step\n",
        ("tests/promise/test_memory.py::test_a_fork_remembers_what_a_run_noted_that_did_not_complete",),
    ),
    Mutant(
        "replay: no call is changed into one that was made before",
        "transactions/deciding.py",
        "    if decision.arguments is not None:\n",
        "    if False:\n",
        ("tests/promise/test_replay.py::test_no_call_is_changed_into_one_that_was_made_before",),
    ),
    Mutant(
        "restore: of a run that a person ends, what it may have done is unknown",
        "transactions/ending.py",
        "    doubted = yield from _doubted(run, calls)\n",
        "    doubted = frozenset[int]()\n",
        (
            "tests/promise/test_store.py::test_b18_of_a_run_that_a_person_ends_the_writes_that_it_may_have_made_are_unknown",
        ),
    ),
    Mutant(
        "restore: a replay of what may have gone on after the backup is guarded",
        "transactions/replaying.py",
        "        doubted = yield from _is_doubted(member)\n",
        "        doubted = False\n",
        (
            "tests/promise/test_store.py::test_b18_nobody_knows_what_a_run_did_after_the_backup_so_a_replay_asks_before_each_write",
        ),
    ),
    Mutant(
        "slots: a run whose tool waits for another lends that its place",
        "worker.py",
        "        for run in awaited[: max(0, slots + waiting - len(self._driven))]:",
        "        for run in ():",
        ("tests/promise/test_limits.py::test_a_run_whose_tool_waits_for_others_lends_one_of_them_its_place",),
    ),
    Mutant(
        "slots: where each run waits for another one, what that is behind goes on",
        "worker.py",
        "max(slots, waiting + 1)",
        "slots",
        ("tests/promise/test_limits.py::test_a_run_whose_tool_waits_for_others_lends_one_of_them_its_place",),
    ),
    Mutant(
        "slots: a run that waits for a deadline lends its place",
        "worker.py",
        "        slots = self.slots + len(self._lent)",
        "        slots = self.slots",
        ("tests/promise/test_limits.py::test_a_run_that_waits_for_a_deadline_lends_its_place_until_then",),
    ),
    Mutant(
        "slots: no more runs at once than the process may drive",
        "worker.py",
        " and len(self._driven) < max(slots, waiting + 1)",
        "",
        ("tests/promise/test_limits.py::test_no_more_runs_are_driven_at_once_than_the_process_may",),
    ),
    Mutant(
        "long results: the blob is kept before the outcome that names it",
        "calls.py",
        "            await self.drive.keep_blob(shown.blob, shown.data)",
        "            pass",
        (
            "tests/promise/test_long_results.py::test_a_crash_between_the_blob_and_the_outcome_leaves_a_blob_that_is_collected_after_a_day",
        ),
    ),
    Mutant(
        "long results: the blob of an outcome is used by its run",
        "transactions/driving.py",
        ', ("blob.use", kept | {"run": claim.run})]',
        "]",
        (
            "tests/promise/test_long_results.py::test_a_crash_between_the_blob_and_the_outcome_leaves_a_blob_that_is_collected_after_a_day",
        ),
    ),
    Mutant(
        "long results: only what this session left out is read",
        "outputs.py",
        "    if len(found) != 1:\n",
        "    if len(given) == 64:\n        return Blob(given, 'text/plain', 0, 0)\n    if len(found) != 1:\n",
        ("tests/cases/test_c10_oversized_result.py::test_c10_page_by_page_the_model_reads_all_of_it",),
    ),
    Mutant(
        "import: a run of the store itself is not overlaid by a file",
        "transactions/housekeeping.py",
        """    if rows:
        raise InvalidInput(f"run {run} is of this store""",
        """    if False:
        raise InvalidInput(f"run {run} is of this store""",
        (
            "tests/promise/test_runfiles.py::test_a_run_of_this_store_is_not_imported_and_an_imported_one_can_be_removed",
        ),
    ),
    Mutant(
        "import: each part of a run file has its checksum",
        "runfile.py",
        "if sums.get(part) != _sum(self.raw[part]):",
        "if False:",
        ("tests/promise/test_runfiles.py::test_a_damaged_file_is_refused_and_the_place_is_named",),
    ),
    Mutant(
        "import: no entry of a run file is left out",
        "runfile.py",
        "if entries.seq != following:",
        "if False:",
        ("tests/promise/test_runfiles.py::test_a_damaged_file_is_refused_and_the_place_is_named",),
    ),
    Mutant(
        "log: what was said and given stays in the store",
        "logs.py",
        "if not isinstance(v, dict)",
        "if True",
        ("tests/promise/test_logs.py::test_what_was_said_and_done_stays_in_the_store",),
    ),
    Mutant(
        "steer: nothing joins a run that was asked to stop",
        "transactions/driving.py",
        "held_seq(held, claim, cancel=not steers, unread=unread)",
        "held_seq(held, claim, unread=unread)",
        ("tests/promise/test_steer.py::test_it_does_not_join_a_host_that_was_asked_to_stop_meanwhile",),
    ),
    Mutant(
        "replay: a recorded success that a tool of steps reused serves no other call",
        "journal.py",
        "pool=_without(state.pool, planned.reuses), **changes,",
        "pool=state.pool if planned.parent is not None else _without(state.pool, planned.reuses), **changes,",
        ("tests/promise/test_replay.py::test_it_serves_one_call_of_a_tool_of_steps_too_also_after_a_wait",),
    ),
    Mutant(
        "steps: what is recorded at a place is handed back, and not done",
        "steps.py",
        "    return recorded[place] if place < len(recorded) else None",
        "    return None",
        ("tests/promise/test_steps.py::test_a_recorded_result_comes_back_as_the_type_that_the_tool_returns",),
    ),
    Mutant(
        "steps: another tool, or other arguments, are not taken for what is recorded",
        "steps.py",
        "(step.tool, step.hash) != (tool.name, digest)",
        "False",
        ("tests/promise/test_steps.py::test_code_that_does_something_else_parks_the_run_until_it_fits",),
    ),
    Mutant(
        "steps: a body that ends without a recorded step has not come to its end",
        "steps.py",
        "elif (left := await _recorded(calls, effect, place)) is not None:",
        "elif (left := None) is not None:",
        ("tests/promise/test_steps.py::test_code_that_does_something_else_parks_the_run_until_it_fits",),
    ),
    Mutant(
        "steps: one after the other, in the task of the body",
        "steps.py",
        "        if asyncio.current_task() is not self._task:\n",
        "        if False:\n",
        ("tests/promise/test_steps.py::test_calls_beside_each_other_are_refused_before_anything_happens",),
    ),
    Mutant(
        "steps: no other class of tools makes calls or asks",
        "tools.py",
        "        if self._steps is None:\n",
        "        if False:\n",
        ("tests/promise/test_steps.py::test_in_any_other_class_a_call_raises_before_anything_happens",),
    ),
    Mutant(
        "steps: nothing new begins once a cancel is there",
        "transactions/driving.py",
        "    (held,) = yield [hold(claim, 1, at)]\n    seq = held_seq(held, claim, cancel=False)",
        "    (held,) = yield [hold(claim, 1, at)]\n    seq = held_seq(held, claim)",
        ("tests/promise/test_questions.py::test_a_cancel_that_comes_first_asks_nothing",),
    ),
    Mutant(
        "steps: what they said is read as no history",
        "transactions/statements.sql",
        " AND m.run = r.id AND m.ordinal >= 0\n",
        " AND m.run = r.id\n",
        ("tests/promise/test_steps.py",),
    ),
    Mutant(
        "steps: a lost step holds planned once siblings",
        "lifecycle.py",
        'if e.state == "started" and e.parent is not None',
        "if False and e.parent is not None",
        (
            "tests/rules/test_lifecycle.py::test_a_step_that_was_lost_holds_planned_once_siblings_until_its_body_has_looked",
        ),
    ),
    Mutant(
        "questions: an answer that does not fit is refused",
        "transactions/deciding.py",
        '        if why is not None:\n            raise InvalidInput(f"this does not',
        '        if False:\n            raise InvalidInput(f"this does not',
        (
            "tests/promise/test_questions.py::test_an_answer_that_does_not_fit_is_refused_at_once_and_one_that_fits_comes_as_its_type",
        ),
    ),
    Mutant(
        "questions: without a default nobody goes on",
        "transactions/signals.py",
        "events.AskExpired(ask=ask.id, unanswered=True)",
        "events.AskExpired(ask=ask.id)",
        ("tests/promise/test_questions.py::test_a_run_whose_question_expires_while_a_sibling_works_ends_after_that",),
    ),
    Mutant(
        "jump: a lost attempt is not waited for longer than it could take",
        "calls.py",
        " if effect.began else after",
        " if False else after",
        ("tests/promise/test_jumps.py::test_a_lost_attempt_is_not_waited_for_longer_than_it_could_take",),
    ),
    Mutant(
        "jump: what was waited for is not waited for once more",
        "runner.py",
        " and after != self._rested",
        "",
        ("tests/promise/test_jumps.py::test_the_next_attempt_at_the_model_comes_though_the_clock_was_set_back",),
    ),
    Mutant(
        "jump: the wait for the model has its limit",
        "runner.py",
        "self.sleep(min(after, self.now() + int(lifecycle.LONGEST_WAIT * 1e6)))",
        "self.sleep(after)",
        ("tests/promise/test_jumps.py",),
    ),
    Mutant(
        "jump: an attempt has no more time than its tool allows",
        "calls.py",
        "left = min(timeout, deadline - self.drive.clock.now())",
        "left = deadline - self.drive.clock.now()",
        ("tests/promise/test_jumps.py",),
    ),
    Mutant(
        "jump: nothing expires right after one",
        "worker.py",
        "        if pause := self.jumps.pause():\n            return",
        "        if (pause := 0):\n            return",
        ("tests/promise/test_jumps.py",),
    ),
    Mutant(
        "jump: a person may still decide right after one",
        "transactions/deciding.py",
        " and not paused",
        "",
        ("tests/promise/test_jumps.py",),
    ),
    Mutant(
        "queue: the file lets one run of a session be driven or wait",
        "stores/sqlite_migrations/0001.sql",
        "CREATE UNIQUE INDEX runs_one_active",
        "CREATE INDEX runs_one_active",
        ("tests/promise/test_claims.py",),
    ),
    Mutant(
        "flush: nobody is told of what the disk may still lose",
        "stores/sqlite.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        ("tests/torture/test_power.py",),
    ),
    Mutant(
        "flush: after one that failed the process stops",
        "stores/sqlite.py",
        "        os._exit(_EXIT_FSYNC_FAILED)\n",
        "        return\n",
        ("tests/stores/test_sqlite_full_disk.py",),
    ),
    Mutant(
        "takeover: where it is not known what became of it, it is tried again",
        "worker.py",
        "                except (StoreFull, StoreBusy, OutcomeUnknown):\n",
        "                except (StoreFull, StoreBusy):\n",
        ("tests/promise/test_store.py",),
    ),
    Mutant(
        "postgresql: nobody waits for ever for an answer on a connection that stands",
        "stores/postgres_place.py",
        "gen if self.patience is None else",
        "gen if True else",
        ("tests/stores/test_postgres_commit.py",),
    ),
    Mutant(
        "postgresql: who comes back first takes nothing from those who come back later",
        "stores/postgres_listener.py",
        "return now - self._out_of_touch if now < self._forgives_until else 0.0",
        "return 0.0",
        ("tests/stores/test_postgres_commit.py",),
    ),
    Mutant(
        "steer: no signal of one that does not join is left at its host",
        "transactions/driving.py",
        "if held[0][2]:  # of messages",
        "if False:  # of messages",
        ("tests/promise/test_steer.py::test_no_signal_of_one_that_does_not_join_is_left_at_the_host",),
    ),
    Mutant(
        "postgresql: a pooler that shares connections out by transaction is refused",
        "stores/postgres_place.py",
        "if was_taken or not taken:",
        "if False:",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "postgresql: a prepared statement is named by what it says",
        "stores/postgres_wire.py",
        "_name_of(sql, types)\n",
        'b"s%d" % len(self._prepared)\n',
        ("tests/stores/test_postgres_statements.py",),
    ),
    Mutant(
        "postgresql: a password that is taken for a host or a database is not shown",
        "stores/postgres_place.py",
        'if authority.count("@") > 1 or "@" in path:  #',
        "if False:  #",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "postgresql: what a refusal of a URL quotes is not shown",
        "stores/postgres_place.py",
        "if not _UNKNOWN_PARAMETER.fullmatch(said):  #",
        "if False:  #",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "postgresql: who comes second to migrate sees what the first one did",
        "stores/postgres_place.py",
        "set_config('default_transaction_isolation', 'read committed', false), ",
        "",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "postgresql: a server without a connection left is busy, whichever role it names",
        "stores/postgres_place.py",
        'if "too many" in said or "connection slots" in said:  #',
        "if False:  #",
        ("tests/stores/test_postgres_admin.py",),
    ),
    Mutant(
        "lock: one process drives a file",
        "stores/sqlite.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("tests/stores/test_sqlite_processes.py", "tests/promise/test_claims.py"),
    ),
    Mutant(
        "lock: a child of the driver has it no longer than that one",
        "stores/sqlite.py",
        "os.register_at_fork(after_in_child=_let_go_of_locks)\n",
        "",
        ("tests/stores/test_sqlite_processes.py",),
    ),
    Mutant(
        "connections: a child has none of its parent's",
        "stores/seats.py",
        "os.register_at_fork(before=_stand_still, after_in_parent=_go_on, after_in_child=_begin_anew)\n",
        "",
        ("tests/stores/test_sqlite_processes.py",),
    ),
    Mutant(
        "sqlite: no log is left that the file's own user could not write",
        "stores/sqlite.py",
        "    refuse_to_begin_a_log(path)\n    # It was driven",
        "    # It was driven",
        ("tests/stores/test_sqlite_processes.py",),
    ),
    Mutant(
        "order: by sequence",
        "transactions/statements.sql",
        "ORDER BY r.base, m.ordinal",
        "ORDER BY m.ordinal, r.base",
        ("tests/cases/test_c29_order.py",),
    ),
    Mutant(
        "started: an attempt is spent once",
        "transactions/statements.sql",
        "AND attempt = :attempt - 1 AND state IN ('planned', 'approved', 'started')\n",
        "\n",
        ("tests/promise/test_effects.py", "tests/promise/test_zombie.py", "tests/torture/test_machine.py"),
    ),
    Mutant(
        "outcome: of the attempt that was made, and of no other",
        "transactions/statements.sql",
        "((state = 'started' AND attempt = :attempt)",
        "((state = 'started')",
        ("tests/promise/test_zombie.py", "tests/promise/test_effects.py"),
    ),
    Mutant(
        "siblings: the model is asked only when every call has an outcome",
        "lifecycle.py",
        "    if state.without_outcome:\n",
        "    if state.without_outcome and busy:\n",
        ("tests/rules/test_lifecycle.py", "tests/promise/test_effects.py"),
    ),
    Mutant(
        "watch: it is told at once that a run was taken up",
        "worker.py",
        "            self.streams.notify(run)  # it may sleep",
        "            pass  # it may sleep",
        ("tests/cases/test_c11_dead_runs.py",),
    ),
    Mutant(
        "model: one that was given up ends quietly",
        "cancellation.py",
        "            self.future.add_done_callback(_noticed)\n",
        "",
        ("tests/torture/test_misbehaviour.py",),
    ),
    Mutant(
        "door: what the store keeps of a token opens no door",
        "access.py",
        'return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()',
        "return secret",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: a token that was revoked does not count",
        "access.py",
        "self.revoked_at is None and (self",
        "(self",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: a token that has expired does not count",
        "access.py",
        "now < self.expires_at",
        "True",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: a token does what its scopes say",
        "http/callers.py",
        "if scope not in self.scopes and not self.is_admin:",
        "if False:",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: only the scope 'run' starts",
        "http/service.py",
        'caller.needs("run")\n        return await self.rt.start(',
        "return await self.rt.start(",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: only the scope 'run' erases",
        "http/service.py",
        'caller.needs("run")\n        found = await self._session(caller, session)\n        await self.rt.delete',
        "found = await self._session(caller, session)\n        await self.rt.delete",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: only the scope 'answer' settles",
        "http/service.py",
        'caller.needs("answer")\n        await self._own_effect',
        "await self._own_effect",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: what is of another tenant is not there",
        "http/callers.py",
        "tenant=token.tenant, user=token.user",
        "tenant=DEFAULT_TENANT, user=token.user",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: what is of another user is not there",
        "http/callers.py",
        "        if not self.sees(user):\n",
        "        if False:\n",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: lists are of the token's own user",
        "http/callers.py",
        "return self.user or named\n\n    def sees",
        "return named\n\n    def sees",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: a blob is read through a run that uses it",
        "http/service.py",
        "if digest not in await self.rt.blobs_of(run, tenant=found.tenant):",
        "if False:",
        ("tests/http/test_refusals.py",),
    ),
    Mutant(
        "door: whoever started a run does not approve what it does",
        "http/service.py",
        "if any(caller.came_by(door) for door in",
        "if any(False for door in",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: nor through a page of the console",
        "http/callers.py",
        'door in (f"http:{self.token}", f"console:{self.token}")',
        "door == self.door",
        ("tests/http/console/test_forms.py",),
    ),
    Mutant(
        "door: an address for others needs a token",
        "http/serving.py",
        "if not here and not await any_token(runtime):",
        "if False:",
        ("tests/http/test_stopping.py",),
    ),
    Mutant(
        "door: without a token only this machine is served",
        "http/callers.py",
        "if not is_loopback(client) or any(",
        "if any(",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: it is addressed by a name that it has",
        "http/guard.py",
        "if not known and not (",
        "if False and not (",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: no page from elsewhere uses it",
        "http/guard.py",
        "if origin is not None and origin not in",
        "if False and origin not in",
        ("tests/http/test_access.py",),
    ),
    Mutant(
        "door: no form from elsewhere reaches the console",
        "http/guard.py",
        "            self._check_names(request)\n",
        '            if path.startswith("/v1/"):\n                self._check_names(request)\n',
        ("tests/http/console/test_forms.py",),
    ),
    Mutant(
        "door: a refusal before a page is a page to a browser",
        "http/requests.py",
        'return is_page(place(request)) and "text/html" in _accepted(request)',
        "return False",
        ("tests/http/test_failing.py",),
    ),
    Mutant(
        "door: the API says what is wrong in one form",
        "http/requests.py",
        'return is_page(place(request)) and "text/html" in _accepted(request)',
        'return "text/html" in _accepted(request)',
        ("tests/http/test_failing.py",),
    ),
    Mutant(
        "door: a decision says what was seen",
        "http/service.py",
        "        if seen is None:\n            raise",
        "        seen = seen or found.arguments_hash\n        if False:\n            raise",
        ("tests/http/test_runs.py",),
    ),
    Mutant(
        "door: a decision counts for the arguments that were seen",
        "http/service.py",
        "if seen != found.arguments_hash:",
        "if False:",
        ("tests/http/test_runs.py",),
    ),
    Mutant(
        "door: a request for an operation that is there does not own its run",
        "http/routes_runs.py",
        "owns = run.created and on_disconnect",
        "owns = on_disconnect",
        ("tests/http/test_runs.py",),
    ),
    Mutant(
        "door: watching never cancels",
        "http/routes_runs.py",
        'replies.stream(found, events, drain, on_disconnect="continue")',
        'replies.stream(found, events, drain, on_disconnect="cancel")',
        ("tests/http/test_runs.py",),
    ),
    Mutant(
        "door: a run is watched from an event of its own",
        "telling.py",
        "if of_run != run or not seq",
        "if not seq",
        ("tests/cases/test_c37_reconnecting_viewers.py",),
    ),
    Mutant(
        "door: a watcher that comes back is told nothing twice",
        "watching.py",
        "if self.folded > self._seen:",
        "if True:",
        ("tests/cases/test_c37_reconnecting_viewers.py",),
    ),
    Mutant(
        "door: a body has its limit",
        "http/guard.py",
        "if self._taken > self._limit:",
        "if False:",
        ("tests/http/test_refusals.py",),
    ),
    Mutant(
        "door: JSON has its depth",
        "http/guard.py",
        "            if depth > most:\n",
        "            if False:\n",
        ("tests/http/test_refusals.py",),
    ),
    Mutant(
        "door: a process that stops takes no new work",
        "http/guard.py",
        "if self.drain.begun:",
        "if False:",
        ("tests/http/test_stopping.py",),
    ),
    Mutant(
        "door: files go out to be saved",
        "http/routes_runs.py",
        "f'attachment; filename=\"{digest}\"'",
        "f'inline; filename=\"{digest}\"'",
        ("tests/http/test_refusals.py",),
    ),
    Mutant(
        "door: no text becomes a part of a page",
        "http/console/looks.py",
        "autoescape=True",
        "autoescape=False",
        ("tests/http/console/test_hostile.py",),
    ),
    Mutant(
        "door: a page runs what this server serves",
        "http/console/looks.py",
        "\"default-src 'self'; base-uri",
        '"default-src *; base-uri',
        ("tests/http/console/test_pages.py",),
    ),
    Mutant(
        "door: a form that is sent twice is one run",
        "http/console/acting.py",
        'text_in(form, "key")[:64] or secrets',
        "secrets",
        ("tests/http/console/test_forms.py",),
    ),
    Mutant(
        "door: scripts do not read the token",
        "http/console/door.py",
        "httponly=True",
        "httponly=False",
        ("tests/http/console/test_pages.py",),
    ),
)


class Tests:
    """Runs tests against a copy of the package, and against the package itself, each of those once."""

    def __init__(self) -> None:
        self._whole: dict[str, str | None] = {}
        self._one_at_a_time = threading.Lock()

    def fail_without(self, mutant: Mutant, folder: Path) -> Verdict:
        shutil.copytree(ROOT / "src" / "ondol", folder / "ondol", ignore=shutil.ignore_patterns("__pycache__"))
        file = folder / "ondol" / mutant.file
        text = file.read_text("utf-8")
        if mutant.guard not in text:
            return Verdict("MOVED", f"the guard is not in {mutant.file} any more: say where it went")
        file.write_text(text.replace(mutant.guard, mutant.gone), "utf-8")
        code, said = self._run(mutant.tests, folder)
        if code is None:
            return Verdict("TIMED OUT", f"after {LIMIT} s nothing had failed")
        if code != 1:
            return Verdict("SURVIVED", "no test noticed" if code == 0 else f"pytest could not run: {said[-500:]}")
        failed = _FAILED.findall(said)[0]
        if (why := self._fails_anyway(failed)) is not None:
            return Verdict("UNKNOWN", f"{failed} fails with the guard, too: {why}")
        return Verdict("caught", failed)

    def _fails_anyway(self, test: str) -> str | None:
        with self._one_at_a_time:
            if test not in self._whole:
                code, said = self._run([test], ROOT / "src")
                self._whole[test] = None if code == 0 else said[-500:]
            return self._whole[test]

    def _run(self, tests: Sequence[str], source: Path) -> tuple[int | None, str]:
        """The exit code of pytest, None where it took too long, and what it said."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "--no-header", *tests]
        env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout + done.stderr


#: In what pytest says at its end: the function, without the parameters that it failed with.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::[\w:]+)", re.M)


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(w in m.name for w in words)]
    tests, counted = Tests(), Counter[str]()

    def tried(mutant: Mutant) -> tuple[Mutant, Verdict]:
        with tempfile.TemporaryDirectory(prefix="ondol-mutant-") as folder:
            return mutant, tests.fail_without(mutant, Path(folder))

    with ThreadPoolExecutor(AT_ONCE) as together:
        for mutant, (verdict, why) in together.map(tried, chosen):
            counted[verdict] += 1
            print(f"{verdict:9}  {mutant.name}: {why}", flush=True)
    failed = len(chosen) - counted["caught"]
    print(f"{counted['caught']} passed, {failed} failed", *(f"({n} {v})" for v, n in counted.items() if v != "caught"))
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
