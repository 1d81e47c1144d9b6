"""Options of the table lock: the provider, its own options, and the times that all providers share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lakehouse.errors import SettingError, nearest
from lakehouse.spec.options.lock_providers import LOCK_PROVIDERS, PROVIDER_KEY, LockOptions, LockProvider, LockTiming
from lakehouse.spec.options.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPolicy:
    """Which provider keeps the table lock, how long a writer waits for it, and when it expires.

    `provider_options` holds the options of each provider in the order of the registry, so that a call may choose
    another provider and keep the options that the table sets for it.
    """

    provider: str = option(
        PROVIDER_KEY,
        "filesystem",
        f"Lock that excludes other writers during a commit: {', '.join(LOCK_PROVIDERS)}, or the name of Hudi's class.",
    )
    wait_ms: int = option("hoodie.write.lock.wait_time_ms", 60_000, "Longest wait for the table lock, in milliseconds.")
    lease_ms: int = option(
        "lakehouse.lock.lease_ms",
        60_000,
        "Milliseconds after which the lock of a writer that does not renew it may be taken over.",
    )
    provider_options: tuple[LockOptions, ...] = tuple(provider.options() for provider in LOCK_PROVIDERS.values())

    def __post_init__(self) -> None:
        """Replace Hudi's class name by the short name.

        Raises UserError for an unknown provider, and for options with which the chosen one cannot work.
        """
        object.__setattr__(self, "provider", _provider_name(self.provider))
        self.options.check()

    @classmethod
    def of(cls, options: LockOptions, **times: Any) -> LockPolicy:
        """Return the policy of one provider by its options; `times` are `wait_ms` and `lease_ms`."""
        name = next(name for name, provider in LOCK_PROVIDERS.items() if provider.options is type(options))
        defaults = (provider.options() for provider in LOCK_PROVIDERS.values())
        chosen = tuple(options if type(default) is type(options) else default for default in defaults)
        return cls(provider=name, provider_options=chosen, **times)

    @property
    def registered(self) -> LockProvider:
        """The registry entry of the chosen provider."""
        return LOCK_PROVIDERS[self.provider]

    @property
    def timing(self) -> LockTiming:
        """The times that all providers share."""
        return LockTiming(wait_ms=self.wait_ms, lease_ms=self.lease_ms)

    @property
    def options(self) -> LockOptions:
        """The options of the chosen provider."""
        return next(options for options in self.provider_options if type(options) is self.registered.options)

    def with_options(self, **changes: Any) -> LockPolicy:
        """Return this policy with other values of the chosen provider's options."""
        changed = replace(self.options, **changes)
        return replace(self, provider_options=tuple(changed if o is self.options else o for o in self.provider_options))


def _provider_name(name: str) -> str:
    simple = name.strip().rpartition(".")[2]
    for short, provider in LOCK_PROVIDERS.items():
        if simple and simple.lower() in (short, provider.hudi_class.lower()):
            return short
    names = [*LOCK_PROVIDERS, *(provider.hudi_class for provider in LOCK_PROVIDERS.values() if provider.hudi_class)]
    raise SettingError(
        f"option {PROVIDER_KEY}={name!r} is not one of {', '.join(LOCK_PROVIDERS)}, nor the class of Hudi for one of "
        f"them.{nearest(simple, names)}",
        setting=PROVIDER_KEY,
    )
