"""The contract on server stores that share one server in RAM: each opening is another store object."""

from pathlib import Path
from typing import ClassVar

import pytest

from limpet.stores.port import Store
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from tests.contract.ram_driver import RemoteDriver
from tests.contract.test_volatile import TestVolatileStore


class TestServerStore(TestVolatileStore):
    reopens: ClassVar[bool] = True
    walk_steps: ClassVar[int] = 300

    @pytest.fixture(autouse=True)
    def _servers(self) -> None:
        self.servers: dict[Path, RamServer] = {}

    def open_store(self, folder: Path) -> Store:
        return ServerStore(RemoteDriver(self.servers.setdefault(folder, RamServer())))


del TestVolatileStore  # else it would run here, too
