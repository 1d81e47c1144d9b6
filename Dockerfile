# Airflow with lakehouse, and a separate virtual environment for Spark. The Spark provider of Airflow and pyspark
# overwrite each other's files, so they must not be in one environment. Both install the same wheel.
#
#   Airflow's Python   the packages of the base image, the Spark provider, and the wheel without an extra
#   /opt/spark-env     the wheel with the extra `spark` and all sources; tasks reach it through LAKEHOUSE_SPARK_HOME
ARG AIRFLOW_VERSION=3.3.2
ARG PYTHON_VERSION=3.11
FROM apache/airflow:${AIRFLOW_VERSION}-python${PYTHON_VERSION} AS wheel
WORKDIR /tmp/lakehouse
COPY --chown=airflow:0 pyproject.toml README.md LICENSE ./
COPY --chown=airflow:0 lakehouse ./lakehouse
COPY --chown=airflow:0 plugins ./plugins
RUN pip wheel --no-cache-dir --no-deps --wheel-dir dist .

# hadoop-aws and what it needs, in the versions that the tests of S3 use: Spark opens s3a:// with them.
FROM maven:3.9.11-eclipse-temurin-17 AS connectors
COPY tests/s3/s3a.pom.xml /tmp/s3a.pom.xml
RUN mvn -q -f /tmp/s3a.pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory=/tmp/connectors

FROM apache/airflow:${AIRFLOW_VERSION}-python${PYTHON_VERSION}
ARG PYTHON_VERSION=3.11
ARG SPARK_PROVIDER_VERSION=6.3.4

USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless libpostgresql-jdbc-java procps \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=airflow --group=0 --mode=0775 \
        /opt/spark-env /opt/lakehouse /var/lib/lakehouse /var/lib/lakehouse-reports

USER airflow
WORKDIR /opt/lakehouse
COPY --chown=airflow:0 constraints-spark.txt ./
COPY --from=wheel --chown=airflow:0 /tmp/lakehouse/dist ./
RUN python -m venv /opt/spark-env \
    && /opt/spark-env/bin/pip install --no-cache-dir --constraint constraints-spark.txt \
        "$(echo lakehouse_tables-*.whl)[spark,hdfs,hive,kafka,metrics,mysql,postgres,postgresql,protobuf,zookeeper]" \
    && /opt/spark-env/bin/python -c "import lakehouse.core.table.table, pyspark, pyarrow"
COPY --from=connectors --chown=airflow:0 /tmp/connectors /opt/spark-env/lib/python${PYTHON_VERSION}/site-packages/pyspark/jars/
# --no-deps: the base image has the dependencies of the provider and of the wheel. pyspark-client must not be installed,
# and the regular expression engine is installed separately.
RUN pip install --no-cache-dir --no-deps "apache-airflow-providers-apache-spark==${SPARK_PROVIDER_VERSION}" \
        lakehouse_tables-*.whl "$(grep '^google-re2==' constraints-spark.txt)" \
    && python -c "import airflow.providers.apache.spark.operators.spark_submit, lakehouse_airflow.operators"

COPY --chown=airflow:0 dags /opt/airflow/dags
# The service demo-data of docker-compose.yml runs it; the wheel does not have it.
COPY --chown=airflow:0 demo /opt/lakehouse/demo
ENV LAKEHOUSE_SPARK_HOME=/opt/spark-env \
    LAKEHOUSE_HOME=/var/lib/lakehouse \
    LAKEHOUSE_REPORTS=/var/lib/lakehouse-reports
WORKDIR /opt/airflow
