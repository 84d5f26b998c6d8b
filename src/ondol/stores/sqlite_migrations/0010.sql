-- Version 10. Adds only; each part under a line that says what for.

-- What passages of documents mean, where the runtime has an embedder. A passage never changes, and neither does its vector.
CREATE TABLE text_vectors (
  tenant TEXT NOT NULL,
  space INTEGER NOT NULL,
  doc INTEGER NOT NULL,
  model TEXT NOT NULL,
  vector BLOB NOT NULL,               -- of length one; 32-bit numbers, the lowest byte first
  PRIMARY KEY (tenant, space, doc)
);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('text_vectors', 'sqlite_autoindex_text_vectors_1', '1000000 1000000 100 1');
