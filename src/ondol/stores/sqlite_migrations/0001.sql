-- Version 1. Every key starts with the tenant. Times are microseconds since 1970.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE tenants (tenant TEXT PRIMARY KEY) WITHOUT ROWID;

CREATE TABLE sessions (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  id TEXT NOT NULL,
  revision INTEGER NOT NULL,
  title TEXT,
  zone TEXT,                          -- named by the last request that named one
  state TEXT NOT NULL,
  next_message INTEGER NOT NULL,
  next_place INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  deleted_at INTEGER,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- What an agent was when a run was accepted: instructions, model, tool schemas. Named by its digest.
CREATE TABLE definitions (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  digest TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;

-- A run is also its operation: identity, fingerprint and reply. The row outlives what happened in it (a tombstone).
CREATE TABLE runs (
  n INTEGER PRIMARY KEY,              -- order of acceptance; never taken from a clock
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  session TEXT NOT NULL,
  user_id TEXT NOT NULL,              -- '' where nobody was named
  operation_id TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  agent TEXT NOT NULL,
  definition TEXT NOT NULL,
  trigger TEXT NOT NULL,
  door TEXT NOT NULL,
  zone TEXT,
  state TEXT NOT NULL,
  retryable INTEGER NOT NULL DEFAULT 0,
  place INTEGER NOT NULL,             -- in its session's queue
  fence INTEGER NOT NULL DEFAULT 0,
  owner TEXT,
  head INTEGER,                       -- the session's revision at the claim
  next_seq INTEGER NOT NULL,
  base INTEGER,                       -- session sequence of its message 0, once committed
  deaths INTEGER NOT NULL DEFAULT 0,  -- of processes, since the last progress
  cancel INTEGER NOT NULL DEFAULT 0,
  unread INTEGER NOT NULL DEFAULT 0,  -- signals
  wrote INTEGER NOT NULL DEFAULT 0,   -- a write effect started since the last T9
  told INTEGER NOT NULL DEFAULT 0,    -- to a later turn, by a note: 1 all of it, 2 all but news of its effects
  reply TEXT,
  error TEXT,
  tokens_in INTEGER,
  tokens_out INTEGER,
  accepted_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  ended_at INTEGER,
  UNIQUE (tenant, id),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
CREATE UNIQUE INDEX runs_operation ON runs (tenant, user_id, operation_id);
CREATE UNIQUE INDEX runs_one_active ON runs (tenant, session) WHERE state IN ('running', 'waiting');
CREATE INDEX runs_unfinished ON runs (tenant, session, place) WHERE state IN ('queued', 'running', 'waiting');
CREATE INDEX runs_queued ON runs (tenant, deaths) WHERE state = 'queued';
CREATE INDEX runs_session ON runs (tenant, session, base);
CREATE INDEX runs_untold ON runs (tenant, session) WHERE told <> 1 AND state <> 'completed';

-- One row a transaction: entries `seq` to `seq + n - 1`.
CREATE TABLE entries (
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  seq INTEGER NOT NULL,
  n INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  at INTEGER NOT NULL,
  v INTEGER NOT NULL,
  body TEXT NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY (tenant, run, seq),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
) WITHOUT ROWID;

-- Bodies live here once. A message's place in its session is the run's base + its ordinal, once the run is committed.
CREATE TABLE messages (
  n INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  body BLOB NOT NULL,                 -- JSON in UTF-8, deflated where it is long
  sum INTEGER NOT NULL,
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
CREATE UNIQUE INDEX messages_ordinal ON messages (tenant, run, ordinal);

CREATE TABLE signals (
  n INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  kind TEXT NOT NULL,
  body TEXT NOT NULL,
  at INTEGER NOT NULL,
  read_at INTEGER,
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
CREATE INDEX signals_unread ON signals (tenant, run) WHERE read_at IS NULL;

CREATE TABLE effects (
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  session TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  tool TEXT NOT NULL,
  effect TEXT NOT NULL,
  call_id TEXT NOT NULL,
  reply INTEGER NOT NULL,             -- ordinal of its result among the run's messages
  arguments TEXT NOT NULL,
  state TEXT NOT NULL,
  decision TEXT,                      -- why it was asked or refused
  attempt INTEGER NOT NULL DEFAULT 0,
  deadline INTEGER,
  started_at INTEGER,
  ended_at INTEGER,
  reason TEXT,
  evidence TEXT,                      -- an outcome that came too late to count
  told TEXT,                          -- the state that a later turn was told
  PRIMARY KEY (tenant, run, ordinal),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
) WITHOUT ROWID;
CREATE INDEX effects_unknown ON effects (tenant, session) WHERE state = 'unknown';

CREATE TABLE asks (
  n INTEGER PRIMARY KEY,              -- order of opening
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  run TEXT NOT NULL,
  session TEXT NOT NULL,
  user_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  effect TEXT,
  tool TEXT,
  arguments TEXT NOT NULL,
  hash TEXT NOT NULL,
  question TEXT NOT NULL,
  state TEXT NOT NULL,
  decision TEXT,
  decided_by TEXT,
  door TEXT,
  opened_at INTEGER NOT NULL,
  decided_at INTEGER,
  expires_at INTEGER,
  UNIQUE (tenant, id),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
CREATE INDEX asks_run ON asks (tenant, run);
CREATE INDEX asks_open ON asks (tenant, state);
CREATE INDEX asks_expiring ON asks (tenant, expires_at) WHERE state = 'open' AND expires_at IS NOT NULL;

-- What people did: who, when, through which door.
CREATE TABLE acts (
  n INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  at INTEGER NOT NULL,
  actor TEXT NOT NULL,
  door TEXT NOT NULL,
  act TEXT NOT NULL,
  subject TEXT NOT NULL,
  note TEXT NOT NULL
);

CREATE TABLE blobs (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  digest TEXT NOT NULL,
  size INTEGER NOT NULL,
  renewed_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;

CREATE TABLE blob_uses (
  tenant TEXT NOT NULL,
  digest TEXT NOT NULL,
  run TEXT NOT NULL,
  PRIMARY KEY (tenant, digest, run),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id),
  FOREIGN KEY (tenant, digest) REFERENCES blobs (tenant, digest)
) WITHOUT ROWID;
CREATE INDEX blob_uses_run ON blob_uses (tenant, run);

-- What the planner believes about sizes. Without it, it takes "this tenant" for a handful of rows.
ANALYZE;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('runs', 'sqlite_autoindex_runs_1', '1000000 1000000 1'),
  ('runs', 'runs_operation', '1000000 1000000 10000 1'),
  ('runs', 'runs_one_active', '1000 1000 1'),
  ('runs', 'runs_unfinished', '1000 1000 2 1'),
  ('runs', 'runs_queued', '1000 1000 900'),
  ('runs', 'runs_session', '1000000 1000000 100 1'),
  ('runs', 'runs_untold', '1000 1000 2'),
  ('entries', 'entries', '20000000 20000000 25 1'),
  ('messages', 'messages_ordinal', '20000000 20000000 20 1'),
  ('signals', 'signals_unread', '1000 1000 2'),
  ('effects', 'effects', '10000000 10000000 10 1'),
  ('effects', 'effects_unknown', '100 100 2'),
  ('asks', 'sqlite_autoindex_asks_1', '100000 100000 1'),
  ('asks', 'asks_run', '100000 100000 2'),
  ('asks', 'asks_open', '100000 100000 1000'),
  ('asks', 'asks_expiring', '1000 1000 1'),
  ('blobs', 'blobs', '100000 100000 1'),
  ('blob_uses', 'blob_uses_run', '100000 100000 2'),
  ('blob_uses', 'blob_uses', '100000 100000 2 1');
