-- What PostgreSQL does in its own way. Beside `transactions/statements.sql`, in the same form.

-- Locks. A transaction that looks at a session, a run or an ask before it writes takes the lock of the session first, so
-- that it sees what no other one changes meanwhile: `postgres_statements.LOCKS` says which statement takes which.

-- name: lock.session
SELECT id FROM sessions WHERE tenant = :tenant AND id = :session FOR NO KEY UPDATE

-- One that is not there yet has no row: whoever may make it comes one after the other, and then looks for the row.
-- name: lock.new_session
SELECT pg_advisory_xact_lock(hashtextextended('ondol.session.' || :tenant || ' ' || :session, 0))
WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :session)

-- name: lock.run
SELECT s.id FROM runs r JOIN sessions s ON s.tenant = r.tenant AND s.id = r.session
WHERE r.tenant = :tenant AND r.id = :run FOR NO KEY UPDATE OF s

-- name: lock.ask
SELECT s.id FROM asks a JOIN sessions s ON s.tenant = a.tenant AND s.id = a.session
WHERE a.tenant = :tenant AND a.id = :id FOR NO KEY UPDATE OF s

-- name: lock.outbox
SELECT s.id FROM outbox o JOIN runs r ON r.tenant = o.tenant AND r.id = o.run
JOIN sessions s ON s.tenant = r.tenant AND s.id = r.session
WHERE o.tenant = :tenant AND o.id = :id FOR NO KEY UPDATE OF s

-- name: lock.family
SELECT s.id FROM sessions s WHERE s.tenant = :tenant AND s.id IN
  (SELECT r.session FROM runs r WHERE r.tenant = :tenant AND (r.id = :family OR r.family = :family))
ORDER BY s.id FOR NO KEY UPDATE

-- A key of meta may not be there yet: there is no row that could be locked.
-- name: lock.meta
SELECT pg_advisory_xact_lock(hashtextextended('ondol.meta.' || :key, 0))

-- name: lock.blob
SELECT pg_advisory_xact_lock(hashtextextended('ondol.blob.' || :tenant || ' ' || :digest, 0))

-- Fails (a division by zero) where the writer was given up: that its transaction was not there is believed by now.
-- name: writer.mark
INSERT INTO writers (id, n, at) VALUES (:writer, :n, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET n = excluded.n / CASE WHEN writers.n < excluded.n THEN 1 ELSE 0 END, at = excluded.at

-- Waits for the lost transaction, if that holds the row, to end, and gives the writer up if it is not there: it may not
-- have come yet, and must not come later. It is itself as durable as that one has to be.
-- name: writer.read_back
INSERT INTO writers (id, n, at) VALUES (:writer, :given_up, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET n = CASE WHEN writers.n = :n THEN writers.n ELSE :given_up END, at = excluded.at
RETURNING n

-- name: writer.list
SELECT id, n FROM writers WHERE at > clock_timestamp() - interval '1 day' ORDER BY id

-- name: writer.forget
DELETE FROM writers WHERE id = :writer

-- name: writer.forget_old
DELETE FROM writers WHERE at < clock_timestamp() - interval '2 days'

-- name: owner.lease
INSERT INTO owners (id, agents, leased_until)
VALUES (:owner, :agents, clock_timestamp() + make_interval(secs => CAST(:seconds AS float8)))
ON CONFLICT (id) DO UPDATE SET agents = excluded.agents, leased_until = excluded.leased_until

-- Also those whose lease has ended within so many seconds.
-- name: owner.list
SELECT id, agents FROM owners
WHERE leased_until > clock_timestamp() - make_interval(secs => CAST(:ended AS float8)) ORDER BY id

-- name: owner.leases
SELECT id, CAST(leased_until AS TEXT) FROM owners WHERE leased_until > clock_timestamp() ORDER BY id

-- name: owner.forget
DELETE FROM owners WHERE id = :owner

-- name: owner.forget_old
DELETE FROM owners WHERE leased_until < clock_timestamp() - interval '1 day'

-- name: blob.chunks
SELECT n, encode(sha256(data), 'hex') FROM blob_chunks WHERE tenant = :tenant AND digest = :digest ORDER BY n

-- name: blob.put_chunk
INSERT INTO blob_chunks (tenant, digest, n, data) VALUES (:tenant, :digest, :n, :data)
ON CONFLICT (tenant, digest, n) DO UPDATE SET data = excluded.data, written_at = excluded.written_at

-- name: blob.read
SELECT data FROM blob_chunks WHERE tenant = :tenant AND digest = :digest ORDER BY n

-- name: blob.cut
DELETE FROM blob_chunks WHERE tenant = :tenant AND digest = :digest AND n >= :n

-- name: blob.erase
DELETE FROM blob_chunks c WHERE c.tenant = :tenant AND c.digest = :digest
  AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.tenant = c.tenant AND b.digest = c.digest)

-- name: blob.left_behind
SELECT DISTINCT c.digest FROM blob_chunks c WHERE c.tenant = :tenant
  AND c.written_at < to_timestamp(CAST(:before AS float8))
  AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.tenant = c.tenant AND b.digest = c.digest)

-- After a backup was put back: see `postgres_admin.begin_generation`.
-- name: restored.fences
UPDATE runs SET fence = fence + 1 WHERE tenant = :tenant

-- name: restored.retryable
UPDATE runs SET retryable = :again WHERE tenant = :tenant AND state = 'failed' AND retryable <> 0

-- name: restored.unfinished
SELECT id FROM runs WHERE tenant = :tenant AND state IN ('queued', 'running', 'waiting', 'parked') ORDER BY id
