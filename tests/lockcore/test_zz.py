
import lockcore.engine


def test_it_is_compiled(): assert not lockcore.engine.__file__.endswith(".py"), lockcore.engine.__file__
