"""Locations and settings of HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.storage.hdfs_options import client_settings, parse_hdfs_location
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError

HA = {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "a,b"}


def test_spellings_of_one_directory_have_one_root() -> None:
    settings = {**HA, "fs.defaultFS": "hdfs://Node:8020"}
    roots = [
        parse_hdfs_location(location, settings).root
        for location in ("hdfs://node/t", "hdfs://node:8020/t/", "HDFS://NODE/t", "hdfs:///t")
    ]
    assert set(roots) == {"hdfs://node/t"}
    assert parse_hdfs_location("hdfs://node:9000/t", settings).root == "hdfs://node:9000/t"


def test_client_gets_a_port_unless_the_name_is_a_nameservice() -> None:
    assert parse_hdfs_location("hdfs://node/t", HA).url(HA) == "hdfs://node:8020"
    assert parse_hdfs_location("hdfs://node:9000/t", HA).url(HA) == "hdfs://node:9000"
    assert parse_hdfs_location("hdfs://lake/t", HA).url(HA) == "hdfs://lake"
    mounts = {"fs.viewfs.mounttable.all.link./t": "hdfs://lake/t"}
    assert parse_hdfs_location("viewfs://all/t", mounts).url(mounts) == "viewfs://all"


def test_settings_come_from_files_and_options_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = "<configuration>{}</configuration>"
    entry = "<property><name>{}</name><value> {} </value></property>"
    (tmp_path / "core-site.xml").write_text(
        site.format(entry.format("fs.defaultFS", "hdfs://one") + entry.format("fs.s3a.secret.key", "hidden"))
    )
    (tmp_path / "hdfs-site.xml").write_text(
        site.format(entry.format("dfs.replication", "2") + entry.format("dfs.namenode.name.dir", "/disk"))
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    settings = client_settings({"spark.hadoop.dfs.replication": "3", "spark.hadoop.fs.s3a.access.key": "key"})
    assert settings["fs.defaultFS"] == "hdfs://one" and settings["dfs.replication"] == "3"
    assert not any("s3a" in name or "name.dir" in name for name in settings)
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(UserError, match=r"core-site\.xml"):
        client_settings({})


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown storage option 'fs_defaultFS'.*Did you mean 'fs.defaultFS'"):
        open_storage("hdfs://node/t", {"fs_defaultFS": "x"})


def test_native_path_and_parents_use_the_same_authority() -> None:
    storage = open_storage("hdfs://node/a/b")
    assert storage.native("p=1/f x") == "hdfs://node/a/b/p=1/f x"
    above = storage.above()
    assert above is not None and above.root == "hdfs://node/a"
    top = open_storage("hdfs://node/")
    assert (top.root, top.native("f"), top.above()) == ("hdfs://node", "hdfs://node/f", None)
