-- CALL: services, undo, policies, and Hudi's procedures as aliases.

CREATE TABLE p.t (id INT, v INT, ts BIGINT) USING hudi TBLPROPERTIES (primaryKey = 'id', type = 'mor', preCombineField = 'ts');

INSERT INTO p.t VALUES (1, 10, 1), (2, 20, 1);

UPDATE p.t SET v = 11, ts = 2 WHERE id = 1;

CALL lakehouse.help();

CALL lakehouse.help('clean');

CALL lakehouse.compaction(table => 'p.t', op => 'due');

CALL lakehouse.compaction(table => 'p.t', op => 'plan', force => true);

CALL lakehouse.compaction(table => 'p.t', op => 'schedule', force => true);

CALL lakehouse.compaction('p.t', 'run');

CALL lakehouse.compaction(table => 'p.t', op => 'show', limit => 3);

SELECT id, v FROM p.t ORDER BY id;
-- > [[1, 11], [2, 20]]

CALL lakehouse.logcompaction(table => 'p.t', op => 'due');

CALL lakehouse.clustering(table => 'p.t', op => 'plan', force => true);

CALL lakehouse.index(table => 'p.t', op => 'due');

CALL lakehouse.ttl(table => 'p.t', op => 'due');

CALL lakehouse.clean(table => 'p.t', op => 'due');

CALL lakehouse.clean(table => 'p.t');

CALL lakehouse.archive(table => 'p.t', op => 'plan');

CALL lakehouse.orphans(table => 'p.t', op => 'plan', force => true);

CALL lakehouse.validation(table => 'p.t', op => 'due');

CALL lakehouse.sync(table => 'p.t', op => 'run');
-- ! lakehouse sync run

CALL lakehouse.bloom_filters(table => 'p.t', op => 'due');

CALL lakehouse.savepoint(table => 'p.t', op => 'create', comment => 'before');

CALL lakehouse.savepoint(table => 'p.t');

CALL show_savepoints(table => 'p.t');

CALL lakehouse.rollback(table => 'p.t', op => 'failed');

CALL lakehouse.rollback(table => 'p.t', instant => '20000101000000000');
-- ! 20000101000000000

CALL lakehouse.restore(table => 'p.t', to => '20000101000000000');
-- ! 20000101000000000

CALL rollback_to_instant('p.t', '20000101000000000');
-- ! 20000101000000000

CALL rollback_to_savepoint(table => 'p.t', instant_time => '20000101000000000');
-- ! 20000101000000000

CALL delete_savepoint(table => 'p.t', instant_time => '20000101000000000');
-- ! 20000101000000000

CALL lakehouse.policy(table => 'p.t', service => 'clean', op => 'set', settings => 'commits_retained=5');

CALL lakehouse.policy(table => 'p.t', service => 'clean', op => 'show');

CALL lakehouse.policy(table => 'p.t', service => 'clean', op => 'remove');

CALL lakehouse.policy(table => 'p.t', service => 'cleann', op => 'show');
-- ! clean

CALL lakehouse.policy(table => 'p.t', service => 'clean', op => 'set', settings => 'nonsense');
-- ! key=value

CALL lakehouse.validate(table => 'p.t', deep => true);

CALL lakehouse.validate(table => 'p.t', deep => 'perhaps');
-- ! true nor false

CALL lakehouse.metadata(table => 'p.t');

CALL lakehouse.metadata(table => 'p.t', op => 'validate');

CALL lakehouse.metadata(table => 'p.t', op => 'rebuild');

CALL lakehouse.show_timeline(table => 'p.t', limit => 2);

CALL lakehouse.show_timeline(table => 'p.t', limit => 0);
-- ! at least 1

CALL lakehouse.show_files(table => 'p.t');

CALL lakehouse.show_partitions(table => 'p.t');

CALL lakehouse.show_properties(table => 'p.t');

CALL show_commits(table => 'p.t', limit => 10);

CALL show_commits_metadata(table => 'p.t');

CALL show_archived_commits(table => 'p.t');

CALL show_commit_files(table => 'p.t', instant_time => '20000101000000000');
-- ! show_commits

CALL show_timeline(table => 'p.t');

CALL show_rollbacks(table => 'p.t');

CALL show_cleans(table => 'p.t');

CALL show_clustering(table => 'p.t');

CALL show_table_properties(table => 'p.t');

CALL show_metadata_table_files(table => 'p.t', partition => '');

CALL show_metadata_table_partitions(table => 'p.t');

CALL show_metadata_table_stats(table => 'p.t');

CALL show_fsview_latest(table => 'p.t');

CALL stats_file_sizes(table => 'p.t');

CALL validate_metadata_table_files(table => 'p.t');

CALL run_clean(table => 'p.t');

CALL run_clustering(table => 'p.t');

CALL archive_commits(table => 'p.t');

CALL create_savepoint('p.t');

CALL create_metadata_table(table => 'p.t');

CALL truncate_table(table => 'p.t');

SELECT count(*) FROM p.t;
-- > [[0]]

CALL hive_sync(table => 'p.t');
-- ! lakehouse sync run

CALL upgrade_table(table => 'p.t', to_version => 'EIGHT');
-- ! lakehouse table downgrade

CREATE TABLE p.old (id INT, v INT) USING hudi TBLPROPERTIES (primaryKey = 'id', 'hoodie.write.table.version' = '6');

INSERT INTO p.old VALUES (1, 10);

CALL lakehouse.upgrade(table => 'p.old', op => 'plan', version => '9');

CALL lakehouse.upgrade(table => 'p.old', op => 'try', version => '9');
-- ! must be plan or run

CALL lakehouse.upgrade(table => 'p.old');
-- ! needs version

CALL lakehouse.downgrade(table => 'p.old', version => '7');
-- ! 7

CALL upgrade_table(table => 'p.old', to_version => 'EIGHT', options => 'hoodie.metadata.enable=true');

INSERT INTO p.old VALUES (2, 20);

CALL downgrade_table('p.old', 'SIX');

CALL lakehouse.upgrade(table => 'p.old', version => '9');

SELECT id, v FROM p.old ORDER BY id;
-- > [[1, 10], [2, 20]]

CALL repair_deduplicate(table => 'p.t');
-- ! lakehouse.validate

CALL copy_to_table(table => 'p.t', new_table => 'p.u');
-- ! AS SELECT

CALL copy_to_temp_view(table => 'p.t', view_name => 'v');
-- ! TEMPORARY VIEW

CALL show_logfile_records(table => 'p.t');
-- ! hudi_table_changes

CALL lakehouse.clean(table => 'p.t', op => 'start');
-- ! due, plan, schedule, run or show

CALL lakehouse.clean(op => 'run');
-- ! table

CALL lakehouse.clean(table => 'p.nope');
-- ! nope

CALL lakehouse.clean(table => 'p.t', partitions => 'x');
-- ! partitions

CALL lakehouse.clean('p.t', table => 'p.t');
-- ! without name|twice

CALL lakehouse.clean(table => 'p.t', table => 'p.t');
-- ! twice

CALL lakehouse.compact(table => 'p.t');
-- ! compaction

CALL run_compaction(op => 'run', table => 'p.t', spark_parallelism => '4');
-- ! spark_parallelism
