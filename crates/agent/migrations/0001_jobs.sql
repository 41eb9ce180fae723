-- Jobs, what they hold, what happened. Times are microseconds since 1970, UTC; memory is bytes; shares are thousandths.

CREATE TABLE job (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT UNIQUE,
    name         TEXT NOT NULL,
    user         TEXT NOT NULL,
    project      TEXT,
    queue        TEXT NOT NULL,
    amount       TEXT NOT NULL,
    compute      TEXT NOT NULL,
    gpus_on      TEXT NOT NULL,
    runner       TEXT NOT NULL,
    command      TEXT NOT NULL,
    cwd          TEXT NOT NULL,
    -- The submitted environment, secrets included: forgotten when the job ends.
    env          TEXT,
    state        TEXT NOT NULL CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'ended')),
    -- How many times a slice was made for it; the slice's generation.
    attempt      INTEGER NOT NULL DEFAULT 0,
    pid          INTEGER,
    pid_start    INTEGER,
    submitted_at INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER,
    outcome      TEXT CHECK ((outcome IS NULL) = (state <> 'ended')),
    exit_code    INTEGER,
    reason       TEXT
) STRICT;

CREATE INDEX job_living ON job (id) WHERE state <> 'ended';
CREATE INDEX job_name ON job (name);

-- One row for each GPU of each job that was ever placed; `held` while the slice exists.
CREATE TABLE holding (
    job         INTEGER NOT NULL REFERENCES job (id),
    ordinal     INTEGER NOT NULL,
    gpu_uuid    TEXT NOT NULL,
    gpu_index   INTEGER NOT NULL,
    memory      INTEGER NOT NULL CHECK (memory > 0),
    share       INTEGER NOT NULL CHECK (share BETWEEN 1 AND 1000),
    label       TEXT NOT NULL,
    held        INTEGER NOT NULL CHECK (held IN (0, 1)),
    peak        INTEGER NOT NULL DEFAULT 0,
    denied      INTEGER NOT NULL DEFAULT 0,
    last_denied INTEGER,
    PRIMARY KEY (job, ordinal)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX holding_label ON holding (label) WHERE held = 1;

CREATE TABLE event (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    at   INTEGER NOT NULL,
    job  INTEGER,
    kind TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;

CREATE TABLE setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Device memory that a context costs before its first allocation, as measured on this node.
CREATE TABLE overhead (
    model  TEXT NOT NULL,
    driver TEXT NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (model, driver)
) STRICT, WITHOUT ROWID;
