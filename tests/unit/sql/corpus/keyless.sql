CREATE NAMESPACE log;

CREATE TABLE log.events (id INT, day STRING, v INT) USING lakehouse PARTITIONED BY (day);

INSERT INTO log.events VALUES (1, 'x', 10), (1, 'x', 10), (2, 'y', 20);

INSERT INTO log.events SELECT 3, 'y', 30;

SELECT * FROM log.events;
-- > [[1, "x", 10], [1, "x", 10], [2, "y", 20], [3, "y", 30]]

SELECT count(DISTINCT _hoodie_record_key) FROM log.events;
-- > [[4]]

UPDATE log.events SET v = v + 1 WHERE id = 2;

DELETE FROM log.events WHERE id = 3;

SELECT id, v FROM log.events;
-- > [[1, 10], [1, 10], [2, 21]]

DELETE FROM log.events WHERE id IN (SELECT 2);

SELECT id, v FROM log.events;
-- > [[1, 10], [1, 10]]

MERGE INTO log.events t USING (SELECT 1 AS id, 99 AS w) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.w;

SELECT id, v FROM log.events;
-- > [[1, 99], [1, 99]]

MERGE INTO log.events t USING (SELECT 5 AS id, 'x' AS day, 1 AS v) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *;

SELECT id, v FROM log.events;
-- > [[1, 99], [1, 99], [5, 1]]

SHOW TBLPROPERTIES log.events ('type');
-- > [["type", "cow"]]

CREATE TABLE log.copy USING lakehouse TBLPROPERTIES (type = 'mor') AS SELECT id, v FROM log.events;

INSERT OVERWRITE log.copy SELECT 7, 7;

SELECT * FROM log.copy;
-- > [[7, 7]]

CREATE TABLE log.buckets (id INT) USING lakehouse TBLPROPERTIES ('hoodie.index.type' = 'BUCKET', 'hoodie.bucket.index.num.buckets' = '2');
-- ! hashes the columns of the record key, and table 'buckets' has none

CREATE TABLE log.ordered (id INT, ts INT) USING lakehouse TBLPROPERTIES (orderingFields = 'ts');

INSERT INTO log.ordered VALUES (1, 1), (1, 2);

SELECT * FROM log.ordered;
-- > [[1, 1], [1, 2]]
