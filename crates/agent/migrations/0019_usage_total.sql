-- GPU time of users and projects from the first job on, in GPU-microseconds: counters of the metrics, which must not fall
-- when rows of usage are deleted. A name that came when there were 256 others counts under 'other'.
CREATE TABLE usage_total (
    kind      TEXT NOT NULL CHECK (kind IN ('user', 'project')),
    name      TEXT NOT NULL,
    allocated INTEGER NOT NULL DEFAULT 0,
    used      INTEGER NOT NULL DEFAULT 0,
    idle      INTEGER NOT NULL DEFAULT 0,
    loaned    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- Names, oldest first; jobs that hold something now come last.
INSERT INTO usage_total (kind, name)
    SELECT 'user', user FROM (
        SELECT user, id FROM usage UNION ALL
        SELECT j.user, 9223372036854775807 FROM holding h JOIN job j ON j.id = h.job WHERE h.held = 1
    ) GROUP BY user ORDER BY min(id), user LIMIT 256;
INSERT INTO usage_total (kind, name)
    SELECT 'project', project FROM (
        SELECT coalesce(project, '') AS project, id FROM usage UNION ALL
        SELECT coalesce(j.project, ''), 9223372036854775807 FROM holding h JOIN job j ON j.id = h.job WHERE h.held = 1
    ) GROUP BY project ORDER BY min(id), project LIMIT 256;

CREATE TEMP TABLE spent AS
    SELECT user, project, allocated / 1000 AS allocated, used / 1000 AS used, (measured - within) / 1000 AS idle,
           (used - within) / 1000 AS loaned
    FROM (
        SELECT user, project, allocated, measured, used, min(used - min(loaned, used), measured) AS within
        FROM (
            SELECT user, coalesce(project, '') AS project, share * (ended - began) AS allocated,
                   share * min(measured, ended - began) AS measured,
                   min(used, 1000 * min(measured, ended - began)) AS used, loaned
            FROM usage
        )
    );
INSERT INTO usage_total (kind, name, allocated, used, idle, loaned)
    SELECT 'user',
           CASE WHEN EXISTS (SELECT 1 FROM usage_total t WHERE t.kind = 'user' AND t.name = s.user) THEN user ELSE 'other' END AS named,
           sum(allocated), sum(used), sum(idle), sum(loaned)
    FROM spent s GROUP BY named
    ON CONFLICT (kind, name) DO UPDATE SET
        allocated = excluded.allocated, used = excluded.used, idle = excluded.idle, loaned = excluded.loaned;
INSERT INTO usage_total (kind, name, allocated, used, idle, loaned)
    SELECT 'project',
           CASE WHEN EXISTS (SELECT 1 FROM usage_total t WHERE t.kind = 'project' AND t.name = s.project) THEN project ELSE 'other' END AS named,
           sum(allocated), sum(used), sum(idle), sum(loaned)
    FROM spent s GROUP BY named
    ON CONFLICT (kind, name) DO UPDATE SET
        allocated = excluded.allocated, used = excluded.used, idle = excluded.idle, loaned = excluded.loaned;
DROP TABLE spent;

-- Events of one job, without reading those of all others.
CREATE INDEX event_job ON event (job) WHERE job IS NOT NULL;
