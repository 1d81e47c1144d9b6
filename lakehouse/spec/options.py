"""Options, each declared once as a typed field of a small policy: key, default, sentence.

Parsing, error texts, `lakehouse options` and README's table all come from these declarations. Keys are Hudi's where
Hudi has one; ours start with `lakehouse.`. A key nobody declared is an error that names the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from lakehouse.errors import UserError, nearest
from lakehouse.model.index_type import INDEX_TYPE, INDEX_TYPES, SIMPLE, IndexType, index_type
from lakehouse.model.keys import KEY_ENCODING, KeyEncoding
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.bucket_rules import EXPRESSIONS, HASH_FIELD, NUM_BUCKETS, REGEX, RULE_TYPE, parse_rules
from lakehouse.spec.clustering_options import ClusteringPolicy
from lakehouse.spec.delete_options import DeletePolicy
from lakehouse.spec.event_time_options import EventTimePolicy
from lakehouse.spec.lock_options import LockPolicy
from lakehouse.spec.option import option
from lakehouse.spec.schema_options import SchemaPolicy
from lakehouse.spec.sync_options import SyncPolicy
from lakehouse.spec.ttl_options import TtlPolicy

_MB = 1024 * 1024
#: Options that describe the table itself and are settled at its creation.
CREATE_OPTIONS = frozenset(
    {
        "hoodie.write.table.version",
        "hoodie.datasource.write.hive_style_partitioning",
        "hoodie.datasource.write.partitionpath.urlencode",
        "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled",
        "hoodie.table.cdc.enabled",
        "hoodie.table.cdc.supplemental.logging.mode",
    }
)
BATCHED, DIRECT = "TIMELINE_SERVER_BASED", "DIRECT"
_Policy = TypeVar("_Policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePolicy:
    """How data files are made."""

    max_file_bytes: int = option("hoodie.parquet.max.file.size", 120 * _MB, "Largest base file, in bytes.")
    small_file_bytes: int = option(
        "hoodie.parquet.small.file.limit", 100 * _MB, "Base files below this many bytes are filled by inserts; 0 = off."
    )
    compression: str = option(
        "hoodie.parquet.compression.codec",
        "zstd",
        "Codec of base files.",
        choices=("zstd", "snappy", "gzip", "lz4", "none"),
    )
    row_group_bytes: int = option(
        "hoodie.parquet.block.size", 64 * _MB, "Size of a row group in memory, in bytes, before encoding."
    )
    record_size_bytes: int = option(
        "hoodie.copyonwrite.record.size.estimate", 256, "Bytes a row takes in a file, until a commit has told better."
    )
    combine_before_insert: bool = option(
        "hoodie.combine.before.insert", False, "Combine rows of one key in a batch on insert and bulk_insert too."
    )
    bloom_enabled: bool = option(
        "hoodie.parquet.bloom.filter.enabled",
        True,
        "Base files carry a bloom filter of their keys; the bucket index never asks it, and large files save memory.",
    )
    bloom_fpp: float = option("hoodie.index.bloom.fpp", 1e-9, "False-positive rate of the bloom filter in footers.")
    memory_budget_bytes: int = option(
        "lakehouse.write.memory.budget",
        512 * _MB,
        "Memory of a task that writes, compacts or merges logs for a reader, in bytes; what it may hold above an idle "
        "worker.",
    )
    key_encoding: str = option(
        KEY_ENCODING,
        KeyEncoding.CHECKED.value,
        "Record keys of several columns: refuse values that could read as the key of other values, escape them (fixed "
        "when the table is created, and stored with it; Hudi reads such tables, and must not write them), or take them "
        "as Hudi does, unchecked.",
        choices=tuple(encoding.value for encoding in KeyEncoding),
    )
    max_key_bytes: int = option(
        "lakehouse.record_key.max.bytes",
        16 * 1024,
        "Longest record key that a write takes, in bytes; 0 = any. A key is hashed some thirty times for the bloom "
        "filter, and stands in footers and log files: keys of 1 MB take a second each.",
    )
    markers_type: str = option(
        "hoodie.write.markers.type",
        BATCHED,
        "How the files of a write that is not finished are noted: many in one object, in the layout of Hudi's timeline "
        "server, or one object for each.",
        choices=(BATCHED, DIRECT),
    )

    damaged_files: str = option(
        "lakehouse.damaged.files",
        "fail",
        "What reads, writes and services do when a committed file is missing or damaged: fail, or skip the rows that "
        "are lost and log a warning for each file.",
        choices=("fail", "skip"),
    )

    @property
    def skips_damage(self) -> bool:
        """Whether to go on without the rows of damaged files."""
        return self.damaged_files == "skip"

    @property
    def marks_each_file(self) -> bool:
        """Whether each data file has a marker of its own."""
        return self.markers_type == DIRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPolicy:
    """Where the key of an incoming row is looked for. Fixed at creation for the bucket index."""

    type: str = option(
        INDEX_TYPE,
        SIMPLE.name,
        "Index that finds the file group of a key.",
        choices=tuple(INDEX_TYPES),
    )
    update_partition_path: bool = option(
        "hoodie.simple.index.update.partition.path",
        True,
        "Global index: move a row whose partition changed (true) or update it where it is (false).",
    )
    buckets: int = option(NUM_BUCKETS, 0, "Bucket index: file groups per partition.")
    hash_fields: str = option(HASH_FIELD, "", "Bucket index: key fields that are hashed, comma separated; default all.")
    expressions: str = option(
        EXPRESSIONS,
        "",
        "Bucket index: partitions with other numbers of buckets, as pattern,number;pattern,number: the first pattern "
        "that is found in the path of a partition counts.",
    )
    rule_type: str = option(RULE_TYPE, REGEX, "How those patterns are read.", choices=(REGEX,))

    def __post_init__(self) -> None:
        parse_rules(self.expressions)

    @property
    def index_type(self) -> IndexType:
        """The index type that `type` names, with its properties."""
        return index_type(self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPolicy(LockPolicy):
    """How a write becomes true beside others, and what happens to writes that died."""

    concurrency: str = option(
        "hoodie.write.concurrency.mode",
        "SINGLE_WRITER",
        "Whether others may write at the same time: no; yes, and who commits first wins; yes, without conflicts "
        "(merge-on-read with the bucket index).",
        choices=("SINGLE_WRITER", "OPTIMISTIC_CONCURRENCY_CONTROL", "NON_BLOCKING_CONCURRENCY_CONTROL"),
    )
    conflict_retries: int = option(
        "hoodie.write.num.retries.on.conflict.failures",
        5,
        "How often a write that lost to another one is planned and tried again, with the same rows.",
    )
    early_detection: bool = option(
        "hoodie.write.concurrency.early.conflict.detection.enable",
        False,
        "Optimistic writers give up before they write data if another one at work has marked a file group of theirs; "
        "partial updates, whose columns markers do not tell, do not.",
    )
    conflict_strategy: str = option(
        "hoodie.write.lock.conflict.resolution.strategy",
        "",
        "Which commits exclude each other: file_groups, buckets, Hudi's name of one, or a function of yours, "
        "package.module:function; default as the mode and the index ask for.",
    )
    failed_writes: str = option(
        "hoodie.clean.failed.writes.policy",
        "EAGER",
        "Dead writes are rolled back by the next write (EAGER) or left to `lakehouse rollback failed` (LAZY, and "
        "always so with many writers).",
        choices=("EAGER", "LAZY"),
        aliases=("hoodie.cleaner.policy.failed.writes",),
    )
    heartbeat_interval_ms: int = option(
        "hoodie.client.heartbeat.interval_in_ms", 60_000, "Time between two signs of life of a write, in milliseconds."
    )
    heartbeat_misses: int = option(
        "hoodie.client.heartbeat.tolerable.misses", 2, "Missed signs of life after which a write is taken for dead."
    )

    @property
    def eager(self) -> bool:
        """Whether this writer takes pending writes of others for dead ones or for rivals: it expects to be alone."""
        return self.failed_writes == "EAGER" and not self.many_writers

    @property
    def many_writers(self) -> bool:
        """Whether others are expected to write at the same time."""
        return self.concurrency != "SINGLE_WRITER"

    @property
    def non_blocking(self) -> bool:
        """Whether writes of the same file groups follow each other instead of excluding each other."""
        return self.concurrency == "NON_BLOCKING_CONCURRENCY_CONTROL"


PARTITION_REGEX = "hoodie.compaction.partition.path.regex"
COMPACTED_PARTITIONS = "lakehouse.compaction.partitions"
TRIGGERS = ("NUM_COMMITS", "NUM_COMMITS_AFTER_LAST_REQUEST", "TIME_ELAPSED", "NUM_AND_TIME", "NUM_OR_TIME")
STRATEGIES = (
    "LogFileSizeBased",
    "LogFileNumBased",
    "BoundedIO",
    "UnBounded",
    "DayBased",
    "BoundedPartitionAware",
    "UnBoundedPartitionAware",
    "PartitionRegexBased",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When a merge-on-read table is compacted, and which file groups a plan takes."""

    max_delta_commits: int = option(
        "hoodie.compact.inline.max.delta.commits", 5, "Delta commits that make a compaction due."
    )
    max_delta_seconds: int = option(
        "hoodie.compact.inline.max.delta.seconds", 3600, "Seconds since the last compaction that make one due."
    )
    trigger: str = option(
        "hoodie.compact.inline.trigger.strategy",
        "NUM_COMMITS",
        "What makes a compaction due: delta commits since the last one that completed (or was requested), or time.",
        choices=TRIGGERS,
    )
    strategy: str = option(
        "hoodie.compaction.strategy",
        "LogFileSizeBased",
        f"Which file groups a plan takes: {', '.join(STRATEGIES)}; several, comma separated, one after the other.",
    )
    target_io_mb: int = option(
        "hoodie.compaction.target.io", 512_000, "Bounded strategies stop after the group that reaches this many MB."
    )
    log_bytes_threshold: int = option(
        "hoodie.compaction.logfile.size.threshold", 0, "LogFileSizeBased: bytes of logs from which on a group is taken."
    )
    log_files_threshold: int = option(
        "hoodie.compaction.logfile.num.threshold", 0, "LogFileNumBased: log files from which on a group is taken."
    )
    target_partitions: int = option(
        "hoodie.compaction.daybased.target.partitions",
        10,
        "DayBased: newest partitions that are taken; the PartitionAware ones: days before now.",
    )
    partition_regex: str = option(PARTITION_REGEX, "", "PartitionRegexBased: found in the paths of partitions taken.")
    partitions: str = option(
        COMPACTED_PARTITIONS, "", "Partitions that are compacted, by their paths, comma separated; default all."
    )
    log_blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold", 5, "Log files of a group that make it worth a log compaction."
    )

    def __post_init__(self) -> None:
        """Bring Hudi's class names to our short ones; raise UserError for an unknown strategy and a bad regex."""
        names = [_strategy(name.strip()) for name in self.strategy.split(",")]
        object.__setattr__(self, "strategy", ",".join(names))
        compile_pattern(self.partition_regex, f"option {PARTITION_REGEX}")
        if "PartitionRegexBased" in names and not self.partition_regex:
            raise UserError(
                "option hoodie.compaction.strategy=PartitionRegexBased needs hoodie.compaction.partition.path.regex"
            )

    @property
    def selected_partitions(self) -> tuple[str, ...]:
        """The partitions that were selected by their paths; none stands for all."""
        return tuple(name.strip().strip("/") for name in self.partitions.split(",") if name.strip())

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies in the order in which they are applied, by their short names."""
        return tuple(self.strategy.split(","))


def _strategy(name: str) -> str:
    short = name.rpartition(".")[2].removesuffix("CompactionStrategy")
    for known in STRATEGIES:
        if known.lower() == short.lower():
            return known
    raise UserError(
        f"option hoodie.compaction.strategy: {name!r} is none of {', '.join(STRATEGIES)}.{nearest(short, STRATEGIES)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPolicy:
    """What a clean leaves: files that the last writes, or hours, or versions of each file group need."""

    policy: str = option(
        "hoodie.clean.policy",
        "KEEP_LATEST_COMMITS",
        "Whether writes, versions of each file group or hours are counted of what a clean leaves readable.",
        choices=("KEEP_LATEST_COMMITS", "KEEP_LATEST_FILE_VERSIONS", "KEEP_LATEST_BY_HOURS"),
        aliases=("hoodie.cleaner.policy",),
    )
    commits_retained: int = option(
        "hoodie.clean.commits.retained",
        10,
        "KEEP_LATEST_COMMITS: newest writes as of which the table stays readable.",
        aliases=("hoodie.cleaner.commits.retained",),
    )
    hours_retained: int = option(
        "hoodie.clean.hours.retained",
        24,
        "KEEP_LATEST_BY_HOURS: hours back to which the table stays readable.",
        aliases=("hoodie.cleaner.hours.retained",),
    )
    versions_retained: int = option(
        "hoodie.clean.fileversions.retained",
        3,
        "KEEP_LATEST_FILE_VERSIONS: newest versions that are left of each file group.",
        aliases=("hoodie.cleaner.fileversions.retained",),
    )
    incremental: bool = option(
        "hoodie.clean.incremental.enabled",
        True,
        "List only partitions that were written to since the last clean's earliest retained write.",
        aliases=("hoodie.cleaner.incremental.mode",),
    )
    trigger: str = option(
        "hoodie.clean.trigger.strategy",
        "NUM_COMMITS",
        "What makes a clean due: writes since the last one.",
        choices=("NUM_COMMITS",),
    )
    max_commits: int = option(
        "hoodie.clean.trigger.max.commits",
        1,
        "Writes since the last clean that make one due.",
        aliases=("hoodie.clean.max.commits",),
    )
    orphan_hours: int = option(
        "lakehouse.clean.orphans.hours", 168, "Hours after which a data file that no write names is an orphan."
    )

    def __post_init__(self) -> None:
        """Raise UserError for a policy that would leave nothing."""
        for declared in fields(self):
            if declared.name.endswith("_retained") and getattr(self, declared.name) < 1:
                raise UserError(
                    f"option {declared.metadata['key']}={getattr(self, declared.name)}: must be at least 1: the newest "
                    "rows are always left",
                    option=declared.metadata["key"],
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePolicy:
    """When completed actions leave the active timeline for the archive, and how many of them stay."""

    max_commits: int = option(
        "hoodie.keep.max.commits", 30, "More completed commits than these on the timeline make an archive due."
    )
    min_commits: int = option(
        "hoodie.keep.min.commits", 20, "Completed commits that an archive leaves on the timeline."
    )
    merge_batch: int = option(
        "hoodie.timeline.compaction.batch.size", 10, "Files of one level of the archive that are merged into one."
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        "Archive commits after a savepoint, too; the savepoint can then not be restored to.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for numbers that contradict each other."""
        if not 1 <= self.min_commits < self.max_commits:
            raise UserError(
                f"options hoodie.keep.min.commits={self.min_commits} and hoodie.keep.max.commits={self.max_commits}: "
                "the first must be at least 1, and less than the second",
                option="hoodie.keep.min.commits",
            )
        if self.merge_batch < 2:
            raise UserError(
                f"option hoodie.timeline.compaction.batch.size={self.merge_batch}: it takes two files to merge",
                option="hoodie.timeline.compaction.batch.size",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """How log files of merge-on-read tables are made."""

    max_file_bytes: int = option("hoodie.logfile.max.size", 1024 * _MB, "Largest log file, in bytes.")
    block_format: str = option(
        "hoodie.logfile.data.block.format",
        "parquet",
        "Format of data blocks in logs; Avro blocks are read, but not written.",
        choices=("parquet",),
    )
    bucket_inserts: str = option(
        "lakehouse.bucket.inserts",
        "base",
        "Bucket index on merge-on-read: what a new bucket begins with, a base file or a log.",
        choices=("base", "log"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All policies of one table or call."""

    write: WritePolicy = field(default_factory=WritePolicy)
    index: IndexPolicy = field(default_factory=IndexPolicy)
    transaction: TransactionPolicy = field(default_factory=TransactionPolicy)
    schema: SchemaPolicy = field(default_factory=SchemaPolicy)
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    log: LogPolicy = field(default_factory=LogPolicy)
    clustering: ClusteringPolicy = field(default_factory=ClusteringPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    clean: CleanPolicy = field(default_factory=CleanPolicy)
    ttl: TtlPolicy = field(default_factory=TtlPolicy)
    event_time: EventTimePolicy = field(default_factory=EventTimePolicy)
    deletes: DeletePolicy = field(default_factory=DeletePolicy)
    sync: SyncPolicy = field(default_factory=SyncPolicy)

    def override(self, options: Mapping[str, str]) -> Policies:
        """Return these policies with `options` on top.

        Raises UserError for a key nobody declared (naming the nearest) and for a value that does not parse.
        """
        if not options:
            return self
        policies = Policies(**{name: _override(getattr(self, name), options) for name in POLICIES})
        _check_many_writers(policies.transaction, options)
        return policies


_FAILED_WRITES_KEYS = ("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes")
POLICIES: dict[str, type[Any]] = {
    "write": WritePolicy,
    "index": IndexPolicy,
    "transaction": TransactionPolicy,
    "schema": SchemaPolicy,
    "compaction": CompactionPolicy,
    "log": LogPolicy,
    "archive": ArchivePolicy,
    "clustering": ClusteringPolicy,
    "clean": CleanPolicy,
    "ttl": TtlPolicy,
    "event_time": EventTimePolicy,
    "deletes": DeletePolicy,
    "sync": SyncPolicy,
}


def parse_options(options: Mapping[str, str], *, also_known: frozenset[str] = frozenset()) -> Policies:
    """Return the policies that `options` describe; `also_known` are keys that another module parses.

    Options may need each other, such as a lock provider and its address, so all of a table are given together.
    """
    check_known(options, also_known=also_known)
    return Policies().override({k: v for k, v in options.items() if k not in also_known})


def check_known(options: Mapping[str, str], *, also_known: frozenset[str] = frozenset()) -> None:
    """Raise UserError for an undeclared key, naming the nearest; values are not looked at."""
    known = _declared_keys() | also_known
    for key in options:
        if key not in known:
            raise UserError(f"unknown option {key!r}.{nearest(key, known)} `lakehouse options` lists all.", option=key)


def canonical_key(key: str) -> str:
    """Return the name under which an option is declared, if `key` is one of its other names."""
    return _aliases().get(key, key)


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: declared["key"] for declared in declarations() for alias in declared["aliases"]}


@cache
def _declared_keys() -> frozenset[str]:
    return frozenset(key for declared in declarations() for key in (declared["key"], *declared["aliases"]))


def _check_many_writers(policy: TransactionPolicy, options: Mapping[str, str]) -> None:
    """Raise UserError for options under which writers at the same time could not be safe from each other."""
    if not policy.many_writers:
        return
    mode = f"hoodie.write.concurrency.mode={policy.concurrency}"
    for key in _FAILED_WRITES_KEYS:
        if options.get(key, "").strip().upper() == "EAGER":
            raise UserError(
                f"option {key}=EAGER rolls back what other writers have in flight, and {mode} says that there are "
                "some; leave it out, or set LAZY",
                option=key,
            )
    if policy.lock_provider == "in_process":
        raise UserError(
            f"option hoodie.write.lock.provider=in_process excludes nobody outside of one process, and {mode} says "
            "that there are other writers; name one that they share, or leave it out: filesystem is",
            option="hoodie.write.lock.provider",
        )


def declarations() -> Iterator[dict[str, Any]]:
    """Yield key, default, type, text, choices and aliases of every option, in the order of the policies."""
    for policy in POLICIES.values():
        hints = get_type_hints(policy)
        for declared in fields(policy):
            default = declared.default if declared.default is not MISSING else ""
            yield {**declared.metadata, "default": default, "type": hints[declared.name].__name__}


def options_markdown() -> str:
    """Return README's options table."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for declared in declarations():
        choices = f" One of {', '.join(declared['choices'])}." if len(declared["choices"]) > 1 else ""
        rows.append(f"| `{declared['key']}` | {_shown(declared['default'])} | {declared['text']}{choices} |")
    return "\n".join(rows)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default != "" else "–"


def _override(policy: _Policy, options: Mapping[str, str]) -> _Policy:
    changes = {}
    for declared in fields(policy):  # type: ignore[arg-type]
        for key in (declared.metadata["key"], *declared.metadata["aliases"]):
            if key in options:
                changes[declared.name] = _parse(declared, options[key], type(getattr(policy, declared.name)))
    if not changes:
        return policy
    return type(policy)(**{**{f.name: getattr(policy, f.name) for f in fields(policy)}, **changes})  # type: ignore[arg-type]


def _parse(declared: Field[Any], value: str, kind: type) -> Any:
    key, choices, text = declared.metadata["key"], declared.metadata["choices"], str(value).strip()
    if choices:
        matches = [choice for choice in choices if choice.lower() == text.lower()]
        if not matches:
            known = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
            why = nearest(text, choices) if len(choices) > 1 else f" {declared.metadata['text']}"
            raise UserError(f"option {key}={value!r}: must be {known}.{why}", option=key)
        return matches[0]
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        number = kind(text)
    except (ValueError, KeyError):
        raise UserError(
            f"option {key}={value!r}: expected {'true or false' if kind is bool else kind.__name__}", option=key
        ) from None
    if kind in (int, float) and number < 0:
        raise UserError(f"option {key}={value!r}: must not be negative", option=key)
    return number
