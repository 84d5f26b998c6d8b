-- Version 2. Adds only; each part under a line that says what for.

-- Replays and forks. A family is a run, what it replays, and all replays and forks of those; it is named by its first.
ALTER TABLE runs ADD COLUMN family TEXT;            -- the first run of its family; NULL: the run is the first itself
ALTER TABLE runs ADD COLUMN replay_of TEXT;         -- the run that this one replays, or is a fork of
ALTER TABLE runs ADD COLUMN forked_at INTEGER;      -- a fork: its first own step
ALTER TABLE runs ADD COLUMN state_before TEXT;      -- the session's state before its commit, where the commit changed it
ALTER TABLE runs ADD COLUMN state_before_sum INTEGER;
ALTER TABLE sessions ADD COLUMN parent TEXT;        -- whose messages below parent_until come first; NULL: nobody's, or erased
ALTER TABLE sessions ADD COLUMN parent_until INTEGER;
ALTER TABLE effects ADD COLUMN reuses TEXT;         -- the effect whose recorded outcome it has
CREATE INDEX runs_family ON runs (tenant, family) WHERE family IS NOT NULL;
CREATE INDEX runs_changed_state ON runs (tenant, session, base) WHERE state_before IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('runs', 'runs_family', '10000 10000 2'),
  ('runs', 'runs_changed_state', '100000 100000 10 1'),
  ('sessions', 'sessions_parent', '10000 10000 2');

-- What of a call's result could not be recorded as it was.
ALTER TABLE effects ADD COLUMN warning TEXT;

-- Where all of a result is kept that was too long to be shown, and its size in bytes.
ALTER TABLE effects ADD COLUMN blob TEXT;
ALTER TABLE effects ADD COLUMN size INTEGER;
-- What the run's model calls took, by model (JSON); see `usage.py`. tokens_in and tokens_out are its sums.
ALTER TABLE runs ADD COLUMN usage TEXT;

-- Lists read no more rows than they give. "Unusual" are the states that few rows are in: an ordinary turn pays nothing.
CREATE INDEX runs_newest ON runs (tenant);
CREATE INDEX runs_of_session ON runs (tenant, session);
CREATE INDEX runs_of_user ON runs (tenant, user_id);
CREATE INDEX runs_unusual ON runs (tenant, state) WHERE state NOT IN ('queued', 'running', 'completed');
CREATE INDEX runs_unusual_of_session ON runs (tenant, session, state)
  WHERE state NOT IN ('queued', 'running', 'completed');
CREATE INDEX runs_unusual_of_user ON runs (tenant, user_id, state)
  WHERE state NOT IN ('queued', 'running', 'completed');
CREATE INDEX sessions_alive ON sessions (tenant, id) WHERE deleted_at IS NULL;
ALTER TABLE effects ADD COLUMN run_n INTEGER;  -- the place of its run in the order of acceptance (runs.n)
UPDATE effects SET run_n = (SELECT n FROM runs r WHERE r.tenant = effects.tenant AND r.id = effects.run);
CREATE INDEX effects_newest ON effects (tenant, run_n DESC);
CREATE INDEX effects_of_session ON effects (tenant, session, run_n DESC);
CREATE INDEX effects_unusual ON effects (tenant, state, run_n DESC)
  WHERE state NOT IN ('planned', 'started', 'succeeded');
CREATE INDEX effects_unusual_of_session ON effects (tenant, session, state, run_n DESC)
  WHERE state NOT IN ('planned', 'started', 'succeeded');
CREATE INDEX asks_oldest ON asks (tenant);
CREATE INDEX asks_of_session ON asks (tenant, session);
CREATE INDEX asks_of_user ON asks (tenant, user_id);
CREATE INDEX asks_open_of_session ON asks (tenant, session) WHERE state = 'open';
CREATE INDEX asks_open_of_user ON asks (tenant, user_id) WHERE state = 'open';
CREATE INDEX acts_newest ON acts (tenant);
ALTER TABLE blobs ADD COLUMN in_use INTEGER NOT NULL DEFAULT 0;  -- a collection saw that a run uses it
CREATE INDEX blobs_loose ON blobs (tenant, renewed_at) WHERE in_use = 0;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('runs', 'runs_newest', '1000000 500000'),
  ('runs', 'runs_of_session', '1000000 1000000 100'),
  ('runs', 'runs_of_user', '1000000 1000000 10000'),
  ('runs', 'runs_unusual', '10000 10000 2000'),
  ('runs', 'runs_unusual_of_session', '10000 10000 20 5'),
  ('runs', 'runs_unusual_of_user', '10000 10000 100 50'),
  ('sessions', 'sessions', '1000000 1000000 1'),
  ('sessions', 'sessions_alive', '1000 1000 1'),
  ('effects', 'effects_newest', '10000000 10000000 10'),
  ('effects', 'effects_of_session', '10000000 10000000 1000 10'),
  ('effects', 'effects_unusual', '100000 100000 20000 10'),
  ('effects', 'effects_unusual_of_session', '100000 100000 100 20 10'),
  ('asks', 'asks_oldest', '100000 100000'),
  ('asks', 'asks_of_session', '100000 100000 100'),
  ('asks', 'asks_of_user', '100000 100000 1000'),
  ('asks', 'asks_open_of_session', '1000 1000 20'),
  ('asks', 'asks_open_of_user', '1000 1000 10'),
  ('acts', 'acts_newest', '100000 100000'),
  ('blobs', 'blobs_loose', '1000 1000 1');

-- Calls that a tool of steps makes: the tool's own call, and the place among all that it recorded.
ALTER TABLE effects ADD COLUMN parent INTEGER;
ALTER TABLE effects ADD COLUMN place INTEGER;

-- Texts that are believed as they stand in their row; NULL for what the first version wrote.
ALTER TABLE runs ADD COLUMN reply_sum INTEGER;
ALTER TABLE sessions ADD COLUMN state_sum INTEGER;
ALTER TABLE asks ADD COLUMN decision_sum INTEGER;

-- Steers: the run that a queued one wants to join, or that a joined one is part of.
ALTER TABLE runs ADD COLUMN host TEXT;
CREATE INDEX runs_host ON runs (tenant, host) WHERE host IS NOT NULL;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('runs', 'runs_host', '10000 10000 2');

-- Runs of other stores, to be looked at. No driver reads them.
CREATE TABLE imports (
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  at INTEGER NOT NULL,                -- of the import
  body BLOB NOT NULL,                 -- the run file, deflated
  PRIMARY KEY (tenant, run)
) WITHOUT ROWID;

-- Questions of tools of steps: the JSON schema of the answer, and the answer by default (JSON).
ALTER TABLE asks ADD COLUMN schema TEXT;
ALTER TABLE asks ADD COLUMN default_answer TEXT;
ALTER TABLE asks ADD COLUMN default_sum INTEGER;
