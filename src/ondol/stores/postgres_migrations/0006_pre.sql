-- Version 6. Adds only; each part under a line that says what for.

-- Runs whose ends somebody wants to hear of.
CREATE TABLE outbox_wanted (
  tenant TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, run),
  FOREIGN KEY (tenant, run) REFERENCES runs (tenant, id)
);

-- What is to be told, written with what it tells. `id` is that of the run's event: whoever hears it twice can tell.
CREATE TABLE outbox (
  tenant TEXT COLLATE "C" NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  run TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL DEFAULT 'pending',  -- pending, delivered, dead
  attempts BIGINT NOT NULL DEFAULT 0,
  due BIGINT NOT NULL,
  error TEXT COLLATE "C",                         -- of the last attempt
  at BIGINT NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX outbox_due ON outbox (tenant, due) WHERE state = 'pending';
CREATE INDEX outbox_state ON outbox (tenant, state, at);
CREATE INDEX outbox_run ON outbox (tenant, run);
