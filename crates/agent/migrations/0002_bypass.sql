-- Processes of jobs that held GPU memory past the limiter, and how far each account was from the driver.

CREATE TABLE bypass (
    job        INTEGER NOT NULL REFERENCES job (id),
    gpu_uuid   TEXT NOT NULL,
    gpu_index  INTEGER NOT NULL,
    pid        INTEGER NOT NULL,
    pid_start  INTEGER NOT NULL,
    -- When it was told; with it, one process can be told of again on the same GPU.
    detected   INTEGER NOT NULL,
    first_seen INTEGER NOT NULL,
    over       INTEGER,
    program    TEXT NOT NULL,
    way        TEXT NOT NULL,
    limiter    TEXT NOT NULL,
    action     TEXT NOT NULL,
    -- NULL where the driver does not say.
    used       INTEGER,
    charged    INTEGER NOT NULL,
    PRIMARY KEY (job, gpu_uuid, pid, pid_start, detected)
) STRICT, WITHOUT ROWID;

ALTER TABLE holding ADD COLUMN mismatch_max INTEGER NOT NULL DEFAULT 0;
