-- The GPUs that a daemon has served or seen, by UUID. The number is for people: it may be another one after each start.
CREATE TABLE gpu (
    uuid   TEXT PRIMARY KEY,
    number INTEGER NOT NULL UNIQUE,
    -- What it was when it was last listed, as JSON; NULL for one that only allocations of earlier versions name.
    record TEXT,
    bus    TEXT NOT NULL,
    -- Whether `--gpus` gave it to the daemon.
    served INTEGER NOT NULL CHECK (served IN (0, 1)),
    -- Whether the driver listed it at the last start.
    listed INTEGER NOT NULL CHECK (listed IN (0, 1)),
    seen   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last number of each GPU that an earlier version allocated.
INSERT OR IGNORE INTO gpu
    SELECT gpu_uuid, gpu_index, NULL, '', 1, 1, 0 FROM (
        SELECT gpu_uuid, gpu_index, max(job) AS last FROM holding GROUP BY gpu_uuid
    ) ORDER BY last DESC;

-- Labels have a GPU's number in them, so that they are unique on each GPU alone.
DROP INDEX holding_label;
CREATE UNIQUE INDEX holding_label ON holding (gpu_uuid, label) WHERE held = 1;

-- The GPUs that a job asks for; `gpus_on` has their present numbers. NULL: any, or numbers that no row of `gpu` has.
ALTER TABLE job ADD COLUMN gpus_on_uuid TEXT;
UPDATE job SET gpus_on_uuid = (
    SELECT json_group_array(gpu.uuid) FROM json_each(job.gpus_on) asked JOIN gpu ON gpu.number = asked.value
) WHERE state <> 'ended' AND gpus_on <> '[]'
    AND NOT EXISTS (SELECT 1 FROM json_each(job.gpus_on) WHERE value NOT IN (SELECT number FROM gpu));
