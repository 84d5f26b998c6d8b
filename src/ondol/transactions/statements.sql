-- Every statement that is the same for all databases, by name. `transactions/statements.py` reads this file; a store runs them.
-- {run}, {session}, {effect}, {ask} stand for the columns of the row of that name, {e.effect} for those of the table e. Parameters are :named.
-- [name: AND ...] is there only when it is asked for: `statements.with_conditions`. So each list has a plan of its own, and
-- reads no more rows than it gives, however large the store is.

-- name: run.by_operation
SELECT {run} FROM runs WHERE tenant = :tenant AND user_id = :user_id AND operation_id = :operation_id

-- name: run.get
SELECT {run} FROM runs WHERE tenant = :tenant AND id = :run

-- name: run.list
SELECT {run} FROM runs WHERE tenant = :tenant
  [session: AND session = :session] [user_id: AND user_id = :user_id] [state: AND state = :state]
  [before: AND n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :before)]
ORDER BY n DESC LIMIT :limit

-- The same in a state that few runs are in at a time. The + keeps the partial index: by n it would go through all runs.
-- name: run.list_unfinished
SELECT {run} FROM runs WHERE tenant = :tenant AND state IN ('queued', 'running', 'waiting') AND state = :state
  [session: AND session = :session] [user_id: AND +user_id = :user_id]
  [before: AND +n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :before)]
ORDER BY n DESC LIMIT :limit

-- name: run.list_unusual
SELECT {run} FROM runs WHERE tenant = :tenant AND state NOT IN ('queued', 'running', 'completed') AND state = :state
  [session: AND session = :session] [user_id: AND user_id = :user_id]
  [before: AND n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :before)]
ORDER BY n DESC LIMIT :limit

-- name: run.usage
SELECT n, agent, session, user_id, accepted_at, usage, tokens_in, tokens_out FROM runs
WHERE tenant = :tenant AND n > :after [since: AND accepted_at >= :since] [until: AND accepted_at < :until]
ORDER BY n LIMIT :limit

-- Model calls outside of any run.
-- name: spent.insert
INSERT INTO spent (tenant, id, agent, session, user_id, at, usage)
VALUES (:tenant, :id, :agent, :session, :user_id, :at, :usage)

-- name: spent.set
UPDATE spent SET usage = :usage WHERE tenant = :tenant AND id = :id

-- name: spent.delete
DELETE FROM spent WHERE tenant = :tenant AND id = :id

-- name: spent.list
SELECT id, agent, session, user_id, at, usage FROM spent
WHERE tenant = :tenant AND id > :after [since: AND at >= :since] [until: AND at < :until]
ORDER BY id LIMIT :limit

-- name: run.unfinished_in_session
SELECT id, state FROM runs WHERE tenant = :tenant AND session = :session
  AND state IN ('queued', 'running', 'waiting') ORDER BY place LIMIT 1

-- With each run, whether its input is still stored.
-- name: run.family
SELECT {run}, EXISTS (SELECT 1 FROM messages m WHERE m.tenant = runs.tenant AND m.run = runs.id AND m.ordinal = 1)
FROM runs WHERE tenant = :tenant AND (id = :family OR family = :family) ORDER BY n

-- name: run.copies
SELECT {run} FROM runs WHERE tenant = :tenant AND family = :family AND replay_of = :run ORDER BY n

-- name: run.parked_in_session
SELECT id FROM runs WHERE tenant = :tenant AND session = :session
  AND state NOT IN ('queued', 'running', 'completed') AND state = 'parked' LIMIT 1

-- name: run.make_room
UPDATE runs SET place = place + 1 WHERE tenant = :tenant AND session = :session
  AND state IN ('queued', 'running', 'waiting') AND place >= :place

-- name: run.count_unfinished
SELECT count(*) FROM runs WHERE tenant = :tenant AND session = :session AND state IN ('queued', 'running', 'waiting')

-- What waits to join a run, and the run that it becomes a part of: see `driving.note_down`.
-- name: run.steered
SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant = :tenant AND host = :run AND state = 'queued' LIMIT 1) one

-- name: run.steers
SELECT r.place, r.id, m.ordinal, m.body, m.sum FROM runs r JOIN messages m ON m.tenant = r.tenant AND m.run = r.id
WHERE r.tenant = :tenant AND r.host = :run AND r.state = :state AND m.ordinal = 1

-- By which doors came what is a part of the run by now.
-- name: run.joined_doors
SELECT door FROM runs WHERE tenant = :tenant AND host = :run AND state = 'joined'

-- name: run.join
UPDATE runs SET state = 'joined', fence = fence + 1, next_seq = next_seq + 1, told = 1, ended_at = :at, updated_at = :at
WHERE tenant = :tenant AND id = :run AND host = :host AND state = 'queued'
RETURNING next_seq - 1, fence

-- There is nothing to tell of it yet: whoever looks for what is untold does not go through all that waits.
-- name: run.insert
INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger, door, zone,
  state, place, next_seq, accepted_at, updated_at, family, replay_of, forked_at, host, metadata, fence, owner, told,
  head)
VALUES (:tenant, :run, :session, :user_id, :operation_id, :fingerprint, :agent, :definition, :trigger, :door, :zone,
  :state, :place, :next_seq, :at, :at, :family, :replay_of, :forked_at, :host, :metadata, :fence, :owner, 1,
  (SELECT revision FROM sessions s WHERE s.tenant = :tenant AND s.id = :session AND :state = 'running'))

-- (OFFSET 0, here and in the next one: PostgreSQL looks for each run by itself, instead of through all that wait.)
-- name: run.claim
UPDATE runs SET state = 'running', fence = fence + 1, owner = :owner, next_seq = next_seq + 1, updated_at = :at, host = NULL,
  head = (SELECT revision FROM sessions s WHERE s.tenant = runs.tenant AND s.id = runs.session)
WHERE tenant = :tenant AND id = :run AND state = 'queued'
  AND NOT EXISTS (SELECT 1 FROM runs b WHERE b.tenant = runs.tenant AND b.session = runs.session
    AND b.state IN ('queued', 'running', 'waiting') AND b.place < runs.place LIMIT 1 OFFSET 0)
RETURNING {run}

-- name: run.claimable
SELECT id, agent, deaths, n FROM runs WHERE tenant = :tenant AND state = 'queued' AND deaths = :deaths AND n > :n
  AND NOT EXISTS (SELECT 1 FROM runs b WHERE b.tenant = runs.tenant AND b.session = runs.session
    AND b.state IN ('queued', 'running', 'waiting') AND b.place < runs.place LIMIT 1 OFFSET 0)
ORDER BY n LIMIT :limit

-- The first condition is there for the partial index.
-- name: run.running
SELECT id, fence, owner, deaths, unread FROM runs WHERE tenant = :tenant AND state IN ('running', 'waiting') AND state = 'running'
ORDER BY n

-- name: run.hold
UPDATE runs SET next_seq = next_seq + :n, updated_at = :at
WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'
RETURNING next_seq - :n, cancel, unread

-- name: run.hold_answered
UPDATE runs SET next_seq = next_seq + :n, updated_at = :at, deaths = 0, usage = :usage, tokens_in = :tokens_in,
  tokens_out = :tokens_out
WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'
RETURNING next_seq - :n, cancel, unread

-- name: run.hold_spent
UPDATE runs SET next_seq = next_seq + :n, updated_at = :at, usage = :usage, tokens_in = :tokens_in,
  tokens_out = :tokens_out
WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'
RETURNING next_seq - :n, cancel, unread

-- name: run.hold_writing
UPDATE runs SET next_seq = next_seq + :n, updated_at = :at, wrote = 1
WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'
RETURNING next_seq - :n, cancel, unread

-- name: run.wrote
UPDATE runs SET wrote = 1 WHERE tenant = :tenant AND id = :run

-- name: run.progressed
UPDATE runs SET deaths = 0 WHERE tenant = :tenant AND id = :run

-- name: run.rests
UPDATE runs SET deaths = :deaths WHERE tenant = :tenant AND id = :run AND fence = :fence AND state = 'running'
RETURNING deaths

-- name: run.unhold
UPDATE runs SET state = :state, retryable = :retryable, owner = NULL, error = :error, ended_at = :ended_at, wrote = 0,
  deaths = 0, told = CASE WHEN state IN ('queued', 'running', 'waiting') THEN 0 ELSE told END
WHERE tenant = :tenant AND id = :run

-- name: run.suspend
UPDATE runs SET state = 'waiting', owner = NULL, deaths = 0 WHERE tenant = :tenant AND id = :run

-- name: run.park
UPDATE runs SET state = 'parked', owner = NULL, deaths = 0, error = :error, retryable = 0, ended_at = NULL,
  told = CASE WHEN state IN ('queued', 'running', 'waiting') THEN 0 ELSE told END
WHERE tenant = :tenant AND id = :run

-- name: run.complete
UPDATE runs SET state = 'completed', owner = NULL, reply = :reply, reply_sum = :reply_sum, base = :base,
  state_before = :state_before, state_before_sum = :state_before_sum, ended_at = :at, wrote = 0
WHERE tenant = :tenant AND id = :run

-- name: run.queue_again
UPDATE runs SET state = 'queued', owner = NULL, fence = fence + 1, place = coalesce(:place, place), retryable = 0,
  error = NULL, ended_at = NULL, next_seq = next_seq + :n, deaths = :deaths, updated_at = :at
WHERE tenant = :tenant AND id = :run AND state = :state AND fence = :fence
RETURNING next_seq - :n, fence

-- name: run.touch
UPDATE runs SET fence = fence + 1, next_seq = next_seq + :n, updated_at = :at
WHERE tenant = :tenant AND id = :run AND state = :state AND fence = :fence
RETURNING next_seq - :n, fence

-- name: run.told
UPDATE runs SET told = CASE WHEN EXISTS (SELECT 1 FROM effects e WHERE e.tenant = runs.tenant AND e.run = runs.id
    AND e.attempt > 0 AND e.effect <> 'read' AND (e.told IS NULL OR e.told <> e.state)) THEN 2 ELSE 1 END
WHERE tenant = :tenant AND id = :run

-- name: run.news
UPDATE runs SET told = 2 WHERE tenant = :tenant AND id = :run AND told = 1

-- Of those with messages that are searched.
-- name: run.searched_of_session
SELECT n FROM runs r WHERE tenant = :tenant AND session = :session AND n > :after
  AND EXISTS (SELECT 1 FROM search_texts t WHERE t.tenant = r.tenant AND t.source = r.id) ORDER BY n LIMIT :limit

-- name: run.next_in_session
SELECT id, agent, deaths FROM runs WHERE tenant = :tenant AND session = :session AND state IN ('queued', 'running', 'waiting')
ORDER BY place LIMIT 1

-- name: run.replayed
UPDATE runs SET retryable = 0 WHERE tenant = :tenant AND id = :run

-- name: run.erase
UPDATE runs SET reply = NULL, reply_sum = NULL, base = NULL, state_before = NULL, state_before_sum = NULL, error = NULL,
  retryable = 0, told = 1, metadata = NULL WHERE tenant = :tenant AND session = :session

-- In the order of the index, and sorted by who asks: a claim finds most of these empty, and SQLite would prepare to sort
-- all the same.
-- name: run.untold
SELECT id, place, state, error FROM runs WHERE tenant = :tenant AND session = :session AND told <> 1 AND state <> 'completed'
  AND told = 0 AND id <> :run AND state IN ('failed', 'cancelled', 'expired', 'parked') ORDER BY n LIMIT :limit

-- name: signal.insert
INSERT INTO signals (tenant, run, kind, body, at) VALUES (:tenant, :run, :kind, :body, :at)

-- name: signal.arrived
UPDATE runs SET unread = unread + 1, cancel = CASE :kind WHEN 'cancel' THEN 1 WHEN 'interrupt' THEN 2 ELSE cancel END
WHERE tenant = :tenant AND id = :run

-- name: signal.unread
SELECT kind, body, at FROM signals WHERE tenant = :tenant AND run = :run AND read_at IS NULL ORDER BY n

-- name: signal.read
UPDATE signals SET read_at = :at WHERE tenant = :tenant AND run = :run AND read_at IS NULL

-- name: signal.none_unread
UPDATE runs SET unread = 0 WHERE tenant = :tenant AND id = :run

-- name: signal.erase
DELETE FROM signals WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: entry.insert
INSERT INTO entries (tenant, run, seq, n, fence, at, v, body, sum) VALUES (:tenant, :run, :seq, :n, :fence, :at, :v, :body, :sum)

-- name: entry.list
SELECT seq, fence, at, v, body, sum FROM entries WHERE tenant = :tenant AND run = :run AND seq > :after ORDER BY seq

-- name: entry.first
SELECT seq, fence, at, v, body, sum FROM entries WHERE tenant = :tenant AND run = :run ORDER BY seq LIMIT 1

-- name: entry.erase
DELETE FROM entries WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: message.insert
INSERT INTO messages (tenant, run, ordinal, body, sum) VALUES (:tenant, :run, :ordinal, :body, :sum)

-- name: message.of_run
SELECT ordinal, body, sum FROM messages WHERE tenant = :tenant AND run = :run ORDER BY ordinal

-- name: message.one
SELECT ordinal, body, sum FROM messages WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal

-- name: message.history
SELECT r.base + m.ordinal, m.run, m.ordinal, m.body, m.sum FROM runs r
JOIN messages m ON m.tenant = r.tenant AND m.run = r.id AND m.ordinal >= 0
WHERE r.tenant = :tenant AND r.session = :session AND r.base >= :since AND r.base < :until
ORDER BY r.base, m.ordinal

-- The messages from a place on that may lie within a run.
-- name: message.window
SELECT r.base + m.ordinal, m.run, m.ordinal, m.body, m.sum FROM runs r
JOIN messages m ON m.tenant = r.tenant AND m.run = r.id AND m.ordinal >= 0
WHERE r.tenant = :tenant AND r.session = :session AND r.base + m.ordinal >= :since AND r.base >= coalesce(
  (SELECT max(base) FROM runs b WHERE b.tenant = :tenant AND b.session = :session AND b.base <= :since), 0)
  AND r.base < :until
ORDER BY r.base, m.ordinal

-- name: message.page
SELECT r.base + m.ordinal, m.run, m.ordinal, m.body, m.sum FROM runs r
JOIN messages m ON m.tenant = r.tenant AND m.run = r.id AND m.ordinal >= 0
WHERE r.tenant = :tenant AND r.session = :session AND r.base + m.ordinal > :after AND r.base >= coalesce(
  (SELECT max(base) FROM runs b WHERE b.tenant = :tenant AND b.session = :session AND b.base <= :after), 0)
  AND (CAST(:until AS BIGINT) IS NULL OR r.base < :until)
ORDER BY r.base, m.ordinal LIMIT :limit

-- name: message.erase
DELETE FROM messages WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: session.get
SELECT {session} FROM sessions WHERE tenant = :tenant AND id = :session

-- name: session.list
SELECT {session} FROM sessions WHERE tenant = :tenant AND deleted_at IS NULL [user_id: AND user_id = :user_id]
  [after: AND id > :after]
ORDER BY id LIMIT :limit

-- name: session.insert
INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, zone, created_at, updated_at, user_id)
VALUES (:tenant, :session, 0, '{}', 0, :next_place, :zone, :at, :at, :owner)

-- What later runs of a session changed of its state, the first of them first.
-- name: session.state_before
SELECT state_before, state_before_sum, place FROM runs
WHERE tenant = :tenant AND session = :session AND base >= :until AND state_before IS NOT NULL ORDER BY base

-- The place of the first run whose messages are at that sequence, or behind it.
-- name: run.first_from
SELECT place FROM runs WHERE tenant = :tenant AND session = :session AND base >= :until ORDER BY base LIMIT 1

-- name: session.branch
INSERT INTO sessions (tenant, id, revision, state, state_sum, next_message, next_place, zone, created_at, updated_at, parent,
  parent_until, orphaned, user_id, seen, seen_sum, pins, pins_sum)
VALUES (:tenant, :session, 0, :state, :state_sum, :until, 1, :zone, :at, :at, :parent, :until, :orphaned, :owner, :seen,
  :seen_sum, :pins, :pins_sum)

-- name: session.orphan
UPDATE sessions SET parent = NULL, orphaned = CASE WHEN parent_until > 0 THEN 1 ELSE 0 END, created_at = created_at + 1,
  seen = NULL, seen_sum = NULL
WHERE tenant = :tenant AND parent = :session RETURNING id

-- name: session.orphan_below
UPDATE sessions SET orphaned = (SELECT p.orphaned FROM sessions p WHERE p.tenant = :tenant AND p.id = :session),
  created_at = created_at + 1, seen = NULL, seen_sum = NULL
WHERE tenant = :tenant AND parent = :session RETURNING id

-- name: session.again
UPDATE sessions SET deleted_at = NULL, revision = revision + 1, next_place = :next_place, zone = :zone, updated_at = :at,
  user_id = :owner, created_at = CASE WHEN created_at < :at THEN :at ELSE created_at + 1 END
WHERE tenant = :tenant AND id = :session

-- name: session.place
UPDATE sessions SET next_place = next_place + 1, zone = coalesce(:zone, zone)
WHERE tenant = :tenant AND id = :session RETURNING next_place - 1

-- name: session.raise
UPDATE sessions SET revision = revision + 1, updated_at = :at
WHERE tenant = :tenant AND id = :session

-- A run that ended beside the queue raised the revision: the one that is driven goes on from there.
-- name: run.follow
UPDATE runs SET head = head + 1 WHERE tenant = :tenant AND session = :session AND state IN ('running', 'waiting')

-- name: session.suspend
UPDATE sessions SET revision = revision + 1, updated_at = :at
WHERE tenant = :tenant AND id = :session AND revision = (SELECT head FROM runs r WHERE r.tenant = :tenant AND r.id = :run)
RETURNING revision

-- name: session.commit
UPDATE sessions SET revision = revision + 1, next_message = next_message + :n, updated_at = :at
WHERE tenant = :tenant AND id = :session AND revision = (SELECT head FROM runs r WHERE r.tenant = :tenant AND r.id = :run)
RETURNING revision, next_message - :n, created_at

-- name: session.write
UPDATE sessions SET revision = revision + 1, state = coalesce(:state, state),
  state_sum = CASE WHEN :state IS NULL THEN state_sum ELSE :state_sum END, title = coalesce(:title, title),
  zone = coalesce(:zone, zone), updated_at = :at
WHERE tenant = :tenant AND id = :session
RETURNING {session}

-- name: session.state
UPDATE sessions SET state = :state, state_sum = :state_sum WHERE tenant = :tenant AND id = :session

-- name: session.see
UPDATE sessions SET seen = :seen, seen_sum = :seen_sum WHERE tenant = :tenant AND id = :session

-- name: session.pins
UPDATE sessions SET pins = :pins, pins_sum = :pins_sum WHERE tenant = :tenant AND id = :session

-- What is there now, and what a run began with: it is about to be replaced, by the commit of a run or, without one, by hand.
-- name: replaced.insert
INSERT INTO replaced (tenant, session, what, place, body, sum)
SELECT tenant, id, :what, coalesce((SELECT place + 1 FROM runs r WHERE r.tenant = :tenant AND r.id = :run), next_place),
  CASE WHEN :known = 0 THEN NULL WHEN :what = 'state' THEN state ELSE pins END,
  CASE WHEN :known = 0 THEN NULL WHEN :what = 'state' THEN state_sum ELSE pins_sum END
FROM sessions WHERE tenant = :tenant AND id = :session AND next_place > 0
ON CONFLICT (tenant, session, what, place) DO NOTHING

-- What there was when the run at that place began.
-- name: replaced.first
SELECT body, sum, place FROM replaced WHERE tenant = :tenant AND session = :session AND what = :what AND place > :place
ORDER BY place LIMIT 1

-- name: replaced.erase
DELETE FROM replaced WHERE tenant = :tenant AND session = :session

-- name: compaction.insert
INSERT INTO compactions (tenant, session, made, seen, sum) VALUES (:tenant, :session, :made, :seen, :seen_sum)

-- The last one that was made when the session had that many messages.
-- name: compaction.last
SELECT seen, sum FROM compactions WHERE tenant = :tenant AND session = :session AND made <= :until
ORDER BY made DESC, n DESC LIMIT 1

-- name: compaction.erase
DELETE FROM compactions WHERE tenant = :tenant AND session = :session

-- name: carried.insert
INSERT INTO carried (tenant, session, digest, body) VALUES (:tenant, :session, :digest, :body)
ON CONFLICT (tenant, session, digest) DO NOTHING

-- name: carried.copy
INSERT INTO carried (tenant, session, digest, body)
SELECT tenant, :session, digest, body FROM carried WHERE tenant = :tenant AND session = :parent AND digest = :digest
ON CONFLICT (tenant, session, digest) DO NOTHING

-- name: carried.get
SELECT body FROM carried WHERE tenant = :tenant AND digest = :digest LIMIT 1

-- name: carried.erase
DELETE FROM carried WHERE tenant = :tenant AND session = :session

-- name: user.all_of_session
SELECT DISTINCT user_id FROM runs WHERE tenant = :tenant AND session = :session

-- name: session.delete
UPDATE sessions SET revision = revision + 1, state = '{}', state_sum = NULL, title = NULL, seen = NULL, seen_sum = NULL,
  pins = NULL, pins_sum = NULL, parent = NULL, parent_until = NULL, orphaned = 0, deleted_at = :at, updated_at = :at
WHERE tenant = :tenant AND id = :session

-- name: tenant.insert
INSERT INTO tenants (tenant) VALUES (:tenant) ON CONFLICT (tenant) DO NOTHING

-- name: definition.insert
INSERT INTO definitions (tenant, digest, body) VALUES (:tenant, :digest, :body) ON CONFLICT (tenant, digest) DO NOTHING

-- name: definition.get
SELECT body FROM definitions WHERE tenant = :tenant AND digest = :digest

-- name: effect.insert
INSERT INTO effects (tenant, run, session, ordinal, tool, effect, call_id, reply, arguments, state, decision, parent,
  place, reuses, blob, size, run_n)
VALUES (:tenant, :run, :session, :ordinal, :tool, :effect, :call_id, :reply, :arguments, :state, :decision, :parent,
  :place, :reuses, :blob, :size, (SELECT n FROM runs r WHERE r.tenant = :tenant AND r.id = :run))

-- name: effect.start
UPDATE effects SET state = 'started', attempt = :attempt, deadline = :deadline, started_at = coalesce(started_at, :at)
WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal AND attempt = :attempt - 1 AND state IN ('planned', 'approved', 'started')
RETURNING ordinal

-- name: effect.outcome
UPDATE effects SET state = :state, ended_at = :at, reason = :reason, warning = :warning, blob = :blob, size = :size,
  deadline = CASE WHEN :seen = 1 THEN NULL ELSE deadline END
WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal
  AND ((state = 'started' AND attempt = :attempt) OR (effect IN ('read', 'steps') AND state IN ('planned', 'approved'))
    OR (:unstarted = 1 AND state IN ('planned', 'approved')))
RETURNING ordinal

-- name: effect.ask
UPDATE effects SET state = 'asked', decision = :decision
WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal AND attempt = 0 AND state IN ('planned', 'approved')
RETURNING ordinal

-- name: effect.set
UPDATE effects SET state = :state, ended_at = :at, reason = NULL, arguments = coalesce(:arguments, arguments)
WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal

-- Of a run that was erased with its session nothing is kept any more.
-- name: effect.late
UPDATE effects SET evidence = :evidence WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal
  AND EXISTS (SELECT 1 FROM entries n WHERE n.tenant = :tenant AND n.run = :run)

-- name: effect.told
UPDATE effects SET told = :state WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal

-- name: effect.get
SELECT {effect} FROM effects WHERE tenant = :tenant AND run = :run AND ordinal = :ordinal

-- name: effect.of_run
SELECT {effect} FROM effects WHERE tenant = :tenant AND run = :run ORDER BY ordinal

-- name: effect.of_family
SELECT {e.effect} FROM runs r JOIN effects e ON e.tenant = r.tenant AND e.run = r.id
WHERE r.tenant = :tenant AND (r.id = :family OR r.family = :family) ORDER BY r.n, e.ordinal

-- Behind an effect: what its run called later, then the runs that came before it.
-- name: effect.list
SELECT {effect} FROM effects WHERE tenant = :tenant
  [session: AND session = :session] [state: AND state = :state]
  [after: AND run_n <= (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after)
    AND (run_n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after) OR ordinal > :after_ordinal)]
ORDER BY run_n DESC, ordinal LIMIT :limit

-- name: effect.list_unusual
SELECT {effect} FROM effects WHERE tenant = :tenant AND state <> 'planned' AND state <> 'started'
  AND state <> 'succeeded' AND state = :state
  [session: AND session = :session]
  [after: AND run_n <= (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after)
    AND (run_n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after) OR ordinal > :after_ordinal)]
ORDER BY run_n DESC, ordinal LIMIT :limit

-- What has not ended belongs to a run that has not.
-- name: effect.list_live
SELECT {effect} FROM effects WHERE tenant = :tenant AND state = :state
  AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.state IN ('queued', 'running', 'waiting')
    UNION ALL SELECT id FROM runs r WHERE r.tenant = :tenant AND r.state NOT IN ('queued', 'running', 'completed')
      AND r.state = 'parked')
  [session: AND +session = :session]
  [after: AND +run_n <= (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after)
    AND (+run_n < (SELECT n FROM runs b WHERE b.tenant = :tenant AND b.id = :after) OR ordinal > :after_ordinal)]
ORDER BY run_n DESC, ordinal LIMIT :limit

-- name: effect.untold
SELECT r.place, r.state, r.error, {e.effect} FROM runs r JOIN effects e ON e.tenant = r.tenant AND e.run = r.id
WHERE r.tenant = :tenant AND r.session = :session AND r.told <> 1 AND r.state <> 'completed' AND r.id <> :run
  AND e.attempt > 0 AND e.effect <> 'read' AND (e.told IS NULL OR e.told <> e.state)
ORDER BY r.n, e.ordinal LIMIT :limit

-- name: effect.erase
UPDATE effects SET arguments = '{}', reason = NULL, warning = NULL, evidence = NULL, told = state,
  blob = NULL, size = NULL
WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: ask.insert
INSERT INTO asks (tenant, id, run, session, user_id, kind, effect, tool, arguments, hash, question, state, opened_at, expires_at,
  schema, default_answer, default_sum)
VALUES (:tenant, :id, :run, :session, :user_id, :kind, :effect, :tool, :arguments, :hash, :question, 'open', :at, :expires_at,
  :schema, :default_answer, :default_sum)

-- name: ask.get
SELECT {ask} FROM asks WHERE tenant = :tenant AND id = :id

-- name: ask.list
SELECT {ask} FROM asks WHERE tenant = :tenant
  [run: AND run = :run] [session: AND session = :session] [user_id: AND user_id = :user_id] [state: AND state = :state]
  [after: AND n > (SELECT n FROM asks b WHERE b.tenant = :tenant AND b.id = :after)]
ORDER BY n LIMIT :limit

-- name: ask.list_newest
SELECT {ask} FROM asks WHERE tenant = :tenant
  [run: AND run = :run] [session: AND session = :session] [user_id: AND user_id = :user_id] [state: AND state = :state]
  [after: AND n < (SELECT n FROM asks b WHERE b.tenant = :tenant AND b.id = :after)]
ORDER BY n DESC LIMIT :limit

-- name: ask.list_open
SELECT {ask} FROM asks WHERE tenant = :tenant AND state = 'open'
  [run: AND run = :run] [session: AND session = :session] [user_id: AND user_id = :user_id]
  [after: AND n > (SELECT n FROM asks b WHERE b.tenant = :tenant AND b.id = :after)]
ORDER BY n LIMIT :limit

-- name: ask.list_open_newest
SELECT {ask} FROM asks WHERE tenant = :tenant AND state = 'open'
  [run: AND run = :run] [session: AND session = :session] [user_id: AND user_id = :user_id]
  [after: AND n < (SELECT n FROM asks b WHERE b.tenant = :tenant AND b.id = :after)]
ORDER BY n DESC LIMIT :limit

-- How many of each kind, of the first so many.
-- name: ask.count_open
SELECT kind, count(*) FROM (
  SELECT kind FROM asks WHERE tenant = :tenant AND state = 'open' [user_id: AND user_id = :user_id] LIMIT :limit) AS counted
GROUP BY kind

-- name: ask.of_effect
SELECT {ask} FROM asks WHERE tenant = :tenant AND run = :run AND effect = :effect AND state = 'open' AND kind = :kind

-- Two are enough to know that there is not only one.
-- name: ask.questions
SELECT {ask} FROM asks WHERE tenant = :tenant AND run = :run AND state = 'open' AND kind = 'question' LIMIT 2

-- name: ask.unknown_in_session
SELECT run, effect FROM asks WHERE tenant = :tenant AND session = :session AND state = 'open' AND kind = 'unknown_effect'
LIMIT 1

-- name: ask.approvals
SELECT {ask} FROM asks WHERE tenant = :tenant AND session = :session AND kind = 'approval' AND state IN ('decided', 'expired')
ORDER BY n DESC LIMIT :limit

-- Of a session that was forked, the turns that the fork shares.
-- name: ask.approvals_shared
SELECT {e.ask} FROM runs r JOIN asks e ON e.tenant = r.tenant AND e.run = r.id
WHERE r.tenant = :tenant AND r.session = :session AND r.base < :until
  AND e.kind = 'approval' AND e.state IN ('decided', 'expired')
ORDER BY r.base DESC, e.n DESC LIMIT :limit

-- And the steps of the forked run that the fork's first run shares.
-- name: ask.approvals_reused
SELECT {ask} FROM asks WHERE tenant = :tenant AND kind = 'approval' AND state IN ('decided', 'expired')
  AND run = (SELECT replay_of FROM runs f WHERE f.tenant = :tenant AND f.session = :fork ORDER BY f.n LIMIT 1)
  AND effect IN (SELECT reuses FROM effects e WHERE e.tenant = :tenant
    AND e.run = (SELECT id FROM runs f WHERE f.tenant = :tenant AND f.session = :fork ORDER BY f.n LIMIT 1))
ORDER BY n DESC LIMIT :limit

-- name: ask.of_run
SELECT {ask} FROM asks WHERE tenant = :tenant AND run = :run ORDER BY n

-- name: ask.decide
UPDATE asks SET state = :state, decision = :decision, decision_sum = :decision_sum, decided_by = :decided_by, door = :door, decided_at = :at
WHERE tenant = :tenant AND id = :id AND state = 'open'
RETURNING id

-- name: ask.close_all
UPDATE asks SET state = 'closed' WHERE tenant = :tenant AND run = :run AND state = 'open' AND kind <> 'unknown_effect'

-- name: ask.erase
UPDATE asks SET arguments = '{}', question = '', decision = NULL, decision_sum = NULL, schema = NULL,
  default_answer = NULL, default_sum = NULL, state = CASE state WHEN 'open' THEN 'closed' ELSE state END
WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: ask.expirable
SELECT id, expires_at FROM asks WHERE tenant = :tenant AND state = 'open' AND expires_at IS NOT NULL
ORDER BY expires_at LIMIT 100

-- name: token.insert
INSERT INTO tokens (tenant, id, hash, name, user_id, scopes, created_at, expires_at)
VALUES (:tenant, :id, :hash, :name, :owner, :scopes, :at, :expires_at)

-- name: token.by_hash
SELECT {token} FROM tokens WHERE hash = :hash

-- name: token.list
SELECT {token} FROM tokens WHERE tenant = :tenant ORDER BY id

-- name: token.revoke
UPDATE tokens SET revoked_at = coalesce(revoked_at, :at) WHERE tenant = :tenant AND id = :id RETURNING {token}

-- name: act.insert
INSERT INTO acts (tenant, at, actor, door, act, subject, note) VALUES (:tenant, :at, :actor, :door, :act, :subject, :note)

-- name: act.list
SELECT at, actor, door, act, subject, note FROM acts WHERE tenant = :tenant ORDER BY n DESC LIMIT :limit

-- Who did what and when stays. Why was said in words about what is erased.
-- name: act.erase
UPDATE acts SET note = '' WHERE tenant = :tenant AND subject IN (
  SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session
  UNION ALL SELECT id FROM asks a WHERE a.tenant = :tenant AND a.session = :session)

-- name: blob.insert
INSERT INTO blobs (tenant, digest, size, renewed_at) VALUES (:tenant, :digest, :size, :at)
ON CONFLICT (tenant, digest) DO UPDATE SET renewed_at = excluded.renewed_at

-- name: blob.use
INSERT INTO blob_uses (tenant, digest, run) VALUES (:tenant, :digest, :run) ON CONFLICT (tenant, digest, run) DO NOTHING

-- name: blob.share
INSERT INTO blob_uses (tenant, digest, run) SELECT tenant, digest, :host FROM blob_uses WHERE tenant = :tenant AND run = :run
ON CONFLICT (tenant, digest, run) DO NOTHING

-- name: blob.get
SELECT size FROM blobs WHERE tenant = :tenant AND digest = :digest

-- name: blob.of_run
SELECT b.digest, b.size FROM blob_uses u JOIN blobs b ON b.tenant = u.tenant AND b.digest = u.digest
WHERE u.tenant = :tenant AND u.run = :run ORDER BY b.digest

-- name: blob.loose
SELECT digest, EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant = blobs.tenant AND u.digest = blobs.digest)
FROM blobs WHERE tenant = :tenant AND in_use = 0 AND renewed_at < :before ORDER BY renewed_at LIMIT :limit

-- name: blob.in_use
UPDATE blobs SET in_use = 1 WHERE tenant = :tenant AND digest = :digest

-- name: blob.loosen_of_session
UPDATE blobs SET in_use = 0 WHERE tenant = :tenant AND digest IN (SELECT u.digest FROM runs r
  JOIN blob_uses u ON u.tenant = r.tenant AND u.run = r.id WHERE r.tenant = :tenant AND r.session = :session)

-- name: blob.drop
DELETE FROM blobs WHERE tenant = :tenant AND digest = :digest AND renewed_at < :before
  AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.tenant = blobs.tenant AND u.digest = blobs.digest)
RETURNING digest

-- name: blob.used_by_session
DELETE FROM blob_uses WHERE tenant = :tenant AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)

-- name: tenant.list
SELECT tenant FROM tenants ORDER BY tenant

-- name: meta.get
SELECT value FROM meta WHERE key = :key

-- name: meta.set
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: import.put
INSERT INTO imports (tenant, run, at, body) VALUES (:tenant, :run, :at, :body)
ON CONFLICT (tenant, run) DO UPDATE SET at = excluded.at, body = excluded.body

-- name: import.get
SELECT body FROM imports WHERE tenant = :tenant AND run = :run

-- name: import.list
SELECT run, body FROM imports WHERE tenant = :tenant ORDER BY at DESC LIMIT :limit

-- name: import.drop
DELETE FROM imports WHERE tenant = :tenant AND run = :run RETURNING run

-- A place for so many more texts: the space's number, and the number of the first of them.
-- name: space.take
INSERT INTO search_spaces (tenant, kind, agent, user_id, name, docs, next_doc)
VALUES (:tenant, :kind, :agent, :user_id, :name, :docs, :docs)
ON CONFLICT (tenant, kind, agent, user_id, name) DO UPDATE SET docs = search_spaces.docs + excluded.docs,
  next_doc = search_spaces.next_doc + excluded.next_doc
RETURNING n, next_doc - :docs

-- name: space.shrink
UPDATE search_spaces SET docs = docs - :docs
WHERE tenant = :tenant AND kind = :kind AND agent = :agent AND user_id = :user_id AND name = :name

-- name: space.get
SELECT n, docs, indexed FROM search_spaces
WHERE tenant = :tenant AND kind = :kind AND agent = :agent AND user_id = :user_id AND name = :name

-- name: space.list
SELECT agent, user_id, docs FROM search_spaces WHERE tenant = :tenant AND kind = :kind AND docs > 0 [user_id: AND user_id = :user_id]
  [after: AND agent >= :after AND (agent > :after OR user_id > :after_user)]
ORDER BY agent, user_id, name LIMIT :limit

-- name: posting.insert
INSERT INTO postings (tenant, space, term, doc, weight) VALUES (:tenant, :space, :term, :doc, :weight)

-- name: posting.delete
DELETE FROM postings WHERE tenant = :tenant AND space = :space AND term = :term AND doc = :doc

-- How many texts hold a term, or one that begins with it, counted up to :most.
-- name: posting.count
SELECT count(*) FROM (SELECT 1 FROM postings WHERE tenant = :tenant AND space = :space
  [term: AND term = :term] [low: AND term >= :low AND term < :high] LIMIT :most) counted

-- name: posting.of_term
SELECT doc, weight FROM postings WHERE tenant = :tenant AND space = :space
  [term: AND term = :term] [low: AND term >= :low AND term < :high] ORDER BY term, doc LIMIT :most

-- The newest texts that hold a term, and others with it.
-- name: posting.together
SELECT newest.doc FROM (SELECT doc FROM postings WHERE tenant = :tenant AND space = :space AND term = :term
  ORDER BY doc DESC LIMIT :window) newest
WHERE 1 = 1
  [second: AND EXISTS (SELECT 1 FROM postings b WHERE b.tenant = :tenant AND b.space = :space AND b.term = :second AND b.doc = newest.doc)]
  [third: AND EXISTS (SELECT 1 FROM postings c WHERE c.tenant = :tenant AND c.space = :space AND c.term = :third AND c.doc = newest.doc)]
ORDER BY newest.doc DESC LIMIT :most

-- A fact is found within its scope alone, whatever else is known of it.
-- name: fact.at
SELECT {fact} FROM facts WHERE tenant = :tenant AND space = :space AND doc = :doc AND agent = :agent
  AND user_id = :user_id AND (expires_at IS NULL OR expires_at > :now)

-- name: fact.get
SELECT {fact} FROM facts WHERE tenant = :tenant AND id = :id AND agent = :agent AND user_id = :user_id
  AND (expires_at IS NULL OR expires_at > :now)

-- name: fact.same
SELECT {fact} FROM facts WHERE tenant = :tenant AND agent = :agent AND user_id = :user_id AND hash = :hash

-- name: fact.list
SELECT {fact} FROM facts WHERE tenant = :tenant AND space = :space AND agent = :agent AND user_id = :user_id
  AND (expires_at IS NULL OR expires_at > :now) [before: AND doc < :before]
ORDER BY doc DESC LIMIT :limit

-- name: fact.insert
INSERT INTO facts (tenant, space, doc, id, agent, user_id, body, sum, hash, untrusted, run, author, created_at, updated_at,
  expires_at)
VALUES (:tenant, :space, :doc, :id, :agent, :user_id, :body, :sum, :hash, :untrusted, :run, :author, :at, :at, :expires_at)

-- Said again. What was once said by somebody who saw nothing from outside is trusted.
-- name: fact.renew
UPDATE facts SET updated_at = :at, expires_at = :expires_at, untrusted = untrusted * :untrusted
WHERE tenant = :tenant AND space = :space AND doc = :doc

-- name: fact.edit
UPDATE facts SET body = :body, sum = :sum, hash = :hash, untrusted = 0, author = :author, updated_at = :at
WHERE tenant = :tenant AND space = :space AND doc = :doc

-- name: fact.delete
DELETE FROM facts WHERE tenant = :tenant AND space = :space AND doc = :doc AND agent = :agent AND user_id = :user_id

-- name: fact.expired
SELECT {fact} FROM facts WHERE tenant = :tenant AND expires_at IS NOT NULL AND expires_at <= :now
ORDER BY expires_at LIMIT :limit

-- The facts of a scope that have no vector of the model, the newest first, among the newest of all.
-- name: vector.missing
SELECT {fact} FROM (SELECT {fact} FROM facts WHERE tenant = :tenant AND space = :space AND agent = :agent
  AND user_id = :user_id AND (expires_at IS NULL OR expires_at > :now) ORDER BY doc DESC LIMIT :window) newest
WHERE NOT EXISTS (SELECT 1 FROM fact_vectors v WHERE v.tenant = newest.tenant AND v.space = newest.space
  AND v.doc = newest.doc AND v.model = :model AND v.hash = newest.hash) [before: AND doc < :before]
ORDER BY doc DESC LIMIT :limit

-- A vector is compared within its fact's scope alone, and as long as the fact says the same.
-- name: vector.list
SELECT v.doc, v.vector FROM (SELECT tenant, space, doc, hash FROM facts WHERE tenant = :tenant AND space = :space
  AND agent = :agent AND user_id = :user_id AND (expires_at IS NULL OR expires_at > :now)
  ORDER BY doc DESC LIMIT :window) newest
JOIN fact_vectors v ON v.tenant = newest.tenant AND v.space = newest.space AND v.doc = newest.doc
  AND v.model = :model AND v.hash = newest.hash
ORDER BY v.doc DESC

-- Nothing is kept of a fact that is gone by now, or says something else.
-- name: vector.put
INSERT INTO fact_vectors (tenant, space, doc, model, hash, vector)
SELECT tenant, space, doc, :model, hash, :vector FROM facts
WHERE tenant = :tenant AND space = :space AND doc = :doc AND agent = :agent AND user_id = :user_id AND hash = :hash
ON CONFLICT (tenant, space, doc) DO UPDATE SET model = excluded.model, hash = excluded.hash, vector = excluded.vector

-- name: vector.delete
DELETE FROM fact_vectors WHERE tenant = :tenant AND space = :space AND doc = :doc

-- name: space.not_indexed
UPDATE search_spaces SET indexed = :after
WHERE tenant = :tenant AND kind = :kind AND agent = :agent AND user_id = :user_id AND name = :name AND indexed > :after

-- Of a history in which a run is found, now that it is complete: it may be indexed beyond it.
-- name: space.not_all
UPDATE search_spaces SET indexed = CASE WHEN indexed < (SELECT n FROM runs r WHERE r.tenant = :tenant AND r.id = :run)
  THEN indexed ELSE (SELECT n - 1 FROM runs r WHERE r.tenant = :tenant AND r.id = :run) END
WHERE tenant = :tenant AND kind = :kind AND agent = '' AND name = :name
  AND user_id = (SELECT user_id FROM runs r WHERE r.tenant = :tenant AND r.id = :run)

-- name: space.indexed
UPDATE search_spaces SET indexed = :indexed
WHERE tenant = :tenant AND kind = :kind AND agent = :agent AND user_id = :user_id AND name = :name

-- name: text.insert
INSERT INTO search_texts (tenant, space, doc, source, place, body) VALUES (:tenant, :space, :doc, :source, :place, :body)

-- name: text.at
SELECT source, place, body FROM search_texts WHERE tenant = :tenant AND space = :space AND doc = :doc

-- name: text.of_source
SELECT doc, place, body FROM search_texts WHERE tenant = :tenant AND source = :source AND space = :space
ORDER BY doc LIMIT :limit

-- name: text.count_of_source
SELECT count(*) FROM search_texts WHERE tenant = :tenant AND source = :source AND space = :space

-- Messages of a session, wherever they were made findable.
-- name: text.of_session
SELECT t.space, t.doc, t.source, t.place FROM runs r JOIN search_texts t ON t.tenant = r.tenant AND t.source = r.id
WHERE r.tenant = :tenant AND r.session = :session

-- name: text.of_part
SELECT t.space, t.doc, t.source, t.place FROM runs r JOIN search_texts t ON t.tenant = r.tenant AND t.source = r.id
WHERE r.tenant = :tenant AND r.session = :session AND r.n > :after AND r.n <= :until

-- name: text.delete
DELETE FROM search_texts WHERE tenant = :tenant AND space = :space AND doc = :doc

-- Passages of a collection that have no vector of the model, the newest first, among the newest of all.
-- name: text.without_vector
SELECT doc, body FROM (SELECT tenant, space, doc, body FROM search_texts WHERE tenant = :tenant AND space = :space
  ORDER BY doc DESC LIMIT :window) newest
WHERE NOT EXISTS (SELECT 1 FROM text_vectors v WHERE v.tenant = newest.tenant AND v.space = newest.space
  AND v.doc = newest.doc AND v.model = :model) [before: AND doc < :before]
ORDER BY doc DESC LIMIT :limit

-- name: text.vectors
SELECT v.doc, v.vector FROM (SELECT tenant, space, doc FROM search_texts WHERE tenant = :tenant AND space = :space
  ORDER BY doc DESC LIMIT :window) newest
JOIN text_vectors v ON v.tenant = newest.tenant AND v.space = newest.space AND v.doc = newest.doc AND v.model = :model
ORDER BY v.doc DESC

-- Nothing is kept of a passage that is gone by now.
-- name: text.put_vector
INSERT INTO text_vectors (tenant, space, doc, model, vector)
SELECT tenant, space, doc, :model, :vector FROM search_texts WHERE tenant = :tenant AND space = :space AND doc = :doc
ON CONFLICT (tenant, space, doc) DO UPDATE SET model = excluded.model, vector = excluded.vector

-- name: text.delete_vector
DELETE FROM text_vectors WHERE tenant = :tenant AND space = :space AND doc = :doc

-- What an indexing that died left behind.
-- name: text.orphaned
SELECT source FROM search_texts WHERE tenant = :tenant AND space = :space
  AND NOT EXISTS (SELECT 1 FROM documents d WHERE d.tenant = :tenant AND d.space = :space AND d.source = search_texts.source)
LIMIT 1

-- Completed runs of a user, maybe of one session, that are not in the space yet. And, without an id: up to where no run of
-- the user is about to complete (one that rests may do so in years: see `space.not_all`). Both are of one moment, else a
-- run that completes between them would never be found.
-- name: history.new
WITH new AS (
  SELECT n, id FROM runs WHERE tenant = :tenant AND user_id = :user_id AND n > :behind AND base IS NOT NULL
    [session: AND session = :session]
    AND NOT EXISTS (SELECT 1 FROM search_texts t WHERE t.tenant = :tenant AND t.source = runs.id AND t.space = :space)
  ORDER BY n LIMIT :limit
)
SELECT n, id FROM new
UNION ALL
SELECT coalesce(min(CASE WHEN base IS NULL AND state IN ('queued', 'running') THEN n END) - 1, max(n)), NULL FROM runs
WHERE tenant = :tenant AND user_id = :user_id AND n > :indexed [session: AND session = :session]
  AND n <= coalesce((SELECT max(n) FROM new HAVING count(*) = :limit), 9223372036854775807)

-- name: document.list
SELECT path, source, digest FROM documents WHERE tenant = :tenant AND space = :space ORDER BY path

-- name: document.of_source
SELECT path FROM documents WHERE tenant = :tenant AND space = :space AND source = :source

-- name: document.put
INSERT INTO documents (tenant, space, path, source, digest, indexed_at)
VALUES (:tenant, :space, :path, :source, :digest, :at)
ON CONFLICT (tenant, space, path) DO UPDATE SET source = excluded.source, digest = excluded.digest, indexed_at = excluded.indexed_at

-- name: document.delete
DELETE FROM documents WHERE tenant = :tenant AND space = :space AND path = :path

-- name: outbox.want
INSERT INTO outbox_wanted (tenant, run) VALUES (:tenant, :run)

-- name: outbox.want_too
INSERT INTO outbox_wanted (tenant, run) SELECT tenant, :run FROM outbox_wanted WHERE tenant = :tenant AND run = :like

-- Nothing happens where nobody wants to hear of the run.
-- name: outbox.put
INSERT INTO outbox (tenant, id, run, kind, due, at)
SELECT tenant, :id, run, :kind, :at, :at FROM outbox_wanted WHERE tenant = :tenant AND run = :run
ON CONFLICT (tenant, id) DO NOTHING

-- Turns of an agent that its models are not shown any more, and that its memory was not told of, nor will be.
-- name: outbox.offer
INSERT INTO outbox (tenant, id, run, kind, due, at)
SELECT tenant, id || '/dropped', id, 'turn.dropped', :at, :at FROM runs
WHERE tenant = :tenant AND session = :session AND base >= :since AND base < :until AND agent = :agent AND user_id <> ''
  AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.tenant = runs.tenant AND o.run = runs.id AND o.kind = 'run.completed'
    AND (o.taught = 1 OR o.state = 'pending'))
ON CONFLICT (tenant, id) DO NOTHING

-- name: outbox.due
SELECT id, run, kind, state, attempts, due, error, at FROM outbox WHERE tenant = :tenant AND state = 'pending'
  AND due >= :after AND (due > :after OR id > :last)
ORDER BY due, id LIMIT :limit

-- name: outbox.list
SELECT id, run, kind, state, attempts, due, error, at FROM outbox WHERE tenant = :tenant AND state = :state
  [after: AND at <= (SELECT at FROM outbox b WHERE b.tenant = :tenant AND b.id = :after)
    AND (at < (SELECT at FROM outbox b WHERE b.tenant = :tenant AND b.id = :after) OR id < :after)]
ORDER BY at DESC, id DESC LIMIT :limit

-- name: outbox.get
SELECT id, run, kind, state, attempts, due, error, at FROM outbox WHERE tenant = :tenant AND id = :id

-- name: outbox.take
UPDATE outbox SET due = :until WHERE tenant = :tenant AND id = :id AND state = 'pending' AND attempts = :before AND due = :due
RETURNING 1

-- Of a turn that was erased meanwhile nothing is kept.
-- name: outbox.set
UPDATE outbox SET state = :state, attempts = :attempts, due = :due,
  error = CASE WHEN EXISTS (SELECT 1 FROM messages m WHERE m.tenant = :tenant AND m.run = outbox.run) THEN :error END,
  taught = CASE WHEN :taught = 1 THEN 1 ELSE taught END
WHERE tenant = :tenant AND id = :id AND state = :was AND attempts = :before
RETURNING EXISTS (SELECT 1 FROM messages m WHERE m.tenant = :tenant AND m.run = outbox.run)

-- name: outbox.erase
UPDATE outbox SET error = NULL WHERE tenant = :tenant
  AND run IN (SELECT id FROM runs r WHERE r.tenant = :tenant AND r.session = :session)
