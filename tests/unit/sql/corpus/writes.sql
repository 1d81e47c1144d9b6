-- INSERT, UPDATE and DELETE.

CREATE TABLE w.t (id INT, name STRING, v DOUBLE, d DATE, day STRING) USING lakehouse PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.t VALUES (1, 'a', 1.5, DATE '2026-01-01', 'x');

INSERT INTO TABLE w.t VALUES (2, 'b', 2.5, DATE '2026-01-02', 'y'), (3, 'c', NULL, NULL, 'y');

INSERT INTO w.t (id, day) VALUES (4, 'z');

INSERT INTO w.t (day, id, name) SELECT 'z', 5, 'e';

INSERT INTO w.t BY NAME SELECT 'f' AS name, 6 AS id, 'z' AS day;

INSERT INTO w.t PARTITION (day = 'x') SELECT 7, 'g', 7.5, DATE '2026-01-07';

INSERT INTO w.t PARTITION (day) SELECT 8, 'h', 8.5, DATE '2026-01-08', 'x';

SELECT id, name, v, d, day FROM w.t ORDER BY id;
-- > [[1, "a", 1.5, "2026-01-01", "x"], [2, "b", 2.5, "2026-01-02", "y"], [3, "c", null, null, "y"], [4, null, null, null, "z"], [5, "e", null, null, "z"], [6, "f", null, null, "z"], [7, "g", 7.5, "2026-01-07", "x"], [8, "h", 8.5, "2026-01-08", "x"]]

INSERT INTO w.t VALUES (1, 'a');
-- ! 5 are needed

INSERT INTO w.t (id, nam, day) VALUES (1, 'a', 'x');
-- ! name

INSERT INTO w.t (id, id, day) VALUES (1, 1, 'x');
-- ! two values

INSERT INTO w.t PARTITION (day = 'x') SELECT 9, 'g', 7.5, DATE '2026-01-07', 'x';
-- ! 4 are needed

INSERT INTO w.t PARTITION (nope = 'x') SELECT 9, 'g', 7.5, DATE '2026-01-07', 'x';
-- ! nope

INSERT INTO w.t BY NAME SELECT 9 AS id, 'x' AS day, 3 AS other;
-- ! other

INSERT INTO w.t PARTITION (day = 'x') IF NOT EXISTS SELECT 9, 'g', 7.5, DATE '2026-01-07';
-- ! IF NOT EXISTS

INSERT INTO w.t SELECT 9, 'g', 'text', DATE '2026-01-07', 'x';
-- ! v

INSERT INTO w.t SELECT 99999999999, 'g', 1.5, DATE '2026-01-07', 'x';
-- ! column id: .*loss

SELECT count(*) FROM w.t;
-- > [[8]]

UPDATE w.t SET v = 10 WHERE id = 1;

UPDATE w.t SET v = v * 2, name = upper(name) WHERE id = 1;

SELECT name, v FROM w.t WHERE id = 1;
-- > [["A", 20.0]]

UPDATE w.t AS u SET u.name = concat(u.name, '!') WHERE u.id IN (1, 2);

SELECT name FROM w.t WHERE id IN (1, 2) ORDER BY id;
-- > [["A!"], ["b!"]]

UPDATE w.t SET v = CASE WHEN v IS NULL THEN 0 ELSE v END;

SELECT sum(v) FROM w.t;
-- > [[38.5]]

UPDATE w.t SET v = coalesce(v, 0) + 1 WHERE day BETWEEN 'y' AND 'z' AND NOT name LIKE 'f%';

SELECT id, v FROM w.t WHERE day IN ('y', 'z') ORDER BY id;
-- > [[2, 3.5], [3, 1.0], [4, 0.0], [5, 1.0], [6, 0.0]]

UPDATE w.t SET nope = 1;
-- ! nope

UPDATE w.t SET v = 1, v = 2;
-- ! twice

UPDATE w.t SET id = 100 WHERE id = 1;
-- ! key|id

UPDATE w.t SET v = (SELECT max(v) FROM w.t) WHERE id = 1;
-- ! MERGE

UPDATE w.t SET v = nofunction(v);
-- ! nofunction

UPDATE w.t SET v = 1 WHERE id = 12345;

SELECT count(*) FROM w.t WHERE v = 1 AND id = 12345;
-- > [[0]]

UPDATE w.t SET name = NULL WHERE id = 2;

SELECT name FROM w.t WHERE id = 2;
-- > [[null]]

UPDATE w.t SET d = DATE '2026-12-31' WHERE d IS NULL AND id = 3;

SELECT d FROM w.t WHERE id = 3;
-- > [["2026-12-31"]]

DELETE FROM w.t WHERE id = 8;

DELETE FROM w.t WHERE name LIKE '%!';

SELECT id FROM w.t ORDER BY id;
-- > [[2], [3], [4], [5], [6], [7]]

DELETE FROM w.t AS x WHERE x.id = 7 OR x.v > 1000;

DELETE FROM w.t WHERE id IN (SELECT max(id) FROM w.t);

SELECT id FROM w.t ORDER BY id;
-- > [[2], [3], [4], [5]]

DELETE FROM w.t AS o WHERE EXISTS (SELECT 1 FROM w.t i WHERE i.id = o.id + 1 AND i.id = 5);

SELECT id FROM w.t ORDER BY id;
-- > [[2], [3], [5]]

DELETE FROM w.t WHERE nope = 1;
-- ! nope

DELETE FROM w.t USING w.t2 WHERE w.t.id = w.t2.id;
-- ! MERGE INTO

DELETE FROM w.t WHERE id % 2 = 1 AND length(name) >= 1;

SELECT id FROM w.t ORDER BY id;
-- > [[2]]

DELETE FROM w.t;

SELECT count(*) FROM w.t;
-- > [[0]]

INSERT INTO w.t SELECT 1, 'a', 1.0, DATE '2026-01-01', 'x' WHERE 1 = 0;

SELECT count(*) FROM w.t;
-- > [[0]]

CREATE TABLE w.flat (id INT, v INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.flat VALUES (1, 10), (2, 20);

SET hoodie.spark.sql.insert.into.operation = upsert;

INSERT INTO w.flat VALUES (2, 21), (3, 30);

SELECT id, v FROM w.flat ORDER BY id;
-- > [[1, 10], [2, 21], [3, 30]]

SET hoodie.spark.sql.insert.into.operation = merge;
-- ! must be one of

RESET hoodie.spark.sql.insert.into.operation;

SET hoodie.clean.commits.retaind = 3;
-- ! hoodie.clean
-- only: duckdb

INSERT INTO w.flat SELECT id + 10, v FROM w.flat WHERE v > 15;

SELECT id, v FROM w.flat ORDER BY id;
-- > [[1, 10], [2, 21], [3, 30], [12, 21], [13, 30]]

INSERT OVERWRITE w.flat SELECT id, v FROM w.flat WHERE id = 1;

SELECT id, v FROM w.flat;
-- > [[1, 10]]

INSERT OVERWRITE TABLE w.flat (v, id) VALUES (7, 70);

SELECT id, v FROM w.flat;
-- > [[70, 7]]

DELETE FROM w.flat WHERE id = 70 AND v = (SELECT max(v) FROM w.flat);

SELECT count(*) FROM w.flat;
-- > [[0]]

CREATE TABLE w.exact (id INT, price DECIMAL(10, 2), day DATE, n BIGINT, flag BOOLEAN, f FLOAT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.exact (id, price, flag) VALUES (1, 3, 1 = 1);

INSERT INTO w.exact (id, price) SELECT 2, CAST(0.5 AS DOUBLE);
-- only: duckdb

INSERT INTO w.exact (id, price) SELECT 3, CAST(0.129 AS DOUBLE);
-- only: duckdb
-- ! column price

INSERT INTO w.exact (id, day) VALUES (3, TIMESTAMP '2026-01-01 12:00:00');
-- only: duckdb
-- ! column day

INSERT INTO w.exact (id, n) VALUES (3, DATE '2026-01-01');
-- only: duckdb
-- ! column n

INSERT INTO w.exact (id, flag) VALUES (3, 7);
-- only: duckdb
-- ! column flag

INSERT INTO w.exact (id, f) SELECT 3, CAST(1e300 AS DOUBLE);
-- only: duckdb
-- ! column f

UPDATE w.exact SET day = TIMESTAMP '2026-01-01 12:00:00';
-- ! 'day'

SELECT id, CAST(price AS DOUBLE) FROM w.exact;
-- only: duckdb
-- > [[1, 3.0], [2, 0.5]]

CREATE TABLE w.parts (id INT, day STRING) USING lakehouse PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.parts VALUES (1, 'x'), (2, 'y');

TRUNCATE TABLE w.parts PARTITION (day);
-- ! day needs a value

ALTER TABLE w.parts DROP PARTITION (day);
-- ! day needs a value

SELECT id FROM w.parts;
-- > [[1], [2]]

CREATE TABLE w.twice (id INT, v INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.twice VALUES (1, 1), (1, 2), (2, 1);

DELETE FROM w.twice t WHERE v = 1 AND id IN (SELECT id FROM w.twice);
-- ! several rows have the key

UPDATE w.twice SET v = v + 1;
-- ! several rows have the key

SELECT id, v FROM w.twice;
-- > [[1, 1], [1, 2], [2, 1]]

DELETE FROM w.twice WHERE id IN (SELECT 1);

SELECT id, v FROM w.twice;
-- > [[2, 1]]

CREATE TABLE w.hours (id INT, day STRING, hour INT) USING lakehouse PARTITIONED BY (day, hour) TBLPROPERTIES (primaryKey = 'id');

INSERT INTO w.hours VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 1);

INSERT OVERWRITE w.hours PARTITION (day = 'x', hour = 01) SELECT 9 WHERE 1 = 0;

SELECT id FROM w.hours;
-- > [[2], [3]]

SET hoodie.datasource.overwrite.mode = STATIC;

INSERT OVERWRITE w.hours PARTITION (day = 'x', hour) SELECT 9, 3;
-- ! give all columns of PARTITION a literal

SET hoodie.datasource.overwrite.mode = DYNAMIC;

SELECT id FROM w.hours;
-- > [[2], [3]]

CREATE TABLE w.aliased (Id INT, Val INT) USING lakehouse TBLPROPERTIES (primaryKey = 'Id');

INSERT INTO w.aliased VALUES (1, 1), (2, 2);

UPDATE w.aliased AS x SET val = X.VAL + 1 WHERE x.id = 1;

UPDATE w.aliased AS x SET val = aliased.val;
-- ! the table has the alias x, which hides its name; write x.column

UPDATE w.aliased AS x SET aliased.val = 3;
-- ! aliased

DELETE FROM w.aliased AS x WHERE w.aliased.val = 2;
-- ! the table has the alias x

MERGE INTO w.aliased t USING (SELECT 2 AS ID, 9 AS VAL) s ON T.Id = S.id WHEN MATCHED THEN UPDATE SET *;

SELECT id, val FROM w.aliased;
-- > [[1, 2], [2, 9]]
