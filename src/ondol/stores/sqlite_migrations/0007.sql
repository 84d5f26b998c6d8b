-- Version 7. Adds only; each part under a line that says what for.

-- Runs whose ends somebody wants to hear of.
CREATE TABLE outbox_wanted (
  tenant TEXT NOT NULL,
  run TEXT NOT NULL,
  PRIMARY KEY (tenant, run),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
) WITHOUT ROWID;

-- What is to be told, written with what it tells. `id` is that of the run's event: whoever hears it twice can tell.
CREATE TABLE outbox (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  run TEXT NOT NULL,
  kind TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'pending',  -- pending, delivered, dead
  attempts INTEGER NOT NULL DEFAULT 0,
  due INTEGER NOT NULL,
  error TEXT,                         -- of the last attempt
  at INTEGER NOT NULL,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (tenant, due) WHERE state = 'pending';
CREATE INDEX outbox_state ON outbox (tenant, state, at);
CREATE INDEX outbox_run ON outbox (tenant, run);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('outbox_wanted', 'outbox_wanted', '100000 100000 1'),
  ('outbox', 'outbox', '100000 100000 1'),
  ('outbox', 'outbox_due', '1000 1000 1'),
  ('outbox', 'outbox_state', '100000 100000 30000 1'),
  ('outbox', 'outbox_run', '100000 100000 2');
