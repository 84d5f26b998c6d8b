-- What the planner believes: a list of asks goes on behind one of them by the tenant's index, not through all tenants.
UPDATE sqlite_stat1 SET stat = '100000 50000' WHERE tbl = 'asks' AND idx = 'asks_oldest';
