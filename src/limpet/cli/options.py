"""Option types and option groups that several commands share.

Every option that occurs more than once is declared here, with its help text. Imports cyclopts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from limpet.cli import hints

Flag = Parameter(negative="", show_default=False)
Positive = Annotated[int, Parameter(validator=Number(gte=1))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How to print."""

    json: Annotated[bool, Flag] = False
    """One JSON document with everything the table shows."""

    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", show_default=False)] = False
    """Nothing on stderr but errors."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CommonOptions(OutputOptions):
    """Which store, and how to print."""

    url: str | None = None
    """The store: a path, files:folder, postgresql://… or redis://…. Else LIMPET_URL, else ./state.db."""

    tenant: str = "default"
    """Whose data."""

    @property
    def store_options(self) -> tuple[str, ...]:
        """The options that lead to the same data again."""
        return hints.store_options(self.url, self.tenant)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AllTenantsOptions(OutputOptions):
    """Which store, and how to print, for what is done for all tenants unless one is named."""

    url: str | None = None
    """The store: a path, files:folder, postgresql://… or redis://…. Else LIMPET_URL, else ./state.db."""

    tenant: str | None = None
    """Only for this tenant; else for all."""

    @property
    def for_one_tenant(self) -> CommonOptions:
        """The same for what takes one tenant."""
        tenant = "default" if self.tenant is None else self.tenant
        return CommonOptions(json=self.json, quiet=self.quiet, url=self.url, tenant=tenant)
