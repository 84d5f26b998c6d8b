-- Version 5. Adds only; each part under a line that says what for.

-- What is searched together: a memory, the history of a session or of a user, a collection of documents. `docs` counts
-- the texts, `next_doc` numbers them.
CREATE TABLE search_spaces (
  n INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  kind TEXT NOT NULL,                 -- memory, session, user, documents
  agent TEXT NOT NULL,                -- '' where it is of no agent
  user_id TEXT NOT NULL,              -- '' where it is of no user
  name TEXT NOT NULL,                 -- of the session or of the collection, else ''
  docs INTEGER NOT NULL,
  next_doc INTEGER NOT NULL,
  indexed INTEGER NOT NULL DEFAULT 0  -- of a history: all runs up to this place in the order of acceptance are in it
);
CREATE UNIQUE INDEX search_spaces_key ON search_spaces (tenant, kind, agent, user_id, name);

-- Which texts hold a term, and what it counts there; see `terms.py` and `ranking.py`.
CREATE TABLE postings (
  tenant TEXT NOT NULL,
  space INTEGER NOT NULL,
  term TEXT NOT NULL,
  doc INTEGER NOT NULL,
  weight INTEGER NOT NULL,
  PRIMARY KEY (tenant, space, term, doc)
) WITHOUT ROWID;

-- What agents remember. A fact is a text of its space.
CREATE TABLE facts (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  space INTEGER NOT NULL,
  doc INTEGER NOT NULL,
  id TEXT NOT NULL,
  agent TEXT NOT NULL,                -- '' where all agents of the tenant share it
  user_id TEXT NOT NULL,
  body TEXT NOT NULL,                 -- the text, as JSON
  sum INTEGER NOT NULL,
  hash TEXT NOT NULL,                 -- of the text in its normal form: the same fact is kept once
  untrusted INTEGER NOT NULL,         -- the run that it comes from saw content from outside
  run TEXT,                           -- that it comes from; NULL: a person wrote it
  author TEXT NOT NULL,               -- who wrote it last by hand; '' for what a run wrote
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (tenant, space, doc)
) WITHOUT ROWID;
CREATE UNIQUE INDEX facts_id ON facts (tenant, id);
CREATE UNIQUE INDEX facts_once ON facts (tenant, agent, user_id, hash);
CREATE INDEX facts_expiring ON facts (tenant, expires_at) WHERE expires_at IS NOT NULL;

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('search_spaces', 'search_spaces_key', '100000 100000 30000 10 2 1'),
  ('postings', 'postings', '50000000 50000000 5000 100 1'),
  ('facts', 'facts', '1000000 1000000 100 1'),
  ('facts', 'facts_id', '1000000 1000000 1'),
  ('facts', 'facts_once', '1000000 1000000 10000 100 1'),
  ('facts', 'facts_expiring', '1000000 1000000 1');
