"""Operations as the tests of bench.measure write them."""

from tests.bench.measure.conftest import records, report

__all__ = ["records", "report"]
