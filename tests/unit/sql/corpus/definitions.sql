-- CREATE TABLE, SHOW, DESCRIBE, ALTER and DROP.

CREATE TABLE IF NOT EXISTS shop.items (id INT NOT NULL COMMENT 'key', name STRING, price DECIMAL(10, 2), added DATE, seen TIMESTAMP, tags ARRAY<STRING>, size STRUCT<w: INT, h: INT>, labels MAP<STRING, STRING>, ok BOOLEAN, raw BINARY, n BIGINT, f FLOAT, d DOUBLE) USING lakehouse TBLPROPERTIES (primaryKey = 'id', orderingFields = 'n', type = 'cow');

CREATE TABLE IF NOT EXISTS shop.items (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

CREATE TABLE shop.items (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');
-- ! exists already

SHOW COLUMNS IN shop.items;
-- > [["id"], ["name"], ["price"], ["added"], ["seen"], ["tags"], ["size"], ["labels"], ["ok"], ["raw"], ["n"], ["f"], ["d"]]

SHOW COLUMNS FROM items FROM shop;
-- > [["id"], ["name"], ["price"], ["added"], ["seen"], ["tags"], ["size"], ["labels"], ["ok"], ["raw"], ["n"], ["f"], ["d"]]

DESCRIBE shop.items price;
-- > [["price", "decimal(10,2)", ""]]

DESCRIBE TABLE shop.items tags;
-- > [["tags", "array<string>", ""]]

DESC shop.items nam;
-- ! name

SHOW TBLPROPERTIES shop.items ('primaryKey');
-- > [["primaryKey", "id"]]

SHOW TBLPROPERTIES shop.items (type);
-- > [["type", "cow"]]

SHOW TBLPROPERTIES shop.items ('orderingfield');
-- ! orderingFields

SHOW PARTITIONS shop.items;
-- ! no partitions

SELECT count(*) FROM shop.items;
-- > [[0]]

SELECT id, name FROM shop.items;
-- > []

CREATE TABLE shop.days (id INT, day STRING, hour STRING) USING hudi PARTITIONED BY (day, hour) TBLPROPERTIES ('primaryKey' = 'id', 'hoodie.datasource.write.hive_style_partitioning' = 'true') COMMENT 'x';
-- ! COMMENT

CREATE TABLE shop.days (id INT, day STRING, hour STRING) USING hudi PARTITIONED BY (day, hour) TBLPROPERTIES ('primaryKey' = 'id', 'hoodie.datasource.write.hive_style_partitioning' = 'true');

INSERT INTO shop.days VALUES (1, '2026-01-01', '10'), (2, '2026-01-01', '11'), (3, '2026-01-02', '10');

SHOW PARTITIONS shop.days;
-- > [["day=2026-01-01/hour=10"], ["day=2026-01-01/hour=11"], ["day=2026-01-02/hour=10"]]

SHOW PARTITIONS shop.days PARTITION (day = '2026-01-01');
-- > [["day=2026-01-01/hour=10"], ["day=2026-01-01/hour=11"]]

SHOW PARTITIONS shop.days PARTITION (dayy = '2026-01-01');
-- ! not a partition column

TRUNCATE TABLE shop.days PARTITION (day = '2026-01-01', hour = '10');

SELECT id FROM shop.days ORDER BY id;
-- > [[2], [3]]

ALTER TABLE shop.days DROP PARTITION (day = '2026-01-01');

SELECT id FROM shop.days ORDER BY id;
-- > [[3]]

CREATE TABLE shop.copy USING lakehouse TBLPROPERTIES (primaryKey = 'id') AS SELECT id, day FROM shop.days;

SELECT * FROM shop.copy;
-- > [[3, "2026-01-02"]]

CREATE TABLE shop.copy2 USING lakehouse PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id') AS WITH d AS (SELECT id, day FROM shop.days) SELECT * FROM d;

SHOW PARTITIONS shop.copy2;
-- > [["2026-01-02"]]

CREATE TABLE shop.bad USING lakehouse TBLPROPERTIES (primaryKey = 'nokey') AS SELECT id FROM shop.days;
-- ! nokey

SHOW TABLES IN shop LIKE 'copy*';
-- > [["shop", "copy", false], ["shop", "copy2", false]]

SHOW TABLES IN shop LIKE 'bad|days';
-- > [["shop", "days", false]]

CREATE TABLE shop.like_items LIKE shop.items USING lakehouse;
-- ! LIKE

CREATE TABLE shop.clustered (id INT) USING hudi CLUSTERED BY (id) INTO 4 BUCKETS TBLPROPERTIES (primaryKey = 'id');
-- ! BUCKET

CREATE TABLE shop.gen (id INT, x INT DEFAULT 3) USING hudi TBLPROPERTIES (primaryKey = 'id');
-- ! DEFAULT

CREATE TABLE shop.typed (id INT, x VARIANTT) USING hudi TBLPROPERTIES (primaryKey = 'id');
-- ! VARIANTT

CREATE TABLE shop.typed (id INT, x DECIMAL(50, 2)) USING hudi TBLPROPERTIES (primaryKey = 'id');
-- ! 1 to 38

CREATE TABLE shop.typed (id INT, x CHAR(5)) USING hudi TBLPROPERTIES (primaryKey = 'id');
-- ! STRING

CREATE TABLE shop.typed (id INT) USING hudi PARTITIONED BY (day STRING) TBLPROPERTIES (primaryKey = 'id');
-- ! no type

CREATE TABLE shop.typed (id INT) USING hudi TBLPROPERTIES (primaryKey = 'id', typo = 'x');
-- ! typo

CREATE TABLE shop.typed (id INT) USING hudi TBLPROPERTIES (primaryKey = 'id', primaryKey = 'id');
-- ! twice

CREATE TABLE shop.typed (id INT) USING hudi TBLPROPERTIES (primaryKey = 'id', 'hoodie.table.recordkey.fields' = 'x');
-- ! contradict each other

CREATE TABLE shop.typed (id INT) USING hudi TBLPROPERTIES (primaryKey = 'id', 'hoodie.clean.commit.retained' = '3');
-- ! hoodie.clean

CREATE TABLE shop.typed (id INT, v INT) USING hudi TBLPROPERTIES (primaryKey = 'id', type = 'mer');
-- ! mer|MER

CREATE TABLE shop.existing USING lakehouse LOCATION '/no/such/folder/anywhere';
-- ! no table|not a table|no Hudi table|/no/such

CREATE TABLE shop.none USING lakehouse;
-- ! columns

ALTER TABLE shop.copy ADD COLUMNS (price DOUBLE COMMENT 'net', note STRING);

SHOW COLUMNS IN shop.copy;
-- > [["id"], ["day"], ["price"], ["note"]]

SELECT * FROM shop.copy;
-- > [[3, "2026-01-02", null, null]]

INSERT INTO shop.copy VALUES (4, '2026-01-03', 2.5, 'new');

ALTER TABLE shop.copy RENAME COLUMN note TO remark;

SELECT id, remark FROM shop.copy ORDER BY id;
-- > [[3, null], [4, "new"]]

ALTER TABLE shop.copy ADD COLUMN qty INT;

ALTER TABLE shop.copy ALTER COLUMN qty TYPE BIGINT;

DESCRIBE shop.copy qty;
-- > [["qty", "bigint", ""]]

ALTER TABLE shop.copy ALTER COLUMN qty FIRST;

ALTER TABLE shop.copy ALTER COLUMN price AFTER id;

SHOW COLUMNS IN shop.copy;
-- > [["qty"], ["id"], ["price"], ["day"], ["remark"]]

SELECT * FROM shop.copy ORDER BY id;
-- > [[null, 3, null, "2026-01-02", null], [null, 4, 2.5, "2026-01-03", "new"]]

ALTER TABLE shop.copy ALTER COLUMN qty TYPE INT;
-- ! qty

ALTER TABLE shop.copy CHANGE COLUMN remark remark STRING COMMENT 'free text';

DESCRIBE shop.copy remark;
-- > [["remark", "string", "free text"]]

ALTER TABLE shop.copy DROP COLUMN remark;

ALTER TABLE shop.copy DROP COLUMNS (qty, price);

ALTER TABLE shop.copy DROP COLUMN IF EXISTS remark;

SELECT * FROM shop.copy ORDER BY id;
-- > [[3, "2026-01-02"], [4, "2026-01-03"]]

ALTER TABLE shop.copy DROP COLUMN id;
-- ! id

ALTER TABLE shop.copy DROP COLUMN nothing;
-- ! nothing

ALTER TABLE shop.copy ADD COLUMN must INT NOT NULL;
-- ! NOT NULL

ALTER TABLE shop.copy SET TBLPROPERTIES ('owner' = 'sales');

SHOW TBLPROPERTIES shop.copy ('owner');
-- > [["owner", "sales"]]

ALTER TABLE shop.copy UNSET TBLPROPERTIES ('owner');

ALTER TABLE shop.copy UNSET TBLPROPERTIES IF EXISTS ('owner');

ALTER TABLE shop.copy SET TBLPROPERTIES (primaryKey = 'day');
-- ! fixed

ALTER TABLE shop.copy RENAME TO shop.copy3;
-- ! register_table

ALTER TABLE shop.copy SET LOCATION '/tmp/x';
-- ! register

ALTER TABLE shop.copy ADD PARTITION (day = 'x');
-- ! partitions appear

ALTER TABLE shop.copy RECOVER PARTITIONS;
-- ! nothing

ALTER TABLE shop.copy ALTER COLUMN id SET NOT NULL;
-- ! NOT NULL

ALTER TABLE shop.copy ADD CONSTRAINT c CHECK (id > 0);
-- ! constraints

ALTER TABLE shop.copy REPLACE COLUMNS (id INT);
-- ! ADD COLUMNS

CREATE TABLE shop.nested (id INT, address STRUCT<city: STRING>) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO shop.nested SELECT 1, named_struct('city', 'Rome');
-- only: spark

ALTER TABLE shop.nested ADD COLUMN address.zip STRING;

ALTER TABLE shop.nested RENAME COLUMN address.city TO town;

DESCRIBE shop.nested address;
-- > [["address", "struct<town: string, zip: string>", ""]]

CREATE INDEX by_name ON shop.items USING secondary_index (name);

CREATE INDEX by_name ON shop.items USING secondary_index (price);
-- ! by_name

CREATE INDEX IF NOT EXISTS by_name ON shop.items (name);

CREATE INDEX x ON shop.items USING secondary_indx (name);
-- ! secondary_index

CREATE INDEX x ON shop.items USING record_index (id);
-- ! hoodie.metadata.record.index.enable

DROP INDEX by_name ON shop.items;

DROP INDEX by_name ON shop.items;
-- ! by_name

DROP INDEX IF EXISTS by_name ON shop.items;

SHOW INDEXES FROM shop.copy;

REFRESH TABLE shop.copy;

DROP TABLE shop.copy2;

DROP TABLE shop.copy PURGE;

SELECT * FROM shop.copy;
-- ! copy

SHOW NAMESPACES LIKE 'sh*';
-- > [["shop"]]

USE shop;

SELECT count(*) FROM items;
-- > [[0]]

SHOW TABLES LIKE 'nested';
-- > [["shop", "nested", false]]
