-- Who had how much of which GPU, and for how long.

-- When the present amount began to be held, by the clock of the day; and what was measured since then.
ALTER TABLE holding ADD COLUMN since INTEGER;
ALTER TABLE holding ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0 CHECK (suspended IN (0, 1));
-- Microseconds for which the driver said what was used, and GPU-nanoseconds: what was used, and of that what was beyond the share.
ALTER TABLE holding ADD COLUMN measured INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holding ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holding ADD COLUMN loaned INTEGER NOT NULL DEFAULT 0;

-- One row for each time that one amount was held on one GPU; whose it was is written out, as jobs are not kept for ever.
CREATE TABLE usage (
    id        INTEGER PRIMARY KEY,
    job       INTEGER NOT NULL,
    name      TEXT NOT NULL,
    uid       INTEGER,
    user      TEXT NOT NULL,
    project   TEXT,
    queue     TEXT NOT NULL,
    gpu_uuid  TEXT NOT NULL,
    gpu_index INTEGER NOT NULL,
    share     INTEGER NOT NULL,
    memory    INTEGER NOT NULL,
    suspended INTEGER NOT NULL,
    began     INTEGER NOT NULL,
    ended     INTEGER NOT NULL CHECK (ended > began),
    measured  INTEGER NOT NULL,
    used      INTEGER NOT NULL,
    loaned    INTEGER NOT NULL
) STRICT;

CREATE INDEX usage_ended ON usage (ended);

-- What is known of the past: the last run of each job, with the amount that it had last.
INSERT INTO usage (job, name, uid, user, project, queue, gpu_uuid, gpu_index, share, memory, suspended, began, ended, measured, used, loaned)
    SELECT h.job, j.name, j.uid, j.user, j.project, j.queue, h.gpu_uuid, h.gpu_index, h.share, h.memory, 0, j.started_at, j.ended_at, 0, 0, 0
    FROM holding h JOIN job j ON j.id = h.job
    WHERE h.held = 0 AND j.state = 'ended' AND j.started_at < j.ended_at;

UPDATE holding SET since = (
    SELECT coalesce(j.started_at, CAST(unixepoch('subsec') * 1000000 AS INTEGER)) FROM job j WHERE j.id = holding.job
) WHERE held = 1;
