-- Who is guaranteed how much, on what terms jobs run, and how they got where they are. Amounts of GPUs are thousandths.

CREATE TABLE project (
    name         TEXT PRIMARY KEY,
    quota        INTEGER NOT NULL CHECK (quota >= 0),
    quota_memory INTEGER,
    -- NULL: in proportion to the quota.
    weight       INTEGER CHECK (weight >= 0),
    most         INTEGER,
    most_memory  INTEGER,
    priority     INTEGER NOT NULL,
    min_runtime  INTEGER NOT NULL,
    -- Users, and groups with an @ before them, as JSON.
    members      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Priority, time limit, what it runs after and the like, as JSON; what is not there is as if nothing had been said.
ALTER TABLE job ADD COLUMN terms TEXT NOT NULL DEFAULT '{}';

-- Why it stops, how often it ran before and the like, as JSON.
ALTER TABLE job ADD COLUMN course TEXT NOT NULL DEFAULT '{}';

-- Names of its secret variables, as JSON. Their values lie in a file of their own until it ends.
ALTER TABLE job ADD COLUMN secrets TEXT NOT NULL DEFAULT '[]';
