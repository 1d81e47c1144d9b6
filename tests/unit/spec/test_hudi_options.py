"""The options of Hudi jobs: every name is classified, and a job is parsed or refused, never silently ignored."""

from __future__ import annotations

import pytest

from lakehouse.errors import SettingError, UserError
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.declarations import declared_keys, service_of
from lakehouse.spec.options.hudi.catalogue import Support, catalogue
from lakehouse.spec.options.hudi.write_job import METADATA_PREFIX, parse_write_job
from lakehouse.spec.table.services import SERVICES

#: Options of reads that reads honour.
READS = {
    "as.of.instant",
    "hoodie.datasource.query.incremental.format",
    "hoodie.datasource.query.type",
    "hoodie.datasource.read.begin.instanttime",
    "hoodie.datasource.read.end.instanttime",
    "hoodie.datasource.streaming.startOffset",
    "hoodie.datasource.view.type",
}
EVENT_TIME = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"


def test_every_option_has_a_support_and_a_reason_if_it_has_no_effect() -> None:
    assert len(catalogue()) > 700
    for option in catalogue().values():
        assert set(option.releases) <= {"1.2", "0.15"} and option.releases, option.name
        assert bool(option.text) == (option.support is not Support.HONOURED), option.name


def test_declared_options_are_honoured() -> None:
    for name in (*declared_keys(), *CREATE_OPTIONS):
        if name in catalogue():
            assert catalogue()[name].support is Support.HONOURED, name


@pytest.mark.parametrize("support", [Support.NOT_NEEDED, Support.EQUIVALENT])
def test_options_without_effect_are_accepted_and_listed(support: Support) -> None:
    names = [option.name for option in catalogue().values() if option.support is support]
    job = parse_write_job(dict.fromkeys(names, "some value"))
    assert sorted(job.unused) == sorted(names)
    assert all(job.unused.values())


def test_refused_options_are_errors_except_for_what_is_done_anyway() -> None:
    for option in catalogue().values():
        if option.support is not Support.REFUSED:
            continue
        with pytest.raises(SettingError, match="is not supported"):
            parse_write_job({option.name: "some value"})
        for value in option.values:
            assert parse_write_job({option.name: value.upper()}).unused == {}


def test_honoured_options_have_a_field_or_are_options_of_reads() -> None:
    honoured = [option.name for option in catalogue().values() if option.support is Support.HONOURED]
    for name in honoured:
        value = {"hoodie.datasource.write.operation": "insert"}.get(name, "x")
        try:
            job = parse_write_job({name: value})
        except UserError:
            continue  # A declared option checks its value.
        assert job.unused == ({name: "an option of reads"} if name in READS else {})
        assert job != parse_write_job({}) or name == METADATA_PREFIX, name


def test_names_are_compared_without_case_and_old_names_mean_the_same() -> None:
    job = parse_write_job(
        {
            "HOODIE.datasource.write.recordKey.field": "id, region",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.table.ordering.fields": "ts",
            "hoodie.datasource.write.storage.type": "merge_on_read",
            "hoodie.write.record.merge.strategy.id": EVENT_TIME,
            "hoodie.datasource.write.partitionpath.field": "region:SIMPLE,at:TIMESTAMP",
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator",
            "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
            "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
            "_source": "orders.csv",
        }
    )
    assert (job.record_key, job.ordering, job.table_type) == (("id", "region"), ("ts",), "MERGE_ON_READ")
    assert (job.merge_mode, job.key_generator) == ("EVENT_TIME_ORDERING", KeyGeneratorType.CUSTOM)
    assert job.timestamp is not None and job.timestamp.output_format == "yyyy/MM/dd"
    assert job.commit_metadata == {"_source": "orders.csv"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hoodie.table.nme": "x"}, "Did you mean 'hoodie.table.name'"),
        ({"hoodie.clean.comits.retained": "3"}, "Did you mean 'hoodie.clean.commits.retained'"),
        ({"hoodie.datasource.write.operation": "upsrt"}, "Did you mean 'upsert'"),
        ({"hoodie.datasource.write.keygenerator.class": "com.acme.MyKeys"}, "cannot run here"),
        ({"hoodie.record.merge.strategy.id": "1897ef5f-18bc-4557-939c-9d6a8afd1519"}, "cannot run here"),
        ({"hoodie.table.ordering.fields": "a", "hoodie.table.precombine.field": "b"}, "contradict"),
        ({"lakehouse.write.local.max.bytes": "much"}, "number of bytes"),
    ],
)
def test_mistakes_name_the_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_write_job(options)


def test_services_of_options_exist() -> None:
    assert service_of("hoodie.cleaner.commits.retained") == "clean"
    assert service_of("hoodie.parquet.max.file.size") == ""
    assert {service_of(key) for key in declared_keys()} - {""} <= {*SERVICES}
