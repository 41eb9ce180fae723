-- Energy of GPUs, in millijoules, divided over the jobs that held them; and the memory that jobs did not use.

-- `estimated`: the part of the energy of MIG instances and of GPUs without a counter. `lent`: the part of `loaned` by which
-- no energy was divided yet. `most`: the highest use of memory so far, in bytes; NULL where nothing measures it.
ALTER TABLE holding ADD COLUMN energy INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holding ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holding ADD COLUMN lent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holding ADD COLUMN most INTEGER;
ALTER TABLE usage ADD COLUMN energy INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN lent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN most INTEGER;
ALTER TABLE usage ADD COLUMN mig INTEGER NOT NULL DEFAULT 0 CHECK (mig IN (0, 1));
ALTER TABLE usage_total ADD COLUMN energy INTEGER NOT NULL DEFAULT 0;

-- The last reading of each GPU's energy that was divided, and the sums since the first one: `counted` is what jobs got and
-- `idle` together.
CREATE TABLE energy (
    gpu_uuid    TEXT PRIMARY KEY,
    at          INTEGER NOT NULL,
    millijoules INTEGER NOT NULL,
    source      TEXT NOT NULL CHECK (source IN ('counter', 'power')),
    count       TEXT NOT NULL,
    counted     INTEGER NOT NULL DEFAULT 0,
    idle        INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The idle energy by time: a row for an hour at most, or for one longer time without readings.
CREATE TABLE idle_energy (
    id        INTEGER PRIMARY KEY,
    gpu_uuid  TEXT NOT NULL,
    gpu_index INTEGER NOT NULL,
    began     INTEGER NOT NULL,
    ended     INTEGER NOT NULL,
    energy    INTEGER NOT NULL,
    estimated INTEGER NOT NULL
) STRICT;
CREATE INDEX idle_energy_gpu ON idle_energy (gpu_uuid);
