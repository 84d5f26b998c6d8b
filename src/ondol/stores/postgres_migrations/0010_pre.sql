-- Version 10. Adds only; each part under a line that says what for.

-- What was noted about a run or an ask, to be erased with its session.
CREATE INDEX acts_subject ON acts (tenant, subject);
CREATE INDEX signals_run ON signals (tenant, run);
