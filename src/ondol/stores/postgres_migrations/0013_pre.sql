-- Version 13. Adds only; each part under a line that says what for.

-- To the planner an index of a few rows is as good as the key, however many they are when it is used. So what is named
-- among what runs, or among what is queued, has an index of such rows that it is named in.
DROP INDEX runs_running;
CREATE INDEX runs_running ON runs (tenant, id) WHERE state = 'running';
CREATE INDEX runs_queued_id ON runs (tenant, id) WHERE state = 'queued';
CREATE INDEX runs_steers ON runs (tenant, host) WHERE state = 'queued' AND host IS NOT NULL;

-- What the planner is to expect before there is anything to count: one tenant, and much that belongs to it. Else it takes
-- a tenant for a handful of rows and finds each run by looking through all of them; a connection that did so once keeps
-- to it. Rows like those that will come are put in, counted, and taken out again.
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM tenants) THEN
    RETURN;
  END IF;
  INSERT INTO tenants (tenant) VALUES ('default');
  INSERT INTO sessions (tenant, id, revision, state, next_message, next_place, created_at, updated_at, user_id, parent)
    SELECT 'default', 's' || i, i, '{}', i, i, i, i, 'u' || i % 3, CASE WHEN i < 5 THEN 's' || 6 END
    FROM generate_series(1, 6) AS i;
  INSERT INTO runs (tenant, id, session, user_id, operation_id, fingerprint, agent, definition, trigger, door, state,
      place, next_seq, base, told, accepted_at, updated_at, family, replay_of, host)
    SELECT 'default', 'r' || i, 's' || 1 + i % 6, 'u' || i % 3, 'o' || i, 'f' || i, 'a' || i % 3, 'd' || i % 3, 't', 'd',
      coalesce((ARRAY['queued', 'running', 'waiting', 'failed'])[i], 'completed'), i, i, i, i % 2, i, i,
      CASE WHEN i < 5 THEN 'r1' END, CASE WHEN i < 5 THEN 'r' || i + 4 END, CASE WHEN i < 5 THEN 'r' || i + 4 END
    FROM generate_series(1, 12) AS i;
  INSERT INTO effects (tenant, run, session, ordinal, run_n, tool, effect, call_id, reply, arguments, state)
    SELECT 'default', 'r' || 1 + i % 6, 's' || 1 + i % 6, i, i, 't' || i % 3, 'read', 'c' || i, i, '{}',
      coalesce((ARRAY['planned', 'started', 'unknown', 'failed'])[i], 'succeeded')
    FROM generate_series(1, 12) AS i;
  INSERT INTO asks (tenant, id, run, session, user_id, kind, effect, arguments, hash, question, state, opened_at, expires_at)
    SELECT 'default', 'k' || i, 'r' || i, 's' || 1 + i % 6, 'u' || i % 3, 'approval', 'e' || i, '{}', 'h' || i, 'q',
      CASE WHEN i < 5 THEN 'open' ELSE 'decided' END, i, i
    FROM generate_series(1, 12) AS i;
  INSERT INTO signals (tenant, run, kind, body, at, read_at)
    SELECT 'default', 'r' || i, 'cancel', '{}', i, CASE WHEN i > 4 THEN i END FROM generate_series(1, 12) AS i;
  INSERT INTO outbox (tenant, id, run, kind, state, due, at)
    SELECT 'default', 'm' || i, 'r' || i, 'run.completed', CASE WHEN i < 5 THEN 'pending' ELSE 'delivered' END, i, i
    FROM generate_series(1, 12) AS i;
  INSERT INTO blobs (tenant, digest, size, renewed_at, in_use)
    SELECT 'default', 'b' || i, i, i, (i > 4)::int FROM generate_series(1, 12) AS i;
  INSERT INTO blob_uses (tenant, digest, run) SELECT 'default', 'b' || i, 'r' || i FROM generate_series(1, 12) AS i;
  INSERT INTO acts (tenant, at, actor, door, act, subject, note)
    SELECT 'default', i, 'a' || i % 4, 'd', 'a', 's' || i, '' FROM generate_series(1, 12) AS i;
  INSERT INTO search_spaces (tenant, kind, agent, user_id, name, docs, next_doc)
    SELECT 'default', 'memory', 'a' || i % 3, 'u' || i, '', i, i FROM generate_series(1, 12) AS i;
  INSERT INTO facts (tenant, space, doc, id, agent, user_id, body, sum, hash, untrusted, author, created_at, updated_at, expires_at)
    SELECT 'default', i % 4, i, 'm' || i, 'a' || i % 3, 'u' || i % 3, '', i, 'h' || i, 0, '', i, i, i
    FROM generate_series(1, 12) AS i;
  INSERT INTO search_texts (tenant, space, doc, source, place)
    SELECT 'default', i % 4, i, 's' || i % 6, i FROM generate_series(1, 12) AS i;
  INSERT INTO documents (tenant, space, path, source, digest, indexed_at)
    SELECT 'default', i % 4, 'p' || i, 's' || i, 'd' || i, i FROM generate_series(1, 12) AS i;
  INSERT INTO compactions (tenant, session, made, seen, sum)
    SELECT 'default', 's' || 1 + i % 6, i, '', i FROM generate_series(1, 12) AS i;
  INSERT INTO carried (tenant, session, digest, body)
    SELECT 'default', 's' || 1 + i % 6, 'd' || i, '' FROM generate_series(1, 12) AS i;
  ANALYZE tenants, sessions, runs, effects, asks, signals, outbox, blobs, blob_uses, acts, search_spaces, facts,
    search_texts, documents, compactions, carried;
  DELETE FROM carried;
  DELETE FROM compactions;
  DELETE FROM documents;
  DELETE FROM search_texts;
  DELETE FROM facts;
  DELETE FROM search_spaces;
  DELETE FROM acts;
  DELETE FROM blob_uses;
  DELETE FROM blobs;
  DELETE FROM outbox;
  DELETE FROM signals;
  DELETE FROM asks;
  DELETE FROM effects;
  DELETE FROM runs;
  DELETE FROM sessions;
  DELETE FROM tenants;
  ALTER TABLE runs ALTER COLUMN n RESTART;
  ALTER TABLE asks ALTER COLUMN n RESTART;
  ALTER TABLE signals ALTER COLUMN n RESTART;
  ALTER TABLE acts ALTER COLUMN n RESTART;
  ALTER TABLE search_spaces ALTER COLUMN n RESTART;
  ALTER TABLE compactions ALTER COLUMN n RESTART;
END $$;
