-- Replays and forks. A family is a run, what it replays, and all replays and forks of those; it is named by its first.
ALTER TABLE runs ADD COLUMN family TEXT;            -- the first run of its family; NULL: the run is the first itself
ALTER TABLE runs ADD COLUMN replay_of TEXT;         -- the run that this one replays, or is a fork of
ALTER TABLE runs ADD COLUMN forked_at INTEGER;      -- a fork: its first own step
ALTER TABLE runs ADD COLUMN state_before TEXT;      -- the session's state before its commit, where the commit changed it
ALTER TABLE sessions ADD COLUMN parent TEXT;        -- whose messages below parent_until come first; NULL: nobody's, or erased
ALTER TABLE sessions ADD COLUMN parent_until INTEGER;
ALTER TABLE effects ADD COLUMN reuses TEXT;         -- the effect whose recorded outcome it has
CREATE INDEX runs_family ON runs (tenant, family) WHERE family IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('runs', 'runs_family', '10000 10000 2'),
  ('sessions', 'sessions_parent', '10000 10000 2');

-- What of a call's result could not be recorded as it was.
ALTER TABLE effects ADD COLUMN warning TEXT;
-- What the run's model calls took, by model (JSON); see `usage.py`. tokens_in and tokens_out are its sums.
ALTER TABLE runs ADD COLUMN usage TEXT;
