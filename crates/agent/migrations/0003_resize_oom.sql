-- What jobs are to hold once they use less, and what their refusals of GPU memory looked like.

-- The amount that the job asks for since it was resized, as `amount`.
ALTER TABLE job ADD COLUMN resized TEXT;

ALTER TABLE holding ADD COLUMN goal_memory INTEGER CHECK (goal_memory > 0);
ALTER TABLE holding ADD COLUMN goal_share INTEGER CHECK (goal_share BETWEEN 1 AND 1000);

CREATE TABLE denial (
    job        INTEGER NOT NULL REFERENCES job (id),
    number     INTEGER NOT NULL,
    -- The smallest limit under which it would have passed; NULL where the limit was not what was short.
    sufficient INTEGER,
    -- As the API tells it.
    record     TEXT NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
