-- How strongly a job's slice is to be kept apart from others, and whether the memory it asks for is meant to the byte.
ALTER TABLE job ADD COLUMN isolation TEXT NOT NULL DEFAULT 'any';
ALTER TABLE job ADD COLUMN exact INTEGER NOT NULL DEFAULT 0 CHECK (exact IN (0, 1));

-- The MIG instance that a holding is: profile and placement; NULL where it is a part of a GPU or all of it.
ALTER TABLE holding ADD COLUMN mig TEXT;

-- MIG instances that this agent made, is making, or is destroying. A row is on disk before the driver is told, and what has no
-- row is somebody else's.
CREATE TABLE mig_instance (
    gpu_uuid   TEXT NOT NULL,
    -- The profile's id, and the memory slice at which it begins: with the GPU, the key of the slot.
    profile    INTEGER NOT NULL,
    start      INTEGER NOT NULL,
    -- `1g.5gb`
    name       TEXT NOT NULL,
    stage      TEXT NOT NULL CHECK (stage IN ('creating', 'ready', 'destroying', 'quarantined')),
    -- Tells it from every other that was in this slot.
    generation INTEGER NOT NULL UNIQUE,
    -- The kernel's id of the boot in which it was made: none outlives that.
    boot       TEXT NOT NULL,
    -- Who holds it; NULL while it is kept for the next job.
    job        INTEGER,
    -- Whose program was in it last; NULL while nobody's was.
    user       TEXT,
    -- What the driver said once it was made: the ids of the GPU instance and the compute instance, the device's UUID, and the
    -- bytes in use of an empty one.
    gi         INTEGER,
    ci         INTEGER,
    uuid       TEXT,
    baseline   INTEGER,
    since      INTEGER NOT NULL,
    -- Why it is in quarantine.
    reason     TEXT,
    PRIMARY KEY (gpu_uuid, profile, start),
    CHECK ((gi IS NULL) = (ci IS NULL) AND (gi IS NULL) = (uuid IS NULL) AND (gi IS NULL) = (baseline IS NULL)),
    CHECK (stage <> 'ready' OR gi IS NOT NULL)
) STRICT;

-- How an administrator wants a GPU to be used; a GPU without a row is shared, or what its driver makes of it.
CREATE TABLE gpu_mode (
    gpu_uuid TEXT PRIMARY KEY,
    mode     TEXT NOT NULL CHECK (mode IN ('shared', 'mig', 'exclusive', 'unmanaged')),
    -- The driver is being told, and has perhaps not heard it.
    pending  INTEGER NOT NULL CHECK (pending IN (0, 1))
) STRICT;
