-- Names with keywords, dots, spaces and other alphabets; quotes and comments in statements.

CREATE TABLE q.names (id INT, `select` STRING, `from` INT, `order` STRING, size DOUBLE) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO q.names VALUES (1, 'it', 2, 'o', 3.5);

SELECT `select`, `from`, `order` FROM q.names;
-- > [["it", 2, "o"]]

SELECT n.`from` + n.id AS `sum of.größe` FROM `q`.`names` n WHERE n.`select` = 'it';
-- > [[3]]

SELECT `größe`.`日本` FROM (SELECT `order` AS `日本` FROM q.names) AS `größe`;
-- > [["o"]]

SELECT `a b`.`c.d` FROM (SELECT `from` AS `c.d` FROM `q`.`names` AS `x y`) AS `a b`;
-- > [[2]]

SELECT `q`.`names`.`order` FROM q.names WHERE `q`.`names`.size > 3;
-- > [["o"]]

INSERT INTO q.names (id, `from`, `select`) VALUES (2, 7, '-- no comment; /* nor this */');

SELECT `select` FROM q.names WHERE id = 2;
-- > [["-- no comment; /* nor this */"]]

SELECT /* comment ; */ id -- another
FROM q.names WHERE id = 1;
-- > [[1]]

UPDATE q.names SET `from` = `from` + 1, `order` = 'x' WHERE `select` = 'it';

SELECT `from`, `order` FROM q.names WHERE id = 1;
-- > [[3, "x"]]

DELETE FROM q.names WHERE `select` = '-- no comment; /* nor this */';

SELECT count(*) FROM q.names;
-- > [[1]]

MERGE INTO q.names AS `when` USING (SELECT 1 AS `set`, 9 AS `then`) AS `on` ON `when`.id = `on`.`set` WHEN MATCHED THEN UPDATE SET `from` = `on`.`then`;

SELECT `from` FROM q.names;
-- > [[9]]

SELECT 'sales.orders' AS text, 'q.names' AS other;
-- > [["sales.orders", "q.names"]]

SELECT count(*) FROM q.names WHERE `select` = 'q.names';
-- > [[0]]

SELECT id FROM Q.NAMES;
-- > [[1]]

SELECT id FROM lakehouse.q.names;
-- > [[1]]

WITH `names` AS (SELECT 5 AS id) SELECT id FROM `names`;
-- > [[5]]

SELECT id FROM q.`no such`;
-- ! no such

CREATE TABLE q.`with space` (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');
-- ! cannot be the name

CREATE TABLE q.`a.b` (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');
-- ! cannot be the name

CREATE TABLE q.`größe` (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');
-- ! cannot be the name

CREATE TABLE q.odd (id INT, `a b` INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id');
-- ! a b

CREATE TABLE q.odd (id INT, `größe` INT, `名` STRUCT<`naïve`: INT>) USING lakehouse TBLPROPERTIES (primaryKey = 'id');

INSERT INTO q.odd (id, `größe`) VALUES (1, 2);

UPDATE q.odd SET `größe` = `größe` + 1 WHERE `größe` = 2 AND `名`.`naïve` IS NULL;

SELECT o.`größe` FROM q.odd o WHERE o.`größe` > 2;
-- > [[3]]

ALTER TABLE q.odd RENAME COLUMN `größe` TO `länge`;

SELECT `länge` FROM q.odd;
-- > [[3]]

ALTER TABLE q.odd DROP COLUMN `名.naïve`;
-- ! one name with a dot

CREATE TABLE q.escape (id INT) USING lakehouse TBLPROPERTIES (primaryKey = 'id', type = 'cow; DROP TABLE q.names');
-- ! DROP TABLE

SELECT count(*) FROM q.names;
-- > [[1]]

INSERT INTO q.names BY NAME SELECT 3 AS id, 5 AS `from`;

SELECT `from`, `order` FROM q.names WHERE id = 3;
-- > [[5, null]]

ALTER TABLE q.names ADD COLUMN `where` STRING;

ALTER TABLE q.names RENAME COLUMN `where` TO `group`;

SELECT `group` FROM q.names WHERE id = 3;
-- > [[null]]

SHOW COLUMNS IN `q`.`names`;
-- > [["id"], ["select"], ["from"], ["order"], ["size"], ["group"]]

DELETE FROM q.names n WHERE n.id = 3 AND n.`group` IS NULL;

SELECT id FROM q.names;
-- > [[1]]

DELETE FROM q.names WHERE q.names.id = 99 OR names.id = 98;

SELECT count(*) FROM q.names;
-- > [[1]]

DROP TABLE q.names PURGE;
