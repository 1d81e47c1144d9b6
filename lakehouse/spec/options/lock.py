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

    `provider_options` contains the options of all providers in registry order. A call can therefore choose a different
    provider and still use the options that the table sets for that provider.
    """

    provider: str = option(
        PROVIDER_KEY,
        "filesystem",
        f"Lock that excludes other writers during a commit: {', '.join(LOCK_PROVIDERS)}, or the name of Hudi's class.",
    )
    wait_ms: int = option(
        "hoodie.write.lock.wait_time_ms", 60_000, "Maximum time to wait for the table lock, in milliseconds."
    )
    lease_ms: int = option(
        "lakehouse.lock.lease_ms",
        60_000,
        "Time in milliseconds after which another writer may take over a lock that is not renewed.",
    )
    provider_options: tuple[LockOptions, ...] = tuple(provider.options() for provider in LOCK_PROVIDERS.values())

    def __post_init__(self) -> None:
        """Replace Hudi's class name by the short name.

        Raises UserError for an unknown provider, or if the chosen provider cannot work with its options.
        """
        object.__setattr__(self, "provider", _provider_name(self.provider))
        self.options.check()

    @classmethod
    def of(cls, options: LockOptions, **times: Any) -> LockPolicy:
        """Create the policy for one provider from its options. `times` are `wait_ms` and `lease_ms`."""
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
        """Return a copy of this policy with changed options of the chosen provider."""
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
