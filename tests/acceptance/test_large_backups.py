"""A backup that is larger than what SQLite keeps in memory has page checksums like any other."""

from pathlib import Path

import holdfast


def test_a_large_backup_can_be_opened(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        session = hf.sessions.create_session("long")
        for part in range(12):
            batch = [{"role": "user", "content": f"{part} {n} " * 2_500} for n in range(60)]
            session.add_messages(batch)
        hf.admin.backup(tmp_path / "copy.db")
    with holdfast.connect(tmp_path / "copy.db") as hf:
        assert hf.admin.verify().ok
        assert hf.sessions.get_session("long").message_count == 720
