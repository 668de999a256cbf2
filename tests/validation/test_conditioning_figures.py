"""Figures of the paper on conditioning: their computations at small sizes, their pictures, and the loading of data."""

import gzip
import struct

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import pytest
from figure_outcomes import check_picture, column, outcome_of

from attsvm.validation.bench.model_cases import spectrum_speed
from attsvm.validation.figures.conditioning import prompt_figures, text_figures, vision_figures, vision_model
from attsvm.validation.figures.figure import Context

SMALL = {
    "fig1": (prompt_figures.FIGURE_1, {"trials": 1, "N": 30, "cells": ((5, 0.1, 0.3, 600, 1), (40, 0.1, 0.1, 120, 1))}),
    "fig2": (
        prompt_figures.FIGURE_2,
        {"trials": 1, "steps": 120, "linear_rates": (0.03, 0.1), "vit_rates": (0.1,), "vit_log10_ratios": (1.3, 7.0)}
        | {"epochs": 1, "limit": 64, "dim": 8, "layers": 1, "patch": 4},
    ),
    "fig3": (
        text_figures.FIGURE,
        {"trials": 1, "steps": 100, "length": 6, "dim": 8, "words": 600, "vocabulary": 40}
        | {"sgd_rates": (0.1,), "adam_rates": (5e-3,)},
    ),
    "fig7": (
        prompt_figures.FIGURE_7,
        {"trials": 2, "N": 40, "d": 5, "lr": 0.2, "steps": 240, "newton_steps": 20, "log10_ratios": (0.5, 4.0)},
    ),
    "table1": (
        vision_figures.FIGURE_TABLE1,
        {"trials": 1, "epochs": 3, "limit": 200, "test": 20, "dim": 16, "layers": 1, "patch": 2},
    ),
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_figures_run_and_draw(name, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    figure, settings = SMALL[name]
    assert figure.name == name and set(settings) == set(figure.quick)
    outcome = figure.run(Context(settings=settings))
    for table in outcome.tables:
        assert table.rows and all(len(row) == len(table.columns) for row in table.texts())
    picture = figure.draw(outcome)
    picture.savefig(tmp_path / "picture.png", dpi=40)
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_heads_without_unimportant_tokens(monkeypatch):
    uniform = np.full((3, 4), -np.log(4))
    found = vision_figures.head_statistics(uniform, np.ones((3, 4, 2)), np.ones((3, 4, 2)), 0)
    assert found["kept"] == 0.0 and found["rho"].shape == (0,)
    monkeypatch.setattr(vision_figures, "head_statistics", lambda *_: found)
    with pytest.raises(ValueError, match="every token is important"):
        vision_figures.trained_heads(1, 0, epochs=1, limit=64, test=8, dim=8, layers=1, patch=4)


def arrays(columns):
    return {name: np.asarray(values) for name, values in columns.items()}


def test_students_of_figure_7_have_the_asked_ratio_and_learn():
    found = arrays(prompt_figures.softmax_student(2, 1, N=60, d=4, lr=0.3, steps=4000, log_ratio=1.0, newton_steps=50))
    np.testing.assert_allclose(found["teacher"], 1 / np.log(10), rtol=1e-9)
    assert (found["final"] < found["loss"][:, 0] / 10).all()
    assert np.isfinite(found["newton"]).all() and (found["khat"] > 0).all()


def test_linear_student_reaches_a_linear_teacher_but_not_a_softmax_one():
    common = {"N": 100, "d": 6, "sigma_p": 1.0, "lr": 0.1, "steps": 3000}
    own = arrays(prompt_figures.linear_student(2, 0, teacher="linear", **common))
    other = arrays(prompt_figures.linear_student(2, 0, teacher="softmax", **common))
    assert (own["final"] < 1e-6 * own["label"]).all()
    assert (other["final"] > 1e-2 * other["label"]).all()
    with pytest.raises(ValueError, match="teacher must be"):
        prompt_figures.linear_student(1, 0, teacher="hard", **common)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


class TestImages:
    def write(self, folder, count=6, labels=6, zipped=False):
        pixels = np.arange(count * 16, dtype=np.uint8).reshape(count, 4, 4)
        (folder / "train-images-idx3-ubyte").write_bytes(idx(pixels))
        content = idx(np.arange(labels, dtype=np.uint8))
        if zipped:
            (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
        else:
            (folder / "train-labels-idx1-ubyte").write_bytes(content)
        return pixels

    @pytest.mark.parametrize("zipped", [True, False])
    def test_mnist_files(self, tmp_path, zipped):
        pixels = self.write(tmp_path, zipped=zipped)
        found, labels, name = vision_model.load_images(tmp_path)
        np.testing.assert_allclose(found, pixels / 255, rtol=1e-6)  # float32
        assert labels.tolist() == list(range(6)) and name == "MNIST"
        assert len(vision_model.load_images(tmp_path, limit=2)[0]) == 2

    def test_environment_names_the_folder(self, tmp_path, monkeypatch):
        self.write(tmp_path)
        monkeypatch.setenv(vision_model.MNIST_VARIABLE, str(tmp_path))
        assert vision_model.load_images()[2] == "MNIST"
        monkeypatch.delenv(vision_model.MNIST_VARIABLE)
        assert vision_model.load_images(limit=3)[0].shape == (3, 8, 8)

    def test_bad_files(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
            vision_model.load_images(tmp_path)
        self.write(tmp_path, labels=5)
        with pytest.raises(ValueError, match="6 images but 5 labels"):
            vision_model.load_images(tmp_path)
        (tmp_path / "bad").write_bytes(b"text")
        with pytest.raises(ValueError, match="bad is not an idx file"):
            vision_model.read_idx(tmp_path / "bad")
        (tmp_path / "short").write_bytes(idx(np.zeros(4, dtype=np.uint8))[:-1])
        with pytest.raises(ValueError, match=r"announces \(4,\) entries but holds 3"):
            vision_model.read_idx(tmp_path / "short")


class TestText:
    def test_raw_file(self, tmp_path, monkeypatch):
        file = tmp_path / "wiki.train.raw"
        file.write_text(" = Heading = \n The cat sat .\n\n A dog ran .\n")
        words, name = text_figures.load_text(file)
        assert words == ["the", "cat", "sat", ".", "a", "dog", "ran", "."] and name == "wiki.train.raw"
        monkeypatch.setenv(text_figures.WIKITEXT_VARIABLE, str(tmp_path))  # the folder
        assert text_figures.load_text(words=2)[0] == ["the", "cat"]
        file.write_text(" = Heading = \n")
        with pytest.raises(ValueError, match="holds no words"):
            text_figures.load_text(file)

    def test_chunks(self):
        ids, has, size = text_figures.chunked(["a", "b", "a", "c", "the", "a"], 2, 2, "the")
        assert size == 4 and ids.shape == (3, 2) and has.tolist() == [0, 0, 1]
        assert ids[0, 0] == ids[1, 0] == ids[2, 1] == 1  # the most frequent word
        assert (ids == 0).any()  # words beyond the vocabulary
        with pytest.raises(ValueError, match="too few"):
            text_figures.chunked(["a"], 2, 2, "the")

    def test_generated_text_is_balanced_and_repeatable(self):
        assert (
            text_figures.generated_text(200, 1)
            == text_figures.generated_text(200, 1)
            != text_figures.generated_text(200, 2)
        )
        has = text_figures.chunked(text_figures.generated_text(20000), 16, 200, "the")[1]
        assert 0.3 < has.mean() < 0.7

    def test_unknown_task(self):
        sizes = {"steps": 1, "length": 4, "dim": 8, "words": 50, "vocabulary": 10}
        with pytest.raises(ValueError, match="task must be one of"):
            text_figures.text_training(1, 0, task="copy", optimizer="sgd", lr=0.1, **sizes)


def test_benchmark_of_the_spectrum():
    found = spectrum_speed(0, 6, 200, sample=2)["attsvm"]
    assert found["seconds"] > 0 and found["times as fast as eigvalsh"] > 0
    assert found["difference"] < 1e-10
    with pytest.raises(ValueError, match="sample must be between"):
        spectrum_speed(0, 3, 8, sample=4)


def test_training_w_moves_it_and_its_first_losses_are_those_of_a_frozen_one():
    outcome = outcome_of(prompt_figures.FIGURE_6, N=12, widths=(5,), steps=120)
    moved = column(outcome, 0, "|W - I|_F / sqrt(d)")
    assert [x > 0 for x in moved] == [False, True, False, True]
    runs = list(outcome.curves["runs"].values())
    np.testing.assert_allclose(runs[0]["loss"][:, 0], runs[1]["loss"][:, 0])
    check_picture(prompt_figures.FIGURE_6, outcome)


def test_maps_are_attention_over_the_patches():
    outcome = outcome_of(vision_figures.FIGURE_4, limit=64, epochs=1, patch=4, dim=8, layers=1)
    assert [abs(row[1].value - float(row[0])) < 0.01 for row in outcome.tables[0].rows] == [True, True]
    for name in ("1.3", "7"):
        attention = np.asarray(outcome.curves[name]["map"])
        assert attention.shape == (1, 4, 2, 2) and (attention >= 0).all() and (attention.sum(axis=(2, 3)) < 1).all()
    check_picture(vision_figures.FIGURE_4, outcome)


def test_the_final_layer_reports_heads_and_where_sampling_underestimates():
    outcome = outcome_of(vision_figures.FIGURE_8, limit=200, epochs=1, dim=16, layers=1, test=30)
    exact, sampled = (
        np.array(column(outcome, 0, f"rho_U {name}, median"), dtype=float) for name in ("exact", "sampled")
    )
    assert len(exact) == 4 and (np.isnan(exact) | (sampled <= exact * (1 + 1e-9))).all()
    check_picture(vision_figures.FIGURE_8, outcome)
