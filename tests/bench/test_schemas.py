"""The schemas beside the types are what the types say, and every key of every kind has its
sentence."""

import jsonschema
import pytest

from bench.generated import schemas
from bench.measure.section import schema_of
from bench.questions import ANSWERS

# `lockbench init` tells what they mean
OF_A_SCENARIO = ("Scenario", "Delay", "Skew", "Retry", "Pause", "Fault")


def without_sentence(node):
    """Properties that say nothing."""
    parts = [
        node,
        *(part for name, part in node.get("$defs", {}).items() if name not in OF_A_SCENARIO),
    ]
    return [
        name
        for part in parts
        for name, field in part.get("properties", {}).items()
        if not field.get("description")
    ]


def test_every_schema_beside_a_type_is_the_one_that_make_schemas_writes():
    for path, text in schemas():
        assert path.read_text("utf-8") == text, f"{path}: run make schemas"


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_key_of_a_result_has_a_sentence(kind):
    document = schema_of(ANSWERS[kind]().result_type, "urn:x")
    jsonschema.Draft202012Validator.check_schema(document)
    assert without_sentence(document) == []
