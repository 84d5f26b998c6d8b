-- Version 16. Adds only; each part under a line that says what for.

-- What a session had until something else was put in its place: a fork or replay of a run has what the run began with.
CREATE TABLE replaced (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  what TEXT NOT NULL,                 -- state (by hand; what a commit replaced stands with its run), pins
  place INTEGER NOT NULL,             -- in the session's queue: runs before it began with this, if with nothing older
  body TEXT,
  sum INTEGER,
  PRIMARY KEY (tenant, session, what, place),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('replaced', 'sqlite_autoindex_replaced_1', '10000 10000 5 5 1');
