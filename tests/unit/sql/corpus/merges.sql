-- MERGE INTO: all clauses. The cases follow the merge suites of Delta and Iceberg.

CREATE TABLE m.t (id INT, name STRING, v INT, day STRING) USING lakehouse PARTITIONED BY (day) TBLPROPERTIES (primaryKey = 'id');

CREATE TABLE m.s (id INT, name STRING, v INT, day STRING) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO m.t VALUES (1, 'a', 10, 'x'), (2, 'b', 20, 'x'), (3, 'c', 30, 'y');

INSERT INTO m.s VALUES (2, 'B', 21, 'x'), (3, 'C', NULL, 'y'), (4, 'D', 40, 'z');

MERGE INTO m.t USING m.s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v;

SELECT id, name, v FROM m.t ORDER BY id;
-- > [[1, "a", 10], [2, "b", 21], [3, "c", null]]

MERGE INTO m.t AS t USING m.s AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *;

SELECT id, name, v FROM m.t ORDER BY id;
-- > [[1, "a", 10], [2, "B", 21], [3, "C", null]]

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *;

SELECT id, name, v, day FROM m.t ORDER BY id;
-- > [[1, "a", 10, "x"], [2, "B", 21, "x"], [3, "C", null, "y"], [4, "D", 40, "z"]]

MERGE INTO m.t t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE;

SELECT id FROM m.t ORDER BY id;
-- > [[2], [3], [4]]

MERGE INTO m.t t USING (SELECT 9 AS id, 'n' AS name, 'w' AS day) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, name, day) VALUES (s.id, s.name, s.day);

SELECT id, name, v, day FROM m.t WHERE id = 9;
-- > [[9, "n", null, "w"]]

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED AND t.v > 30 THEN DELETE WHEN MATCHED AND t.v IS NULL THEN UPDATE SET v = 0 WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED BY SOURCE THEN DELETE;

SELECT id, v FROM m.t ORDER BY id;
-- > [[2, 22], [3, 0]]

MERGE INTO m.t t USING (SELECT 2 AS id) s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = -1, name = concat(t.name, '?');

SELECT id, name, v FROM m.t ORDER BY id;
-- > [[2, "B", 22], [3, "C?", -1]]

MERGE INTO m.t t USING (SELECT 3 AS id) s ON t.id = s.id WHEN NOT MATCHED BY SOURCE AND t.v > 1000 THEN DELETE;

SELECT count(*) FROM m.t;
-- > [[2]]

MERGE INTO m.t t USING (SELECT 5 AS id, 50 AS v, 'x' AS day UNION ALL SELECT 6, 60, 'x') s ON t.id = s.id WHEN NOT MATCHED AND s.v > 55 THEN INSERT (id, v, day) VALUES (s.id, s.v, s.day) WHEN NOT MATCHED THEN INSERT (id, v, day) VALUES (s.id, 0 - s.v, 'neg');

SELECT id, v, day FROM m.t WHERE id > 4 ORDER BY id;
-- > [[5, -50, "neg"], [6, 60, "x"]]

MERGE INTO m.t t USING (SELECT 2 AS id, 1 AS v UNION ALL SELECT 2, 2) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v;
-- ! SQL allows one

SELECT v FROM m.t WHERE id = 2;
-- > [[22]]

MERGE INTO m.t t USING (SELECT 2 AS id UNION ALL SELECT 2) s ON t.id = s.id WHEN MATCHED AND t.v > 100 THEN DELETE;

SELECT count(*) FROM m.t;
-- > [[4]]

MERGE INTO m.t t USING m.s s ON t.id = s.id AND t.day = s.day WHEN MATCHED THEN UPDATE SET t.v = coalesce(s.v, 7);

SELECT id, v FROM m.t WHERE id IN (2, 3) ORDER BY id;
-- > [[2, 21], [3, 7]]

WITH c AS (SELECT 1) SELECT count(*) FROM c;
-- > [[1]]

MERGE INTO m.t t USING (WITH c AS (SELECT id, v FROM m.s WHERE v > 20) SELECT id, max(v) AS v FROM c GROUP BY id) s ON s.id = t.id WHEN MATCHED THEN UPDATE SET v = s.v * 2;

SELECT id, v FROM m.t WHERE id = 2;
-- > [[2, 42]]

MERGE INTO m.t t USING (SELECT * FROM (VALUES (2, 'p'), (77, 'q')) AS x (id, name)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name, day) VALUES (s.id, s.name, 'v');

SELECT id, name, day FROM m.t WHERE id IN (2, 77) ORDER BY id;
-- > [[2, "p", "x"], [77, "q", "v"]]

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED AND CASE WHEN s.name = 'B' THEN true ELSE false END THEN UPDATE SET name = CASE WHEN t.v > 1 THEN 'big' ELSE 'small' END;

SELECT name FROM m.t WHERE id = 2;
-- > [["big"]]

MERGE INTO m.t t USING m.s s ON false WHEN NOT MATCHED AND s.id = 4 THEN INSERT (id, name, v, day) VALUES (100 + s.id, lower(s.name), s.v, s.day);

SELECT id, name, v FROM m.t WHERE id = 104;
-- > [[104, "d", 40]]

MERGE INTO m.t t USING m.s s ON t.id = s.id;
-- ! WHEN

MERGE INTO m.t t USING m.s s WHEN MATCHED THEN DELETE;
-- ! ON

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN INSERT *;
-- ! NOT MATCHED

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED THEN DELETE;
-- ! INSERT

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED THEN UPDATE SET v = 1;
-- ! INSERT

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id);
-- ! 2 columns and 1 values

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nope = s.v;
-- ! nope

MERGE INTO m.t t USING m.s s ON t.id = s.nope WHEN MATCHED THEN UPDATE SET v = s.v;
-- ! nope

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v, v = 2;
-- ! twice

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = s.id + 1;
-- ! key|id

MERGE INTO m.t t USING m.nope s ON t.id = s.id WHEN MATCHED THEN DELETE;
-- ! nope

MERGE WITH SCHEMA EVOLUTION INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *;
-- ! SCHEMA EVOLUTION

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *;
-- ! source|SOURCE

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN NOT MATCHED BY TARGET THEN INSERT *;

SELECT id, name FROM m.t WHERE id = 4;
-- > [[4, "D"]]

MERGE INTO m.t t USING m.s VERSION AS OF 19990101000000000 s ON t.id = s.id WHEN MATCHED THEN DELETE;
-- ! 1999|commit

MERGE INTO m.t t USING m.t s ON t.id = s.id AND s.id = 4 WHEN MATCHED THEN DELETE;

SELECT count(*) FROM m.t WHERE id = 4;
-- > [[0]]

MERGE INTO m.t t USING m.s s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * EXCEPT (name);

SELECT id, name, v FROM m.t WHERE id = 2;
-- > [[2, "big", 21]]

CREATE TABLE m.mor (id INT, v INT, ts BIGINT) USING hudi TBLPROPERTIES (primaryKey = 'id', type = 'mor', preCombineField = 'ts');

INSERT INTO m.mor VALUES (1, 10, 100), (2, 20, 100);

MERGE INTO m.mor t USING (SELECT 1 AS id, 11 AS v, CAST(101 AS BIGINT) AS ts UNION ALL SELECT 3, 30, CAST(1 AS BIGINT)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;

SELECT id, v, ts FROM m.mor ORDER BY id;
-- > [[1, 11, 101], [2, 20, 100], [3, 30, 1]]

MERGE INTO m.mor t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE;

SELECT id FROM m.mor ORDER BY id;
-- > [[1], [3]]

MERGE INTO m.mor t USING (SELECT 1 AS key, 'x' AS kind UNION ALL SELECT 8, 'y') AS s ON t.id = s.key WHEN MATCHED AND s.kind = 'x' THEN UPDATE SET t.v = t.v + 1, t.ts = t.ts + 1 WHEN NOT MATCHED AND s.kind = 'y' THEN INSERT (id, v, ts) VALUES (s.key, length(s.kind), 5);

SELECT id, v, ts FROM m.mor ORDER BY id;
-- > [[1, 12, 102], [3, 30, 1], [8, 1, 5]]

MERGE INTO m.mor USING (SELECT 1 AS id, 5 AS v) source ON mor.id = source.id WHEN MATCHED THEN UPDATE SET mor.v = source.v, mor.ts = mor.ts + 1;

SELECT v FROM m.mor WHERE id = 1;
-- > [[5]]
