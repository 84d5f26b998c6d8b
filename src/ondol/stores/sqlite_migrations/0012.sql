-- Version 12. Adds only; each part under a line that says what for.

-- What was noted about a run or an ask, to be erased with its session.
CREATE INDEX acts_subject ON acts (tenant, subject);
CREATE INDEX signals_run ON signals (tenant, run);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('acts', 'acts_subject', '100000 100000 2'),
  ('signals', 'signals_run', '100000 100000 2');
