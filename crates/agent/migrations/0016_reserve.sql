-- Filler, which is written and deleted again: the pages that it leaves free are the journal's reserve for a full disk.
CREATE TABLE reserve (filler BLOB NOT NULL);
