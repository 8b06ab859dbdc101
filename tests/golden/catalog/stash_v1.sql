BEGIN TRANSACTION;
CREATE TABLE stash_append (environment INTEGER NOT NULL, slot INTEGER NOT NULL, ts INTEGER NOT NULL,
       token BLOB NOT NULL, PRIMARY KEY (environment, slot)) WITHOUT ROWID;
INSERT INTO "stash_append" VALUES(1,1,4,X'00112233445566778899AABBCCDDEEFF');
INSERT INTO "stash_append" VALUES(1,2,9,X'FFEEDDCCBBAA99887766554433221100');
CREATE TABLE stash_environment (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
       upper INTEGER NOT NULL, since INTEGER NOT NULL, appends INTEGER NOT NULL);
INSERT INTO "stash_environment" VALUES(1,'golden',10,0,2);
CREATE TABLE stash_format (version INTEGER NOT NULL);
INSERT INTO "stash_format" VALUES(1);
CREATE TABLE stash_row (id INTEGER PRIMARY KEY, environment INTEGER NOT NULL, kind TEXT NOT NULL,
       ts INTEGER NOT NULL, diff INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL);
INSERT INTO "stash_row" VALUES(1,1,'item',4,1,X'61',X'31',4036520761);
INSERT INTO "stash_row" VALUES(2,1,'role',4,1,X'61',X'31',2137933275);
INSERT INTO "stash_row" VALUES(3,1,'item',9,-1,X'61',X'31',4036520761);
INSERT INTO "stash_row" VALUES(4,1,'item',9,1,X'62',X'32',3610194004);
CREATE INDEX stash_row_gone ON stash_row (environment, ts) WHERE diff < 0;
CREATE INDEX stash_row_key ON stash_row (environment, kind, key);
CREATE INDEX stash_row_ts ON stash_row (environment, ts);
COMMIT;
