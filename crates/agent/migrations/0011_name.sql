-- Which journal this is: one that is begun anew in its place gives the same numbers to other jobs.
INSERT INTO setting VALUES ('name', lower(hex(randomblob(8))));
