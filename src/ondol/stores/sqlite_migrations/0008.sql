-- Version 8. Adds only; each part under a line that says what for.

-- What facts mean, where the runtime has an embedder. A vector is of the text of that hash, by that model.
CREATE TABLE fact_vectors (
  tenant TEXT NOT NULL,
  space INTEGER NOT NULL,
  doc INTEGER NOT NULL,
  model TEXT NOT NULL,
  hash TEXT NOT NULL,
  vector BLOB NOT NULL,               -- of length one; 32-bit numbers, the lowest byte first
  PRIMARY KEY (tenant, space, doc)
);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('fact_vectors', 'sqlite_autoindex_fact_vectors_1', '1000000 1000000 100 1');
