-- Version 1. Every key starts with the tenant. Times are microseconds since 1970. Texts sort by their bytes, as in SQLite.

CREATE TABLE meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT COLLATE "C" NOT NULL);

-- Processes that drive runs, each with its agents (JSON). One whose lease is over claims nothing and writes nothing more.
CREATE TABLE owners (
  id TEXT COLLATE "C" PRIMARY KEY,
  agents TEXT COLLATE "C" NOT NULL,
  leased_until TIMESTAMPTZ NOT NULL   -- of this server's clock
);

-- One row a writing connection, locked by each of its transactions: by it a COMMIT whose answer was lost is read back.
CREATE TABLE writers (
  id TEXT COLLATE "C" PRIMARY KEY,
  n BIGINT NOT NULL,                  -- of its last transaction that was committed
  at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE tenants (tenant TEXT COLLATE "C" PRIMARY KEY);

CREATE TABLE sessions (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  id TEXT COLLATE "C" NOT NULL,
  revision BIGINT NOT NULL,
  title TEXT COLLATE "C",
  zone TEXT COLLATE "C",              -- named by the last request that named one
  state TEXT COLLATE "C" NOT NULL,
  state_sum BIGINT,
  next_message BIGINT NOT NULL,
  next_place BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  deleted_at BIGINT,
  parent TEXT COLLATE "C",            -- whose messages below parent_until come first; NULL: nobody's, or erased
  parent_until BIGINT,
  PRIMARY KEY (tenant, id)
) WITH (fillfactor = 70);
CREATE INDEX sessions_alive ON sessions (tenant, id) WHERE deleted_at IS NULL;
CREATE INDEX sessions_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;

-- What an agent was when a run was accepted: instructions, model, tool schemas. Named by its digest.
CREATE TABLE definitions (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  digest TEXT COLLATE "C" NOT NULL,
  body TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, digest)
);

-- A run is also its operation: identity, fingerprint and reply. The row outlives what happened in it (a tombstone).
CREATE TABLE runs (
  n BIGINT GENERATED ALWAYS AS IDENTITY,  -- order in which acceptance began; never taken from a clock
  tenant TEXT COLLATE "C" NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  user_id TEXT COLLATE "C" NOT NULL,  -- '' where nobody was named
  operation_id TEXT COLLATE "C" NOT NULL,
  fingerprint TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,
  definition TEXT COLLATE "C" NOT NULL,
  trigger TEXT COLLATE "C" NOT NULL,
  door TEXT COLLATE "C" NOT NULL,
  zone TEXT COLLATE "C",
  state TEXT COLLATE "C" NOT NULL,
  retryable BIGINT NOT NULL DEFAULT 0,
  place BIGINT NOT NULL,              -- in its session's queue
  fence BIGINT NOT NULL DEFAULT 0,
  owner TEXT COLLATE "C",
  head BIGINT,                        -- the session's revision at the claim
  next_seq BIGINT NOT NULL,
  base BIGINT,                        -- session sequence of its message 0, once committed
  deaths BIGINT NOT NULL DEFAULT 0,   -- of processes, since the last progress
  cancel BIGINT NOT NULL DEFAULT 0,
  unread BIGINT NOT NULL DEFAULT 0,   -- signals
  wrote BIGINT NOT NULL DEFAULT 0,    -- a write effect started since the last T9
  told BIGINT NOT NULL DEFAULT 0,     -- to a later turn, by a note: 1 all of it, 2 all but news of its effects
  reply TEXT COLLATE "C",
  reply_sum BIGINT,
  error TEXT COLLATE "C",
  usage TEXT COLLATE "C",             -- of its model calls, by model (JSON); tokens_in and tokens_out are its sums
  tokens_in BIGINT,
  tokens_out BIGINT,
  accepted_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  ended_at BIGINT,
  family TEXT COLLATE "C",            -- the first run of its family; NULL: the run is the first itself
  replay_of TEXT COLLATE "C",         -- the run that this one replays, or is a fork of
  forked_at BIGINT,                   -- a fork: its first own step
  state_before TEXT COLLATE "C",      -- the session's state before its commit, where the commit changed it
  state_before_sum BIGINT,
  host TEXT COLLATE "C",              -- the run that a queued steer wants to join, or that a joined one is part of
  PRIMARY KEY (tenant, id),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_operation ON runs (tenant, user_id, operation_id);
CREATE UNIQUE INDEX runs_one_active ON runs (tenant, session) WHERE state IN ('running', 'waiting');
CREATE INDEX runs_unfinished ON runs (tenant, session, place) WHERE state IN ('queued', 'running', 'waiting');
CREATE INDEX runs_queued ON runs (tenant, deaths, n) WHERE state = 'queued';
CREATE INDEX runs_running ON runs (tenant) WHERE state = 'running';
CREATE INDEX runs_session ON runs (tenant, session, base);
CREATE INDEX runs_untold ON runs (tenant, session, n) WHERE told <> 1 AND state <> 'completed';
CREATE INDEX runs_family ON runs (tenant, family) WHERE family IS NOT NULL;
CREATE INDEX runs_changed_state ON runs (tenant, session, base) WHERE state_before IS NOT NULL;
CREATE INDEX runs_host ON runs (tenant, host) WHERE host IS NOT NULL;
CREATE INDEX runs_newest ON runs (tenant, n);
CREATE INDEX runs_of_session ON runs (tenant, session, n);
CREATE INDEX runs_of_user ON runs (tenant, user_id, n);
CREATE INDEX runs_unusual ON runs (tenant, state, n) WHERE state NOT IN ('queued', 'running', 'completed');
CREATE INDEX runs_unusual_of_session ON runs (tenant, session, state, n)
  WHERE state NOT IN ('queued', 'running', 'completed');
CREATE INDEX runs_unusual_of_user ON runs (tenant, user_id, state, n)
  WHERE state NOT IN ('queued', 'running', 'completed');

-- One row a transaction: entries `seq` to `seq + n - 1`.
CREATE TABLE entries (
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  n BIGINT NOT NULL,
  fence BIGINT NOT NULL,
  at BIGINT NOT NULL,
  v BIGINT NOT NULL,
  body TEXT COLLATE "C" NOT NULL,
  sum BIGINT NOT NULL,
  PRIMARY KEY (tenant, run, seq),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);

-- Bodies live here once. A message's place in its session is the run's base + its ordinal, once the run is committed.
CREATE TABLE messages (
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  ordinal BIGINT NOT NULL,
  body BYTEA NOT NULL,                -- JSON in UTF-8, deflated where it is long
  sum BIGINT NOT NULL,
  PRIMARY KEY (tenant, run, ordinal),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;  -- it is deflated already

CREATE TABLE signals (
  n BIGINT GENERATED ALWAYS AS IDENTITY,
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  body TEXT COLLATE "C" NOT NULL,
  at BIGINT NOT NULL,
  read_at BIGINT,
  PRIMARY KEY (tenant, n),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
CREATE INDEX signals_unread ON signals (tenant, run, n) WHERE read_at IS NULL;

CREATE TABLE effects (
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  ordinal BIGINT NOT NULL,
  run_n BIGINT,                       -- the place of its run in the order of acceptance (runs.n)
  tool TEXT COLLATE "C" NOT NULL,
  effect TEXT COLLATE "C" NOT NULL,
  call_id TEXT COLLATE "C" NOT NULL,
  reply BIGINT NOT NULL,              -- ordinal of its result among the run's messages
  arguments TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL,
  decision TEXT COLLATE "C",          -- why it was asked or refused
  attempt BIGINT NOT NULL DEFAULT 0,
  deadline BIGINT,
  started_at BIGINT,
  ended_at BIGINT,
  reason TEXT COLLATE "C",
  evidence TEXT COLLATE "C",          -- an outcome that came too late to count
  told TEXT COLLATE "C",              -- the state that a later turn was told
  reuses TEXT COLLATE "C",            -- the effect whose recorded outcome it has
  warning TEXT COLLATE "C",           -- what of its result could not be recorded as it was
  parent BIGINT,                      -- of a call that a tool of steps makes: the tool's own call
  place BIGINT,                       -- and the place among all that it recorded
  blob TEXT COLLATE "C",              -- where all of a result is kept that was too long to be shown
  size BIGINT,                        -- of it, in bytes
  PRIMARY KEY (tenant, run, ordinal),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
) WITH (fillfactor = 80);
CREATE INDEX effects_unknown ON effects (tenant, session) WHERE state = 'unknown';
CREATE INDEX effects_newest ON effects (tenant, run_n DESC);
CREATE INDEX effects_of_session ON effects (tenant, session, run_n DESC);
CREATE INDEX effects_unusual ON effects (tenant, state, run_n DESC)
  WHERE state NOT IN ('planned', 'started', 'succeeded');
CREATE INDEX effects_unusual_of_session ON effects (tenant, session, state, run_n DESC)
  WHERE state NOT IN ('planned', 'started', 'succeeded');

CREATE TABLE asks (
  n BIGINT GENERATED ALWAYS AS IDENTITY,  -- order of opening
  tenant TEXT COLLATE "C" NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  user_id TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  effect TEXT COLLATE "C",
  tool TEXT COLLATE "C",
  arguments TEXT COLLATE "C" NOT NULL,
  hash TEXT COLLATE "C" NOT NULL,
  question TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL,
  decision TEXT COLLATE "C",
  decision_sum BIGINT,
  decided_by TEXT COLLATE "C",
  door TEXT COLLATE "C",
  opened_at BIGINT NOT NULL,
  decided_at BIGINT,
  expires_at BIGINT,
  schema TEXT COLLATE "C",            -- of a question: the JSON schema of its answer
  default_answer TEXT COLLATE "C",    -- and the answer by default (JSON)
  default_sum BIGINT,
  PRIMARY KEY (tenant, id),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);
CREATE INDEX asks_run ON asks (tenant, run);
CREATE INDEX asks_open ON asks (tenant, n) WHERE state = 'open';
CREATE INDEX asks_expiring ON asks (tenant, expires_at) WHERE state = 'open' AND expires_at IS NOT NULL;
CREATE INDEX asks_oldest ON asks (tenant, n);
CREATE INDEX asks_of_session ON asks (tenant, session, n);
CREATE INDEX asks_of_user ON asks (tenant, user_id, n);
CREATE INDEX asks_open_of_session ON asks (tenant, session, n) WHERE state = 'open';
CREATE INDEX asks_open_of_user ON asks (tenant, user_id, n) WHERE state = 'open';

-- What people did: who, when, through which door.
CREATE TABLE acts (
  n BIGINT GENERATED ALWAYS AS IDENTITY,
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  at BIGINT NOT NULL,
  actor TEXT COLLATE "C" NOT NULL,
  door TEXT COLLATE "C" NOT NULL,
  act TEXT COLLATE "C" NOT NULL,
  subject TEXT COLLATE "C" NOT NULL,
  note TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, n)
);

CREATE TABLE blobs (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  digest TEXT COLLATE "C" NOT NULL,
  size BIGINT NOT NULL,
  renewed_at BIGINT NOT NULL,
  in_use BIGINT NOT NULL DEFAULT 0,   -- a collection saw that a run uses it
  PRIMARY KEY (tenant, digest)
);
CREATE INDEX blobs_loose ON blobs (tenant, renewed_at) WHERE in_use = 0;

CREATE TABLE blob_uses (
  tenant TEXT COLLATE "C" NOT NULL,
  digest TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, digest, run),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id),
  FOREIGN KEY (tenant, digest) REFERENCES blobs (tenant, digest)
);
CREATE INDEX blob_uses_run ON blob_uses (tenant, run);

-- The bytes of blobs, cut into pieces. They may be there before their row in blobs, and for a moment after it.
CREATE TABLE blob_chunks (
  tenant TEXT COLLATE "C" NOT NULL,
  digest TEXT COLLATE "C" NOT NULL,
  n BIGINT NOT NULL,
  data BYTEA NOT NULL,
  written_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, digest, n)
);
ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

-- Runs of other stores, to be looked at. No driver reads them.
CREATE TABLE imports (
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  at BIGINT NOT NULL,                 -- of the import
  body BYTEA NOT NULL,                -- the run file, deflated
  PRIMARY KEY (tenant, run)
);
