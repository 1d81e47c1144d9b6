-- SELECT: joins, subqueries, common table expressions, windows, set operations, views.

CREATE TABLE d.cust (cid INT, name STRING, city STRING) USING lakehouse TBLPROPERTIES (primaryKey = 'cid');

CREATE TABLE d.ord (oid INT, cid INT, total DOUBLE, day DATE, state STRING) USING lakehouse PARTITIONED BY (state) TBLPROPERTIES (primaryKey = 'oid', type = 'mor');

INSERT INTO d.cust VALUES (1, 'Ann', 'Rome'), (2, 'Bob', 'Oslo'), (3, 'Cyd', 'Rome'), (4, 'Dan', NULL);

INSERT INTO d.ord VALUES (10, 1, 5.0, DATE '2026-01-01', 'open'), (11, 1, 7.5, DATE '2026-01-02', 'paid'), (12, 2, 2.5, DATE '2026-01-02', 'paid'), (13, 3, 10.0, DATE '2026-01-03', 'open'), (14, 9, 1.0, DATE '2026-01-04', 'lost');

UPDATE d.ord SET total = 6.0 WHERE oid = 10;

SELECT * FROM d.cust ORDER BY cid;
-- > [[1, "Ann", "Rome"], [2, "Bob", "Oslo"], [3, "Cyd", "Rome"], [4, "Dan", null]]

SELECT name FROM d.cust WHERE city = 'Rome' ORDER BY name;
-- > [["Ann"], ["Cyd"]]

SELECT name FROM d.cust WHERE city IS NULL;
-- > [["Dan"]]

SELECT name FROM d.cust WHERE city IS NOT NULL AND cid <> 2 ORDER BY 1;
-- > [["Ann"], ["Cyd"]]

SELECT name FROM d.cust WHERE NOT (city = 'Rome') ORDER BY 1;
-- > [["Bob"]]

SELECT count(*), count(city), count(DISTINCT city) FROM d.cust;
-- > [[4, 3, 2]]

SELECT c.name, o.total FROM d.cust c JOIN d.ord o ON c.cid = o.cid ORDER BY o.oid;
-- > [["Ann", 6.0], ["Ann", 7.5], ["Bob", 2.5], ["Cyd", 10.0]]

SELECT c.name, o.total FROM d.cust c INNER JOIN d.ord o ON c.cid = o.cid AND o.state = 'paid' ORDER BY o.oid;
-- > [["Ann", 7.5], ["Bob", 2.5]]

SELECT c.name, o.oid FROM d.cust c LEFT JOIN d.ord o ON c.cid = o.cid AND o.state = 'paid' ORDER BY c.cid;
-- > [["Ann", 11], ["Bob", 12], ["Cyd", null], ["Dan", null]]

SELECT c.name, o.oid FROM d.cust c LEFT JOIN d.ord o ON c.cid = o.cid WHERE o.oid IS NULL;
-- > [["Dan", null]]

SELECT c.name, o.oid FROM d.cust c LEFT JOIN d.ord o ON c.cid = o.cid WHERE o.state = 'open' ORDER BY o.oid;
-- > [["Ann", 10], ["Cyd", 13]]

SELECT c.name, o.oid FROM d.cust c RIGHT JOIN d.ord o ON c.cid = o.cid WHERE c.name IS NULL;
-- > [[null, 14]]

SELECT c.name, o.oid FROM d.cust c RIGHT JOIN d.ord o ON c.cid = o.cid AND c.city = 'Rome' ORDER BY o.oid;
-- > [["Ann", 10], ["Ann", 11], [null, 12], ["Cyd", 13], [null, 14]]

SELECT c.cid, o.oid FROM d.cust c FULL OUTER JOIN d.ord o ON c.cid = o.cid WHERE c.cid IS NULL OR o.oid IS NULL ORDER BY c.cid NULLS LAST;
-- > [[4, null], [null, 14]]

SELECT c.cid, o.oid FROM d.cust c FULL JOIN d.ord o ON c.cid = o.cid AND o.state = 'lost' WHERE c.cid = 1;
-- > [[1, null]]

SELECT name FROM d.cust c WHERE EXISTS (SELECT 1 FROM d.ord o WHERE o.cid = c.cid AND o.total > 7) ORDER BY name;
-- > [["Ann"], ["Cyd"]]

SELECT name FROM d.cust c WHERE NOT EXISTS (SELECT 1 FROM d.ord o WHERE o.cid = c.cid) ORDER BY name;
-- > [["Dan"]]

SELECT name FROM d.cust WHERE cid IN (SELECT cid FROM d.ord WHERE state = 'paid') ORDER BY name;
-- > [["Ann"], ["Bob"]]

SELECT name FROM d.cust WHERE cid NOT IN (SELECT cid FROM d.ord WHERE state = 'paid') ORDER BY name;
-- > [["Cyd"], ["Dan"]]

SELECT name, (SELECT max(total) FROM d.ord o WHERE o.cid = c.cid) AS top FROM d.cust c ORDER BY cid;
-- > [["Ann", 7.5], ["Bob", 2.5], ["Cyd", 10.0], ["Dan", null]]

SELECT sum(total) FROM d.ord WHERE total > (SELECT avg(total) FROM d.ord);
-- > [[23.5]]

WITH paid AS (SELECT * FROM d.ord WHERE state = 'paid') SELECT c.name, sum(p.total) FROM paid p JOIN d.cust c ON c.cid = p.cid GROUP BY c.name ORDER BY 1;
-- > [["Ann", 7.5], ["Bob", 2.5]]

WITH a AS (SELECT cid FROM d.ord), b AS (SELECT DISTINCT cid FROM a WHERE cid < 5) SELECT count(*) FROM b;
-- > [[3]]

WITH ord AS (SELECT 1 AS x) SELECT x FROM ord;
-- > [[1]]

SELECT cid FROM d.ord UNION SELECT cid FROM d.cust ORDER BY cid;
-- > [[1], [2], [3], [4], [9]]

SELECT cid FROM d.ord UNION ALL SELECT cid FROM d.cust WHERE cid = 4 ORDER BY cid;
-- > [[1], [1], [2], [3], [4], [9]]

SELECT cid FROM d.cust EXCEPT SELECT cid FROM d.ord;
-- > [[4]]

SELECT cid FROM d.cust INTERSECT SELECT cid FROM d.ord ORDER BY cid;
-- > [[1], [2], [3]]

SELECT state, count(*) AS n, sum(total) AS s FROM d.ord GROUP BY state HAVING count(*) > 1 ORDER BY state;
-- > [["open", 2, 16.0], ["paid", 2, 10.0]]

SELECT oid, row_number() OVER (PARTITION BY cid ORDER BY total DESC) AS r FROM d.ord WHERE cid = 1 ORDER BY oid;
-- > [[10, 2], [11, 1]]

SELECT DISTINCT state FROM d.ord ORDER BY state DESC;
-- > [["paid"], ["open"], ["lost"]]

SELECT oid FROM d.ord ORDER BY total DESC LIMIT 2;
-- > [[13], [11]]

SELECT oid FROM d.ord ORDER BY oid LIMIT 1 OFFSET 2;
-- > [[12]]

SELECT CASE WHEN total >= 7 THEN 'big' ELSE 'small' END AS size, count(*) FROM d.ord GROUP BY 1 ORDER BY 1;
-- > [["big", 2], ["small", 3]]

SELECT oid FROM d.ord WHERE day BETWEEN DATE '2026-01-02' AND DATE '2026-01-03' ORDER BY oid;
-- > [[11], [12], [13]]

SELECT oid FROM d.ord WHERE day = '2026-01-04';
-- > [[14]]

SELECT oid FROM d.ord WHERE state LIKE 'o%' ORDER BY oid;
-- > [[10], [13]]

SELECT oid FROM d.ord WHERE state IN ('lost', 'open') AND total < 6.5 ORDER BY oid;
-- > [[10], [14]]

SELECT oid FROM d.ord WHERE (state = 'paid' OR total > 9) AND cid <= 3 ORDER BY oid;
-- > [[11], [12], [13]]

SELECT oid FROM d.ord WHERE 5 < total AND 'open' = state ORDER BY oid;
-- > [[10], [13]]

SELECT oid FROM d.ord WHERE total + 1 > 8 ORDER BY oid;
-- > [[11], [13]]

SELECT OID, Total FROM d.ord WHERE STATE = 'lost';
-- > [[14, 1.0]]

SELECT o1.oid, o2.oid FROM d.ord o1 JOIN d.ord o2 ON o1.cid = o2.cid AND o1.oid < o2.oid;
-- > [[10, 11]]

SELECT o1.oid FROM d.ord o1, d.cust c WHERE o1.cid = c.cid AND c.city = 'Oslo';
-- > [[12]]

SELECT count(*) FROM d.cust CROSS JOIN d.ord;
-- > [[20]]

SELECT name, oid FROM d.cust JOIN d.ord USING (cid) WHERE state = 'paid' ORDER BY oid;
-- > [["Ann", 11], ["Bob", 12]]

SELECT name, oid FROM d.cust NATURAL JOIN d.ord WHERE oid = 13;
-- > [["Cyd", 13]]

SELECT x.name FROM (SELECT name, city FROM d.cust WHERE cid < 3) x WHERE x.city = 'Oslo';
-- > [["Bob"]]

SELECT t.n FROM (SELECT count(*) AS n FROM d.ord GROUP BY state) AS t ORDER BY t.n;
-- > [[1], [2], [2]]

SELECT cust.name FROM d.cust WHERE cust.cid = 1;
-- > [["Ann"]]

SELECT d.cust.name FROM d.cust WHERE d.cust.cid = 2;
-- > [["Bob"]]

SELECT d.cust.name, d.ord.oid FROM d.cust JOIN d.ord ON d.cust.cid = d.ord.cid WHERE d.ord.total = 10;
-- > [["Cyd", 13]]

SELECT ord.* FROM d.ord WHERE ord.oid = 14;
-- > [[14, 9, 1.0, "2026-01-04", "lost"]]

SELECT max(_hoodie_commit_time) > '2000' FROM d.ord;
-- > [[true]]

SELECT _hoodie_record_key, oid FROM d.ord WHERE oid = 12;
-- > [["12", 12]]

SELECT _hoodie_partition_path FROM d.ord WHERE oid = 12;
-- > [["paid"]]

CREATE TEMPORARY VIEW roman AS SELECT cid, name FROM d.cust WHERE city = 'Rome';

SELECT r.name, o.total FROM roman r JOIN d.ord o ON o.cid = r.cid ORDER BY o.oid;
-- > [["Ann", 6.0], ["Ann", 7.5], ["Cyd", 10.0]]

CREATE OR REPLACE TEMP VIEW roman (k, n) AS SELECT cid, name FROM d.cust WHERE city = 'Rome';

SELECT n FROM roman WHERE k = 3;
-- > [["Cyd"]]

INSERT INTO d.cust VALUES (5, 'Eve', 'Rome');

SELECT count(*) FROM roman;
-- > [[3]]

CREATE TEMP VIEW roman AS SELECT cid FROM d.cust;
-- ! exists already

CREATE VIEW d.v AS SELECT cid FROM d.cust;
-- ! TEMPORARY

DROP VIEW roman;

SELECT count(*) FROM d.nope;
-- ! nope

SELECT nope FROM d.cust;
-- ! nope

SELECT count(*) FROM d.cust VERSION AS OF 20260101000000000;
-- ! 20260101000000000|commit

SELECT count(*) FROM d.cust VERSION AS OF 'yesterday';
-- ! yesterday

SELECT * FROM hudi_table_changes('d.cust', 'latest_state');
-- ! hudi_table_changes

SELECT * FROM hudi_filesystem_view('d.cust');
-- ! show_files

SELECT count(*) FROM hudi_table_changes('d.cust', 'latest_state', 'earliest') WHERE city = 'Rome';
-- > [[3]]

SELECT c.op FROM hudi_table_changes('d.cust', 'cdc', 'earliest') c;
-- ! cdc

SELECT count(*) FROM d.ord o WHERE o.state = 'open' AND o.total > 100;
-- > [[0]]

SELECT 1 + 1;
-- > [[2]]

SELECT a FROM (VALUES (1), (2)) AS t (a) ORDER BY a;
-- > [[1], [2]]

EXPLAIN SELECT * FROM d.cust;

SELECT sum(total) FROM d.ord WHERE state = 'paid' OR cid IS NULL;
-- > [[10.0]]

SELECT count(*) FROM d.ord WHERE cid NOT IN (1, 2);
-- > [[2]]

SELECT oid FROM d.ord WHERE total = 2.5 AND day >= DATE '2026-01-01';
-- > [[12]]
