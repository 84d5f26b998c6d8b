-- Version 6. Adds only; each part under a line that says what for.

-- The texts of a history or of a collection, by their number in the space. A message is found by its run and ordinal; a
-- passage of a document has its text here.
CREATE TABLE search_texts (
  tenant TEXT NOT NULL,
  space INTEGER NOT NULL,
  doc INTEGER NOT NULL,
  source TEXT NOT NULL,               -- the run, or the document with its version
  place INTEGER NOT NULL,             -- the ordinal, or the line or page
  body TEXT,                          -- JSON; NULL: the message has it
  PRIMARY KEY (tenant, space, doc)
) WITHOUT ROWID;
CREATE INDEX search_texts_source ON search_texts (tenant, source, space);

-- What is in a collection. `source` names the texts of the version that is found.
CREATE TABLE documents (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  space INTEGER NOT NULL,
  path TEXT NOT NULL,
  source TEXT NOT NULL,
  digest TEXT NOT NULL,
  indexed_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, space, path)
) WITHOUT ROWID;
CREATE INDEX documents_source ON documents (tenant, space, source);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('search_texts', 'search_texts', '1000000 1000000 1000 1'),
  ('search_texts', 'search_texts_source', '1000000 1000000 10 10'),
  ('documents', 'documents', '10000 10000 100 1'),
  ('documents', 'documents_source', '10000 10000 100 1');
