"""`--model NAME=PATH,kv=SHARE` and how the budget is divided."""

from __future__ import annotations

import click
import pytest

from duologue.cli.served_models import NamedModel, NamedModelType, kv_budgets


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("a=x.gguf", NamedModel("a", "x.gguf")),
        ("org/a:1=x=y.gguf", NamedModel("org/a:1", "x=y.gguf")),
        ("a=x,kv=0.25", NamedModel("a", "x", 0.25)),
        ("smollm2-135m", NamedModel("", "smollm2-135m")),
        ("a=x,y", NamedModel("a", "x,y")),
    ],
)
def test_spellings(text: str, model: NamedModel) -> None:
    assert NamedModelType().convert(text, None, None) == model


@pytest.mark.parametrize(
    "text", ["a=", "=x", " =x", "a b=x", "a=x,kv=0", "a=x,kv=2", "a=x,kv=nan", "a=x,kv=y"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(click.BadParameter):
        NamedModelType().convert(text, None, None)


def test_shares_of_the_budget() -> None:
    models = [NamedModel("a", "x", 0.5), NamedModel("b", "y"), NamedModel("c", "z")]
    assert kv_budgets(models, 1000) == [500, 250, 250]
    assert kv_budgets([NamedModel("", "x")], 1000) == [1000]
    for wrong, says in (
        ([NamedModel("a", "x"), NamedModel("a", "y")], "twice"),
        ([NamedModel("a", "x", 0.6), NamedModel("b", "y", 0.6)], "1.2"),
        ([NamedModel("a", "x", 1.0), NamedModel("b", "y")], "nothing for b"),
    ):
        with pytest.raises(click.UsageError, match=says):
            kv_budgets(wrong, 1000)
